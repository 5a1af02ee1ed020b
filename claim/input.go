package claim

import (
	"maps"
	"slices"
	"strings"

	"tenure/claim/plan"
)

// A state is what a plan is made from: the settings, who is alive, and who owns
// what. The leader keeps one up to date; an [Admin] reads one.
type state struct {
	group    string
	settings settings
	names    []string                 // of the partitions, in the order of the settings
	members  map[string]*seen         // by worker
	claims   map[string]owner         // by partition
	present  *plan.Plan               // that is followed, nil if there is none of this layout
	absent   func(worker string) bool // whether a worker that is not there is waited for
	cooling  map[string]struct{}      // partitions that stay where they are for a while
}

// owner is a claim, without what only its owner needs.
type owner struct {
	worker      string // empty for nobody
	epoch       uint64
	token       uint64
	layout      uint64 // see record
	revision    uint64
	quarantined bool
	avoid       string // worker that has given it up
}

// input returns what the planner needs, with the workers in the order of their
// ids.
func (s *state) input() plan.Input {
	in := plan.Input{Group: s.group}
	policy := s.settings.policy()
	in.Policy = plan.Policy{Zones: plan.Zones(policy.Zones), Hysteresis: policy.Hysteresis, Rollout: policy.Rollout}
	index := make(map[string]int, len(s.members))
	someStay := false
	for _, worker := range slices.Sorted(maps.Keys(s.members)) {
		m := s.members[worker]
		if m.State == joining {
			continue
		}
		index[worker] = len(in.Workers)
		in.Workers = append(in.Workers, plan.Worker{
			ID: worker, Epoch: m.epoch, Capacity: m.Capacity, Weight: m.Weight, Zone: m.Zone, Build: m.Build,
			Cordoned: contains(s.settings.Cordoned, worker),
			Draining: m.State == draining || contains(s.settings.Drained, worker),
		})
		someStay = someStay || m.State != draining
	}
	if !someStay {
		in.Workers, index = nil, nil // everybody leaves: they give back what they have
	} else {
		s.addAbsent(&in, index)
	}
	closed := s.closed()
	in.Partitions = make([]plan.Partition, len(s.names))
	for i, name := range s.names {
		p := plan.Partition{Name: name, Owner: plan.None, Target: plan.None}
		o := s.claims[name]
		if o.worker == "" {
			p.Avoid = o.avoid
		}
		// A worker that came back under its id gets its own partitions back.
		if w, live := index[o.worker]; live {
			p.Owner = w
		}
		if s.present != nil && s.present.Assign[i] >= 0 {
			if w, live := index[s.present.Workers[s.present.Assign[i]].ID]; live {
				p.Target = w
			}
		}
		p.Pin, p.Weight = s.settings.Pins[name], s.settings.Weights[name]
		if m, ok := s.settings.Moves[name]; ok && (o.worker == "" || o.token <= m.Since) {
			p.Pin = m.Worker
		}
		p.Paused, p.Quarantined = contains(s.settings.Paused, name), o.quarantined
		_, p.Cooling = s.cooling[name]
		_, p.Waiting = closed[name]
		in.Partitions[i] = p
	}
	return in
}

// addAbsent adds the workers that are waited for and own something, under the
// epoch of the newest of their claims, and keeps the order of the ids.
func (s *state) addAbsent(in *plan.Input, index map[string]int) {
	epochs := make(map[string]uint64)
	for _, name := range s.names {
		o := s.claims[name]
		if _, there := index[o.worker]; there || o.worker == "" {
			continue
		}
		if s.members[o.worker] != nil || s.absent != nil && s.absent(o.worker) { // the first are joining
			epochs[o.worker] = max(epochs[o.worker], o.epoch)
		}
	}
	if len(epochs) == 0 {
		return
	}
	for worker, epoch := range epochs {
		in.Workers = append(in.Workers, plan.Worker{ID: worker, Epoch: epoch, Absent: true})
	}
	slices.SortFunc(in.Workers, func(a, b plan.Worker) int { return strings.Compare(a.ID, b.ID) })
	for i, w := range in.Workers {
		index[w.ID] = i
	}
}

func ownerOf(r record, revision uint64) owner {
	return owner{
		worker: r.Owner, epoch: r.Epoch, token: r.token(revision), layout: r.Layout, revision: revision,
		quarantined: r.Quarantined, avoid: r.Avoid,
	}
}
