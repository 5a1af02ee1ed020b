package claim_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tenure/claim"
	"tenure/embedded/natstest"
)

// C15, N65: a newcomer that loses every race of its own is seen, and given its share.
func TestNewcomerThatCannotTakeAnythingIsGivenItsShare(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 8)
		a := g.start("a")
		g.wantLoads(time.Second, []int{8}, a)
		b := g.start("b")
		var over atomic.Bool
		b.link.DropRequest(1<<30, func(subject string) bool { return isClaim(subject) && !over.Load() })
		g.wantLoads(time.Second, []int{4, 4}, a, b)
		over.Store(true)
	})
}

// C19: one worker takes all there is in one pass.
func TestOneWorkerTakesHundredsOfPartitionsAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 500)
		a := g.start("a")
		g.wantLoads(250*time.Millisecond, []int{500}, a)
	})
}

// C20: workers that start together do not fight.
func TestWorkersThatStartTogetherCauseNoConflicts(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		const workers, partitions = 100, 500
		g := newGroup(t, partitions)
		var claims, all atomic.Int64
		var crew []*worker
		for i := range workers {
			w := g.start("w" + strings.Repeat("x", i))
			crew = append(crew, w)
			w.link.HoldRequest(func(subject string) bool {
				if isClaim(subject) {
					claims.Add(1)
				}
				if strings.HasPrefix(subject, "$KV.") {
					all.Add(1)
				}
				return false
			})
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := len(owners(crew...)); n != partitions {
			t.Fatalf("partitions that run = %d, want %d", n, partitions)
		}
		if n := claims.Load(); n > partitions+workers {
			t.Errorf("writes of claims = %d, want about %d", n, partitions)
		}
		if n := all.Load(); n > partitions+5*workers {
			t.Errorf("writes = %d, want at most %d", n, partitions+5*workers)
		}
	})
}

// C45, H16: the leader and the one behind it die together, which no event tells: no
// slower than any other death.
func TestLeaderAndItsSuccessorDieTogether(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 8)
		var all []*worker
		for _, id := range []string{"a", "b", "c", "d"} {
			all = append(all, g.start(id))
			time.Sleep(time.Second)
		}
		time.Sleep(time.Minute)
		all[0].link.Cut()
		all[1].link.Cut()
		g.wantLoads(g.ttl+time.Second, []int{4, 4}, all[2:]...)
		g.history.Check(t)
	})
}

// H15: a heartbeat that is stored after the trust in it has ended keeps the key, and
// does not keep the worker from joining anew.
func TestHeartbeatThatIsStoredTooLateDoesNotBlockTheNextSession(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		a := g.start("a")
		g.wantLoads(time.Second, []int{4}, a)
		arrive := a.link.HoldRequest(func(subject string) bool { return strings.HasPrefix(subject, "$KV.tenure.member.") })
		g.wantLoads(g.ttl-1500*time.Millisecond, []int{0}, a) // its trust ended at 9 s, its key lives until 10 s
		arrive()
		g.wantLoads(2*time.Second, []int{4}, a)
		g.history.Check(t)
	})
}

// N78: workers that came and were killed leave nothing behind.
func TestDeadWorkersLeaveNothingInTheBucket(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4, claim.WithRejoinDelay(0))
		a := g.start("a")
		g.wantLoads(time.Second, []int{4}, a)
		js := natstest.JetStream(t, natstest.Connect(t, g.srv))
		entries := func() uint64 {
			t.Helper()
			s, err := js.Stream(t.Context(), "KV_tenure")
			if err != nil {
				t.Fatal(err)
			}
			return s.CachedInfo().State.Msgs
		}
		base := entries()
		for range 5 {
			for _, w := range g.crew(8) {
				time.Sleep(100 * time.Millisecond)
				w.link.Cut()
				w.stop()
			}
		}
		time.Sleep(4 * g.ttl)
		g.wantLoads(0, []int{4}, a) // C44
		time.Sleep(2 * time.Minute)
		if n := entries(); n != base {
			t.Errorf("entries in the bucket = %d, want %d", n, base)
		}
		g.history.Check(t)
	})
}
