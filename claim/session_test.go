package claim_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tenure/claim"
	"tenure/embedded/natstest"
)

// C50, K30, N30, N40, N74: silence ends the handlers by this process's clock.
func TestCutWorkerEndsItsHandlersBeforeOthersCanOwnThem(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		var ended atomic.Int64
		var cause atomic.Value
		began := time.Now()
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			<-ctx.Done()
			ended.Store(int64(time.Since(began)))
			cause.Store(context.Cause(ctx))
			if left := p.Remaining(); left != 0 {
				t.Errorf("Remaining after the session was lost = %v, want 0", left)
			}
			return nil
		})
		g.wantLoads(time.Second, []int{4}, a)
		a.link.Cut()
		// The session began, and the last heartbeat that was confirmed was sent,
		// at 0: trust ends at TTL − margin.
		b := g.start("b")
		time.Sleep(g.ttl - 2*time.Second)
		synctest.Wait()
		if have, want := time.Duration(ended.Load()), 9*time.Second; have != want {
			t.Errorf("handlers ended after %v, want %v", have, want)
		}
		if err, _ := cause.Load().(error); !errors.Is(err, claim.ErrSessionLost) {
			t.Errorf("cause = %v, want %v", err, claim.ErrSessionLost)
		}
		g.wantLoads(0, []int{0}, b)
		g.wantLoads(2*time.Second, []int{4}, b) // within TTL + 1 s of the last heartbeat
		g.history.Check(t)
	})
}

// C3, K19: a heartbeat that was stored without an answer is recognised.
func TestLostAnswersCostNoSession(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		a := g.start("a")
		g.wantLoads(time.Second, []int{4}, a)
		for range 10 {
			a.link.DropReply(2, func(_ string, payload []byte) bool { return strings.Contains(string(payload), `"seq"`) })
			time.Sleep(g.ttl)
		}
		g.wantLoads(0, []int{4}, a)
		if n := g.startsOf(); n != 4 {
			t.Errorf("handlers started = %d, want 4", n)
		}
	})
}

// N29, C50: an outage shorter than the trust is no loss.
func TestShortOutageMovesNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 6)
		a, b := g.start("a"), g.start("b")
		g.wantLoads(time.Second, []int{3, 3}, a, b)
		for range 5 {
			a.link.Cut()
			b.link.Cut()
			time.Sleep(5 * time.Second)
			a.link.Mend()
			b.link.Mend()
			time.Sleep(20 * time.Second)
		}
		g.wantLoads(0, []int{3, 3}, a, b)
		if n := g.startsOf(); n != 6 {
			t.Errorf("handlers started = %d, want 6", n)
		}
		g.history.Check(t)
	})
}

// C7, N47: who comes back finds its session lost and joins anew.
func TestWorkerThatWasCutOffJoinsAgainWithoutStealing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		a, b := g.start("a"), g.start("b")
		g.wantLoads(time.Second, []int{2, 2}, a, b)
		a.link.Cut()
		g.wantLoads(2*g.ttl, []int{0, 4}, a, b)
		a.link.Mend()
		g.wantLoads(g.ttl, []int{2, 2}, a, b)
		if n := g.startsOf(); n != 4+2+2 {
			t.Errorf("handlers started = %d, want 8", n)
		}
		g.history.Check(t)
	})
}

// S2: a claim of a former session is never gone on with, though nobody else took it.
func TestNewSessionTakesItsOwnClaimsUnderNewTokens(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 3)
		a := g.start("a")
		g.wantLoads(time.Second, []int{3}, a)
		a.link.Cut()
		time.Sleep(2 * g.ttl)
		a.link.Mend()
		g.wantLoads(g.ttl, []int{3}, a)
		for name, starts := range g.starts {
			if len(starts) != 2 || starts[1].token <= starts[0].token {
				t.Errorf("partition %s: started %+v, want twice, the second time with a larger token", name, starts)
			}
		}
	})
}

// S4: trust counts from the sending, however late the answer is.
func TestSlowLinkKeepsTheSessionAndEndsItByTheTimeOfSending(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2)
		ended := make(chan time.Time, 2)
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			<-ctx.Done()
			ended <- time.Now()
			return nil
		})
		g.wantLoads(time.Second, []int{2}, a)
		a.link.Delay(400 * time.Millisecond) // each way, of an attempt's 1 s
		time.Sleep(5 * g.ttl)
		g.wantLoads(0, []int{2}, a)
		var sent time.Time // of the next heartbeat that arrives
		beat := make(chan time.Time, 100)
		stop := a.link.HoldRequest(func(subject string) bool {
			if subject == "$KV.tenure.member.orders.a" {
				select {
				case beat <- time.Now():
				default:
				}
			}
			return false
		})
		sent = <-beat
		stop()
		time.Sleep(time.Second) // its answer has come
		a.link.Cut()
		if have, want := (<-ended).Sub(sent), 9*time.Second; have != want {
			t.Errorf("handlers ended %v after the last heartbeat was sent, want %v", have, want)
		}
	})
}

// C22, C24, N72: the same id takes its own partitions back once the old session has
// ended, and nothing moves elsewhere if it is quick enough.
func TestRestartUnderTheSameIDWaitsForTheOldSession(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		a := g.start("a")
		g.wantLoads(time.Second, []int{4}, a)
		a.link.Cut() // as if it had crashed
		began := time.Now()
		again := g.start("a")
		g.wantLoads(g.ttl-2*time.Second, []int{0}, again)
		g.wantLoads(3*time.Second-time.Since(began.Add(g.ttl-2*time.Second)), []int{4}, again)
		g.history.Check(t)
	})
}

// C23, N26, N27, K69: two live processes with one id never both own.
func TestSecondLiveProcessWithTheSameIDWaits(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		a := g.start("a")
		time.Sleep(time.Second)
		second := g.start("a")
		g.wantLoads(5*g.ttl, []int{0, 4}, a, second)
		a.leave()
		g.wantLoads(time.Second, []int{0, 4}, a, second)
		g.history.Check(t)
	})
}

// C40, N18: a graceful end needs no TTL.
func TestLeavingWorkerIsReplacedAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 9)
		a, b, c := g.start("a"), g.start("b"), g.start("c")
		g.wantLoads(time.Second, []int{3, 3, 3}, a, b, c)
		for _, leaver := range []*worker{a, b, c} { // the leader first
			began := time.Now()
			leaver.leave()
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("leaving took %v, want at most 100ms", took)
			}
			if leaver.err != nil {
				t.Errorf("Run = %v, want nil", leaver.err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		g.history.Check(t)
	})
}

func TestLastWorkerLeavesNothingBehindThatBlocksTheNext(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		a := g.start("a")
		g.wantLoads(time.Second, []int{4}, a)
		a.leave()
		b := g.start("b")
		g.wantLoads(time.Second, []int{4}, b)
		g.history.Check(t)
	})
}

// N19: a change that is told at once brings a heartbeat early, and must not put off the
// one after it: heartbeats at 0 s and at 3.3 s, the drain is told at 3.4 s, and the
// next is due at 6.7 s. At 10 s, trust would have been down to 2.4 s.
func TestDrainPutsOffNoHeartbeat(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 1)
		least := g.ttl
		a := g.startWith("a", func(_ context.Context, p *claim.Partition) error {
			<-p.Draining()
			for range 200 {
				least = min(least, p.Remaining())
				time.Sleep(100 * time.Millisecond)
			}
			return nil
		})
		time.Sleep(3400 * time.Millisecond)
		a.leave()
		if want := 9*time.Second - g.ttl/3 - 100*time.Millisecond; least < want {
			t.Errorf("trust went down to %v in a drain, want at least %v", least, want)
		}
	})
}
