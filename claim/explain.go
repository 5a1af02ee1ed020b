package claim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"tenure/claim/plan"
)

// An Explanation says where a partition is and why. Like a [Status] it may be late
// and proves nothing; times are by the clocks of the workers.
type Explanation struct {
	Group string `json:"group"`
	PartitionStatus
	Epoch    uint64    `json:"epoch,omitempty"`     // of the owner's session
	Next     string    `json:"next"`                // worker that a plan made now gives it to, empty for nobody
	Plan     string    `json:"plan"`                // why that plan does so
	Pin      string    `json:"pin,omitempty"`       // worker that it is pinned to
	WaitsFor string    `json:"waits_for,omitempty"` // a partition that has to be drained first
	Weight   int       `json:"weight"`
	Others   []Refusal `json:"others"`  // why it is not with them, by id
	History  []Past    `json:"history"` // earlier owners, the newest first
}

// A Refusal says why a partition is not with a worker.
type Refusal struct {
	Worker string `json:"worker"`
	Why    string `json:"why"`
}

// Past is an earlier owner of a partition.
type Past struct {
	Worker string    `json:"worker"`
	Token  uint64    `json:"token"`
	Since  time.Time `json:"since,omitzero"`
	Until  time.Time `json:"until,omitzero"`
	Why    string    `json:"why"` // why it got it
	End    string    `json:"end"` // one of the Ended…
}

// Explain says who owns a partition, since when and why, why no other worker has
// it, and who had it before, up to 8. It blocks until everything was read or ctx is
// done, at most 10 s.
func (a *Admin) Explain(ctx context.Context, partition string) (Explanation, error) {
	r, err := a.read(ctx, "explain")
	if err != nil {
		return Explanation{}, err
	}
	i := slices.Index(r.names, partition)
	if i < 0 {
		return Explanation{}, fmt.Errorf("claim: explain: %w", &AdminError{Group: a.group, What: "partition", Have: describe(r.set), Want: strconv.Quote(partition), Err: ErrPartition})
	}
	st := r.state()
	in := st.input()
	result := plan.Make(in)
	claim := r.claims[partition]
	x := Explanation{
		Group: a.group, Pin: r.set.Pins[partition], WaitsFor: st.closed()[partition], Weight: max(1, r.set.Weights[partition]),
		Plan: result.Reason[i].String(), History: []Past{},
	}
	x.PartitionStatus, _ = r.partition(r.followed(), i, partition)
	if w := result.Assign[i]; w >= 0 {
		x.Next = in.Workers[w].ID
	}
	if x.Worker != "" {
		x.Epoch = claim.Epoch
	} else {
		x.Why = x.Plan
	}
	x.Others = refusals(&in, &result, i, x.Worker, r)
	if claim.Owner != "" && x.Worker == "" {
		x.History = append(x.History, Past{Worker: claim.Owner, Token: claim.token(claim.revision), Since: millis(claim.At), Why: claim.Why.String(), End: EndedDied})
	}
	for _, p := range slices.Backward(claim.Log) {
		x.History = append(x.History, Past{Worker: p.Owner, Token: p.Token, Since: millis(p.At), Until: millis(p.Until), Why: p.Why.String(), End: p.End})
	}
	return x, nil
}

func millis(at int64) time.Time {
	if at == 0 {
		return time.Time{}
	}
	return time.UnixMilli(at)
}

// refusals says of each worker but the owner why partition i is not there.
func refusals(in *plan.Input, result *plan.Result, i int, owner string, r *reader) []Refusal {
	load, count := make([]int, len(in.Workers)), make([]int, len(in.Workers))
	newest := uint64(0)
	for j, w := range result.Assign {
		if w >= 0 {
			load[w] += max(1, in.Partitions[j].Weight)
			count[w]++
		}
	}
	for _, w := range in.Workers {
		newest = max(newest, w.Build)
	}
	p := in.Partitions[i]
	list := []Refusal{}
	for w, worker := range in.Workers {
		if worker.ID == owner || worker.Absent {
			continue
		}
		var why string
		switch {
		case result.Assign[i] == w:
			why = "it is on its way there"
		case result.Assign[i] < 0 && result.Reason[i] != plan.NoRoom && result.Reason[i] != plan.NoWorker:
			why = result.Reason[i].String()
		case result.Reason[i] == plan.Pinned:
			why = fmt.Sprintf("pinned to %q", p.Pin)
		case result.Reason[i] == plan.Cooling:
			why = result.Reason[i].String()
		case worker.Absent:
			why = "it has gone and is expected back"
		case r.members[worker.ID].State == draining:
			why = "it leaves"
		case worker.Draining:
			why = "it is drained by an operator"
		case worker.Cordoned:
			why = "it is cordoned: it gets nothing new"
		case worker.Capacity > 0 && count[w] >= worker.Capacity:
			why = fmt.Sprintf("it is full: it takes %d partitions", worker.Capacity)
		case in.Policy.Rollout && worker.Build < newest:
			why = fmt.Sprintf("a rollout is on and its build %d is older than %d", worker.Build, newest)
		case result.Assign[i] >= 0:
			at := result.Assign[i]
			why = fmt.Sprintf("it would level nothing: load %d of weight %d there, %d of %d at %q", load[w], max(1, worker.Weight), load[at], max(1, in.Workers[at].Weight), in.Workers[at].ID)
		default:
			why = result.Reason[i].String()
		}
		list = append(list, Refusal{Worker: worker.ID, Why: why})
	}
	for id, m := range r.members {
		if m.State == joining {
			list = append(list, Refusal{Worker: id, Why: "it is not ready yet"})
		}
	}
	slices.SortFunc(list, func(a, b Refusal) int { return strings.Compare(a.Worker, b.Worker) })
	return list
}

// WhatIf is a change of a group's workers that might be made.
type WhatIf struct {
	Add    []string // ids of workers that join, of weight 1, without limit or zone
	Remove []string // ids of workers that leave
}

// A Preview is what would become of a group.
type Preview struct {
	Group   string          `json:"group"`
	Moves   []PlannedMove   `json:"moves"`   // in the order of the partitions
	Workers []PlannedWorker `json:"workers"` // by id
}

// A PlannedMove is a partition that would change its worker.
type PlannedMove struct {
	Partition string `json:"partition"`
	From      string `json:"from"` // empty for nobody
	To        string `json:"to"`   // empty for nobody
	Why       string `json:"why"`
}

// A PlannedWorker says what a worker has now and would have.
type PlannedWorker struct {
	ID     string `json:"id"`
	Before int    `json:"before"`
	After  int    `json:"after"`
}

// Plan returns what a plan would be with other workers, and moves nothing. It
// includes what is under way, and leaves out the budget of moves, which delays them
// only. It blocks until everything was read or ctx is done, at most 10 s.
//
// A worker to add that is there, or to remove that is not, is [ErrWorker].
func (a *Admin) Plan(ctx context.Context, change WhatIf) (Preview, error) {
	r, err := a.read(ctx, "plan")
	if err != nil {
		return Preview{}, err
	}
	st := r.state()
	known := fmt.Sprintf("%q", slices.Sorted(maps.Keys(r.members)))
	refuse := func(what, id string) (Preview, error) {
		return Preview{}, fmt.Errorf("claim: plan: %w", &AdminError{Group: a.group, What: what, Have: known, Want: strconv.Quote(id), Err: ErrWorker})
	}
	p := Preview{Group: a.group, Moves: []PlannedMove{}, Workers: []PlannedWorker{}}
	for _, id := range change.Remove {
		if st.members[id] == nil {
			return refuse("worker to remove", id)
		}
	}
	before := make(map[string]int)
	owners := make([]string, len(r.names))
	for i, name := range r.names {
		if c := r.claims[name]; r.alive(c) {
			owners[i] = c.Owner
			before[c.Owner]++
		}
	}
	for _, id := range change.Remove {
		delete(st.members, id)
		if _, ok := before[id]; !ok {
			before[id] = 0
		}
	}
	for _, id := range change.Add {
		if st.members[id] != nil || slices.Contains(change.Remove, id) {
			return refuse("worker to add, which must be another", id)
		}
		st.members[id] = &seen{member: member{State: ready, Weight: 1}}
	}
	in := st.input()
	result := plan.Make(in)
	after := make(map[string]int)
	for i, name := range r.names {
		to := ""
		if w := result.Assign[i]; w >= 0 {
			to = in.Workers[w].ID
			after[to]++
		}
		if to != owners[i] {
			p.Moves = append(p.Moves, PlannedMove{Partition: name, From: owners[i], To: to, Why: result.Reason[i].String()})
		}
	}
	for _, w := range in.Workers {
		if _, ok := before[w.ID]; !ok {
			before[w.ID] = 0
		}
	}
	for _, id := range slices.Sorted(maps.Keys(before)) {
		p.Workers = append(p.Workers, PlannedWorker{ID: id, Before: before[id], After: after[id]})
	}
	return p, nil
}

// read reads all there is of the group.
func (a *Admin) read(ctx context.Context, what string) (*reader, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := readGroup(ctx, a.bucket, a.group, a.g)
	if err != nil {
		return nil, fmt.Errorf("claim: %s: %w", what, err)
	}
	return r, nil
}
