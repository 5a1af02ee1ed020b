package plan_test

import (
	"cmp"
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"tenure/claim/plan"
)

// group draws any input: every feature, owners and targets that may be nobody.
func group(t *rapid.T) plan.Input {
	in := plain(t)
	for i := range in.Workers {
		w := &in.Workers[i]
		w.Zone = rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "zone")
		w.Build = rapid.Uint64Range(0, 2).Draw(t, "build")
		w.Cordoned = rarely(t, "cordoned")
		w.Draining = rarely(t, "draining")
		if rarely(t, "small") {
			w.Capacity = rapid.IntRange(1, 6).Draw(t, "capacity")
		}
	}
	if rapid.Bool().Draw(t, "worker weights") {
		for i := range in.Workers {
			in.Workers[i].Weight = rapid.IntRange(0, 5).Draw(t, "weight")
		}
	}
	if rapid.Bool().Draw(t, "partition weights") {
		for i := range in.Partitions {
			in.Partitions[i].Weight = rapid.IntRange(0, 70).Draw(t, "weight")
		}
	}
	for i := range in.Partitions {
		p := &in.Partitions[i]
		p.Paused = rarely(t, "paused")
		p.Quarantined = rarely(t, "quarantined")
		p.Cooling = rarely(t, "cooling")
		if rarely(t, "moving") {
			p.Target = rapid.IntRange(-1, len(in.Workers)).Draw(t, "target")
		}
		if rarely(t, "pinned") {
			p.Pin = fmt.Sprint("w", rapid.IntRange(0, len(in.Workers)).Draw(t, "pin"))
		}
	}
	in.Policy = plan.Policy{
		Zones:      rapid.SampledFrom([]plan.Zones{"", plan.ZonesSpread, plan.ZonesStay}).Draw(t, "zones"),
		Hysteresis: rapid.IntRange(0, 3).Draw(t, "hysteresis"),
		Rollout:    rarely(t, "rollout"),
	}
	return in
}

// plain draws a group without constraints.
func plain(t *rapid.T) plan.Input {
	in := plan.Input{Group: rapid.StringN(0, 4, -1).Draw(t, "group")}
	workers := rapid.IntRange(0, 8).Draw(t, "workers")
	for i := range workers {
		in.Workers = append(in.Workers, plan.Worker{ID: fmt.Sprint("w", i), Epoch: uint64(i)})
	}
	skew := rapid.IntRange(0, 3).Draw(t, "skew") // some workers have much more
	for i := range rapid.IntRange(0, 40).Draw(t, "partitions") {
		owner := rapid.IntRange(-1, workers).Draw(t, "owner")
		for range skew {
			owner = min(owner, rapid.IntRange(-1, workers).Draw(t, "owner"))
		}
		in.Partitions = append(in.Partitions, plan.Partition{Name: fmt.Sprint(i), Owner: owner, Target: plan.None})
	}
	return in
}

func rarely(t *rapid.T, label string) bool { return rapid.IntRange(0, 7).Draw(t, label) == 7 }

func weight(w, most int) int { return min(max(w, 1), most) }

// sums returns each worker's load and number of partitions.
func sums(in plan.Input, assign []int) (load, count []int) {
	load, count = make([]int, len(in.Workers)), make([]int, len(in.Workers))
	for i, w := range assign {
		if w >= 0 && w < len(in.Workers) {
			load[w] += weight(in.Partitions[i].Weight, plan.MaxPartitionWeight)
			count[w]++
		}
	}
	return load, count
}

// C11
func TestOrderOfTheInputDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := group(t)
		in.Policy.MaxMoves = rapid.IntRange(0, 4).Draw(t, "max moves")
		r := plan.Make(in)

		rng := rand.New(rand.NewSource(rapid.Int64().Draw(t, "shuffle")))
		parts, workers := rng.Perm(len(in.Partitions)), rng.Perm(len(in.Workers))
		at := func(w int) int { // the new index of a worker
			if w < 0 || w >= len(workers) {
				return w
			}
			return workers[w]
		}
		other := in
		other.Partitions = make([]plan.Partition, len(parts))
		other.Workers = make([]plan.Worker, len(workers))
		for i, w := range in.Workers {
			other.Workers[workers[i]] = w
		}
		for i, p := range in.Partitions {
			p.Owner, p.Target = at(p.Owner), at(p.Target)
			other.Partitions[parts[i]] = p
		}
		s := plan.Make(other)
		for i := range in.Partitions {
			j := parts[i]
			if at(r.Assign[i]) != s.Assign[j] || r.Reason[i] != s.Reason[j] {
				t.Fatalf("partition %s: %d, %v; shuffled %d, %v", in.Partitions[i].Name,
					at(r.Assign[i]), r.Reason[i], s.Assign[j], s.Reason[j])
			}
		}
		if r.Moves != s.Moves || r.More != s.More {
			t.Fatalf("Moves, More = %d, %v; shuffled %d, %v", r.Moves, r.More, s.Moves, s.More)
		}
	})
}

// C11, N70
func TestPlanningTheResultAgainChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := group(t)
		for i := range in.Workers {
			in.Workers[i].Absent = rarely(t, "absent")
		}
		r := plan.Make(in)
		if again := plan.Make(follow(in, r)); !slices.Equal(again.Assign, r.Assign) {
			t.Fatalf("Assign = %v after the moves, want %v", again.Assign, r.Assign)
		}
		for i, w := range r.Assign { // the same while the moves are under way
			in.Partitions[i].Target = w
		}
		if again := plan.Make(in); !slices.Equal(again.Assign, r.Assign) {
			t.Fatalf("Assign = %v during the moves, want %v", again.Assign, r.Assign)
		}
	})
}

// C16, C17
func TestLimitsAreHonoured(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := group(t)
		in.Policy.MaxMoves = rapid.IntRange(0, 4).Draw(t, "max moves")
		r := plan.Make(in)
		_, count := sums(in, r.Assign)
		cooling := make([]int, len(in.Workers))
		room, taker := false, false
		for i, reason := range r.Reason {
			if reason == plan.Cooling {
				cooling[r.Assign[i]]++
			}
		}
		for w, worker := range in.Workers {
			if c := worker.Capacity; c > 0 && !worker.Draining && count[w] > max(c, cooling[w]) {
				t.Errorf("worker %s has %d partitions, want at most %d", worker.ID, count[w], c)
			}
			if !worker.Cordoned && !worker.Draining {
				taker = true
				room = room || worker.Capacity == 0 || count[w] < worker.Capacity
			}
		}
		moves := 0
		for i, p := range in.Partitions {
			w, reason := r.Assign[i], r.Reason[i]
			owned := p.Owner >= 0 && p.Owner < len(in.Workers)
			stays := owned && w == p.Owner
			off := p.Paused || p.Quarantined
			if owned && w != plan.None && !stays {
				moves++
			}
			if w == plan.None {
				if ok := map[plan.Reason]bool{
					plan.Paused: p.Paused, plan.Quarantined: p.Quarantined,
					plan.NoRoom: !off && taker && !room, plan.NoWorker: !off && !taker,
				}[reason]; !ok {
					t.Errorf("partition %s is unassigned: %v, room %v, taker %v", p.Name, reason, room, taker)
				}
				continue
			}
			if off {
				t.Errorf("partition %s is assigned, want it paused or quarantined", p.Name)
			}
			if w < 0 || w >= len(in.Workers) {
				t.Fatalf("partition %s: worker %d of %d", p.Name, w, len(in.Workers))
			}
			if worker := in.Workers[w]; worker.Cordoned && !stays && reason != plan.Pinned {
				t.Errorf("partition %s goes to the cordoned %s", p.Name, worker.ID)
			} else if worker.Draining && !(stays && (reason == plan.Cooling || reason == plan.DrainWaits && !room)) {
				t.Errorf("partition %s is with the draining %s: %v, room %v", p.Name, worker.ID, reason, room)
			}
			if p.Cooling && owned && !stays {
				t.Errorf("partition %s moves, want it to cool", p.Name)
			}
			if pin := slices.IndexFunc(in.Workers, func(w plan.Worker) bool { return w.ID == p.Pin }); pin >= 0 &&
				w != pin && !in.Workers[pin].Draining && reason != plan.Cooling {
				if c := in.Workers[pin].Capacity; reason != plan.PinFull && reason != plan.DrainWaits || c == 0 || count[pin] < c {
					t.Errorf("partition %s is at %d, want it pinned to %d: %v", p.Name, w, pin, reason)
				}
			}
		}
		if moves != r.Moves {
			t.Errorf("Moves = %d, want %d", r.Moves, moves)
		}
	})
}

// C21, C22
func TestWhatAnAbsentWorkerOwnsStaysAndNothingElseGoesThere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := group(t)
		for i := range in.Workers {
			in.Workers[i].Absent = rapid.Bool().Draw(t, "absent")
		}
		r := plan.Make(in)
		for i, p := range in.Partitions {
			owned := p.Owner >= 0 && p.Owner < len(in.Workers)
			off := p.Paused || p.Quarantined
			if w := r.Assign[i]; w >= 0 && in.Workers[w].Absent && w != p.Owner {
				t.Errorf("partition %s goes to the absent %s: %v", p.Name, in.Workers[w].ID, r.Reason[i])
			}
			if owned && in.Workers[p.Owner].Absent && !off && (r.Assign[i] != p.Owner || r.Reason[i] != plan.Awaited) {
				t.Errorf("partition %s of the absent worker %d is at %d: %v", p.Name, p.Owner, r.Assign[i], r.Reason[i])
			}
			if r.Reason[i] == plan.Awaited && !in.Workers[r.Assign[i]].Absent {
				t.Errorf("partition %s is at the present worker %d: %v", p.Name, r.Assign[i], r.Reason[i])
			}
		}
	})
}

// C12: any joins, leaves and crashes at once.
func TestLoadsAreWithinOneForTheFewestMoves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := plain(t)
		live := 0
		for i := range in.Workers {
			in.Workers[i].Draining = rarely(t, "draining")
			if !in.Workers[i].Draining {
				live++
			}
		}
		if live == 0 {
			t.Skip("nobody to plan for")
		}
		r := plan.Make(in)

		// The fewest moves: who has most may stay one above the floor, everybody
		// gives what is above that; what drains moves anyway.
		owned, want := []int{}, 0
		before := make([]int, len(in.Partitions))
		for i, p := range in.Partitions {
			before[i] = p.Owner
		}
		_, had := sums(in, before)
		_, got := sums(in, r.Assign)
		least, most := len(in.Partitions), 0
		for w, n := range had {
			if in.Workers[w].Draining {
				want += n
				continue
			}
			owned = append(owned, n)
			least, most = min(least, got[w]), max(most, got[w])
		}
		if most > least+1 {
			t.Fatalf("loads = %v, want them within one", got)
		}
		slices.SortFunc(owned, func(a, b int) int { return cmp.Compare(b, a) })
		for i, n := range owned {
			quota := len(in.Partitions) / live
			if i < len(in.Partitions)%live {
				quota++
			}
			want += max(0, n-quota)
		}
		if r.Moves != want {
			t.Fatalf("Moves = %d from %v to %v, want %d", r.Moves, had, got, want)
		}
	})
}

// cost is the sum of load²/weight, times a common multiple of all weights.
func cost(in plan.Input, load []int) int {
	sum := 0
	for w, l := range load {
		sum += l * l * (60 / weight(in.Workers[w].Weight, 5))
	}
	return sum
}

func TestNoSingleMoveWouldImproveThePlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := group(t)
		in.Policy = plan.Policy{}
		for i := range in.Workers { // shares or weights, not both
			if len(in.Partitions) > 0 && in.Partitions[0].Weight > 0 {
				in.Workers[i].Weight = 0
			}
		}
		if len(in.Partitions) > 0 && in.Partitions[0].Weight == 0 {
			for i := range in.Partitions {
				in.Partitions[i].Weight = 7
			}
		}
		r := plan.Make(in)
		load, count := sums(in, r.Assign)
		least := cost(in, load)
		for i, from := range r.Assign {
			switch r.Reason[i] {
			case plan.Pinned, plan.Cooling, plan.DrainWaits, plan.Cordoned, plan.Elsewhere:
				continue
			}
			if from == plan.None || in.Workers[from].Cordoned {
				continue
			}
			for to, w := range in.Workers {
				if to == from || w.Cordoned || w.Draining || w.Capacity > 0 && count[to] >= w.Capacity {
					continue
				}
				x := weight(in.Partitions[i].Weight, plan.MaxPartitionWeight)
				load[from], load[to] = load[from]-x, load[to]+x
				if other := cost(in, load); other < least {
					t.Fatalf("cost = %d, but %d with partition %d (weight %d) moved from %d to %d", least, other, i, x, from, to)
				}
				load[from], load[to] = load[from]+x, load[to]-x
			}
		}
	})
}

func TestNothingMovesWithoutImprovement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := group(t)
		in.Policy.Zones = plan.ZonesIgnored // spread has weights of its own
		for i := range in.Workers {
			in.Workers[i].Capacity = 0
			in.Workers[i].Draining = false
		}
		before := make([]int, len(in.Partitions))
		for i := range in.Partitions {
			p := &in.Partitions[i]
			p.Pin, p.Target, p.Paused, p.Quarantined = "", plan.None, false, false
			p.Owner = min(p.Owner, len(in.Workers)-1)
			if p.Owner == plan.None {
				p.Owner = len(in.Workers) - 1
			}
			before[i] = p.Owner
		}
		r := plan.Make(in)
		old, _ := sums(in, before)
		load, _ := sums(in, r.Assign)
		if was, is := cost(in, old), cost(in, load); r.Moves > 0 && is >= was {
			t.Fatalf("%d moves took the cost from %d to %d", r.Moves, was, is)
		}
	})
}

func TestBudgetIsNeverExceededAndGetsThere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := plain(t)
		if len(in.Workers) == 0 {
			t.Skip("nobody to plan for")
		}
		for i := range in.Partitions {
			in.Partitions[i].Owner = min(in.Partitions[i].Owner, len(in.Workers)-1)
		}
		free := plan.Make(in)
		in.Policy.MaxMoves = rapid.IntRange(1, 4).Draw(t, "max moves")
		total := 0
		for more := true; more; {
			r := plan.Make(in)
			if r.Moves > in.Policy.MaxMoves {
				t.Fatalf("Moves = %d, want at most %d", r.Moves, in.Policy.MaxMoves)
			}
			total += r.Moves
			in, more = follow(in, r), r.More
		}
		if total != free.Moves {
			t.Fatalf("moves of all rounds = %d, want %d as without a budget", total, free.Moves)
		}
	})
}

// C17
func TestPausedPartitionsAreNoLoad(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := group(t)
		r := plan.Make(in)
		without := in
		without.Partitions = nil
		var want []int
		for i, p := range in.Partitions {
			if !p.Paused && !p.Quarantined {
				without.Partitions = append(without.Partitions, p)
				want = append(want, r.Assign[i])
			}
		}
		if got := plan.Make(without).Assign; !slices.Equal(got, want) {
			t.Fatalf("Assign = %v without the paused ones, want %v", got, want)
		}
	})
}

// C6
func TestWhatWasGivenUpGoesElsewhereIfAnybodyHasRoom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := group(t)
		for i := range in.Partitions {
			if rapid.Bool().Draw(t, "given up") {
				in.Partitions[i].Avoid = fmt.Sprint("w", rapid.IntRange(0, len(in.Workers)).Draw(t, "avoid"))
			}
		}
		r := plan.Make(in)
		count := make([]int, len(in.Workers))
		for _, w := range r.Assign {
			if w >= 0 {
				count[w]++
			}
		}
		for i, p := range in.Partitions {
			w := r.Assign[i]
			if r.Reason[i] == plan.Elsewhere && (in.Workers[w].ID == p.Avoid || in.Workers[w].Cordoned || in.Workers[w].Draining ||
				in.Workers[w].Capacity > 0 && count[w] > in.Workers[w].Capacity && !pinnedTo(in, w)) {
				t.Errorf("partition %s that %s has given up goes to %s", p.Name, p.Avoid, in.Workers[w].ID)
			}
			owned := p.Owner >= 0 && p.Owner < len(in.Workers)
			if p.Avoid == "" || owned || w < 0 || in.Workers[w].ID != p.Avoid || r.Reason[i] == plan.Pinned {
				continue
			}
			for to, other := range in.Workers {
				if to != w && !other.Cordoned && !other.Draining && other.Capacity == 0 {
					t.Errorf("partition %s goes back to %s, want %s", p.Name, p.Avoid, other.ID)
				}
			}
		}
		for i := range in.Partitions {
			in.Partitions[i].Target = r.Assign[i]
		}
		if again := plan.Make(in); !slices.Equal(again.Assign, r.Assign) {
			t.Errorf("Assign = %v when planned again, want %v", again.Assign, r.Assign)
		}
	})
}

// pinnedTo reports whether something is pinned to worker w.
func pinnedTo(in plan.Input, w int) bool {
	return slices.ContainsFunc(in.Partitions, func(p plan.Partition) bool { return p.Pin == in.Workers[w].ID })
}
