package claim

import (
	"cmp"
	"context"
	"errors"
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
	StateStalled     = "stalled"     // the same, and its handler makes no progress
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
	Moves      []Move            `json:"moves"` // the last changes of owners that are known, the newest first, up to 20
}

// PartitionStatus says who owns a partition.
type PartitionStatus struct {
	Name     string    `json:"name"`
	Worker   string    `json:"worker"`          // empty if nobody owns it
	Token    uint64    `json:"token"`           // 0 if nobody owns it
	State    string    `json:"state"`           // one of the States
	Attempts int       `json:"attempts"`        // failures in a row
	Error    string    `json:"error,omitempty"` // the last of them
	Since    time.Time `json:"since,omitzero"`  // when the owner got it, by the clock of a worker
	Why      string    `json:"why,omitempty"`   // why the owner has it; why the plan gives it to nobody
}

// A Move is a change of the owner of a partition.
type Move struct {
	Partition string    `json:"partition"`
	From      string    `json:"from"`            // worker that had it, empty if nobody did
	To        string    `json:"to"`              // worker that got it, empty for nobody
	Token     uint64    `json:"token,omitempty"` // of the new owner
	At        time.Time `json:"at"`              // by the clock of a worker
	Why       string    `json:"why"`             // why the new owner got it, or how it ended for the old one
}

// WorkerStatus says what a live worker has.
type WorkerStatus struct {
	ID         string `json:"id"`
	Epoch      uint64 `json:"epoch"`
	Partitions int    `json:"partitions"` // that it owns
	Leader     bool   `json:"leader"`
	Draining   bool   `json:"draining"` // it leaves, or is drained by an operator
	Cordoned   bool   `json:"cordoned"`

	Zone     string `json:"zone,omitempty"`
	Weight   int    `json:"weight,omitempty"`
	Capacity int    `json:"capacity,omitempty"`
	Build    uint64 `json:"build,omitempty"`
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
	r, err := readGroup(ctx, b, group, g)
	if errors.Is(err, ErrGroup) {
		return Status{}, fmt.Errorf("claim: %w", err)
	}
	if err != nil {
		return Status{}, fmt.Errorf("claim: status of %q: %w", group, err)
	}
	return r.status(), nil
}

// readGroup reads all there is of a group, encoded as g. An entry that is
// overwritten while the others are read may be missing; that of the settings is
// read again then.
func readGroup(ctx context.Context, b *bucket.Bucket, group, g string) (*reader, error) {
	entries, err := b.Snapshot(ctx, filters(g)...)
	if err != nil {
		return nil, err
	}
	r := newReader(group)
	for _, e := range entries {
		r.take(e)
	}
	if r.setRev == 0 && r.bad == nil {
		if e, err := b.Get(ctx, groupKey(g)); err == nil {
			r.take(e)
		} else if !errors.Is(err, bucket.ErrNotFound) {
			return nil, err
		}
	}
	switch {
	case r.bad != nil:
		return nil, fmt.Errorf("group %q: %w", group, r.bad)
	case len(r.names) == 0:
		return nil, fmt.Errorf("group %q: %w: it does not exist", group, ErrGroup)
	}
	return r, nil
}

func filters(g string) []string {
	return []string{memberKey(g, "*"), claimKey(g, "*"), planKey(g), groupKey(g)}
}

// A reader takes in the entries of a group.
type reader struct {
	group   string
	set     settings
	setRev  uint64 // its revision
	bad     error  // why settings could not be read
	names   []string
	members map[string]*seen
	claims  map[string]claimed
	plan    *plan.Plan
	planRev uint64
}

type claimed struct {
	record
	revision uint64
}

func newReader(group string) *reader {
	return &reader{group: group, members: make(map[string]*seen), claims: make(map[string]claimed)}
}

// take sorts one entry in. What cannot be read is left out.
func (r *reader) take(e bucket.Entry) {
	kind, rest, _ := strings.Cut(e.Key, ".")
	name, err := bucket.DecodeName(rest[strings.IndexByte(rest, '.')+1:])
	if err != nil {
		return
	}
	switch kind {
	case "member":
		delete(r.members, name)
		if m, err := parseMember(e); err == nil && m.session() {
			r.members[name] = &seen{member: m, epoch: m.epoch(e.Revision), at: e.Time, beat: time.Now()}
		}
	case "claim":
		delete(r.claims, name)
		if rec, err := parseRecord(e); err == nil {
			r.claims[name] = claimed{rec, e.Revision}
		}
	case "group":
		if e.Marker {
			r.names = nil
			return
		}
		var s settings
		if s, r.bad = parseSettings(e); r.bad == nil {
			if s.Layout != r.set.Layout {
				r.names = s.partitions()
			}
			r.set, r.setRev = s, e.Revision
		}
	case "plan":
		if p, err := plan.Parse(e.Value); err == nil {
			r.plan, r.planRev = p, e.Revision
		}
	}
}

// alive reports whether the owner of a claim has a session, as far as was read.
func (r *reader) alive(c claimed) bool {
	m := r.members[c.Owner]
	return m != nil && m.epoch == c.Epoch
}

// followed returns the plan if it is one of the present layout.
func (r *reader) followed() *plan.Plan {
	if r.plan != nil && r.plan.Settings == r.set.Layout && len(r.plan.Assign) == len(r.names) {
		return r.plan
	}
	return nil
}

// leader returns the smallest epoch of a session that may lead.
func (r *reader) leader() (epoch uint64) {
	for _, m := range r.members {
		if m.State != joining && (epoch == 0 || m.epoch < epoch) {
			epoch = m.epoch
		}
	}
	return epoch
}

func (r *reader) status() Status {
	s := Status{Group: r.group, Partitions: make([]PartitionStatus, len(r.names)), Workers: []WorkerStatus{}, Plan: PlanStatus{Revision: r.planRev}}
	owned := make(map[string]int)
	p := r.followed()
	for i, name := range r.names {
		one, target := r.partition(p, i, name)
		if one.Worker == "" {
			s.Unassigned++
		} else {
			owned[one.Worker]++
		}
		if p != nil && target != one.Worker {
			s.Plan.Moving++
		}
		s.Partitions[i] = one
	}
	s.Moves = r.moves()
	leader := r.leader()
	for id, m := range r.members {
		s.Workers = append(s.Workers, WorkerStatus{
			ID: id, Epoch: m.epoch, Partitions: owned[id], Leader: m.epoch == leader,
			Draining: m.State == draining || contains(r.set.Drained, id), Cordoned: contains(r.set.Cordoned, id),
			Zone: m.Zone, Weight: m.Weight, Capacity: m.Capacity, Build: m.Build,
		})
	}
	slices.SortFunc(s.Workers, func(a, b WorkerStatus) int { return cmp.Compare(a.ID, b.ID) })
	return s
}

// partition returns the status of one partition, and the worker that the plan
// gives it to.
func (r *reader) partition(p *plan.Plan, i int, name string) (s PartitionStatus, target string) {
	claim := r.claims[name]
	s = PartitionStatus{Name: name, State: StateUnassigned, Attempts: claim.Attempts, Error: claim.Error}
	switch {
	case p != nil && p.Assign[i] >= 0:
		target = p.Workers[p.Assign[i]].ID
	case p != nil:
		s.Why = p.Why[i].String()
	}
	switch {
	case r.alive(claim):
		s.Worker, s.Token, s.State = claim.Owner, claim.token(claim.revision), StateRunning
		s.Since, s.Why = millis(claim.At), claim.Why.String()
		switch {
		case r.members[claim.Owner].State == draining, contains(r.set.Drained, claim.Owner) && target != claim.Owner:
			s.State = StateDraining
		case p != nil && target == "":
			s.State = StateDraining
		case p != nil && target != claim.Owner:
			s.State = StateMoving
		case claim.Stalled:
			s.State = StateStalled
		}
	case contains(r.set.Paused, name):
		s.State = StatePaused
	case claim.Quarantined:
		s.State = StateQuarantined
	case claim.Owner != "":
		s.State = StateOrphan
	}
	return s, target
}
