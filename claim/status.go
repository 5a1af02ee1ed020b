package claim

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"tenure/claim/plan"
	"tenure/kvlock/bucket"
)

// States of a partition.
const (
	StateRunning     = "running"     // owned, and the plan leaves it there
	StateDraining    = "draining"    // owned by a worker that leaves
	StateMoving      = "moving"      // owned, and the plan gives it to another
	StateOrphan      = "orphan"      // its owner has ended; nobody has taken it yet
	StatePaused      = "paused"      // assigned to nobody on purpose
	StateQuarantined = "quarantined" // assigned to nobody: it failed too often
	StateUnassigned  = "unassigned"  // nobody's
)

// Status is what the bucket says of a group at one moment. It is for people and
// dashboards: it may be late and is no proof of anything.
type Status struct {
	Group      string            `json:"group"`
	Partitions []PartitionStatus `json:"partitions"` // in the order of the settings
	Workers    []WorkerStatus    `json:"workers"`    // by id
	Unassigned int               `json:"unassigned"` // partitions that no live worker owns
	Plan       PlanStatus        `json:"plan"`
}

// PartitionStatus says who owns a partition.
type PartitionStatus struct {
	Name     string `json:"name"`
	Worker   string `json:"worker"` // empty if nobody owns it
	Token    uint64 `json:"token"`  // 0 if nobody owns it
	State    string `json:"state"`  // one of the States
	Attempts int    `json:"attempts"`
}

// WorkerStatus says what a live worker has.
type WorkerStatus struct {
	ID         string `json:"id"`
	Epoch      uint64 `json:"epoch"`
	Partitions int    `json:"partitions"` // that it owns
	Leader     bool   `json:"leader"`
	Draining   bool   `json:"draining"`
}

// PlanStatus says which plan is followed and how many partitions are still on
// their way to where it wants them.
type PlanStatus struct {
	Revision uint64 `json:"revision"` // 0 if there is no plan yet
	Moving   int    `json:"moving"`
}

// ReadStatus returns the status of a group without being a worker of it. It
// blocks until everything was read or ctx is done, at most 5 s. A group that
// does not exist is [ErrGroup].
func ReadStatus(ctx context.Context, b *bucket.Bucket, group string) (Status, error) {
	g, err := bucket.EncodeName(group)
	if err != nil {
		return Status{}, fmt.Errorf("claim: group %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	entries, err := b.Snapshot(ctx, memberKey(g, "*"), claimKey(g, "*"), planKey(g), groupKey(g))
	if err != nil {
		return Status{}, fmt.Errorf("claim: status of %q: %w", group, err)
	}
	r := statusReader{group: group, members: make(map[string]seen), claims: make(map[string]claimed)}
	for _, e := range entries {
		r.take(e)
	}
	if len(r.names) == 0 {
		return Status{}, fmt.Errorf("claim: group %q: %w: it does not exist", group, ErrGroup)
	}
	return r.status(), nil
}

type statusReader struct {
	group    string
	names    []string
	setRev   uint64
	members  map[string]seen
	claims   map[string]claimed
	plan     *plan.Plan
	planRev  uint64
	smallest uint64 // epoch of a ready session
}

type claimed struct {
	record
	revision uint64
}

// take sorts one entry in. What cannot be read is left out.
func (r *statusReader) take(e bucket.Entry) {
	if e.Marker {
		return
	}
	kind, rest, _ := strings.Cut(e.Key, ".")
	name, err := bucket.DecodeName(rest[strings.IndexByte(rest, '.')+1:])
	if err != nil {
		return
	}
	switch kind {
	case "member":
		if m, err := parseMember(e); err == nil && m.session() {
			epoch := m.epoch(e.Revision)
			r.members[name] = seen{member: m, epoch: epoch}
			if m.State != joining && (r.smallest == 0 || epoch < r.smallest) {
				r.smallest = epoch
			}
		}
	case "claim":
		if rec, err := parseRecord(e); err == nil {
			r.claims[name] = claimed{rec, e.Revision}
		}
	case "group":
		if s, err := parseSettings(e); err == nil {
			r.names, r.setRev = s.partitions(), e.Revision
		}
	case "plan":
		if p, err := plan.Parse(e.Value); err == nil {
			r.plan, r.planRev = p, e.Revision
		}
	}
}

func (r *statusReader) status() Status {
	s := Status{Group: r.group, Partitions: make([]PartitionStatus, len(r.names)), Workers: []WorkerStatus{}, Plan: PlanStatus{Revision: r.planRev}}
	follow := r.plan != nil && r.plan.Settings == r.setRev && len(r.plan.Assign) == len(r.names)
	owned := make(map[string]int)
	for i, name := range r.names {
		p := PartitionStatus{Name: name, State: StateUnassigned}
		claim := r.claims[name]
		member, alive := r.members[claim.Owner]
		alive = alive && member.epoch == claim.Epoch
		target, why := "", plan.Kept
		if follow {
			why = r.plan.Why[i]
			if w := r.plan.Assign[i]; w >= 0 {
				target = r.plan.Workers[w].ID
			}
		}
		p.Attempts = claim.Attempts
		switch {
		case alive:
			p.Worker, p.Token, p.State = claim.Owner, claim.token(claim.revision), StateRunning
			owned[claim.Owner]++
			switch {
			case member.State == draining:
				p.State = StateDraining
			case follow && target != claim.Owner:
				p.State = StateMoving
			}
		case claim.Owner != "":
			p.State = StateOrphan
		case follow && why == plan.Paused:
			p.State = StatePaused
		case follow && why == plan.Quarantined:
			p.State = StateQuarantined
		}
		if !alive {
			s.Unassigned++
		}
		if follow && target != p.Worker {
			s.Plan.Moving++
		}
		s.Partitions[i] = p
	}
	for id, m := range r.members {
		s.Workers = append(s.Workers, WorkerStatus{
			ID: id, Epoch: m.epoch, Partitions: owned[id], Leader: m.epoch == r.smallest, Draining: m.State == draining,
		})
	}
	slices.SortFunc(s.Workers, func(a, b WorkerStatus) int { return cmp.Compare(a.ID, b.ID) })
	return s
}
