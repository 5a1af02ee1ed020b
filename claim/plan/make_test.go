package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"tenure/claim/plan"
)

// numbered returns partitions 0, 1, … with the given owners.
func numbered(owners ...int) []plan.Partition {
	parts := make([]plan.Partition, len(owners))
	for i, owner := range owners {
		parts[i] = plan.Partition{Name: fmt.Sprint(i), Owner: owner, Target: plan.None}
	}
	return parts
}

// crew returns workers a, b, ….
func crew(n int) []plan.Worker {
	workers := make([]plan.Worker, n)
	for i := range workers {
		workers[i] = plan.Worker{ID: string(rune('a' + i)), Epoch: uint64(100 + i)}
	}
	return workers
}

// loads counts the partitions of each worker, and the unassigned ones last.
func loads(in plan.Input, r plan.Result) []int {
	n := make([]int, len(in.Workers)+1)
	for _, w := range r.Assign {
		if w == plan.None {
			w = len(in.Workers)
		}
		n[w]++
	}
	return n
}

// describe prints a result as "name:worker reason" for each partition.
func describe(in plan.Input, r plan.Result) string {
	var lines []string
	for i, w := range r.Assign {
		id := "-"
		if w != plan.None {
			id = in.Workers[w].ID
		}
		lines = append(lines, fmt.Sprintf("%s:%s %v", in.Partitions[i].Name, id, r.Reason[i]))
	}
	return strings.Join(lines, "\n")
}

func TestEveryPartitionSaysWhereItGoesAndWhy(t *testing.T) {
	tests := []struct {
		name   string
		parts  []plan.Partition
		crew   []plan.Worker
		policy plan.Policy
		moves  int
		want   []string
	}{
		{
			name:  "kept",
			parts: numbered(0, 1, 0, 1), crew: crew(2),
			want: []string{"0:a kept", "1:b kept", "2:a kept", "3:b kept"},
		},
		{
			name:  "an orphan goes to the least loaded",
			parts: numbered(0, 0, -1, 1), crew: crew(2),
			want: []string{"0:a kept", "1:a kept", "2:b placed: it had no owner", "3:b kept"},
		},
		{
			name:  "an owner that is nobody is no owner",
			parts: numbered(0, 7, -5), crew: crew(1),
			want: []string{"0:a kept", "1:a placed: it had no owner", "2:a placed: it had no owner"},
		},
		{
			name:  "nothing moves while loads are within one",
			parts: numbered(0, 0, 1), crew: crew(2),
			want: []string{"0:a kept", "1:a kept", "2:b kept"},
		},
		{
			// C17
			name: "paused and quarantined run nowhere and are no load",
			parts: func() []plan.Partition {
				p := numbered(0, 0, 0, 1)
				p[0].Paused, p[1].Quarantined = true, true
				return p
			}(),
			crew: crew(2),
			want: []string{"0:- unassigned: paused", "1:- unassigned: quarantined", "2:a kept", "3:b kept"},
		},
		{
			// C6
			name: "what was given up goes to another worker, and others for it",
			parts: func() []plan.Partition {
				p := numbered(-1, 0, 1, 1)
				p[0].Avoid, p[0].Target = "a", 0
				return p
			}(),
			crew: crew(2), moves: 1,
			want: []string{"0:b placed: another worker has given it up", "1:a kept", "2:a balanced: another worker had too little", "3:b kept"},
		},
		{
			name: "what was given up stays where the plan has put it then",
			parts: func() []plan.Partition {
				p := numbered(-1, 0, 1, 2, 2)
				p[0].Avoid, p[0].Target = "a", 2
				return p
			}(),
			crew: crew(3), moves: 1,
			want: []string{"0:c placed: another worker has given it up", "1:a kept", "2:b kept", "3:b balanced: another worker had too little", "4:c kept"},
		},
		{
			name: "what was given up goes back if there is nobody else",
			parts: func() []plan.Partition {
				p := numbered(-1, 0)
				p[0].Avoid = "a"
				return p
			}(),
			crew: crew(1),
			want: []string{"0:a placed: it had no owner", "1:a kept"},
		},
		{
			name: "a pin wins over balance",
			parts: func() []plan.Partition {
				p := numbered(0, 0, 1)
				p[0].Pin, p[2].Pin = "a", "a"
				return p
			}(),
			crew: crew(2), moves: 2,
			want: []string{"0:a pinned", "1:b balanced: another worker had too little", "2:a pinned"},
		},
		{
			name: "a pin to an absent or draining worker is as none",
			parts: func() []plan.Partition {
				p := numbered(0, -1, 1)
				p[0].Pin, p[1].Pin, p[2].Pin = "z", "z", "b"
				return p
			}(),
			crew:  []plan.Worker{{ID: "a"}, {ID: "b", Draining: true}},
			moves: 1,
			want: []string{
				"0:a elsewhere: the pinned worker is absent or draining",
				"1:a elsewhere: the pinned worker is absent or draining",
				"2:a elsewhere: the pinned worker is absent or draining",
			},
		},
		{
			name: "pins keep to the capacity, those who are there first",
			parts: func() []plan.Partition {
				p := numbered(1, 0)
				p[0].Pin, p[1].Pin = "a", "a"
				return p
			}(),
			crew: []plan.Worker{{ID: "a", Capacity: 1}, {ID: "b"}},
			want: []string{"0:b elsewhere: the pinned worker is full", "1:a pinned"},
		},
		{
			name: "a pin reaches a cordoned worker",
			parts: func() []plan.Partition {
				p := numbered(-1)
				p[0].Pin = "a"
				return p
			}(),
			crew: []plan.Worker{{ID: "a", Cordoned: true}, {ID: "b"}},
			want: []string{"0:a pinned"},
		},
		{
			name:  "a cordoned worker keeps what it has and gets nothing",
			parts: numbered(0, 0, 0, 1, -1, 0), crew: []plan.Worker{{ID: "a", Cordoned: true}, {ID: "b"}, {ID: "c", Cordoned: true}},
			want: []string{
				"0:a kept: its owner is cordoned", "1:a kept: its owner is cordoned", "2:a kept: its owner is cordoned",
				"3:b kept", "4:b placed: it had no owner", "5:a kept: its owner is cordoned",
			},
		},
		{
			name:  "a draining worker is left by everything",
			parts: numbered(0, 0, 1), crew: []plan.Worker{{ID: "a", Draining: true}, {ID: "b"}, {ID: "c"}},
			moves: 2,
			want:  []string{"0:c drained: its owner is draining", "1:b drained: its owner is draining", "2:b kept"},
		},
		{
			name:  "a draining worker keeps what nobody can take, orphans go first",
			parts: numbered(0, -1), crew: []plan.Worker{{ID: "a", Draining: true}, {ID: "b", Capacity: 1}},
			want: []string{"0:a kept: its owner is draining but nobody can take it", "1:b placed: it had no owner"},
		},
		{
			// C16
			name:  "a full worker gets nothing, the surplus says why",
			parts: numbered(-1, 0, -1, -1), crew: []plan.Worker{{ID: "a", Capacity: 1}, {ID: "b", Capacity: 1}},
			want: []string{
				"0:b placed: it had no owner", "1:a kept",
				"2:- unassigned: every worker is full", "3:- unassigned: every worker is full",
			},
		},
		{
			name:  "a worker above its capacity gives up the surplus",
			parts: numbered(0, 0, 0), crew: []plan.Worker{{ID: "a", Capacity: 2}, {ID: "b", Capacity: 1}},
			moves: 1,
			want:  []string{"0:b overflow: its owner is above its capacity", "1:a kept", "2:a kept"},
		},
		{
			name:  "what runs finds room before what does not",
			parts: numbered(-1, 0, 0), crew: []plan.Worker{{ID: "a", Capacity: 1}, {ID: "b", Capacity: 1}},
			moves: 1,
			want: []string{
				"0:- unassigned: every worker is full",
				"1:b overflow: its owner is above its capacity", "2:a kept",
			},
		},
		{
			name:  "nobody takes new partitions",
			parts: numbered(0, -1, 1), crew: []plan.Worker{{ID: "a", Cordoned: true}, {ID: "b", Draining: true}},
			want: []string{
				"0:a kept: its owner is cordoned", "1:- unassigned: no worker takes new partitions",
				"2:b kept: its owner is draining but nobody can take it",
			},
		},
		{
			name:  "no worker at all",
			parts: numbered(-1), crew: nil,
			want: []string{"0:- unassigned: no worker takes new partitions"},
		},
		{
			name: "a cooling partition stays, even with a draining owner",
			parts: func() []plan.Partition {
				p := numbered(0, 1, 1, 1)
				p[0].Cooling, p[1].Cooling, p[2].Cooling, p[3].Cooling = true, true, true, true
				return p
			}(),
			crew: []plan.Worker{{ID: "a", Draining: true}, {ID: "b"}, {ID: "c"}},
			want: []string{
				"0:a kept: moving it failed a short time ago", "1:b kept: moving it failed a short time ago",
				"2:b kept: moving it failed a short time ago", "3:b kept: moving it failed a short time ago",
			},
		},
		{
			name: "a cooling orphan is placed",
			parts: func() []plan.Partition {
				p := numbered(-1)
				p[0].Cooling = true
				return p
			}(),
			crew: crew(1),
			want: []string{"0:a placed: it had no owner"},
		},
		{
			name: "a move under way goes on",
			parts: func() []plan.Partition {
				p := numbered(0, 0, -1)
				p[0].Target, p[2].Target = 1, 1
				return p
			}(),
			crew: crew(2), moves: 1,
			want: []string{"0:b balanced: another worker had too little", "1:a kept", "2:b placed: it had no owner"},
		},
		{
			// C34
			name: "a move under way is withdrawn when its target goes",
			parts: func() []plan.Partition {
				p := numbered(0, 0)
				p[0].Target, p[1].Target = 1, 2
				return p
			}(),
			crew: []plan.Worker{{ID: "a"}, {ID: "b", Draining: true}, {ID: "c", Cordoned: true}},
			want: []string{"0:a kept", "1:a kept"},
		},
		{
			// An owner that stays takes it back; one that is draining does not.
			name: "a move under way is withdrawn when its target has become too small",
			parts: func() []plan.Partition {
				p := numbered(0, 1, 2)
				p[1].Target, p[2].Target = 0, 0
				return p
			}(),
			crew: []plan.Worker{
				{ID: "a", Capacity: 1},
				{ID: "b", Cordoned: true},
				{ID: "c", Draining: true},
				{ID: "d", Capacity: 1},
			},
			moves: 1,
			want:  []string{"0:a kept", "1:b kept: its owner is cordoned", "2:d drained: its owner is draining"},
		},
		{
			name: "what comes back may send others back",
			parts: func() []plan.Partition {
				p := numbered(0, 1, 2)
				p[1].Target, p[2].Target = 0, 1
				return p
			}(),
			crew: []plan.Worker{{ID: "a", Capacity: 1}, {ID: "b", Capacity: 1}, {ID: "c", Cordoned: true}},
			want: []string{"0:a kept", "1:b kept", "2:c kept: its owner is cordoned"},
		},
		{
			name:  "a move goes where it adds least, which need not be the emptiest",
			parts: numbered(2, 1), moves: 1,
			crew: []plan.Worker{{ID: "a"}, {ID: "b", Weight: 5}, {ID: "c"}},
			want: []string{"0:b balanced: another worker had too little", "1:b kept"},
		},
		{
			name: "what does not run at its target yet goes back, or on, first",
			parts: func() []plan.Partition {
				p := numbered(0, 1, 0, 0, 1)
				p[2].Target, p[3].Target = 1, 1
				return p
			}(),
			crew: crew(3), moves: 1,
			want: []string{
				"0:a kept", "1:b kept", "2:a kept",
				"3:c balanced: another worker had too little", "4:b kept",
			},
		},
		{
			name:  "hysteresis: nothing moves for less",
			parts: numbered(0, 0, 0, 1), crew: crew(2), policy: plan.Policy{Hysteresis: 2},
			want: []string{"0:a kept", "1:a kept", "2:a kept", "3:b kept"},
		},
		{
			name:  "zones: a drained partition stays in its zone",
			parts: numbered(0, 1, 0, 1, 0, 1), policy: plan.Policy{Zones: plan.ZonesStay},
			crew: []plan.Worker{
				{ID: "a", Zone: "x", Draining: true},
				{ID: "b", Zone: "y", Draining: true},
				{ID: "c", Zone: "y"},
				{ID: "d", Zone: "x"},
			},
			moves: 6,
			want: []string{
				"0:d drained: its owner is draining", "1:c drained: its owner is draining",
				"2:d drained: its owner is draining", "3:c drained: its owner is draining",
				"4:d drained: its owner is draining", "5:c drained: its owner is draining",
			},
		},
		{
			name:  "rollout: what must move goes to the newest build, nothing else moves",
			parts: numbered(0, 0, 1, 1, -1), policy: plan.Policy{Rollout: true},
			crew: []plan.Worker{{ID: "a", Build: 1, Draining: true}, {ID: "b", Build: 1}, {ID: "c", Build: 2}},
			// Two shares of five partitions are all of them.
			moves: 2,
			want: []string{
				"0:c drained: its owner is draining", "1:c drained: its owner is draining",
				"2:b kept", "3:b kept", "4:c placed: it had no owner",
			},
		},
		{
			name: "heavy partitions are spread first",
			parts: func() []plan.Partition {
				p := numbered(-1, -1, -1, -1)
				p[3].Weight = 3
				return p
			}(),
			crew: crew(2),
			want: []string{
				"0:a placed: it had no owner", "1:a placed: it had no owner",
				"2:a placed: it had no owner", "3:b placed: it had no owner",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := plan.Input{Group: "orders", Partitions: tt.parts, Workers: tt.crew, Policy: tt.policy}
			r := plan.Make(in)
			if got, want := describe(in, r), strings.Join(tt.want, "\n"); got != want {
				t.Errorf("Make =\n%s\nwant\n%s", got, want)
			}
			if r.Moves != tt.moves {
				t.Errorf("Moves = %d, want %d", r.Moves, tt.moves)
			}
		})
	}
}

// N70: the loads of every small group are within one, and then nothing moves.
func TestSmallGroupsAreLevel(t *testing.T) {
	for _, parts := range []int{2, 3, 7, 10} {
		for workers := 1; workers <= 5; workers++ {
			in := plan.Input{Group: "g", Partitions: numbered(slices.Repeat([]int{0}, parts)...), Workers: crew(workers)}
			r := plan.Make(in)
			n := loads(in, r)[:workers]
			if spread := slices.Max(n) - slices.Min(n); spread > 1 {
				t.Errorf("%d partitions, %d workers: loads = %v, want them within one", parts, workers, n)
			}
			in = follow(in, r)
			if again := plan.Make(in); again.Moves != 0 {
				t.Errorf("%d partitions, %d workers: Moves = %d once level, want 0", parts, workers, again.Moves)
			}
		}
	}
}

// N63: the second of two workers gets its half at once and nobody takes it back.
func TestSecondWorkerGetsItsHalfOnce(t *testing.T) {
	in := plan.Input{Group: "g", Partitions: numbered(0, 0, 0, 0), Workers: crew(2)}
	r := plan.Make(in)
	if r.Moves != 2 {
		t.Errorf("Moves = %d, want 2", r.Moves)
	}
	for range 60 {
		in = follow(in, r)
		if r = plan.Make(in); r.Moves != 0 {
			t.Fatalf("Moves = %d later, want 0", r.Moves)
		}
	}
}

// C12
func TestJoinMovesFloorOfTheNewShareAndOnlyToTheNewcomer(t *testing.T) {
	for _, tt := range []struct{ parts, workers, want int }{
		{64, 4, 12}, {1000, 20, 47}, {10_000, 100, 99}, {3, 3, 0}, {100_000, 1000, 99},
	} {
		in := settled(tt.parts, tt.workers)
		in.Workers = append(in.Workers, plan.Worker{ID: "newcomer"})
		r := plan.Make(in)
		if got := loads(in, r)[tt.workers]; r.Moves != tt.want || got != tt.want {
			t.Errorf("%d × %d: Moves = %d, to the newcomer %d, want %d",
				tt.parts, tt.workers, r.Moves, got, tt.want)
		}
	}
}

// C12
func TestLeaveMovesOnlyWhatTheLeaverHad(t *testing.T) {
	for _, tt := range []struct{ parts, workers, want int }{
		{64, 5, 12}, {1000, 21, 47}, {10_000, 100, 100}, {2, 2, 1},
	} {
		in := settled(tt.parts, tt.workers)
		least := slices.Index(loads(in, plan.Make(in)), tt.want) // a worker with so many
		in.Workers[least].Draining = true
		if r := plan.Make(in); r.Moves != tt.want {
			t.Errorf("%d × %d, drained: Moves = %d, want %d", tt.parts, tt.workers, r.Moves, tt.want)
		}
		for i := range in.Partitions {
			if in.Partitions[i].Owner == least {
				in.Partitions[i].Owner = plan.None
			}
		}
		if r := plan.Make(in); r.Moves != 0 {
			t.Errorf("%d × %d, crashed: Moves = %d, want 0", tt.parts, tt.workers, r.Moves)
		}
	}
}

// C11
func TestOddPartitionDependsOnTheGroup(t *testing.T) {
	first := make([]int, 3)
	for i := range 300 {
		in := plan.Input{Group: fmt.Sprint("group", i), Partitions: numbered(-1), Workers: crew(3)}
		first[plan.Make(in).Assign[0]]++
	}
	for w, n := range first {
		if n < 70 || n > 130 {
			t.Errorf("worker %d got the odd partition of %d groups of 300, want about 100", w, n)
		}
	}
}

// C11: two versions of the program must not plan differently under one planner
// version. If this fails, Version has to grow.
func TestPlanOfThisVersionIsAlwaysThis(t *testing.T) {
	in := plan.Input{Group: "orders", Partitions: numbered(slices.Repeat([]int{plan.None}, 32)...), Workers: crew(5)}
	got := fmt.Sprint(plan.Version, plan.Make(in).Assign)
	if want := "1 [3 4 4 3 0 2 1 3 3 1 3 2 1 0 4 2 0 3 1 4 0 1 4 2 1 1 0 4 2 0 0 2]"; got != want {
		t.Errorf("Version, Assign = %s, want %s", got, want)
	}
}

// C59
func TestBudgetLimitsWhatMovesAtOnce(t *testing.T) {
	in := plan.Input{
		Group: "g", Partitions: numbered(slices.Repeat([]int{0}, 12)...), Workers: crew(3),
		Policy: plan.Policy{MaxMoves: 3},
	}
	r := plan.Make(in)
	if r.Moves != 3 || !r.More {
		t.Errorf("Moves, More = %d, %v, want 3, true", r.Moves, r.More)
	}
	for i, w := range r.Assign { // nothing handed over yet
		in.Partitions[i].Target = w
	}
	if again := plan.Make(in); !slices.Equal(again.Assign, r.Assign) {
		t.Errorf("Assign = %v while moves are under way, want %v", again.Assign, r.Assign)
	}
	rounds := 1
	for ; r.More; rounds++ {
		in = follow(in, r)
		r = plan.Make(in)
	}
	if got, want := loads(in, r), []int{4, 4, 4, 0}; rounds != 3 || !slices.Equal(got, want) {
		t.Errorf("after %d rounds loads = %v, want 3 and %v", rounds, got, want)
	}
}

func TestBudgetCountsNeitherOrphansNorDrains(t *testing.T) {
	in := plan.Input{
		Group: "g", Partitions: numbered(0, 0, -1, 1, 1, 1, 1, 1, 1), Policy: plan.Policy{MaxMoves: 1},
		Workers: []plan.Worker{{ID: "a", Draining: true}, {ID: "b"}, {ID: "c"}},
	}
	r := plan.Make(in)
	if got, want := loads(in, r), []int{0, 5, 4, 0}; r.Moves != 3 || !slices.Equal(got, want) {
		t.Errorf("Moves, loads = %d, %v, want 3 (two drained, one balanced) and %v", r.Moves, got, want)
	}
}

func TestHysteresisLevelsCompletelyOnceItIsExceeded(t *testing.T) {
	in := plan.Input{
		Group: "g", Partitions: numbered(0, 0, 0, 0, 0, 0, 0, 0), Workers: crew(2),
		Policy: plan.Policy{Hysteresis: 3},
	}
	if got, want := loads(in, plan.Make(in)), []int{4, 4, 0}; !slices.Equal(got, want) {
		t.Errorf("loads = %v, want %v", got, want)
	}
}

func TestSharesFollowTheWeights(t *testing.T) {
	in := plan.Input{
		Group: "g", Partitions: numbered(slices.Repeat([]int{0}, 60)...),
		Workers: []plan.Worker{{ID: "a", Weight: 1}, {ID: "b", Weight: 2}, {ID: "c", Weight: 3}},
	}
	if got, want := loads(in, plan.Make(in)), []int{10, 20, 30, 0}; !slices.Equal(got, want) {
		t.Errorf("loads = %v, want %v", got, want)
	}
}

// C11: with weights on both sides one move can make room for another one; the
// plan that stops after the first would not be a fixpoint.
func TestLevellingGoesOnUntilNothingImproves(t *testing.T) {
	parts := numbered(0, 1)
	parts[0].Weight, parts[1].Weight = 1, 5
	in := plan.Input{
		Group: "orders", Partitions: parts,
		Workers: []plan.Worker{{ID: "a", Weight: 5}, {ID: "b", Weight: 1}, {ID: "c", Weight: 3}},
	}
	r := plan.Make(in)
	if again := plan.Make(follow(in, r)); !slices.Equal(again.Assign, r.Assign) {
		t.Errorf("Assign = %v after the moves, want %v", again.Assign, r.Assign)
	}
}

// C17
func TestWeightOfAPausedPartitionChangesNothing(t *testing.T) {
	parts := numbered(-1, -1, -1)
	parts[0].Weight, parts[1].Weight = 6, 3
	in := plan.Input{
		Group: "orders", Partitions: parts[:2],
		Workers: []plan.Worker{{ID: "a", Weight: 1}, {ID: "b", Weight: 5}},
	}
	want := plan.Make(in).Assign
	parts[2].Paused, in.Partitions = true, parts
	if got := plan.Make(in).Assign[:2]; !slices.Equal(got, want) {
		t.Errorf("Assign = %v beside a light paused partition, want %v", got, want)
	}
}

func TestZonesSpreadGivesEachZoneTheSameShare(t *testing.T) {
	in := plan.Input{
		Group: "g", Partitions: numbered(slices.Repeat([]int{0}, 12)...),
		Workers: []plan.Worker{{ID: "a", Zone: "x"}, {ID: "b", Zone: "y"}, {ID: "c", Zone: "y"}, {ID: "d", Zone: "y"}},
		Policy:  plan.Policy{Zones: plan.ZonesSpread},
	}
	if got, want := loads(in, plan.Make(in)), []int{6, 2, 2, 2, 0}; !slices.Equal(got, want) {
		t.Errorf("loads = %v, want %v", got, want)
	}
}

// C21: workers are replaced one by one, the new one before the old one stops.
func TestRolloutMovesEachPartitionOnceAndNeverToAnOldWorker(t *testing.T) {
	in := settled(120, 6)
	in.Policy.Rollout = true
	moves := make([]int, len(in.Partitions))
	step := func() {
		r := plan.Make(in)
		for i, w := range r.Assign {
			if w == in.Partitions[i].Owner {
				continue
			}
			moves[i]++
			if in.Workers[w].Build == 0 {
				t.Errorf("partition %d moves to %s, which is about to stop", i, in.Workers[w].ID)
			}
		}
		in = follow(in, r)
	}
	for old := range 6 {
		in.Workers = append(in.Workers, plan.Worker{ID: fmt.Sprint("new", old), Build: 1})
		step()
		in.Workers[old].Draining = true
		step()
	}
	if most := slices.Max(moves); most != 1 {
		t.Errorf("a partition moved %d times, want once", most)
	}
	if got := loads(in, plan.Make(in))[6:12]; slices.Max(got)-slices.Min(got) > 1 {
		t.Errorf("loads = %v, want them within one", got)
	}
}

func TestRolloutGivesTheNewestNoMoreThanTwiceItsShare(t *testing.T) {
	in := settled(100, 10)
	in.Policy.Rollout = true
	in.Workers[9].Build = 1
	for i := range in.Partitions {
		if in.Partitions[i].Owner < 5 {
			in.Partitions[i].Owner = plan.None
		}
	}
	in.Workers = in.Workers[5:] // five crashed
	for i := range in.Partitions {
		in.Partitions[i].Owner = max(in.Partitions[i].Owner-5, plan.None)
	}
	if got := loads(in, plan.Make(in)); got[4] != 40 || got[5] != 0 {
		t.Errorf("loads = %v, want 40 for the newest and nothing unassigned", got)
	}
}

// settled returns a group of which every worker has its share.
func settled(parts, workers int) plan.Input {
	in := plan.Input{Group: "g", Partitions: numbered(slices.Repeat([]int{plan.None}, parts)...)}
	for i := range workers {
		in.Workers = append(in.Workers, plan.Worker{ID: fmt.Sprint("worker", i), Epoch: uint64(i + 1)})
	}
	return follow(in, plan.Make(in))
}

// follow returns the input after all moves of the result are done.
func follow(in plan.Input, r plan.Result) plan.Input {
	in.Partitions = slices.Clone(in.Partitions)
	for i, w := range r.Assign {
		in.Partitions[i].Owner, in.Partitions[i].Target = w, plan.None
	}
	return in
}
