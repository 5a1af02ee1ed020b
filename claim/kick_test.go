package claim_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"tenure/claim"
	"tenure/embedded/natstest"
)

// C9 of the rules: a kicked worker ends its handlers and joins anew.
func TestKickedWorkerEndsItsHandlersAndJoinsAnew(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		var cause atomic.Value
		stop := make(chan struct{})
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			<-p.Draining()
			select {
			case <-ctx.Done(): // drains too slowly
				cause.Store(context.Cause(ctx))
			case <-stop:
			}
			return nil
		})
		b := g.start("b")
		g.wantLoads(time.Second, []int{2, 2}, a, b)
		admin := g.admin()
		if err := admin.Kick(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if err := admin.Kick(t.Context(), "a"); err != nil {
			t.Errorf("Kick again = %v, want nil", err)
		}
		g.wantLoads(g.ttl/3+time.Second, []int{2, 2}, a, b)
		if err, _ := cause.Load().(error); !errors.Is(err, claim.ErrRevoked) || !errors.Is(err, claim.ErrSessionLost) {
			t.Errorf("cause = %v, want %v and %v", err, claim.ErrRevoked, claim.ErrSessionLost)
		}
		if err := admin.Kick(t.Context(), "c"); !errors.Is(err, claim.ErrWorker) {
			t.Errorf("Kick of nobody = %v, want %v", err, claim.ErrWorker)
		}
		g.history.Check(t)
		close(stop)
	})
}

// H6: whoever is kicked and cannot hear of it still believes until its trust ends,
// and nobody takes from it before, not even a process with its own id.
func TestKickIsNoProofOfDeath(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4, claim.WithRejoinDelay(0))
		a, b := g.start("a"), g.start("b")
		g.wantLoads(time.Second, []int{2, 2}, a, b)
		a.link.Cut()
		if err := g.admin().Kick(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		second := g.start("a")
		g.wantLoads(g.ttl-2*time.Second, []int{0, 2}, b, second)
		g.wantLoads(3*time.Second, []int{2, 2}, b, second)
		g.history.Check(t)
	})
}
