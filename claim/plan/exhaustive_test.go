package plan_test

import (
	"testing"

	"pgregory.net/rapid"

	"tenure/claim/plan"
)

// tiny draws a group that is small enough to try every assignment.
func tiny(t *rapid.T) plan.Input {
	in := plain(t)
	in.Workers = in.Workers[:min(3, len(in.Workers))]
	in.Partitions = in.Partitions[:min(6, len(in.Partitions))]
	for i := range in.Workers {
		w := &in.Workers[i]
		w.Weight = rapid.IntRange(1, 5).Draw(t, "weight")
		w.Cordoned, w.Draining = rarely(t, "cordoned"), rarely(t, "draining")
		if !w.Cordoned && rarely(t, "small") {
			w.Capacity = rapid.IntRange(1, 4).Draw(t, "capacity")
		}
	}
	for i := range in.Partitions {
		p := &in.Partitions[i]
		p.Owner = min(p.Owner, len(in.Workers)-1)
		p.Paused, p.Cooling = rarely(t, "paused"), rarely(t, "cooling")
		if rarely(t, "pinned") && !p.Cooling {
			if w := rapid.IntRange(0, 2).Draw(t, "pin"); w < len(in.Workers) && in.Workers[w].Capacity == 0 {
				p.Pin = in.Workers[w].ID
			}
		}
	}
	return in
}

// allowed reports whether the rules let partition i be at worker w, or nowhere.
func allowed(in plan.Input, i, w int) bool {
	p := in.Partitions[i]
	if w == plan.None {
		return true
	}
	switch worker := in.Workers[w]; {
	case p.Paused:
		return false
	case p.Cooling && p.Owner != plan.None:
		return w == p.Owner
	case worker.Draining:
		return false
	}
	for v, worker := range in.Workers {
		if worker.ID == p.Pin && !worker.Draining {
			return w == v
		}
	}
	if owner := p.Owner; owner != plan.None && in.Workers[owner].Cordoned && !in.Workers[owner].Draining {
		return w == owner
	}
	return !in.Workers[w].Cordoned
}

// A score orders assignments: fewer is better, the first difference decides.
type score struct{ unassigned, cost, moves int }

func (s score) better(o score) bool {
	if s.unassigned != o.unassigned {
		return s.unassigned < o.unassigned
	}
	if s.cost != o.cost {
		return s.cost < o.cost
	}
	return s.moves < o.moves
}

func rate(in plan.Input, assign []int) score {
	load, _ := sums(in, assign)
	var s score
	for i, w := range assign {
		switch owner := in.Partitions[i].Owner; {
		case w == plan.None:
			s.unassigned++
		case owner != plan.None && owner != w:
			s.moves++
		}
	}
	for w := range load {
		if in.Workers[w].Draining || in.Workers[w].Cordoned {
			load[w] = 0 // what is there stays there in every plan
		}
	}
	s.cost = cost(in, load)
	return s
}

// C12, C16: compared with every assignment that the rules allow.
func TestNoAssignmentIsBetter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := tiny(t)
		r := plan.Make(in)
		for i, reason := range r.Reason {
			if reason == plan.DrainWaits {
				r.Assign[i] = plan.None
			}
		}
		got := rate(in, r.Assign)

		assign := make([]int, len(in.Partitions))
		count := make([]int, len(in.Workers)) // with those that cool, from the start
		cools := func(p plan.Partition) bool { return p.Cooling && p.Owner != plan.None && !p.Paused }
		for _, p := range in.Partitions {
			if cools(p) {
				count[p.Owner]++
			}
		}
		var try func(i int)
		try = func(i int) {
			if i == len(assign) {
				s := rate(in, assign)
				if s.unassigned > 0 && got.unassigned == s.unassigned {
					s.moves = got.moves // who is left out has a rule of its own
				}
				if s.better(got) {
					t.Fatalf("Assign = %v, %+v, but %v is %+v", r.Assign, got, assign, s)
				}
				return
			}
			for w := plan.None; w < len(in.Workers); w++ {
				if !allowed(in, i, w) {
					continue
				}
				assign[i] = w
				if w == plan.None || cools(in.Partitions[i]) {
					try(i + 1)
					continue
				}
				if c := in.Workers[w].Capacity; c > 0 && count[w] >= c {
					continue
				}
				count[w]++
				try(i + 1)
				count[w]--
			}
		}
		try(0)
	})
}
