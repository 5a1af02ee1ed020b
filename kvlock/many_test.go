package kvlock_test

import (
	"context"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tenure/embedded/natstest"
	"tenure/kvlock"
)

// takeMany takes n locks at one moment.
func takeMany(t *testing.T, p *process, n int) []*kvlock.Lock {
	t.Helper()
	holds := make([]*kvlock.Lock, n)
	began := time.Now()
	for i := range holds {
		holds[i] = p.tryLock(t, "job"+strconv.Itoa(i))
	}
	if took := time.Since(began); took > 0 {
		t.Fatalf("%d locks took %v, want one moment", n, took)
	}
	return holds
}

// Holds that were gained together, as after a restart, are not renewed together.
func TestRenewalsOfHoldsGainedTogetherAreSpread(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		const n, slots = 500, 50 // 10 in each slot of 100 ms
		p := newSite(t).process("a")
		time.Sleep(2 * time.Second) // a new bucket is looked at more often
		holds := takeMany(t, p, n)
		for range 3 { // for ever, not only at first
			before := make([]uint64, n)
			for i, k := range holds {
				before[i] = k.Revision()
			}
			for range slots {
				last := newest(holds)
				time.Sleep(5 * time.Second / slots)
				synctest.Wait()
				if got := newest(holds) - last; got < 5 || got > 20 {
					t.Errorf("renewals in 100ms = %d, want about 10", got)
				}
			}
			for i, k := range holds {
				if k.Revision() == before[i] {
					t.Errorf("lock %d was not renewed in its interval", i)
				}
			}
		}
	})
}

// newest returns the highest revision; with one writer each renewal adds one.
func newest(holds []*kvlock.Lock) (most uint64) {
	for _, k := range holds {
		most = max(most, k.Revision())
	}
	return most
}

// A server that does not answer for one lock delays no other.
func TestSlowAnswerDelaysNoOtherRenewal(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newSite(t).process("a")
		holds := takeMany(t, p, 50)
		p.link.HoldRequest(to("$KV.tenure.lock.job7"))
		for range 120 {
			time.Sleep(250 * time.Millisecond)
			synctest.Wait()
			for i, k := range holds {
				// TTL - margin, less an interval
				if left := k.Remaining(); i != 7 && left < 8500*time.Millisecond {
					t.Fatalf("Remaining of lock %d = %v, want 8.5s at least", i, left)
				}
			}
		}
		wantLost(t, "Err of the one without an answer", holds[7].Err(), kvlock.Expired)
	})
}

// A process may have very many holds: one that nothing happens to has no goroutine.
func TestHoldsHaveNoGoroutinesWhileNothingHappens(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		p := newSite(t).process("a")
		synctest.Wait()
		before := runtime.NumGoroutine()
		holds := takeMany(t, p, 100)
		time.Sleep(time.Minute)
		synctest.Wait()
		// The server may have some more or less of its own.
		if got := runtime.NumGoroutine() - before; got > 10 {
			t.Errorf("goroutines more than without 100 holds = %d, want none", got)
		}
		wantHeldOn(t, holds[99])
	})
}

// Waiters of one process leave it to the first of them to look at the lock, so that a
// thousand that are idle cost next to nothing.
func TestWaitersOfOneProcessLookForEachOther(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		first := a.tryLock(t, "job")
		ctx, stop := context.WithCancel(t.Context())
		for range 100 {
			b.waiting(ctx, "job")
		}
		time.Sleep(30 * time.Second)
		var requests atomic.Int64
		b.link.DropRequest(1, func(string) bool { requests.Add(1); return false })
		time.Sleep(2 * time.Minute) // eight TTLs
		// 8 looks of the first, and each of the others looks every fourth time or less
		if got := requests.Load(); got > 3*(8+99*8/3) {
			t.Errorf("requests of 100 idle waiters = %d in 8 TTLs, want a third of 2,400", got)
		}
		stop()
		time.Sleep(time.Second)
		wantHeldOn(t, first)
	})
}

// The holder died, and who looked at the lock for others gives up just before the
// lease ends: another of its process has to look in time.
func TestNextWaiterOfProcessTakesOverTheLooking(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		a.tryLock(t, "job")
		ctx, stop := context.WithCancel(t.Context())
		b.waiting(ctx, "job")
		next := b.waiting(t.Context(), "job")
		time.Sleep(21 * time.Second) // it has left a look to the first
		a.link.Cut()                 // renewed 1 s ago
		began := time.Now()
		time.Sleep(13900 * time.Millisecond)
		stop()
		got := <-next
		if got.err != nil {
			t.Fatalf("Lock = %v, want nil", got.err)
		}
		if took := got.at.Sub(began); took > 15*time.Second {
			t.Errorf("lock taken %v after the last renewal + 1s, want 15s at most", took)
		}
		release(t, got.lock)
	})
}
