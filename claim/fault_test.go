package claim_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tenure/claim"
	"tenure/claim/plan"
	"tenure/embedded"
	"tenure/embedded/natstest"
	"tenure/kvlock/bucket"
)

// isClaim matches requests to write a claim of the group.
func isClaim(subject string) bool { return strings.HasPrefix(subject, "$KV.tenure.claim.") }

// C32: death in the middle of a drain pins nothing.
func TestCrashWhileDrainingFreesThePartition(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2)
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			<-ctx.Done() // does not drain
			return nil
		})
		g.wantLoads(time.Second, []int{2}, a)
		b := g.start("b")
		time.Sleep(time.Second)
		a.link.Cut()
		g.wantLoads(g.ttl+time.Second, []int{2}, b)
		g.history.Check(t)
	})
}

// C34: a move that is withdrawn before it was sent leaves the partition running
// under its token.
func TestWithdrawnMoveGoesOnUnderTheSameToken(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2, claim.WithDrainTimeout(time.Hour))
		leave := make(chan struct{})
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			select {
			case <-p.Draining():
				<-leave
				p.Stage([]byte("done so far"))
			case <-ctx.Done():
			}
			return nil
		})
		g.wantLoads(time.Second, []int{2}, a)
		b := g.start("b")
		time.Sleep(time.Second) // one of a's partitions drains
		b.leave()
		time.Sleep(time.Second) // the plan gives it back
		close(leave)
		g.wantLoads(time.Second, []int{2}, a)
		again := 0
		for name, starts := range g.starts {
			for _, s := range starts[1:] {
				again++
				if s.worker != "a" || s.token != starts[0].token || s.checkpoint != "done so far" {
					t.Errorf("partition %s: started again %+v, want a under token %d from what was staged", name, s, starts[0].token)
				}
			}
		}
		if again != 1 {
			t.Errorf("handlers started again = %d, want the one that was to move", again)
		}
	})
}

// H4, C34: a hand-over whose answer is lost is resolved by reading, and the
// partition never runs again under the old token.
func TestDoubtfulHandOverIsResolved(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		a := g.start("a")
		g.wantLoads(time.Second, []int{4}, a)
		// Both hand-overs arrive, their acknowledgements do not.
		a.link.DropReply(2, func(subject string, _ []byte) bool { return isClaim(subject) })
		b := g.start("b")
		g.wantLoads(5*time.Second, []int{2, 2}, a, b)
		if n := g.startsOf(); n != 6 {
			t.Errorf("handlers started = %d, want 4 and 2 moved", n)
		}
		g.history.Check(t)
	})
}

// H14: a claim that a delayed write made for a worker that is not to have it any
// more is passed on to who is.
func TestGhostOfATakeIsPassedOn(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2)
		b := g.start("b")
		ofB := b.link.HoldRequest(isClaim)
		time.Sleep(300 * time.Millisecond) // the plan gives both to b, whose writes are on their way
		a := g.start("a")
		ofA := a.link.HoldRequest(isClaim)
		time.Sleep(3 * time.Second) // now it gives one to a, and b tries for the other only
		ofB()                       // both are stored for b
		time.Sleep(100 * time.Millisecond)
		ofA()
		g.wantLoads(5*time.Second, []int{1, 1}, a, b)
		g.history.Check(t)
	})
}

// H17, C8: a plan that was made from less than the present one is not followed,
// and does not stay for the next worker to find.
func TestPlanFromAnOlderViewIsNotFollowed(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		a, b := g.start("a"), g.start("b")
		g.wantLoads(time.Second, []int{2, 2}, a, b)
		store, err := bucket.Open(t.Context(), natstest.JetStream(t, natstest.Connect(t, g.srv)))
		if err != nil {
			t.Fatal(err)
		}
		e, err := store.Get(t.Context(), "plan.orders")
		if err != nil {
			t.Fatal(err)
		}
		p, err := plan.Parse(e.Value)
		if err != nil {
			t.Fatal(err)
		}
		good := p.View
		p.View--
		clear(p.Assign) // all to the first worker
		data, err := p.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Write(t.Context(), bucket.Write{Key: e.Key, Last: e.Revision, Value: data}); err != nil {
			t.Fatal(err)
		}
		g.wantLoads(2*g.ttl, []int{2, 2}, a, b)
		if n := g.startsOf(); n != 4 {
			t.Errorf("handlers started = %d, want 4", n)
		}
		if e, err = store.Get(t.Context(), "plan.orders"); err != nil {
			t.Fatal(err)
		}
		if p, err = plan.Parse(e.Value); err != nil || p.View < good {
			t.Errorf("plan = view %d, %v, want at least %d", p.View, err, good)
		}
	})
}

// C29: a plan of a newer planner is followed, and left alone by an older one.
func TestPlanOfANewerPlannerIsLeftAlone(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		a, b := g.start("a"), g.start("b")
		g.wantLoads(time.Second, []int{2, 2}, a, b)
		store, err := bucket.Open(t.Context(), natstest.JetStream(t, natstest.Connect(t, g.srv)))
		if err != nil {
			t.Fatal(err)
		}
		e, err := store.Get(t.Context(), "plan.orders")
		if err != nil {
			t.Fatal(err)
		}
		p, err := plan.Parse(e.Value)
		if err != nil {
			t.Fatal(err)
		}
		p.View, p.Version = e.Revision, plan.Version+1
		clear(p.Assign)
		p.Assign[3] = 1
		data, err := p.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Write(t.Context(), bucket.Write{Key: e.Key, Last: e.Revision, Value: data}); err != nil {
			t.Fatal(err)
		}
		g.wantLoads(3*g.ttl, []int{1, 3}, a, b)
		g.history.Check(t)
	})
}

// N9, S9: a restart of the server within the trust is no loss.
func TestServerRestartMovesNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		g.srv = natstest.Server(t, embedded.Store(t.TempDir()))
		a, b := g.start("a"), g.start("b")
		g.wantLoads(time.Second, []int{2, 2}, a, b)
		for range 3 {
			natstest.Restart(t, g.srv)
			time.Sleep(30 * time.Second)
		}
		g.wantLoads(0, []int{2, 2}, a, b)
		if n := g.startsOf(); n != 4 {
			t.Errorf("handlers started = %d, want 4", n)
		}
		// And the group still works.
		b.leave()
		g.wantLoads(time.Second, []int{4}, a)
		g.history.Check(t)
	})
}

// K52, N87, H7: with the bucket gone every hold ends at the next heartbeat, and
// nobody owns anything in a new one before the old trust has ended.
func TestBucketMadeAnewEndsEverySession(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2)
		a := g.start("a")
		g.wantLoads(time.Second, []int{2}, a)
		nc := natstest.Connect(t, g.srv)
		js := natstest.JetStream(t, nc)
		if err := js.DeleteStream(t.Context(), "KV_tenure"); err != nil {
			t.Fatal(err)
		}
		lost := time.Now()
		b, err := bucket.Open(t.Context(), js) // not fresh
		if err != nil {
			t.Fatal(err)
		}
		a.await(g.ttl)
		if !errors.Is(a.err, claim.ErrBucket) {
			t.Errorf("Run = %v, want %v", a.err, claim.ErrBucket)
		}
		if took := time.Since(lost); took > g.ttl/3 {
			t.Errorf("Run returned after %v, want at most one heartbeat", took)
		}
		if left := b.Quarantine(); left > time.Minute-time.Since(lost) || left < 50*time.Second {
			t.Errorf("quarantine = %v, want the rest of a minute", left)
		}
		again := g.start("a", claim.WithBucket(b))
		g.wantLoads(50*time.Second, []int{0}, again)
		g.wantLoads(11*time.Second, []int{2}, again)
		g.history.Check(t) // tokens have grown
	})
}

// S7: a checkpoint whose answer was lost is not stored over a newer one later.
func TestGhostOfASaveNeverOverwritesANewerOne(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) { // H13
		g := newGroup(t, 1)
		begun := make(chan *worker, 1)
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			first := make(chan struct{})
			arrive := (<-begun).link.HoldRequest(func(s string) bool {
				if !strings.HasPrefix(s, "$KV.tenure.check.") {
					return false
				}
				select {
				case <-first:
					return false
				default:
					close(first)
					return true // only the first is held back
				}
			})
			short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			defer cancel()
			if err := p.Save(short, []byte("one")); err == nil {
				t.Error("Save without an answer = nil, want an error")
			}
			if err := p.Save(ctx, []byte("two")); err != nil {
				t.Errorf("Save = %v, want nil", err)
			}
			arrive()
			<-p.Draining()
			return nil
		})
		begun <- a
		g.wantLoads(5*time.Second, []int{1}, a)
		synctest.Wait()
		b := g.start("b")
		time.Sleep(time.Second)
		a.leave()
		g.wantLoads(time.Second, []int{1}, b)
		if have := g.starts["0"][1].checkpoint; have != "two" {
			t.Errorf("checkpoint = %q, want %q", have, "two")
		}
		if first, second := g.starts["0"][0].token, g.starts["0"][1].token; second <= first {
			t.Errorf("token = %d after %d, want a larger one", second, first)
		}
	})
}
