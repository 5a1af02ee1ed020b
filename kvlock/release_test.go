package kvlock_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"tenure/embedded/natstest"
	"tenure/kvlock"
)

func canceled(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// K40, K45, N55, N56: a dead context does not keep the lock.
func TestReleaseWithADeadContextFreesTheLock(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := a.tryLock(t, "job")
		a.link.Delay(100 * time.Millisecond)
		if err := k.Release(canceled(t)); err != nil {
			t.Errorf("Release = %v, want nil", err)
		}
		release(t, b.tryLock(t, "job"))
	})
}

// K41: a hold that ends for one reason while its renewal learns of another does not
// free the lock of who has it now:
//
//	the first                             the second
//	renews, and is refused
//	reads the key                         has the lock: the record is its own
//	is released, or trust ends
//	has the record: "taken", too late
//	purges what it expects, with what it read
func TestReleaseWhileALossIsBeingReadFreesNoOthersLock(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		k := a.tryLock(t, "job")
		if err := s.kv().Purge(t.Context(), "lock.job"); err != nil {
			t.Fatal(err)
		}
		next := b.tryLock(t, "job")
		// The read that tells of b is what comes late.
		read := make(chan struct{}, 100)
		let := a.link.HoldReply(func(_ string, payload []byte) bool {
			hit := bytes.Contains(payload, []byte("stream_msg_get_response"))
			if hit {
				read <- struct{}{}
			}
			return hit
		})
		<-read
		if k.Err() != nil {
			t.Fatalf("Err = %v, want no conclusion yet", k.Err())
		}
		released := make(chan error, 1)
		go func() { released <- k.Release(t.Context()) }()
		synctest.Wait()
		let()
		if err := <-released; err != nil {
			t.Errorf("Release = %v, want nil", err)
		}
		wantHeldOn(t, next)
		if _, err := a.TryLock(t.Context(), "job"); !errors.Is(err, kvlock.ErrHeld) {
			t.Errorf("TryLock = %v, want %v", err, kvlock.ErrHeld)
		}
		release(t, next)
	})
}

// K40: if the server is away it says so, and goes on in the background.
func TestReleaseWithoutServerReturnsAndIsDoneLater(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		k := a.tryLock(t, "job")
		a.link.Cut()
		began := time.Now()
		if err := k.Release(canceled(t)); !errors.Is(err, context.Canceled) {
			t.Errorf("Release = %v, want %v", err, context.Canceled)
		}
		if got, want := time.Since(began), time.Second; got != want {
			t.Errorf("Release took %v, want %v", got, want)
		}
		if err := k.Err(); !errors.Is(err, kvlock.ErrReleased) {
			t.Errorf("Err = %v, want %v", err, kvlock.ErrReleased)
		}
		a.link.Mend()
		if err := k.Release(t.Context()); err != nil {
			t.Errorf("Release again = %v, want nil", err)
		}
		release(t, b.tryLock(t, "job"))
	})
}

func TestReleaseIsIdempotent(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := a.tryLock(t, "job")
		for range 3 {
			release(t, k)
		}
		next := b.tryLock(t, "job")
		release(t, k) // K41: of a newer hold it knows nothing
		own := a.waiting(t.Context(), "job")
		release(t, k)
		wantHeldOn(t, next)
		release(t, next)
		got := <-own
		if got.err != nil {
			t.Fatal(got.err)
		}
		release(t, k)
		time.Sleep(time.Minute)
		wantHeldOn(t, got.lock)
		release(t, got.lock)
	})
}

// K43, N53, N54: after a loss the next holder's entry is left alone.
func TestReleaseAfterALossSaysSoAndTouchesNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := a.tryLock(t, "job")
		a.link.Cut()
		time.Sleep(16 * time.Second)
		next := b.tryLock(t, "job")
		a.link.Mend()
		for range 2 {
			wantLost(t, "Release", k.Release(t.Context()), kvlock.Expired)
		}
		time.Sleep(time.Minute)
		wantHeldOn(t, next)
	})
}

// N23: the answer to the purge is lost, or that to the renewal before it.
func TestReleaseWithLostAnswersFreesTheLock(t *testing.T) {
	for _, wait := range []time.Duration{time.Second, 5 * time.Second} {
		for lost := 1; lost <= 3; lost++ {
			natstest.Bubble(t, func(t *testing.T) {
				a, b := two(t)
				k := a.tryLock(t, "job")
				time.Sleep(wait - time.Millisecond)
				a.link.DropReply(lost, func(subject string, _ []byte) bool { return subject == jobSubject })
				time.Sleep(2 * time.Millisecond)
				began := time.Now()
				release(t, k)
				if got := time.Since(began); got > 5*time.Second {
					t.Errorf("Release took %v with %d lost answers", got, lost)
				}
				release(t, b.tryLock(t, "job"))
			})
		}
	}
}

// K17, N12: a renewal on the wire is waited for, so that the key is really removed.
func TestReleaseWaitsForARenewalInFlight(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		k := a.tryLock(t, "job")
		a.link.Delay(200 * time.Millisecond)
		time.Sleep(5*time.Second + 100*time.Millisecond)
		began := time.Now()
		release(t, k)
		if got, want := time.Since(began), 300*time.Millisecond+400*time.Millisecond; got != want {
			t.Errorf("Release took %v, want the rest of the renewal and one purge, %v", got, want)
		}
		if got := s.keys("lock."); len(got) > 0 {
			t.Errorf("keys = %v, want none", got)
		}
		release(t, b.tryLock(t, "job"))
	})
}

// K16, N12: at whatever moment of a renewal, after Release there is none.
func TestNoRenewalComesAfterRelease(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a", kvlock.WithTTL(2*time.Second)), s.process("b")
		a.link.Delay(10 * time.Millisecond)
		for range 200 {
			k := a.lock(t, "job")
			time.Sleep(2*time.Second/3 - 25*time.Millisecond + rand.N(50*time.Millisecond))
			release(t, k)
			b.lock(t, "job").Release(t.Context())
		}
		time.Sleep(5 * time.Second)
		if got := s.keys(""); len(got) > 0 {
			t.Errorf("keys = %v, want none", got)
		}
	})
}

// L10, N88: a broken lock is lost at once, and nobody has it before its holder
// stopped.
func TestBrokenLockStaysBarredUntilItsHolderHasStopped(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := a.tryLock(t, "job")
		if err := b.Break(t.Context(), "job", "maintenance"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		lost := wantLost(t, "cause", context.Cause(k.Context()), kvlock.Revoked)
		if lost.Text != "maintenance" {
			t.Errorf("text = %q, want maintenance", lost.Text)
		}
		waits := b.waiting(t.Context(), "job")
		time.Sleep(10 * time.Second)
		if h, err := b.Holder(t.Context(), "job"); err != nil || !h.Revoked || h.Reason != "maintenance" || h.Owner != "a" || h.Token != k.Token() {
			t.Errorf("Holder = %+v, %v, want the revoked hold of a", h, err)
		}
		if err := b.Break(t.Context(), "job", "again"); err != nil {
			t.Errorf("Break again = %v, want nil", err)
		}
		stopped := time.Now()
		wantLost(t, "Release", k.Release(t.Context()), kvlock.Revoked)
		got := <-waits
		if got.err != nil || !got.at.Equal(stopped) {
			t.Errorf("Lock = %v, %v after the release, want nil, at once", got.err, got.at.Sub(stopped))
		}
		release(t, got.lock)
	})
}

func TestBrokenLockOfADeadHolderEndsWithItsTTL(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := a.tryLock(t, "job")
		a.link.Cut()
		time.Sleep(5 * time.Second)
		broken := time.Now()
		if err := b.Break(t.Context(), "job", ""); err != nil {
			t.Fatal(err)
		}
		next := b.lock(t, "job")
		if got := time.Since(broken); got < 15*time.Second || got > 16*time.Second {
			t.Errorf("next hold %v after the break, want 15s to 16s", got)
		}
		if k.Err() == nil {
			t.Error("Err = nil, want lost")
		}
		release(t, next)
	})
}

func TestForcedBreakFreesAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := a.tryLock(t, "job")
		waits := b.waiting(t.Context(), "job")
		a.link.Cut()
		if err := b.Break(t.Context(), "job", "dead", kvlock.Force()); err != nil {
			t.Fatal(err)
		}
		got := <-waits
		if got.err != nil || got.lock.Token() <= k.Token() {
			t.Errorf("Lock = %+v, want a larger token than %d", got, k.Token())
		}
		release(t, got.lock)
	})
}

func TestBreakOfAFreeLockOrAnotherHoldIsAnError(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		if err := b.Break(t.Context(), "job", ""); !errors.Is(err, kvlock.ErrFree) {
			t.Errorf("Break = %v, want %v", err, kvlock.ErrFree)
		}
		if _, err := b.Holder(t.Context(), "job"); !errors.Is(err, kvlock.ErrFree) {
			t.Errorf("Holder = %v, want %v", err, kvlock.ErrFree)
		}
		k := a.tryLock(t, "job")
		if err := b.Break(t.Context(), "job", "", kvlock.OnlyToken(k.Token()-1)); !errors.Is(err, kvlock.ErrFree) {
			t.Errorf("Break = %v, want %v", err, kvlock.ErrFree)
		}
		wantHeldOn(t, k)
		if err := b.Break(t.Context(), "job", "", kvlock.OnlyToken(k.Token())); err != nil {
			t.Errorf("Break = %v, want nil", err)
		}
		synctest.Wait()
		wantLost(t, "Err", k.Err(), kvlock.Revoked)
	})
}

// S7: the answer to the break is lost.
func TestBreakWithALostAnswerIsReadBack(t *testing.T) {
	for _, force := range []bool{false, true} {
		natstest.Bubble(t, func(t *testing.T) {
			a, b := two(t)
			k := a.tryLock(t, "job")
			b.link.DropReply(1, func(subject string, _ []byte) bool { return subject == jobSubject })
			var opts []kvlock.BreakOption
			if force {
				opts = append(opts, kvlock.Force())
			}
			if err := b.Break(t.Context(), "job", "why", opts...); err != nil {
				t.Errorf("Break = %v, want nil", err)
			}
			<-k.Context().Done()
			if !errors.Is(k.Err(), kvlock.ErrLost) {
				t.Errorf("Err = %v, want %v", k.Err(), kvlock.ErrLost)
			}
		})
	}
}
