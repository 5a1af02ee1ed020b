package claim_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tenure/claim"
	"tenure/claim/plan"
	"tenure/embedded/natstest"
	"tenure/kvlock/bucket"
)

// stopPlanning keeps the worker's plans from being stored, until again is called.
func (w *worker) stopPlanning() (again func()) {
	var planning atomic.Bool
	w.link.DropRequest(1<<30, func(subject string) bool { return !planning.Load() && strings.HasPrefix(subject, "$KV.tenure.plan.") })
	return func() { planning.Store(true) }
}

// store replaces the plan by one of a newer planner, which the leader leaves alone.
func (g *group) store(change func(*plan.Plan)) {
	g.t.Helper()
	b := g.bucket()
	e, err := b.Get(g.t.Context(), "plan.orders")
	if err != nil {
		g.t.Fatal(err)
	}
	p, err := plan.Parse(e.Value)
	if err != nil {
		g.t.Fatal(err)
	}
	p.Version, p.View = plan.Version+1, e.Revision
	change(p)
	data, err := p.Marshal()
	if err != nil {
		g.t.Fatal(err)
	}
	if _, err := b.Write(g.t.Context(), bucket.Write{Key: e.Key, Last: e.Revision, Value: data}); err != nil {
		g.t.Fatal(err)
	}
}

// C44, C45: what a leader that lives does not plan is taken by who has room, within
// two to four TTLs, and only once; a plan that comes later keeps it there.
func TestOrphansThatNoPlanCaresForAreTakenByWhoHasRoom(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 9)
		leader := g.start("leader", claim.WithCapacity(3))
		time.Sleep(time.Second)
		a, b := g.start("a"), g.start("b")
		g.wantLoads(10*time.Second, []int{3, 3, 3}, leader, a, b)
		before := g.startsOf()
		again := leader.stopPlanning()
		b.link.Cut()
		g.wantLoads(g.ttl+5*time.Second, []int{3, 3}, leader, a)
		g.wantLoads(4*g.ttl, []int{3, 6}, leader, a)
		g.wantLoads(10*g.ttl, []int{3, 6}, leader, a)
		if n := g.startsOf() - before; n != 3 {
			t.Errorf("handlers started = %d, want 3", n)
		}
		again()
		g.wantLoads(3*g.ttl, []int{3, 6}, leader, a)
		if n := g.startsOf() - before; n != 3 {
			t.Errorf("handlers started when the leader plans again = %d, want 3", n)
		}
		g.history.Check(t)
	})
}

// C44: also what nobody ever planned, and by a leader that is alone.
func TestPartitionsWithoutAnyPlanAreTaken(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 6)
		a := g.start("a")
		a.stopPlanning()
		b := g.start("b", claim.WithCapacity(2))
		time.Sleep(5 * g.ttl)
		synctest.Wait()
		if o := owners(a, b); len(o) != 6 {
			t.Errorf("partitions that run = %v, want 6", o)
		}
		if n := loads(b)[0]; n > 2 {
			t.Errorf("partitions of b = %d, want at most its capacity of 2", n)
		}
		a.leave() // the next leader can plan
		g.wantLoads(5*time.Second, []int{2}, b)
		g.history.Check(t)
	})
}

// A live owner keeps what the plan does not give to it.
func TestRescueTakesNothingFromALiveOwner(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		a, b := g.start("a"), g.start("b")
		g.wantLoads(time.Second, []int{2, 2}, a, b)
		g.store(func(p *plan.Plan) { // it gives all to somebody who is not there
			p.Workers = append(p.Workers, plan.WorkerRef{ID: "ghost", Epoch: 1})
			for i := range p.Assign {
				p.Assign[i] = len(p.Workers) - 1
			}
		})
		g.wantLoads(10*g.ttl, []int{2, 2}, a, b)
		if n := g.startsOf(); n != 4 {
			t.Errorf("handlers started = %d, want 4", n)
		}
		g.history.Check(t)
	})
}

// What the plan gives to nobody on purpose is left alone; what it finds no room for
// is taken by who has some, and not given back to the plan that knows of none.
func TestRescueLeavesAloneWhatIsUnassignedOnPurpose(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		a, b := g.start("a"), g.start("b")
		g.wantLoads(time.Second, []int{2, 2}, a, b)
		g.store(func(p *plan.Plan) {
			for i, why := range []plan.Reason{plan.Paused, plan.Quarantined, plan.NoRoom, plan.NoWorker} {
				p.Assign[i], p.Why[i] = plan.None, why
			}
		})
		g.wantLoads(g.ttl, []int{0, 0}, a, b)
		time.Sleep(4 * g.ttl)
		synctest.Wait()
		if o := owners(a, b); len(o) != 2 || len(o["2"]) != 1 || len(o["3"]) != 1 {
			t.Errorf("owners = %v, want 2 and 3 owned", o)
		}
		time.Sleep(5 * g.ttl)
		if n := g.startsOf(); n != 6 {
			t.Errorf("handlers started = %d, want 4 and 2 rescued", n)
		}
		g.history.Check(t)
	})
}

// A hand-over that nobody heard of, and that no plan speaks of any more, does not stay.
func TestLostHandOverOfWhatIsPausedMeanwhileIsGivenBack(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 1)
		a := g.start("a")
		g.wantLoads(time.Second, []int{1}, a)
		b := g.start("b")
		time.Sleep(time.Second)
		admin := g.admin()
		// Two offers are answered, the news of the hand-over gets lost.
		var messages atomic.Int64
		a.link.DropRequest(1<<30, func(subject string) bool {
			return strings.HasPrefix(subject, "_tenure.tenure.claim.orders.b.") && messages.Add(1) == 3
		})
		ok(t, admin.Drain(t.Context(), []string{"a"}))
		time.Sleep(500 * time.Millisecond)
		ok(t, admin.Pause(t.Context(), []string{"0"}))
		time.Sleep(g.ttl + time.Second)
		s, err := b.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if p := s.Partitions[0]; p.Worker != "" || p.State != claim.StatePaused || messages.Load() < 3 {
			t.Errorf("partition = %+v after %d messages, want it given back and paused", p, messages.Load())
		}
		g.history.Check(t)
	})
}
