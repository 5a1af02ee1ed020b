package claim_test

import (
	"errors"
	"testing"
	"time"

	"tenure/claim"
	"tenure/claim/plan"
	"tenure/embedded/natstest"
)

// C55: who gets nothing though partitions are free says so after the timeout, and
// is well again when it gets something.
func TestWorkerThatIsGivenNothingThoughPartitionsAreFreeIsUnhealthy(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4, claim.WithAssignmentTimeout(15*time.Second))
		a, b := g.start("a", claim.WithCapacity(2)), g.start("b")
		g.wantLoads(time.Minute, []int{2, 2}, a, b)
		healthy := func(want bool, all ...*worker) {
			t.Helper()
			for _, w := range all {
				err := w.Healthy()
				var h *claim.HealthError
				if (err == nil) != want || err != nil && (!errors.Is(err, claim.ErrUnhealthy) || !errors.As(err, &h) || h.Worker != w.ID()) {
					t.Errorf("Healthy of %s = %v, want healthy %v", w.ID(), err, want)
				}
			}
		}
		healthy(true, a, b)
		g.store(func(p *plan.Plan) {
			for i, w := range p.Assign {
				if p.Workers[w].ID == "b" {
					p.Assign[i], p.Why[i] = plan.None, plan.NoRoom
				}
			}
		})
		time.Sleep(14 * time.Second)
		healthy(true, a, b)
		time.Sleep(2 * time.Second)
		healthy(true, a)
		healthy(false, b)
		g.wantLoads(4*g.ttl, []int{2, 2}, a, b) // rescued
		healthy(true, a, b)
		g.store(func(p *plan.Plan) { // a plan that does not know b, and has nothing free
			for i := range p.Assign {
				p.Assign[i] = 0
			}
			if p.Workers[0].ID != "a" {
				p.Workers[0], p.Workers[1] = p.Workers[1], p.Workers[0]
			}
			p.Workers = p.Workers[:1]
		})
		time.Sleep(20 * time.Second)
		healthy(true, a)
		healthy(false, b)
		a.leave()
		healthy(false, a)
	})
}

// C22: a worker without a session is not "fatal but ready", and says who has its id.
func TestWorkerWithoutASessionIsUnhealthyAndSaysWhy(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2, claim.WithAssignmentTimeout(25*time.Second))
		a := g.start("a")
		time.Sleep(time.Second)
		second := g.start("a")
		spare := g.start("spare", claim.WithCapacity(1)) // not needed is not ill
		third := g.start("third")
		time.Sleep(24 * time.Second)
		if err := second.Healthy(); err != nil {
			t.Errorf("Healthy = %v, want nil for the time being", err)
		}
		time.Sleep(2 * time.Second)
		if err := second.Healthy(); !errors.Is(err, claim.ErrUnhealthy) || !errors.Is(err, claim.ErrWorkerID) {
			t.Errorf("Healthy = %v, want %v and %v", err, claim.ErrUnhealthy, claim.ErrWorkerID)
		}
		for _, w := range []*worker{a, spare, third} {
			if err := w.Healthy(); err != nil {
				t.Errorf("Healthy of %s = %v, want nil", w.ID(), err)
			}
		}
		a.link.Cut()
		time.Sleep(g.ttl + 26*time.Second)
		if err := a.Healthy(); !errors.Is(err, claim.ErrUnhealthy) {
			t.Errorf("Healthy of a worker that is cut off = %v, want %v", err, claim.ErrUnhealthy)
		}
	})
}
