package claim_test

import (
	"testing"
	"time"

	"tenure/embedded/natstest"
)

func TestWorkersThatStartTogetherShareAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 8)
		a, b, c := g.start("a"), g.start("b"), g.start("c")
		g.wantLoads(time.Second, []int{2, 3, 3}, a, b, c)
		if n := g.startsOf(); n != 8 { // C14: nobody took what was not his
			t.Errorf("handlers started = %d, want 8", n)
		}
		g.wantLoads(time.Minute, []int{2, 3, 3}, a, b, c)
		if n := g.startsOf(); n != 8 {
			t.Errorf("handlers started after a minute = %d, want 8", n)
		}
		g.history.Check(t)
	})
}

func TestJoinMovesTheShareOfTheNewcomer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 8)
		a := g.start("a")
		g.wantLoads(time.Second, []int{8}, a)
		b := g.start("b")
		g.wantLoads(time.Second, []int{4, 4}, a, b)
		if n := g.startsOf(); n != 12 {
			t.Errorf("handlers started = %d, want 8 + 4 moves", n)
		}
		b.leave()
		g.wantLoads(time.Second, []int{8}, a)
		g.history.Check(t)
	})
}

func TestCrashedWorkerIsReplacedWithinTTLPlusOneSecond(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 8)
		a := g.start("a")
		time.Sleep(time.Second)
		b, c := g.start("b"), g.start("c")
		g.wantLoads(time.Second, []int{2, 3, 3}, a, b, c)
		time.Sleep(time.Minute)
		c.link.Cut()
		g.wantLoads(g.ttl+time.Second, []int{4, 4}, a, b)
		g.history.Check(t)
		// The leader dies: no slower.
		a.link.Cut()
		g.wantLoads(g.ttl+time.Second, []int{8}, b)
		g.history.Check(t)
	})
}
