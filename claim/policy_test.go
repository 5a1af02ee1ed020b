package claim_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"tenure/claim"
	"tenure/embedded/natstest"
	"tenure/kvlock/bucket"
)

func freshBucket(t *testing.T, g *group) *bucket.Bucket {
	t.Helper()
	b, err := bucket.Open(t.Context(), natstest.JetStream(t, natstest.Connect(t, g.srv)), bucket.Fresh())
	ok(t, err)
	return b
}

// N70, C12: loads differ by one at most, and nothing moves once they do.
func TestLoadsAreWithinOneAndNothingMovesAfterwards(t *testing.T) {
	for _, partitions := range []int{2, 3, 7, 10} {
		for workers := 1; workers <= 5; workers++ {
			t.Run(fmt.Sprintf("%dx%d", partitions, workers), func(t *testing.T) {
				natstest.Bubble(t, func(t *testing.T) {
					g := newGroup(t, partitions)
					var all []*worker
					for i := range workers {
						all = append(all, g.start(fmt.Sprint("w", i)))
						time.Sleep(time.Second)
					}
					time.Sleep(2 * time.Second)
					synctest.Wait()
					have, settled := loads(all...), g.startsOf()
					sum := 0
					for _, n := range have {
						sum += n
					}
					if have[len(have)-1]-have[0] > 1 || sum != partitions {
						t.Errorf("loads = %v, want %d shared out within one", have, partitions)
					}
					// C12: the w-th newcomer gets floor(P/w) and nothing else moves.
					want := partitions
					for w := 2; w <= workers; w++ {
						want += partitions / w
					}
					if settled != want {
						t.Errorf("handlers started = %d, want %d", settled, want)
					}
					time.Sleep(time.Minute)
					synctest.Wait()
					if n := g.startsOf(); n != settled {
						t.Errorf("handlers started within the next minute = %d, want none", n-settled)
					}
				})
			})
		}
	}
}

func TestMovesForBalanceKeepToTheBudgetPerMinute(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 12)
		a := g.start("a")
		g.wantLoads(time.Second, []int{12}, a)
		admin := g.admin()
		ok(t, admin.SetPolicy(t.Context(), func(p *claim.Policy) { p.MovesPerMinute = 2 }))
		b := g.start("b")
		g.wantLoads(time.Second, []int{2, 10}, a, b)
		g.wantLoads(58*time.Second, []int{2, 10}, a, b)
		g.wantLoads(2*time.Second, []int{4, 8}, a, b)
		g.wantLoads(time.Minute, []int{6, 6}, a, b)
		// What has no owner is never held back.
		b.leave()
		g.wantLoads(time.Second, []int{12}, a)
		g.history.Check(t)
	})
}

func TestPartitionCoolsDownAfterAMoveHasFailed(t *testing.T) {
	for _, cool := range []time.Duration{0, 30 * time.Second} {
		t.Run(cool.String(), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				g := newGroup(t, 2)
				a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
					<-p.Draining()
					time.Sleep(5 * time.Second)
					return nil
				})
				g.wantLoads(time.Second, []int{2}, a)
				admin := g.admin()
				ok(t, admin.SetPolicy(t.Context(), func(p *claim.Policy) { p.CoolDown = cool }))
				b := g.start("b")
				time.Sleep(time.Second)
				var failed string
				s, err := a.Status(t.Context())
				ok(t, err)
				for _, p := range s.Partitions {
					if p.State == claim.StateMoving {
						failed = p.Name
					}
				}
				b.leave()
				c := g.start("c")
				time.Sleep(20 * time.Second)
				synctest.Wait()
				moved := ""
				for p := range c.Held() {
					moved = p.Name()
				}
				if cooled := failed != "" && moved != "" && moved != failed; cooled != (cool > 0) {
					t.Errorf("%q was to move, then %q did, with a cool-down of %v", failed, moved, cool)
				}
			})
		})
	}
}

func TestSharesFollowWeightsAndZones(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 12)
		a := g.start("a", claim.WithWeight(2), claim.WithZone("x"))
		b, c := g.start("b", claim.WithZone("y")), g.start("c", claim.WithZone("y"))
		g.wantLoads(time.Second, []int{3, 3, 6}, a, b, c)
		d := g.start("d", claim.WithZone("y"))
		admin := g.admin()
		ok(t, admin.SetPolicy(t.Context(), func(p *claim.Policy) { p.Zones = "spread" }))
		g.wantLoads(time.Second, []int{2, 2, 2, 6}, a, b, c, d)
		if n := len(slices.Collect(a.Held())); n != 6 {
			t.Errorf("the only worker of zone x has %d, want half", n)
		}
		// A heavy partition counts for as many as it weighs.
		ok(t, admin.SetPolicy(t.Context(), func(p *claim.Policy) { p.Zones = "" }))
		ok(t, admin.Weigh(t.Context(), 11, []string{"0"}))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		for _, w := range []*worker{b, c, d} {
			for p := range w.Held() {
				if p.Name() == "0" && len(slices.Collect(w.Held())) != 1 {
					t.Errorf("worker of the heavy partition has %d, want it alone", len(slices.Collect(w.Held())))
				}
			}
		}
		g.history.Check(t)
	})
}

// C16, C17: what fits nowhere is unassigned and says why; what is paused is no load.
func TestFullWorkersLeaveTheRestUnassignedWithAReason(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 6, claim.WithCapacity(2))
		a, b := g.start("a"), g.start("b")
		g.wantLoads(time.Second, []int{2, 2}, a, b)
		s, err := a.Status(t.Context())
		ok(t, err)
		admin := g.admin()
		for _, p := range s.Partitions {
			if p.Worker != "" {
				continue
			}
			x, err := admin.Explain(t.Context(), p.Name)
			ok(t, err)
			if x.Why != "unassigned: every worker is full" || x.State != claim.StateUnassigned || len(x.Others) != 2 || x.Others[0].Why != "it is full: it takes 2 partitions" {
				t.Errorf("explanation = %+v, want it to say that all are full", x)
			}
		}
		ok(t, admin.Pause(t.Context(), []string{"0", "1"}, claim.Wait()))
		g.wantLoads(time.Second, []int{2, 2}, a, b)
		c := g.start("c")
		g.wantLoads(time.Second, []int{1, 1, 2}, a, b, c)
	})
}

func TestRolloutMovesNothingOntoAnOlderBuild(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 6)
		a := g.start("a", claim.WithBuild(1))
		time.Sleep(time.Second)
		b := g.start("b", claim.WithBuild(1))
		g.wantLoads(time.Second, []int{3, 3}, a, b)
		ok(t, g.admin().SetPolicy(t.Context(), func(p *claim.Policy) { p.Rollout = true }))
		c := g.start("c", claim.WithBuild(2))
		g.wantLoads(time.Second, []int{0, 3, 3}, a, b, c)
		b.leave()
		g.wantLoads(time.Second, []int{3, 3}, a, c)
		a.leave()
		g.wantLoads(time.Second, []int{6}, c)
		if n := g.startsOf(); n > 6+3+3+3 {
			t.Errorf("handlers started = %d, want each partition of the old build to move once", n)
		}
		g.history.Check(t)
	})
}
