package claim_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tenure/claim"
	"tenure/embedded/natstest"
	"tenure/kvlock/bucket"
)

// A screen shows what was last said of a group.
type screen struct {
	mu    sync.Mutex
	last  claim.Status
	shown int
	done  chan error
}

// watch shows the group on a screen until the test ends, over a link of its own.
func (g *group) watch(ctx context.Context) *screen {
	g.t.Helper()
	b, err := bucket.Open(g.t.Context(), natstest.JetStream(g.t, natstest.Connect(g.t, g.srv)), bucket.Fresh())
	if err != nil {
		g.t.Fatal(err)
	}
	s := &screen{done: make(chan error, 1)}
	go func() {
		s.done <- claim.WatchStatus(ctx, b, "orders", func(status claim.Status) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.last, s.shown = status, s.shown+1
		})
	}()
	return s
}

func (s *screen) look() (claim.Status, int) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.shown
}

func TestWatchedStatusFollowsEveryChangeAndNothingElse(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		a := g.start("a")
		g.wantLoads(2*time.Second, []int{4}, a)
		ctx, cancel := context.WithCancelCause(t.Context())
		s := g.watch(ctx)
		time.Sleep(time.Second)
		first, shown := s.look()
		if len(first.Workers) != 1 || first.Unassigned != 0 || shown != 1 || len(first.Moves) != 4 {
			t.Fatalf("status = %+v after %d calls, want one worker that has all, after one", first, shown)
		}
		for _, p := range first.Partitions {
			if since := time.Since(p.Since); p.Why != "placed: it had no owner" || since < time.Second || since > 4*time.Second {
				t.Errorf("partition = %+v, want since when and why", p)
			}
		}
		time.Sleep(time.Minute) // of heartbeats
		if _, n := s.look(); n != shown {
			t.Errorf("calls after a minute of heartbeats = %d, want %d", n, shown)
		}
		b := g.start("b")
		moved := time.Now()
		g.wantLoads(time.Second, []int{2, 2}, a, b)
		now, _ := s.look()
		if len(now.Workers) != 2 || now.Unassigned != 0 || now.Plan.Moving != 0 {
			t.Errorf("status = %+v, want two workers and nothing that moves", now)
		}
		if len(now.Moves) != 6 {
			t.Fatalf("moves = %+v, want the 4 before and 2", now.Moves)
		}
		for i, m := range now.Moves {
			switch {
			case i < 2 && (m.From != "a" || m.To != "b" || m.Token == 0 || m.At.Before(moved) || m.Why != "balanced: another worker had too little"):
				t.Errorf("move %d = %+v, want it from a to b", i, m)
			case i >= 2 && (m.From != "" || m.To != "a" || m.At.After(moved)):
				t.Errorf("move %d = %+v, want it to a before", i, m)
			}
		}
		b.leave()
		a.leave()
		time.Sleep(time.Second)
		if now, _ = s.look(); len(now.Workers) != 0 || now.Unassigned != 4 || now.Moves[0].To != "" || now.Moves[0].Why != claim.EndedReleased {
			t.Errorf("status = %+v, want nobody left", now)
		}
		enough := errors.New("enough")
		cancel(enough)
		if err := <-s.done; !errors.Is(err, enough) {
			t.Errorf("WatchStatus = %v, want %v", err, enough)
		}
	})
}

// The last worker dies, and nobody is there to write so.
func TestWatchedStatusShowsNoWorkerThatIsSilentForLongerThanItsTTL(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2)
		a := g.start("a")
		g.wantLoads(2*time.Second, []int{2}, a)
		ctx, cancel := context.WithCancel(t.Context())
		s := g.watch(ctx)
		a.lastBeat()
		time.Sleep(50 * time.Millisecond)
		a.link.Cut()
		time.Sleep(g.ttl)
		if now, _ := s.look(); len(now.Workers) != 1 {
			t.Errorf("workers within the TTL = %+v, want a", now.Workers)
		}
		time.Sleep(1500 * time.Millisecond)
		if now, _ := s.look(); len(now.Workers) != 0 || now.Unassigned != 2 || now.Partitions[0].State != claim.StateOrphan {
			t.Errorf("status = %+v, want orphans", now)
		}
		a.link.Mend()
		g.wantLoads(5*time.Second, []int{2}, a)
		if now, _ := s.look(); len(now.Workers) != 1 || now.Unassigned != 0 {
			t.Errorf("status = %+v, want a to have everything again", now)
		}
		cancel()
		<-s.done
	})
}

func TestWatchedStatusOfNoGroupIsAnError(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newGroup(t, 1).watch(t.Context())
		if err := <-s.done; !errors.Is(err, claim.ErrGroup) {
			t.Errorf("WatchStatus = %v, want %v", err, claim.ErrGroup)
		}
	})
}

// Ready is what a probe of readiness wants to know, Leads who plans.
func TestReadyMeansASessionThatCanBeReliedOn(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		var renewed, failed int
		g := newGroup(t, 2)
		a := g.start("a", claim.WithTrace(&claim.Trace{
			Renewed:     func(time.Duration) { renewed++ },
			RenewFailed: func(time.Duration) { failed++ },
		}))
		b := g.start("b")
		ready := func(w *worker, want bool) {
			t.Helper()
			synctest.Wait()
			if err := w.Ready(); (err == nil) != want || err != nil && !errors.Is(err, claim.ErrUnhealthy) {
				t.Errorf("Ready of %s = %v, want ready %v", w.ID(), err, want)
			}
		}
		g.wantLoads(30*time.Second, []int{1, 1}, a, b)
		ready(a, true)
		ready(b, true)
		if !a.Leads() && !b.Leads() || a.Leads() && b.Leads() {
			t.Errorf("Leads = %v and %v, want one of them", a.Leads(), b.Leads())
		}
		if renewed < 8 || renewed > 10 || failed != 0 {
			t.Errorf("heartbeats in 30 s at a TTL of 10 s = %d, and %d failed; want 9, none", renewed, failed)
		}
		a.link.Cut()
		time.Sleep(g.ttl)
		ready(a, false)
		if a.Leads() || failed == 0 {
			t.Errorf("Leads = %v, failed heartbeats = %d, want false, some", a.Leads(), failed)
		}
		a.link.Mend()
		time.Sleep(2 * g.ttl)
		ready(a, true)
		a.leave()
		ready(a, false)
		b.leave()
		if b.Leads() {
			t.Error("a worker that has left leads")
		}
	})
}
