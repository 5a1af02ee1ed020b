package claim_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"tenure/claim"
	"tenure/embedded"
	"tenure/embedded/natstest"
	"tenure/kvlock/bucket"
)

// moved returns how many partitions were started by another worker than the time
// before.
func (g *group) moved() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, starts := range g.starts {
		for i := 1; i < len(starts); i++ {
			if starts[i].worker != starts[i-1].worker {
				n++
			}
		}
	}
	return n
}

// crew starts n workers.
func (g *group) crew(n int, opts ...claim.Option) []*worker {
	var all []*worker
	for i := range n {
		all = append(all, g.start(fmt.Sprint("w", i), opts...))
	}
	return all
}

// C1, C50, H26: when the store was away for longer than the sessions live, their
// owners come back one after the other and find their own partitions.
func TestOutageLongerThanTheTTLMovesNothing(t *testing.T) {
	for _, away := range []time.Duration{8, 12, 15, 60} {
		t.Run(fmt.Sprint(away), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				g := newGroup(t, 12, claim.WithRejoinDelay(0))
				g.srv = natstest.Server(t, embedded.Store(t.TempDir()))
				all := g.crew(6)
				g.wantLoads(time.Minute, []int{2, 2, 2, 2, 2, 2}, all...)
				for _, w := range all {
					w.link.Cut()
				}
				time.Sleep(away * time.Second)
				for _, w := range all {
					w.link.Mend()
					time.Sleep(500 * time.Millisecond)
				}
				g.wantLoads(g.ttl, []int{2, 2, 2, 2, 2, 2}, all...)
				if n := g.moved(); n != 0 {
					t.Errorf("partitions that changed owner = %d, want 0", n)
				}
				g.wantLoads(time.Minute, []int{2, 2, 2, 2, 2, 2}, all...)
				g.history.Check(t)
			})
		})
	}
}

// H26: who does not come back after an outage is replaced one TTL later.
func TestWhoDoesNotComeBackAfterAnOutageIsReplacedOneTTLLater(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 12, claim.WithRejoinDelay(0))
		all := g.crew(6)
		g.wantLoads(time.Minute, []int{2, 2, 2, 2, 2, 2}, all...)
		for _, w := range all {
			w.link.Cut()
		}
		time.Sleep(2 * g.ttl)
		for _, w := range all[:4] {
			w.link.Mend()
		}
		g.wantLoads(g.ttl-time.Second, []int{0, 0, 2, 2, 2, 2}, all...)
		g.wantLoads(2*time.Second, []int{0, 0, 3, 3, 3, 3}, all...)
		g.history.Check(t)
	})
}

// C50: after a gap nobody is declared dead before it had a heartbeat interval to
// report, also if its key has expired, and its partitions wait for it.
func TestShortGapWithAnExpiryMovesNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 9, claim.WithRejoinDelay(0))
		a := g.start("a")
		time.Sleep(2 * time.Second) // their heartbeats are out of step
		b, c := g.start("b"), g.start("c")
		g.wantLoads(time.Minute, []int{3, 3, 3}, a, b, c)
		shared := g.moved()
		// Heartbeats are sent at 0, 10/3, 20/3 ... after each start: now a has just
		// sent one, and b and c will in 1.3 s, so the gap ends their trust, not a's.
		time.Sleep(g.ttl/3*20 - (62*time.Second)%(g.ttl/3*20) + 100*time.Millisecond)
		for _, w := range []*worker{a, b, c} {
			w.link.Cut()
		}
		time.Sleep(8500 * time.Millisecond)
		for _, w := range []*worker{a, b, c} {
			w.link.Mend()
		}
		g.wantLoads(2*g.ttl, []int{3, 3, 3}, a, b, c)
		if n := g.moved(); n != shared {
			t.Errorf("partitions that changed owner = %d, want 0", n-shared)
		}
		if n := g.startsOf(); n != 9+6+6 {
			t.Errorf("handlers started = %d, want 21: at b and c anew, at a not", n)
		}
		g.history.Check(t)
	})
}

// H26, S6: a quarter or less is no mass, and neither are three.
func TestManyDeathsAtOnceWaitOneTTLAndFewDoNot(t *testing.T) {
	tests := []struct {
		workers, dead int
		wait          bool
	}{{16, 4, false}, {15, 4, true}, {4, 3, false}, {5, 4, true}}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%d of %d", tt.dead, tt.workers), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				g := newGroup(t, tt.workers, claim.WithRejoinDelay(0))
				var all []*worker
				for i := range tt.workers {
					all = append(all, g.start(fmt.Sprint("w", i)))
					time.Sleep(700 * time.Millisecond) // heartbeats are out of step
				}
				time.Sleep(time.Minute)
				rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				live, killed := all[:tt.workers-tt.dead], all[tt.workers-tt.dead:]
				for _, w := range killed {
					w.link.Cut()
				}
				time.Sleep(g.ttl + time.Second)
				synctest.Wait()
				if n := len(owners(live...)); (n < tt.workers) != tt.wait {
					t.Errorf("partitions that run one TTL later = %d of %d, want the rest to wait: %v", n, tt.workers, tt.wait)
				}
				time.Sleep(g.ttl)
				synctest.Wait()
				if n := len(owners(live...)); n != tt.workers {
					t.Errorf("partitions that run two TTLs later = %d, want %d", n, tt.workers)
				}
				g.history.Check(t)
			})
		})
	}
}

// C24: a rejoin delay of 0 waits for nobody; a longer one holds what nobody runs.
func TestRejoinDelayHoldsThePartitionsOfADeadWorker(t *testing.T) {
	for _, delay := range []time.Duration{0, 25 * time.Second} {
		t.Run(delay.String(), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				g := newGroup(t, 6, claim.WithRejoinDelay(delay))
				a, b, c := g.start("a"), g.start("b"), g.start("c")
				g.wantLoads(time.Minute, []int{2, 2, 2}, a, b, c)
				c.link.Cut()
				if delay == 0 {
					g.wantLoads(g.ttl+time.Second, []int{3, 3}, a, b)
					return
				}
				g.wantLoads(g.ttl+time.Second, []int{2, 2}, a, b)
				// Also under a new leader, which has never seen it.
				a.leave()
				g.wantLoads(time.Second, []int{4}, b)
				g.wantLoads(delay-g.ttl-4*time.Second-g.ttl/3, []int{4}, b)
				g.wantLoads(3*time.Second+g.ttl/3, []int{6}, b)
				g.history.Check(t)
			})
		})
	}
}

// C22: a worker that crashed and is back within its rejoin delay gets its own
// partitions back, though the TTL had passed.
func TestRestartWithinTheRejoinDelayTakesItsOwnBack(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 6, claim.WithRejoinDelay(25*time.Second))
		a, b, c := g.start("a"), g.start("b"), g.start("c")
		g.wantLoads(time.Minute, []int{2, 2, 2}, a, b, c)
		for _, w := range []*worker{c, a} { // a follower, and the leader
			w.link.Cut()
			time.Sleep(20 * time.Second)
			again := g.start(w.ID())
			g.wantLoads(time.Second, []int{2}, again)
		}
		if n := g.moved(); n != 0 {
			t.Errorf("partitions that changed owner = %d, want 0", n)
		}
		g.history.Check(t)
	})
}

// C21, N71: with ids that stay, a rolling restart changes no owner.
func TestRollingRestartWithStableIDsChangesNoOwner(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 12, claim.WithRestart())
		staging := func(ctx context.Context, p *claim.Partition) error {
			select {
			case <-p.Draining():
				p.Stage([]byte(p.Worker()))
			case <-ctx.Done():
			}
			return nil
		}
		var all []*worker
		for i := range 4 {
			all = append(all, g.startWith(fmt.Sprint("w", i), staging))
		}
		g.wantLoads(time.Second, []int{3, 3, 3, 3}, all...)
		for i, w := range all { // the leader first
			began := time.Now()
			w.leave()
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("leaving took %v, want at most 100ms", took)
			}
			time.Sleep(8 * time.Second) // the delay is 10 s
			all[i] = g.startWith(w.ID(), staging)
			g.wantLoads(time.Second, []int{3, 3, 3, 3}, all...)
		}
		if n := g.moved(); n != 0 {
			t.Errorf("partitions that changed owner = %d, want 0", n)
		}
		for name, starts := range g.starts {
			if len(starts) != 2 || starts[1].checkpoint != starts[0].worker || starts[1].token <= starts[0].token {
				t.Errorf("partition %s was started %+v, want twice, with what was staged and a larger token", name, starts)
			}
		}
		// Who does not come back is replaced.
		all[3].leave()
		g.wantLoads(9*time.Second, []int{3, 3, 3}, all[:3]...)
		g.wantLoads(2*time.Second, []int{4, 4, 4}, all[:3]...)
		g.history.Check(t)
	})
}

// C21: with new ids each partition moves once, and never onto a worker that is
// about to stop.
func TestRollingRestartWithNewIDsMovesEachPartitionOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 12)
		var old []*worker
		for i := range 4 {
			old = append(old, g.start(fmt.Sprint("old", i), claim.WithBuild(1)))
		}
		g.wantLoads(time.Second, []int{3, 3, 3, 3}, old...)
		b, err := bucket.Open(t.Context(), natstest.JetStream(t, natstest.Connect(t, g.srv)))
		if err != nil {
			t.Fatal(err)
		}
		admin, err := claim.NewAdmin(t.Context(), b, "orders")
		if err != nil {
			t.Fatal(err)
		}
		if err := admin.SetPolicy(t.Context(), func(p *claim.Policy) { p.Rollout = true }); err != nil {
			t.Fatal(err)
		}
		var young []*worker
		for i, w := range old {
			young = append(young, g.start(fmt.Sprint("new", i), claim.WithBuild(2)))
			time.Sleep(3 * time.Second)
			w.leave()
			time.Sleep(3 * time.Second)
		}
		g.wantLoads(10*time.Second, []int{3, 3, 3, 3}, young...)
		for name, starts := range g.starts {
			if len(starts) > 3 || starts[1].worker[:3] != "new" {
				t.Errorf("partition %s went %+v, want once to a new worker", name, starts)
			}
		}
		g.history.Check(t)
	})
}
