package kvlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"tenure/embedded/natstest"
	"tenure/kvlock"
)

// K76, K77, N80, H19: the task takes 50 ms, the clock of the second node is 300 ms late.
func TestShortJobRunsOnceWithinItsMinimumHold(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t, kvlock.WithMinHold(time.Second))
		began := time.Now()
		k := a.tryLock(t, "job")
		time.Sleep(50 * time.Millisecond)
		release(t, k)
		if took := time.Since(began); took != 50*time.Millisecond {
			t.Errorf("released after %v, want no wait for the minimum", took)
		}
		for _, p := range []*process{a, b} {
			_, err := p.TryLock(t.Context(), "job")
			wantHeld(t, err, "a", k.Token())
			held, _ := errors.AsType[*kvlock.HeldError](err)
			if want := began.Add(1050 * time.Millisecond); held == nil || held.Until.Sub(want).Abs() > 5*time.Millisecond {
				t.Errorf("error = %+v, want Until %v", held, want)
			}
			if h, err := p.Holder(t.Context(), "job"); err != nil || !h.Resting {
				t.Errorf("Holder = %+v, %v, want resting", h, err)
			}
			if err := p.Verify(t.Context(), "job", k.Token()); !errors.Is(err, kvlock.ErrFree) {
				t.Errorf("Verify = %v, want %v", err, kvlock.ErrFree)
			}
		}
		time.Sleep(time.Until(began.Add(999 * time.Millisecond)))
		_, err := b.TryLock(t.Context(), "job")
		wantHeld(t, err, "a", k.Token())
		time.Sleep(time.Until(began.Add(1001 * time.Millisecond))) // the server's TTL ends 50 ms later
		if next := b.tryLock(t, "job"); next.Token() <= k.Token() {
			t.Errorf("token = %d, want more than %d", next.Token(), k.Token())
		}
	})
}

// L15, H19: who stands in line is told at the exact end.
func TestLineIsServedWhenTheMinimumHoldIsOver(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b, c := s.process("a", kvlock.WithMinHold(5*time.Second)), s.process("b"), s.process("c")
		began := time.Now()
		k := a.tryLock(t, "job")
		early := b.waiting(t.Context(), "job") // notes the hold
		time.Sleep(time.Second)
		release(t, k)
		late := c.waiting(t.Context(), "job") // notes the tombstone
		got := <-early
		if got.err != nil || got.at.Sub(began) != 5*time.Second {
			t.Errorf("Lock = %v after %v, want the lock after 5s", got.err, got.at.Sub(began))
		}
		release(t, got.lock)
		if got := <-late; got.err != nil || got.at.Sub(began) > 5*time.Second+10*time.Millisecond {
			t.Errorf("Lock = %v after %v, want the lock at once", got.err, got.at.Sub(began))
		} else {
			release(t, got.lock)
		}
	})
}

// The same if nobody came before the tombstone.
func TestTombstoneTakesNotesForTheLine(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a", kvlock.WithMinHold(5*time.Second)), s.process("b")
		began := time.Now()
		release(t, a.tryLock(t, "job"))
		got := <-b.waiting(t.Context(), "job")
		if took := got.at.Sub(began); got.err != nil || took != 5*time.Second {
			t.Errorf("Lock = %v after %v, want the lock after 5s", got.err, took)
		}
	})
}

func TestMinimumHoldOfAProcessThatEndsIsKeptByTheServer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a", kvlock.WithMinHold(5*time.Second)), s.process("b")
		k := a.tryLock(t, "job")
		began := time.Now()
		time.Sleep(500 * time.Millisecond)
		release(t, k)
		if err := a.Close(t.Context()); err != nil {
			t.Errorf("Close = %v, want nil", err)
		}
		if took := time.Since(began); took != 500*time.Millisecond {
			t.Errorf("closed after %v, want no wait", took)
		}
		time.Sleep(4400 * time.Millisecond)
		_, err := b.TryLock(t.Context(), "job")
		wantHeld(t, err, "a", k.Token())
		got := <-b.waiting(t.Context(), "job")
		// 4.5 s are left, which are 5 whole seconds; the server is late by 250 ms, the
		// waiter looks 300 to 400 ms after the TTL.
		if took := got.at.Sub(began); got.err != nil || took < 5500*time.Millisecond || took > 5905*time.Millisecond {
			t.Errorf("Lock = %v after %v, want the lock 5.5s to 5.9s after it was gained", got.err, took)
		}
	})
}

func TestHoldLongerThanItsMinimumIsFreeAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t, kvlock.WithMinHold(time.Second))
		k := a.tryLock(t, "job")
		time.Sleep(time.Second)
		release(t, k)
		b.tryLock(t, "job")
	})
}

// S7: the answers to the tombstone are lost.
func TestMinimumHoldOutlastsLostAnswers(t *testing.T) {
	for _, drop := range []int{1, 2} {
		natstest.Bubble(t, func(t *testing.T) {
			a, b := two(t, kvlock.WithMinHold(10*time.Second))
			k := a.tryLock(t, "job")
			began := time.Now()
			a.link.DropReply(drop, func(s string, _ []byte) bool { return s == jobSubject })
			release(t, k)
			time.Sleep(time.Until(began.Add(9999 * time.Millisecond)))
			_, err := b.TryLock(t.Context(), "job")
			wantHeld(t, err, "a", k.Token())
			time.Sleep(2 * time.Millisecond)
			b.tryLock(t, "job")
		})
	}
}

// An operator need not wait for the minimum.
func TestBreakEndsAMinimumHold(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t, kvlock.WithMinHold(time.Minute))
		release(t, a.tryLock(t, "job"))
		if err := b.Break(t.Context(), "job", "it may run again"); err != nil {
			t.Fatalf("Break = %v", err)
		}
		time.Sleep(time.Millisecond)
		b.tryLock(t, "job")
	})
}

// A stuck but living holder loses the lock at the exact time, by its own clock.
func TestStuckHolderLosesTheLockAtItsMaximumHold(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		losses := make(chan *kvlock.LostError, 2)
		a := s.process("a", kvlock.WithMaxHold(20*time.Second), kvlock.WithTrace(&kvlock.Trace{Lost: func(e *kvlock.LostError) { losses <- e }}))
		b := s.process("b")
		began := time.Now()
		stuck, done := make(chan struct{}), make(chan error, 1)
		holds := make(chan *kvlock.Lock, 1)
		go func() {
			done <- a.Do(t.Context(), "job", func(ctx context.Context, k *kvlock.Lock) error {
				holds <- k
				<-ctx.Done()
				if took := time.Since(began); took != 20*time.Second {
					t.Errorf("context ended after %v, want 20s", took)
				}
				wantLost(t, "cause", context.Cause(ctx), kvlock.Overrun)
				<-stuck // does not care
				return nil
			})
		}()
		first := <-holds
		time.Sleep(19 * time.Second)
		if got := first.Remaining(); got != time.Second {
			t.Errorf("Remaining = %v, want what is left of the maximum, 1s", got)
		}
		next := <-b.waiting(t.Context(), "job")
		if next.err != nil || next.at.Sub(began) < 20*time.Second || next.at.Sub(began) > 20*time.Second+10*time.Millisecond {
			t.Errorf("Lock = %v after %v, want the lock after 20s", next.err, next.at.Sub(began))
		}
		if err := first.Put(t.Context(), "x", nil); !errors.Is(err, kvlock.ErrLost) {
			t.Errorf("Put of the stuck one = %v, want %v", err, kvlock.ErrLost)
		}
		close(stuck)
		wantLost(t, "Do", <-done, kvlock.Overrun)
		wantHeldOn(t, next.lock)
		wantLost(t, "Lost", <-losses, kvlock.Overrun)
		if len(losses) != 0 {
			t.Errorf("Lost again = %v, want once", <-losses)
		}
	})
}

// A silent server does not stretch it either.
func TestMaximumHoldNeedsNoServer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t, kvlock.WithMaxHold(5*time.Second))
		k := a.tryLock(t, "job")
		a.link.Cut()
		began := time.Now()
		<-k.Context().Done()
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("lost after %v, want 5s", took)
		}
		wantLost(t, "Err", k.Err(), kvlock.Overrun)
		a.link.Mend()
		time.Sleep(time.Second)
		b.tryLock(t, "job")
	})
}

// Break reaches the old holder with its reason, whether or not a message does.
func TestBrokenHolderLearnsTheReasonWithinASecond(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := a.tryLock(t, "job")
		began := time.Now()
		if err := b.Break(t.Context(), "job", "maintenance"); err != nil {
			t.Fatalf("Break = %v", err)
		}
		<-k.Context().Done()
		if took := time.Since(began); took > time.Second {
			t.Errorf("lost after %v, want within 1s", took)
		}
		if lost := wantLost(t, "cause", context.Cause(k.Context()), kvlock.Revoked); lost.Text != "maintenance" {
			t.Errorf("text = %q, want the reason given", lost.Text)
		}
	})
}

// K68, S10.
func TestBadHoldLimitsAreErrors(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		js := natstest.JetStream(t, natstest.Connect(t, s.srv))
		for _, opts := range [][]kvlock.Option{
			{kvlock.WithMinHold(-1)},
			{kvlock.WithMinHold(25 * time.Hour)},
			{kvlock.WithMaxHold(-1)},
			{kvlock.WithMinHold(2 * time.Second), kvlock.WithMaxHold(time.Second)},
		} {
			if _, err := kvlock.New(t.Context(), js, opts...); !errors.Is(err, kvlock.ErrOption) {
				t.Errorf("New = %v, want %v", err, kvlock.ErrOption)
			}
		}
	})
}
