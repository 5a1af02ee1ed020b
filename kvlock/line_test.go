package kvlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tenure/embedded/natstest"
	"tenure/kvlock"
)

// N96, K55, K56: first come, first served, over processes, in no time.
func TestWaitersAreServedInTheOrderOfTheirComing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		ps := []*process{s.process("a"), s.process("b"), s.process("c")}
		first := ps[0].tryLock(t, "job")
		const n = 30
		var mu sync.Mutex
		var order []int
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				err := ps[i%len(ps)].Do(t.Context(), "job", func(context.Context, *kvlock.Lock) error {
					mu.Lock()
					defer mu.Unlock()
					order = append(order, i)
					return nil
				})
				if err != nil {
					t.Errorf("Do = %v, want nil", err)
				}
			})
			time.Sleep(time.Millisecond)
		}
		began := time.Now()
		release(t, first)
		all.Wait()
		if got := time.Since(began); got != 0 {
			t.Errorf("the line took %v, want 0s: no step of it waits for a timer", got)
		}
		if !slices.IsSorted(order) || len(order) != n {
			t.Errorf("order = %v, want 0 to %d", order, n-1)
		}
		if got := s.keys(""); len(got) > 0 {
			t.Errorf("keys = %v, want none", got)
		}
	})
}

// S6: a crash frees the lock for the one who waits within TTL + 0.5 s of the last
// renewal.
func TestWaiterTakesOverFromACrashedHolder(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := a.tryLock(t, "job")
		waits := b.waiting(t.Context(), "job")
		time.Sleep(31*time.Second - time.Millisecond) // the last renewal was 1 s ago
		a.link.Cut()
		renewed := time.Now().Add(-time.Second)
		got := <-waits
		if got.err != nil {
			t.Fatal(got.err)
		}
		if after := got.at.Sub(renewed); after < 15*time.Second || after > 15500*time.Millisecond {
			t.Errorf("taken over %v after the last renewal, want 15s to 15.5s", after)
		}
		if got.lock.Token() <= k.Token() {
			t.Errorf("token = %d, want more than %d", got.lock.Token(), k.Token())
		}
	})
}

// K57: a waiter whose process is gone is passed over at once.
func TestDeadWaiterIsPassedOverAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b, c := s.process("a"), s.process("b"), s.process("c")
		k := a.tryLock(t, "job")
		b.waiting(t.Context(), "job")
		waits := c.waiting(t.Context(), "job")
		b.nc.Close()
		time.Sleep(time.Second)
		released := time.Now()
		release(t, k)
		got := <-waits
		if got.err != nil || !got.at.Equal(released) {
			t.Errorf("Lock = %v, %v after the release, want nil, at once", got.err, got.at.Sub(released))
		}
		if left := s.keys("wait."); len(left) > 0 {
			t.Errorf("tickets = %v, want none", left)
		}
		release(t, got.lock)
	})
}

// W3: a waiter that is silent is passed over after 250 ms, and keeps its place.
func TestSilentWaiterIsPassedOverAndKeepsItsPlace(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b, c, d := s.process("a"), s.process("b"), s.process("c"), s.process("d")
		k := a.tryLock(t, "job")
		ofB := b.waiting(t.Context(), "job")
		ofC := c.waiting(t.Context(), "job")
		ofD := d.waiting(t.Context(), "job")
		b.link.Cut()
		released := time.Now()
		release(t, k)
		second := <-ofC
		if second.err != nil || second.at.Sub(released) != 250*time.Millisecond {
			t.Errorf("Lock = %v, %v after the release, want nil, 250ms", second.err, second.at.Sub(released))
		}
		time.Sleep(time.Second)
		b.link.Mend()
		time.Sleep(time.Second)
		released = time.Now()
		release(t, second.lock)
		third := <-ofB
		if third.err != nil || !third.at.Equal(released) {
			t.Errorf("Lock of the silent one = %v, %v after the release, want nil, at once", third.err, third.at.Sub(released))
		}
		release(t, third.lock)
		release(t, (<-ofD).lock)
	})
}

// K6, L11: who stops waiting leaves nothing behind, and the next one is served.
func TestCancelledWaiterLeavesNothingBehind(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b, c := s.process("a"), s.process("b"), s.process("c")
		k := a.tryLock(t, "job")
		ctx, cancel := context.WithCancel(t.Context())
		ofB := b.waiting(ctx, "job")
		ofC := c.waiting(t.Context(), "job")
		if got := s.keys("wait."); len(got) != 2 {
			t.Errorf("tickets = %v, want 2", got)
		}
		cancel()
		if got := <-ofB; !errors.Is(got.err, context.Canceled) || !errors.Is(got.err, kvlock.ErrHeld) {
			t.Errorf("Lock = %v, want %v and %v", got.err, context.Canceled, kvlock.ErrHeld)
		}
		if got := s.keys("wait."); len(got) != 1 {
			t.Errorf("tickets = %v, want 1", got)
		}
		released := time.Now()
		release(t, k)
		got := <-ofC
		if got.err != nil || !got.at.Equal(released) {
			t.Errorf("Lock = %v, %v after the release, want nil, at once", got.err, got.at.Sub(released))
		}
		release(t, got.lock)
	})
}

// L6h, L11: who is told that the lock is free just as its context ends passes it on.
func TestWaiterCancelledWhileItIsTakingPassesTheLockOn(t *testing.T) {
	for _, delay := range []time.Duration{0, 10, 50, 90, 110, 150, 190, 210, 290, 310, 390, 410, 490} {
		natstest.Bubble(t, func(t *testing.T) {
			s := newSite(t)
			a, b, c := s.process("a"), s.process("b"), s.process("c")
			k := a.tryLock(t, "job")
			ctx, cancel := context.WithCancel(t.Context())
			ofB := b.waiting(ctx, "job")
			ofC := c.waiting(t.Context(), "job")
			b.link.Delay(100 * time.Millisecond)
			released := time.Now()
			go func() {
				time.Sleep(delay * time.Millisecond)
				cancel()
			}()
			release(t, k)
			if got := <-ofB; got.err == nil {
				release(t, got.lock)
			}
			got := <-ofC
			if got.err != nil {
				t.Fatalf("Lock = %v, want nil", got.err)
			}
			if after := got.at.Sub(released); after > 2*time.Second {
				t.Errorf("canceled after %vms: next one served %v after the release", int(delay), after)
			}
			release(t, got.lock)
			time.Sleep(3 * time.Second)
			if left := s.keys(""); len(left) > 0 {
				t.Errorf("keys = %v, want none", left)
			}
		})
	}
}

// K37, N9, N10: no message and no event is needed, only time.
func TestLineMovesWithoutAnyMessage(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		ps := []*process{s.process("a"), s.process("b"), s.process("c"), s.process("d")}
		for _, p := range ps {
			p.link.DropRequest(-1, toProcesses)
		}
		k := ps[0].tryLock(t, "job")
		var waits []<-chan gained
		for _, p := range ps[1:] {
			waits = append(waits, p.waiting(t.Context(), "job"))
		}
		for i, w := range waits {
			released := time.Now()
			release(t, k)
			got := <-w
			if got.err != nil {
				t.Fatal(got.err)
			}
			// They saw the record of a hold, whose TTL they wait for.
			if after := got.at.Sub(released); after > 16*time.Second {
				t.Errorf("hand-over %d took %v, want at most TTL + 1s", i, after)
			}
			k = got.lock
		}
		release(t, k)
	})
}

// A2: the releaser dies between its purge and its message.
func TestLineMovesWhenTheReleaserDiesBeforeItTellsAnybody(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b, c := s.process("a"), s.process("b"), s.process("c")
		k := a.tryLock(t, "job")
		ofB := b.waiting(t.Context(), "job")
		ofC := c.waiting(t.Context(), "job")
		a.link.DropRequest(-1, toProcesses)
		released := time.Now()
		release(t, k)
		got := <-ofB
		if got.err != nil || got.at.Sub(released) > 16*time.Second {
			t.Errorf("Lock = %v, %v after the release, want nil within TTL + 1s", got.err, got.at.Sub(released))
		}
		released = time.Now()
		release(t, got.lock)
		got = <-ofC
		if got.err != nil || !got.at.Equal(released) {
			t.Errorf("Lock = %v, %v after the release, want nil, at once", got.err, got.at.Sub(released))
		}
		release(t, got.lock)
	})
}

// A3, W4: who was away and lost its ticket stands in line anew.
func TestWaiterWithoutItsTicketStandsInLineAnew(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b, c := s.process("a"), s.process("b"), s.process("c")
		k := a.tryLock(t, "job")
		ofB := b.waiting(t.Context(), "job")
		for _, key := range s.keys("wait.") {
			if err := s.kv().Purge(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		b.link.Break() // it looks after its ticket at once
		time.Sleep(time.Second)
		ofC := c.waiting(t.Context(), "job")
		if got := s.keys("wait."); len(got) != 2 {
			t.Errorf("tickets = %v, want 2", got)
		}
		released := time.Now()
		release(t, k)
		got := <-ofB
		if got.err != nil || !got.at.Equal(released) {
			t.Errorf("Lock = %v, %v after the release, want nil, at once", got.err, got.at.Sub(released))
		}
		release(t, got.lock)
		release(t, (<-ofC).lock)
	})
}

// N9: a waiter survives restarts of the server.
func TestWaiterIsServedAfterRestartsOfTheServer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		k := a.tryLock(t, "job")
		waits := b.waiting(t.Context(), "job")
		for range 2 {
			time.Sleep(3 * time.Second)
			natstest.Restart(t, s.srv)
		}
		time.Sleep(time.Second)
		released := time.Now()
		release(t, k)
		got := <-waits
		if got.err != nil || !got.at.Equal(released) {
			t.Errorf("Lock = %v, %v after the release, want nil, at once", got.err, got.at.Sub(released))
		}
		release(t, got.lock)
	})
}

// K58: a waiter is served however long it waits.
func TestWaiterOutlivesALongHold(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := a.tryLock(t, "job")
		waits := b.waiting(t.Context(), "job")
		time.Sleep(70 * time.Minute) // longer than a ticket lives
		released := time.Now()
		release(t, k)
		got := <-waits
		if got.err != nil || !got.at.Equal(released) {
			t.Errorf("Lock = %v, %v after the release, want nil, at once", got.err, got.at.Sub(released))
		}
		release(t, got.lock)
	})
}

// K55, K39: a release wakes one, and who waits does next to nothing.
func TestReleaseWakesOneAndIdleWaitersAreQuiet(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		const n = 200
		k := a.tryLock(t, "job")
		ctx, cancel := context.WithCancel(t.Context())
		waits := make(chan gained, n)
		for range n {
			go func() {
				k, err := b.Lock(ctx, "job")
				waits <- gained{k, err, time.Now()}
			}()
		}
		time.Sleep(time.Second)
		before := b.nc.Stats().OutMsgs
		release(t, k)
		got := <-waits
		synctest.Wait()
		if sent := b.nc.Stats().OutMsgs - before; sent > 10 {
			t.Errorf("messages sent for one release = %d, want at most 10", sent)
		}
		time.Sleep(20 * time.Second) // everybody has seen the new holder
		before = b.nc.Stats().OutMsgs
		time.Sleep(time.Minute)
		t.Logf("messages per waiter and minute: %.1f", float64(b.nc.Stats().OutMsgs-before)/n)
		cancel()
		for range n - 1 {
			<-waits
		}
		release(t, got.lock)
		if left := s.keys("wait."); len(left) > 0 {
			t.Errorf("tickets = %d, want none", len(left))
		}
	})
}

// The same lock is waited for by goroutines of one process as by others.
func TestGoroutinesOfOneProcessExcludeEachOther(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		var inside, most, total int
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range 100 {
			p := a
			if i%2 == 0 {
				p = b
			}
			all.Go(func() {
				for range 3 {
					err := p.Do(t.Context(), "job", func(context.Context, *kvlock.Lock) error {
						mu.Lock()
						inside++
						most = max(most, inside)
						total++
						mu.Unlock()
						time.Sleep(time.Millisecond)
						mu.Lock()
						inside--
						mu.Unlock()
						return nil
					})
					if err != nil {
						t.Errorf("Do = %v, want nil", err)
					}
				}
			})
		}
		all.Wait()
		if most != 1 || total != 300 {
			t.Errorf("at most %d at once, %d in all, want 1, 300", most, total)
		}
	})
}

// TryLock does not get in front of those who wait.
func TestTryLockDoesNotOvertakeTheLine(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b, c := s.process("a"), s.process("b"), s.process("c")
		k := a.tryLock(t, "job")
		waits := b.waiting(t.Context(), "job")
		let := a.link.HoldRequest(toProcesses)
		go release(t, k)
		time.Sleep(time.Millisecond)
		// The lock is free, b stands in line and does not know it yet.
		_, err := c.TryLock(t.Context(), "job")
		wantHeld(t, err, "", 0)
		got := <-waits // A2: it was told so by c
		if got.err != nil {
			t.Errorf("Lock = %v, want nil", got.err)
		}
		let()
		release(t, got.lock)
	})
}

func ExampleLocker_Lock() {
	locker, stop := exampleLocker()
	defer stop()
	ctx := context.Background()
	first, err := locker.Lock(ctx, "report")
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() {
		time.Sleep(10 * time.Millisecond)
		_ = first.Release(ctx)
	}()
	second, err := locker.Lock(ctx, "report") // waits
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("larger token:", second.Token() > first.Token())
	fmt.Println(second.Release(ctx))
	// Output:
	// larger token: true
	// <nil>
}

// A process that releases and ends at once knows of nobody whose question is still on
// its way. The waiter hears that nobody is there, and must not wait for the TTL.
func TestWaiterWhoseHolderHasReleasedAndGoneTakesTheLock(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := a.tryLock(t, "job")
		let := b.link.HoldRequest(func(subject string) bool { return strings.HasPrefix(subject, "_tenure.") })
		c := b.waiting(t.Context(), "job")
		synctest.Wait()
		release(t, k)
		if err := a.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		let()
		got := <-c
		if got.err != nil {
			t.Fatalf("Lock = %v, want nil", got.err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("lock taken after %v, want at once", took)
		}
		release(t, got.lock)
	})
}
