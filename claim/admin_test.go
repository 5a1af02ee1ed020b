package claim_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tenure/claim"
	"tenure/embedded/natstest"
	"tenure/kvlock/bucket"
)

// admin returns an admin with a connection of its own.
func (g *group) admin() *claim.Admin {
	g.t.Helper()
	b, err := bucket.Open(g.t.Context(), natstest.JetStream(g.t, natstest.Connect(g.t, g.srv)), bucket.AttachOnly())
	if err != nil {
		g.t.Fatal(err)
	}
	a, err := claim.NewAdmin(g.t.Context(), b, "orders")
	if err != nil {
		g.t.Fatal(err)
	}
	return a
}

// ok fails the test if a verb did.
func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantState looks at one partition.
func wantState(t *testing.T, w *worker, name, state, owner string) {
	t.Helper()
	s, err := w.Status(t.Context())
	ok(t, err)
	for _, p := range s.Partitions {
		if p.Name == name && (p.State != state || p.Worker != owner) {
			t.Errorf("partition %s = %s at %q, want %s at %q", name, p.State, p.Worker, state, owner)
		}
	}
}

func TestPinnedPartitionRunsWhereItIsPinnedAlsoAfterThatWorkerWasAway(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		a := g.start("a")
		g.wantLoads(time.Second, []int{4}, a)
		b := g.start("b")
		g.wantLoads(time.Second, []int{2, 2}, a, b)
		admin := g.admin()
		ok(t, admin.Pin(t.Context(), "b", g.parts, claim.Wait()))
		g.wantLoads(time.Second, []int{0, 4}, a, b)
		b.leave()
		g.wantLoads(time.Second, []int{4}, a)
		b = g.start("b")
		g.wantLoads(time.Second, []int{0, 4}, a, b)
		ok(t, admin.Unpin(t.Context(), g.parts))
		g.wantLoads(time.Second, []int{2, 2}, a, b)
		g.history.Check(t)
	})
}

// Pause survives moves, deaths and new leaders; the handler finds ErrPaused.
func TestPausedPartitionRunsNowhereUntilItIsResumed(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4, claim.WithDrainTimeout(0))
		var cause atomic.Value
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			<-ctx.Done()
			if p.Name() == "1" {
				cause.Store(context.Cause(ctx))
			}
			return nil
		})
		g.wantLoads(time.Second, []int{4}, a)
		admin := g.admin()
		began := time.Now()
		ok(t, admin.Pause(t.Context(), []string{"1"}, claim.Wait()))
		if took := time.Since(began); took.Round(time.Millisecond) != 20*time.Millisecond {
			t.Errorf("pause took %v, want the leader's 20ms", took)
		}
		synctest.Wait()
		wantState(t, a, "1", claim.StatePaused, "")
		if err, _ := cause.Load().(error); !errors.Is(err, claim.ErrDrainDeadline) && !errors.Is(err, claim.ErrPaused) {
			t.Errorf("cause = %v, want %v", err, claim.ErrPaused)
		}
		b := g.start("b")
		g.wantLoads(time.Second, []int{1, 2}, a, b)
		a.link.Cut() // the leader dies
		g.wantLoads(g.ttl+time.Second, []int{3}, b)
		wantState(t, b, "1", claim.StatePaused, "")
		ok(t, admin.Resume(t.Context(), []string{"1"}, claim.Wait()))
		g.wantLoads(time.Second, []int{4}, b)
		wantState(t, b, "1", claim.StateRunning, "b")
		g.history.Check(t)
	})
}

func TestCordonedWorkerKeepsWhatItHasAndGetsNothingNew(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 6)
		a := g.start("a")
		time.Sleep(time.Second)
		b, c := g.start("b"), g.start("c")
		g.wantLoads(time.Second, []int{2, 2, 2}, a, b, c)
		admin := g.admin()
		ok(t, admin.Cordon(t.Context(), []string{"b"}))
		c.leave()
		g.wantLoads(time.Second, []int{2, 4}, a, b)
		if n := len(slices.Collect(b.Held())); n != 2 {
			t.Errorf("cordoned worker has %d, want its 2", n)
		}
		ok(t, admin.Uncordon(t.Context(), []string{"b"}))
		g.wantLoads(time.Second, []int{3, 3}, a, b)
		g.history.Check(t)
	})
}

func TestDrainedWorkerGivesEverythingAwayAndStays(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 6)
		a := g.start("a")
		time.Sleep(time.Second)
		b := g.start("b")
		g.wantLoads(time.Second, []int{3, 3}, a, b)
		admin := g.admin()
		ok(t, admin.Drain(t.Context(), []string{"a"}, claim.Wait()))
		g.wantLoads(time.Minute, []int{0, 6}, a, b)
		s, err := a.Status(t.Context())
		ok(t, err)
		if w := s.Workers[0]; w.ID != "a" || !w.Draining || !w.Leader || w.Partitions != 0 {
			t.Errorf("worker = %+v, want a, draining, still the leader", w)
		}
		// With nobody else to take them they stay where they are.
		ok(t, admin.Drain(t.Context(), []string{"b"}))
		g.wantLoads(time.Second, []int{0, 6}, a, b)
		ok(t, admin.Uncordon(t.Context(), []string{"a", "b"}))
		g.wantLoads(time.Second, []int{3, 3}, a, b)
		g.history.Check(t)
	})
}

// A move is made once, costs one other partition at most, and stays made.
func TestMovedPartitionStaysWhereItWasMovedTo(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		a := g.start("a")
		time.Sleep(time.Second)
		b := g.start("b")
		g.wantLoads(time.Second, []int{2, 2}, a, b)
		admin := g.admin()
		var name string
		for p := range a.Held() {
			name = p.Name()
		}
		before := g.startsOf()
		ok(t, admin.Move(t.Context(), name, "b", claim.Wait()))
		g.wantLoads(time.Minute, []int{2, 2}, a, b)
		if owner := owners(a, b)[name]; owner != "b" {
			t.Errorf("partition %s is at %s, want b", name, owner)
		}
		if n := g.startsOf() - before; n != 2 {
			t.Errorf("partitions moved = %d, want it and one in exchange", n)
		}
		// It is no pin: it goes when b goes, and is not drawn back to b.
		b.leave()
		g.wantLoads(time.Second, []int{4}, a)
		x, err := admin.Explain(t.Context(), name)
		ok(t, err)
		if x.Worker != "a" || x.Pin != "" || len(x.History) < 2 || x.History[0].Worker != "b" || x.History[0].Why != "pinned" {
			t.Errorf("explanation = %+v, want a now and b before, as moved there", x)
		}
		ok(t, admin.Cordon(t.Context(), []string{"b"}, claim.Absent())) // it gets nothing but pins
		b = g.start("b")
		g.wantLoads(time.Second, []int{0, 4}, a, b)
		ok(t, admin.Move(t.Context(), name, "b", claim.Wait()))
		g.wantLoads(time.Second, []int{1, 3}, a, b)
		b.leave()
		b = g.start("b")
		g.wantLoads(time.Second, []int{0, 4}, a, b)
		g.history.Check(t)
	})
}

// C56: of changes that are made at once none is lost.
func TestConcurrentAdminsLoseNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 24)
		a := g.start("a")
		g.wantLoads(time.Second, []int{24}, a)
		var all sync.WaitGroup
		for i := range 8 {
			admin := g.admin()
			all.Go(func() {
				for j := range 3 {
					name := fmt.Sprint(i*3 + j)
					verb := admin.Pause(t.Context(), []string{name})
					if j == 1 {
						verb = admin.Pin(t.Context(), "a", []string{name})
					}
					if verb != nil {
						t.Error(verb)
					}
				}
			})
		}
		all.Wait()
		time.Sleep(time.Second)
		s, err := a.Status(t.Context())
		ok(t, err)
		paused := 0
		for _, p := range s.Partitions {
			if p.State == claim.StatePaused {
				paused++
			}
		}
		admin, pinned := g.admin(), 0
		for _, name := range g.parts {
			if x, err := admin.Explain(t.Context(), name); err != nil || x.Pin == "a" {
				pinned++
			}
		}
		if paused != 24 || pinned != 8 { // partition j=1 was paused before it was pinned
			t.Errorf("%d paused and %d pinned, want 24 and 8", paused, pinned)
		}
	})
}

// B5, S7: an answer that was lost is read back, so that the change is made once.
func TestChangeWhoseAnswerWasLostIsMadeOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		a := g.start("a")
		g.wantLoads(time.Second, []int{4}, a)
		link := natstest.NewLink(t, g.srv)
		b, err := bucket.Open(t.Context(), natstest.JetStream(t, link.Connect()), bucket.AttachOnly())
		ok(t, err)
		admin, err := claim.NewAdmin(t.Context(), b, "orders")
		ok(t, err)
		link.DropReply(1, func(subject string, _ []byte) bool { return subject == "$KV.tenure.group.orders" })
		done := make(chan error, 1)
		go func() { done <- admin.Resize(t.Context(), claim.Numbered(6)) }()
		time.Sleep(500 * time.Millisecond)
		// Another admin goes on from what was stored; the first must not undo it.
		ok(t, g.admin().Resize(t.Context(), claim.Numbered(8)))
		ok(t, <-done)
		g.wantLoads(time.Second, []int{8}, a)
	})
}

func TestAdminRefusesWhatCannotBe(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		a := g.start("a", claim.WithCapacity(2))
		time.Sleep(time.Second)
		admin := g.admin()
		ctx := t.Context()
		for _, tt := range []struct {
			err  error
			is   error
			want string
		}{
			{admin.Pin(ctx, "a", []string{"17"}), claim.ErrPartition, `claim: pin: group "orders": partition: have 4 numbered, want "17": no such partition`},
			{admin.Pin(ctx, "x", []string{"1"}), claim.ErrWorker, `claim: pin: group "orders": worker: have ["a"], want "x": no such worker`},
			{admin.Pin(ctx, "a", g.parts), claim.ErrCapacity, `claim: pin: group "orders": capacity of worker "a": have 2, want 4: worker has no room`},
			{admin.Move(ctx, "1", "x"), claim.ErrWorker, `claim: move: group "orders": worker: have ["a"], want "x": no such worker`},
			{admin.Pause(ctx, []string{"-1"}), claim.ErrPartition, `claim: pause: group "orders": partition: have 4 numbered, want "-1": no such partition`},
			{admin.Drain(ctx, []string{"x"}), claim.ErrWorker, `claim: drain: group "orders": worker: have ["a"], want "x": no such worker`},
			{admin.Uncordon(ctx, []string{"x"}), claim.ErrWorker, `claim: uncordon: group "orders": worker: have ["a"], want "x": no such worker`},
			{admin.Resize(ctx, nil), claim.ErrGroup, `claim: resize: partitions: have 0, want 1 to 1000000: group cannot be used`},
			{admin.Resize(ctx, []string{"x", "x"}), claim.ErrGroup, `claim: resize: partitions: have "x" twice, want each once: group cannot be used`},
			{admin.Resize(ctx, []string{"x"}, claim.AfterDrain()), claim.ErrSettings, `claim: resize: group "orders": resize after drain: have 4 numbered to ["x"], want numbered ones; name parents instead: group cannot be used: bad settings`},
			{admin.Resize(ctx, claim.Numbered(5), claim.AfterParents(map[string][]string{"4": {"9"}})), claim.ErrPartition, `claim: resize: group "orders": parent of "4": have 4 numbered, want "9": no such partition`},
			{admin.Weigh(ctx, 65, []string{"1"}), claim.ErrSettings, `claim: weigh: weight of "1": have 65, want 1 to 64: group cannot be used: bad settings`},
			{admin.SetPolicy(ctx, func(p *claim.Policy) { p.Zones = "x" }), claim.ErrSettings, `claim: policy: policy: zones: have "x", want "", "spread" or "stay": group cannot be used: bad settings`},
		} {
			if !errors.Is(tt.err, tt.is) || tt.err.Error() != tt.want {
				t.Errorf("error = %v, want %s", tt.err, tt.want)
			}
		}
		if _, err := admin.Explain(ctx, "9"); !errors.Is(err, claim.ErrPartition) {
			t.Errorf("Explain = %v, want %v", err, claim.ErrPartition)
		}
		for _, w := range []claim.WhatIf{{Add: []string{"a"}}, {Remove: []string{"x"}}} {
			if _, err := admin.Plan(ctx, w); !errors.Is(err, claim.ErrWorker) {
				t.Errorf("Plan of %+v = %v, want %v", w, err, claim.ErrWorker)
			}
		}
		// Nothing of it was stored.
		g.wantLoads(time.Second, []int{2}, a)
		if _, err := claim.NewAdmin(ctx, mustBucket(t, g), "none"); !errors.Is(err, claim.ErrGroup) {
			t.Errorf("NewAdmin = %v, want %v", err, claim.ErrGroup)
		}
		// A worker may be named that is not there, if that is meant.
		ok(t, admin.Cordon(ctx, []string{"x"}, claim.Absent()))
		ok(t, admin.Uncordon(ctx, []string{"x"}))
	})
}

func mustBucket(t *testing.T, g *group) *bucket.Bucket {
	t.Helper()
	b, err := bucket.Open(t.Context(), natstest.JetStream(t, natstest.Connect(t, g.srv)), bucket.AttachOnly())
	ok(t, err)
	return b
}

func TestWhatIfSaysWhatThenHappens(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 10)
		a := g.start("a")
		time.Sleep(time.Second)
		b := g.start("b")
		g.wantLoads(time.Second, []int{5, 5}, a, b)
		admin := g.admin()
		p, err := admin.Plan(t.Context(), claim.WhatIf{Add: []string{"c", "d"}, Remove: []string{"b"}})
		ok(t, err)
		g.wantLoads(time.Minute, []int{5, 5}, a, b) // only asked
		want := owners(a, b)
		for _, m := range p.Moves {
			if want[m.Partition] != m.From {
				t.Errorf("move %+v, want it from %s", m, want[m.Partition])
			}
			want[m.Partition] = m.To
		}
		if len(p.Moves) != 6 || fmt.Sprint(p.Workers) != "[{a 5 4} {b 5 0} {c 0 3} {d 0 3}]" {
			t.Errorf("preview = %+v, want 6 moves", p)
		}
		b.link.Cut()
		c, d := g.start("c"), g.start("d")
		time.Sleep(g.ttl + 2*time.Second)
		synctest.Wait()
		loads := loads(a, c, d)
		if !slices.Equal(loads, []int{3, 3, 4}) {
			t.Errorf("loads = %v, want [3 3 4]", loads)
		}
	})
}

func TestExplainSaysWhoWhyAndWhyNotElsewhere(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 6)
		began := time.Now()
		a := g.start("a")
		time.Sleep(time.Second)
		full, cordoned := g.start("full", claim.WithCapacity(1)), g.start("cordoned")
		g.wantLoads(time.Second, []int{1, 2, 3}, a, full, cordoned)
		admin := g.admin()
		ok(t, admin.Cordon(t.Context(), []string{"cordoned"}))
		g.start("drained")
		time.Sleep(time.Second)
		ok(t, admin.Drain(t.Context(), []string{"drained"}, claim.Wait()))
		time.Sleep(time.Second)
		synctest.Wait()
		var p *claim.Partition
		for p = range a.Held() {
			break
		}
		x, err := admin.Explain(t.Context(), p.Name())
		ok(t, err)
		if x.Worker != "a" || x.Token != p.Token() || x.State != claim.StateRunning || x.Epoch == 0 || x.Since.Before(began) || x.Why == "" {
			t.Errorf("explanation = %+v, want who, since when and why", x)
		}
		why := make(map[string]string)
		for _, r := range x.Others {
			why[r.Worker] = r.Why
		}
		for worker, want := range map[string]string{
			"full": "it is full: it takes 1 partitions", "cordoned": "it is cordoned: it gets nothing new", "drained": "it is drained by an operator",
		} {
			if why[worker] != want {
				t.Errorf("why not at %s = %q, want %q", worker, why[worker], want)
			}
		}
	})
}

// The history is bounded, and carried by the writes that move a partition anyway.
func TestHistoryKeepsTheLastEightOwners(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 1)
		a, b := g.start("a"), g.start("b")
		g.wantLoads(time.Second, []int{0, 1}, a, b)
		admin := g.admin()
		var tokens []uint64
		for i := range 12 {
			to := []string{"a", "b"}[i%2]
			ok(t, admin.Move(t.Context(), "0", to, claim.Wait()))
			x, err := admin.Explain(t.Context(), "0")
			ok(t, err)
			tokens = append(tokens, x.Token)
			time.Sleep(time.Second)
		}
		x, err := admin.Explain(t.Context(), "0")
		ok(t, err)
		if len(x.History) != 8 {
			t.Fatalf("history has %d, want 8", len(x.History))
		}
		for i, p := range x.History {
			if at := len(tokens) - 2 - i; p.Token != tokens[at] || p.End != claim.EndedMoved || p.Until.Before(p.Since) || p.Worker != []string{"a", "b"}[at%2] {
				t.Errorf("history %d = %+v, want token %d, moved", i, p, tokens[at])
			}
		}
		b.link.Cut()
		time.Sleep(g.ttl + time.Second)
		if x, err = admin.Explain(t.Context(), "0"); err != nil || x.History[0].Worker != "b" || x.History[0].End != claim.EndedDied {
			t.Errorf("history after a death = %+v, %v, want b, died", x.History[0], err)
		}
	})
}
