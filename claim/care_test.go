package claim_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tenure/claim"
	"tenure/embedded/natstest"
)

// idle is a handler that does nothing until it is to end.
func idle(ctx context.Context, p *claim.Partition) error {
	select {
	case <-p.Draining():
	case <-ctx.Done():
	}
	return nil
}

// status returns what the bucket says of one partition.
func (g *group) status(w *worker, partition int) claim.PartitionStatus {
	g.t.Helper()
	s, err := w.Status(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	return s.Partitions[partition]
}

// C46: after N failures in a row a partition is in quarantine: visible, run by
// nobody whatever comes and goes, no load, until somebody ends it.
func TestPartitionThatFailsTooOftenIsQuarantinedUntilItIsResumed(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		var quarantined atomic.Int64
		g := newGroup(t, 5, claim.WithBackoff(time.Second, 8*time.Second), claim.WithQuarantineAfter(3),
			claim.WithTrace(&claim.Trace{Quarantined: func(partition string, attempts int, cause error) {
				if partition != "0" || attempts != 3 || cause == nil {
					t.Errorf("Quarantined(%s, %d, %v), want 0, 3 and an error", partition, attempts, cause)
				}
				quarantined.Add(1)
			}}))
		var healed atomic.Bool
		handler := func(ctx context.Context, p *claim.Partition) error {
			if p.Name() == "0" && !healed.Load() {
				return errors.New("no luck")
			}
			return idle(ctx, p)
		}
		a := g.startWith("a", handler)
		time.Sleep(500 * time.Millisecond)
		began := time.Now()
		g.wantLoads(time.Minute, []int{4}, a)
		var at []time.Duration
		for _, s := range g.starts["0"] {
			at = append(at, s.at.Sub(began).Round(time.Second))
		}
		if have, want := fmt.Sprint(at), "[0s 1s 3s]"; have != want {
			t.Errorf("partition 0 started at %s, want %s", have, want)
		}
		want := claim.PartitionStatus{Name: "0", State: claim.StateQuarantined, Attempts: 3, Error: "no luck", Why: "unassigned: quarantined"}
		if have := g.status(a, 0); have != want {
			t.Errorf("status = %+v, want %+v", have, want)
		}
		// Neither a join nor a death nor a leave runs it again, and it is no load.
		b := g.startWith("b", handler)
		g.wantLoads(time.Second, []int{2, 2}, a, b)
		a.link.Cut()
		g.wantLoads(2*g.ttl, []int{0, 4}, a, b)
		a.link.Mend()
		g.wantLoads(g.ttl, []int{2, 2}, a, b)
		b.leave()
		g.wantLoads(time.Second, []int{4}, a)
		if have := g.status(a, 0); have != want {
			t.Errorf("status = %+v, want %+v", have, want)
		}
		if n := len(g.starts["0"]); n != 3 {
			t.Errorf("partition 0 was started %d times, want 3", n)
		}
		healed.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := g.admin().Resume(ctx, []string{"0"}, claim.Wait()); err != nil {
			t.Errorf("Resume = %v, want nil", err)
		}
		g.wantLoads(time.Second, []int{5}, a)
		if have := g.status(a, 0); have.State != claim.StateRunning || have.Attempts != 0 || have.Error != "" {
			t.Errorf("status = %+v, want it running, without failures", have)
		}
		if n := quarantined.Load(); n != 1 {
			t.Errorf("Quarantined was called %d times, want once", n)
		}
		g.history.Check(t)
	})
}

// C46: failures are counted across moves; a graceful move never counts.
func TestFailuresAreCountedAcrossMovesAndGracefulMovesAreNot(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2, claim.WithBackoff(time.Hour, 2*time.Hour), claim.WithQuarantineAfter(3))
		failing := func(ctx context.Context, p *claim.Partition) error {
			if p.Name() == "0" {
				return fmt.Errorf("attempt %d", p.Attempts())
			}
			return idle(ctx, p)
		}
		a := g.startWith("a", failing)
		g.wantLoads(time.Second, []int{1}, a)
		for i, id := range []string{"b", "c"} {
			w := g.startWith(id, failing)
			time.Sleep(time.Second)
			if err := g.admin().Move(t.Context(), "0", id, claim.Wait()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if have, want := g.status(w, 0).Error, fmt.Sprintf("attempt %d", i+1); have != want {
				t.Errorf("failure on %s = %q, want %q", id, have, want)
			}
		}
		if have := g.status(a, 0); have.State != claim.StateQuarantined || have.Attempts != 3 {
			t.Errorf("status = %+v, want it quarantined after 3 attempts", have)
		}
		for range 5 {
			for _, id := range []string{"b", "c"} {
				if err := g.admin().Move(t.Context(), "1", id, claim.Wait()); err != nil {
					t.Fatal(err)
				}
			}
		}
		if have := g.status(a, 1); have.Attempts != 0 || have.Worker != "c" {
			t.Errorf("status = %+v, want no attempts, at c", have)
		}
	})
}

// C6: a partition whose handler makes no progress is reported, alone, until it does.
func TestStalledPartitionIsReportedAlone(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		var silent atomic.Int64
		g := newGroup(t, 3, claim.WithStallAfter(5*time.Second), claim.WithTrace(&claim.Trace{
			Stalled: func(partition string, _ uint64, d time.Duration) {
				if partition != "1" || !silent.CompareAndSwap(0, int64(d)) {
					t.Errorf("Stalled(%s, %v), want partition 1 once", partition, d)
				}
			},
		}))
		goOn := make(chan struct{})
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			tick := time.NewTicker(2 * time.Second)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					if p.Name() == "1" {
						select {
						case <-goOn:
						default:
							continue
						}
					}
					p.Beat()
				case <-p.Draining():
					return nil
				}
			}
		})
		g.wantLoads(4*time.Second, []int{3}, a)
		if have := g.status(a, 1); have.State != claim.StateRunning {
			t.Errorf("status after 4 s = %+v, want it running", have)
		}
		g.wantLoads(2*time.Second, []int{3}, a)
		if have := g.status(a, 1); have.State != claim.StateStalled || have.Worker != "a" {
			t.Errorf("status after 6 s = %+v, want it stalled at a", have)
		}
		if have := time.Duration(silent.Load()); have != 5*time.Second {
			t.Errorf("reported after %v, want 5s", have)
		}
		g.wantLoads(time.Minute, []int{3}, a) // nothing else happens
		close(goOn)
		g.wantLoads(3*time.Second, []int{3}, a)
		for i := range 3 {
			if have := g.status(a, i); have.State != claim.StateRunning {
				t.Errorf("status = %+v, want it running", have)
			}
		}
		if n := g.startsOf(); n != 3 {
			t.Errorf("handlers started = %d, want 3", n)
		}
	})
}

// C6: if asked, a stalled partition is given up, alone, and another worker gets it.
func TestStalledPartitionIsGivenToAnotherWorker(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4, claim.WithStallAfter(5*time.Second), claim.WithGiveUpStalled())
		beating := func(ctx context.Context, p *claim.Partition) error {
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					p.Beat()
				case <-p.Draining():
					return nil
				}
			}
		}
		var cause, name atomic.Value
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			if !name.CompareAndSwap(nil, p.Name()) {
				return beating(ctx, p)
			}
			<-ctx.Done()
			cause.Store(context.Cause(ctx))
			return nil
		})
		b := g.startWith("b", beating)
		g.wantLoads(time.Second, []int{2, 2}, a, b)
		g.wantLoads(10*time.Second, []int{2, 2}, a, b) // in exchange for another
		if err, _ := cause.Load().(error); !errors.Is(err, claim.ErrStalled) {
			t.Errorf("cause = %v, want %v", err, claim.ErrStalled)
		}
		starts := g.starts[name.Load().(string)]
		if len(starts) != 2 || starts[1].worker != "b" || starts[1].token <= starts[0].token {
			t.Fatalf("it started %+v, want at a and then at b with a larger token", starts)
		}
		if have, want := starts[1].at.Sub(starts[0].at), 5*time.Second; have < want || have > want+time.Second/2 {
			t.Errorf("it started there after %v, want at most 500 ms after %v", have, want)
		}
		if have := g.status(a, int(name.Load().(string)[0]-'0')); have.Attempts != 1 || have.State != claim.StateRunning {
			t.Errorf("status = %+v, want one attempt, running", have)
		}
		if n := g.startsOf(); n != 4+2 {
			t.Errorf("handlers started = %d, want 4, the one given up, and one that moved for balance", n)
		}
		g.history.Check(t)
	})
}

// C6: with no other worker it is tried again where it is, after a pause.
func TestStalledPartitionOfTheOnlyWorkerIsTriedAgain(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2, claim.WithStallAfter(5*time.Second), claim.WithGiveUpStalled(), claim.WithQuarantineAfter(3))
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			if p.Name() == "1" {
				<-p.Draining()
				return nil
			}
			return idle(ctx, p)
		}, claim.WithStallAfter(0))
		a.leave()
		g.starts = make(map[string][]start)
		a = g.start("a")
		time.Sleep(time.Minute)
		synctest.Wait()
		for name, starts := range g.starts {
			if len(starts) != 3 {
				t.Errorf("partition %s started %+v, want 3 times", name, starts)
			}
		}
		if have := g.status(a, 0); have.State != claim.StateQuarantined || have.Attempts != 3 {
			t.Errorf("status = %+v, want it quarantined after 3 attempts", have)
		}
	})
}

// C35: with ForceAfter a handler that ignores everything is overrun: its token is
// stale, and its worker does not run the partition again before it has returned
// (C10).
func TestHandlerThatIgnoresEverythingIsOverrunIfAsked(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2, claim.WithDrainTimeout(5*time.Second), claim.WithForceAfter(3*time.Second))
		release := make(chan struct{})
		var asked, late atomic.Value
		var moving atomic.Value
		var stuck atomic.Bool
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			<-p.Draining()
			if !stuck.CompareAndSwap(false, true) {
				return nil
			}
			asked.Store(time.Now())
			moving.Store(p.Name())
			time.Sleep(10 * time.Second)
			late.Store(p.Save(context.WithoutCancel(ctx), []byte("late")))
			<-release
			return nil
		})
		g.wantLoads(time.Second, []int{2}, a)
		b := g.start("b")
		g.wantLoads(7*time.Second, []int{0, 2}, a, b)
		g.wantLoads(3*time.Second, []int{1, 1}, a, b)
		name := moving.Load().(string)
		starts := g.starts[name]
		if len(starts) != 2 || starts[1].worker != "b" || starts[1].token <= starts[0].token {
			t.Fatalf("partition %s started %+v, want at a and then at b with a larger token", name, starts)
		}
		if have, want := starts[1].at.Sub(asked.Load().(time.Time)), 8*time.Second; have != want {
			t.Errorf("b started %v after a was asked to drain, want %v", have, want)
		}
		time.Sleep(5 * time.Second)
		if err, _ := late.Load().(error); !errors.Is(err, claim.ErrDrainDeadline) {
			t.Errorf("Save of the handler that was overrun = %v, want %v", err, claim.ErrDrainDeadline)
		}
		// b goes: a does not run it beside its own old handler.
		b.leave()
		g.wantLoads(time.Minute, []int{1}, a)
		if have := g.status(a, int(name[0]-'0')); have.Worker != "" {
			t.Errorf("status = %+v, want it owned by nobody: nobody runs it", have)
		}
		close(release)
		g.wantLoads(2*time.Second, []int{2}, a)
		if starts := g.starts[name]; len(starts) != 3 || starts[2].worker != "a" || starts[2].checkpoint != "" {
			t.Errorf("partition %s started %+v, want at a again, without what was saved late", name, starts)
		}
	})
}

// H24, C10: a handler that ignores the loss of its session is not joined by a second
// one in the same process.
func TestLostHandlerIsNotJoinedByASecondOne(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2)
		release := make(chan struct{})
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			if p.Name() == "0" {
				<-release
			}
			return idle(ctx, p)
		})
		g.wantLoads(time.Second, []int{2}, a)
		a.link.Cut()
		time.Sleep(2 * g.ttl)
		a.link.Mend()
		time.Sleep(time.Minute)
		synctest.Wait()
		if have := len(g.starts["0"]); have != 1 {
			t.Errorf("partition 0 was started %d times, want once", have)
		}
		if have := len(g.starts["1"]); have != 2 {
			t.Errorf("partition 1 was started %d times, want twice", have)
		}
		close(release)
		g.wantLoads(2*time.Second, []int{2}, a)
		if have := len(g.starts["0"]); have != 2 {
			t.Errorf("partition 0 was started %d times, want twice", have)
		}
		g.history.Check(t)
	})
}

// N19, N74, N75, N76, C4: handlers that block, in their work or in their drain, for
// several TTLs keep their partitions, and everybody else's heartbeats go on.
func TestBlockedHandlersKeepTheSession(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4, claim.WithDrainTimeout(time.Hour))
		var name, returned atomic.Value
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			if name.CompareAndSwap(nil, p.Name()) {
				time.Sleep(5 * g.ttl) // ignores everything: no goroutine of the session may wait for it
				<-p.Draining()
				time.Sleep(3 * g.ttl)
				if ctx.Err() != nil || p.Remaining() == 0 {
					t.Errorf("claim was lost while its handler drained: %v", context.Cause(ctx))
				}
				returned.Store(time.Now())
				return nil
			}
			return idle(ctx, p)
		})
		b := g.start("b")
		g.wantLoads(time.Second, []int{2, 2}, a, b)
		g.wantLoads(6*g.ttl, []int{2, 2}, a, b)
		a.stop()
		g.wantLoads(2*g.ttl, []int{1, 3}, a, b)
		g.wantLoads(g.ttl+2*time.Second, []int{4}, b)
		starts := g.starts[name.Load().(string)]
		if len(starts) != 2 || !starts[1].at.Equal(returned.Load().(time.Time)) {
			t.Errorf("it started %+v, want at b when a's handler returned, %v", starts, returned.Load())
		}
		g.history.Check(t)
	})
}

// C46: a plan that does not know of a quarantine yet ends none.
func TestQuarantineHoldsUnderAnOlderPlan(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2, claim.WithQuarantineAfter(1))
		fail := make(chan struct{})
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			if p.Name() == "0" {
				<-fail
				return errors.New("no luck")
			}
			return idle(ctx, p)
		})
		g.wantLoads(time.Second, []int{2}, a)
		arrive := a.link.HoldRequest(func(subject string) bool { return subject == "$KV.tenure.plan.orders" })
		close(fail)
		g.wantLoads(8*time.Second, []int{1}, a)
		arrive()
		g.wantLoads(time.Second, []int{1}, a)
		if n := len(g.starts["0"]); n != 1 {
			t.Errorf("partition 0 was started %d times, want once", n)
		}
	})
}

// C46, C43: a resize ends no quarantine.
func TestQuarantineSurvivesAResize(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2, claim.WithQuarantineAfter(1))
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			if p.Name() == "0" {
				return errors.New("no luck")
			}
			return idle(ctx, p)
		})
		g.wantLoads(time.Second, []int{1}, a)
		ok(t, g.admin().Resize(t.Context(), claim.Numbered(4), claim.AfterDrain()))
		g.wantLoads(5*time.Second, []int{3}, a)
		want := claim.PartitionStatus{Name: "0", State: claim.StateQuarantined, Attempts: 1, Error: "no luck", Why: "unassigned: quarantined"}
		if have := g.status(a, 0); have != want {
			t.Errorf("status = %+v, want %+v", have, want)
		}
	})
}

// C46: what went well for longer than the longest pause is no failure in a row.
func TestFailureAfterACleanRunIsTheFirst(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 1, claim.WithBackoff(time.Second, 4*time.Second), claim.WithQuarantineAfter(3))
		var calls atomic.Int64
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			if calls.Add(1)%2 == 0 {
				time.Sleep(5 * time.Second)
			}
			return errors.New("no luck")
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if have := g.status(a, 0); have.State != claim.StateRunning {
			t.Errorf("status = %+v, want it running: it never failed 3 times in a row", have)
		}
	})
}

// C6, C35: who drains need not beat, and has the drain timeout.
func TestDrainingHandlerIsNotGivenUpAsStalled(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2, claim.WithStallAfter(5*time.Second), claim.WithGiveUpStalled())
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					p.Beat()
				case <-p.Draining():
					time.Sleep(8 * time.Second)
					if ctx.Err() != nil {
						t.Errorf("cause in the drain = %v, want none", context.Cause(ctx))
					}
					return nil
				}
			}
		})
		g.wantLoads(time.Second, []int{2}, a)
		b := g.start("b", claim.WithStallAfter(0))
		g.wantLoads(10*time.Second, []int{1, 1}, a, b)
		for i := range 2 {
			if have := g.status(b, i); have.Attempts != 0 {
				t.Errorf("status = %+v, want no attempts", have)
			}
		}
	})
}
