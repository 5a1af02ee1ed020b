package kvlock_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tenure/embedded/natstest"
	"tenure/kvlock"
)

// events collects what a Trace is told.
type events struct {
	mu  sync.Mutex
	all []string
}

func (e *events) add(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, fmt.Sprintf(format, args...))
}

func (e *events) take() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.all
	e.all = nil
	return all
}

// trace returns a Trace that writes every event down, and calls the Locker's methods to
// show that no mutex is held.
func (e *events) trace(k **kvlock.Lock) *kvlock.Trace {
	ask := func() {
		if *k != nil {
			_ = (*k).Revision()
		}
	}
	return &kvlock.Trace{
		Waiting:  func(name string) { e.add("waiting %s", name) },
		Acquired: func(name string, _ uint64, waited time.Duration) { e.add("acquired %s %v", name, waited) },
		Renewed: func(name string, _ uint64, took time.Duration) {
			ask()
			e.add("renewed %s %v", name, took)
		},
		RenewFailed: func(name string, _ uint64, remaining time.Duration, err error) {
			ask()
			e.add("failed %s %v %t", name, remaining, err != nil)
		},
		Lost: func(err *kvlock.LostError) {
			ask()
			e.add("lost %s %s", err.Name, err.Reason)
		},
		Released: func(name string, _ uint64, held time.Duration, err error) {
			ask()
			e.add("released %s %v %v", name, held, err)
		},
		HandedOver: func(name string, _ uint64, took time.Duration) {
			ask()
			e.add("handed over %s %v", name, took)
		},
	}
}

// N48, and every other event, with its durations.
func TestTraceIsToldWhatHappens(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		var ea, eb events
		var ka, kb *kvlock.Lock
		a := s.process("a", kvlock.WithTrace(ea.trace(&ka)))
		b := s.process("b", kvlock.WithTrace(eb.trace(&kb)))
		ka = a.tryLock(t, "job")
		c := b.waiting(t.Context(), "job")
		time.Sleep(6*time.Second - time.Millisecond)
		release(t, ka)
		kb = (<-c).lock
		time.Sleep(time.Second)
		want := []string{"acquired job 0s", "renewed job 0s", "handed over job 0s", "released job 6s <nil>"}
		if got := ea.take(); !slices.Equal(got, want) {
			t.Errorf("events = %q, want %q", got, want)
		}
		b.link.DropReply(-1)
		time.Sleep(5200 * time.Millisecond) // renewal at 5 s, tried for 1 s
		b.link.Mend()
		<-kb.Context().Done()
		synctest.Wait() // the trace is told a moment later
		got := eb.take()
		want = []string{"waiting job", "acquired job 6s", "failed job 7.5s true"}
		if len(got) < 5 || !slices.Equal(got[:3], want) || got[len(got)-1] != "lost job "+string(kvlock.Expired) {
			t.Errorf("events = %q, want %q, further failures, and the loss", got, want)
		}
	})
}

// K53, S10, and what Verify says of holds that have ended.
func TestVerifyTellsTheTokenOfTheHoldFromOthers(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		if err := b.Verify(t.Context(), "job", 1); !errors.Is(err, kvlock.ErrFree) {
			t.Errorf("Verify of a free lock = %v, want %v", err, kvlock.ErrFree)
		}
		first := a.tryLock(t, "job")
		time.Sleep(time.Minute) // renewed
		if err := b.Verify(t.Context(), "job", first.Token()); err != nil {
			t.Errorf("Verify = %v, want nil", err)
		}
		release(t, first)
		if err := b.Verify(t.Context(), "job", first.Token()); !errors.Is(err, kvlock.ErrFree) {
			t.Errorf("Verify of a released lock = %v, want %v", err, kvlock.ErrFree)
		}
		second := a.tryLock(t, "job")
		wantHeld(t, b.Verify(t.Context(), "job", first.Token()), "a", second.Token())
		if err := b.Verify(t.Context(), "job", 0); !errors.Is(err, kvlock.ErrOption) {
			t.Errorf("Verify of 0 = %v, want %v", err, kvlock.ErrOption)
		}
		if err := b.Verify(t.Context(), "", 1); !errors.Is(err, kvlock.ErrName) {
			t.Errorf("Verify without a name = %v, want %v", err, kvlock.ErrName)
		}
		a.link.Cut() // it cannot end the tombstone
		if err := b.Break(t.Context(), "job", "gone"); err != nil {
			t.Fatalf("Break = %v", err)
		}
		wantLost(t, "Verify of a broken hold", b.Verify(t.Context(), "job", second.Token()), kvlock.Revoked)
	})
}

// Barging where it is asked for, and only there: the first in line is late, a newcomer
// takes the lock; the line goes on after it.
func TestOnlyABargingLockerPassesTheLine(t *testing.T) {
	for _, barging := range []bool{false, true} {
		natstest.Bubble(t, func(t *testing.T) {
			s := newSite(t)
			a, b := s.process("a"), s.process("b")
			var opts []kvlock.Option
			if barging {
				opts = append(opts, kvlock.WithBarging())
			}
			c := s.process("c", opts...)
			k := a.tryLock(t, "job")
			line := b.waiting(t.Context(), "job")
			b.link.Delay(50 * time.Millisecond)
			go func() { _ = k.Release(t.Context()) }()
			time.Sleep(10 * time.Millisecond)
			passed, err := c.TryLock(t.Context(), "job")
			if !barging {
				if !errors.Is(err, kvlock.ErrHeld) {
					t.Errorf("TryLock = %v, want %v", err, kvlock.ErrHeld)
				}
				release(t, (<-line).lock)
				return
			}
			if err != nil {
				t.Fatalf("TryLock = %v, want the lock", err)
			}
			time.Sleep(time.Second)
			released := time.Now()
			release(t, passed)
			got := <-line
			if took := got.at.Sub(released); got.err != nil || took > 200*time.Millisecond {
				t.Errorf("Lock = %v after %v, want the lock with a few messages", got.err, took)
			}
			release(t, got.lock)
		})
	}
}
