package kvlock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded/natstest"
	"tenure/kvlock"
	"tenure/kvlock/bucket"
)

func TestTryLockOfHeldLockSaysWhoHoldsIt(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t, kvlock.WithNote("nightly"))
		k := a.tryLock(t, "job")
		began := time.Now()
		for _, p := range []*process{a, b} { // a hold is not for the process as such
			_, err := p.TryLock(t.Context(), "job")
			wantHeld(t, err, "a", k.Token())
			if held, _ := errors.AsType[*kvlock.HeldError](err); held.Note != "nightly" || !held.Since.Equal(began) {
				t.Errorf("TryLock = %+v, want note and since", held)
			}
		}
		release(t, k)
		release(t, b.tryLock(t, "job"))
	})
}

// K11, K12: nobody waits for what has ended.
func TestTryLockTakesWhatACrashedHolderLeft(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		a.tryLock(t, "job")
		a.link.Cut()
		time.Sleep(15*time.Second + 300*time.Millisecond)
		b.tryLock(t, "job")
	})
}

// K5, N57, L9: an acquire whose answer was lost is recognised.
func TestAcquireWithLostAnswerIsAdopted(t *testing.T) {
	for _, lost := range []int{1, 2, 3} {
		natstest.Bubble(t, func(t *testing.T) {
			a, b := two(t)
			a.link.DropReply(lost, func(subject string, _ []byte) bool { return subject == jobSubject })
			k := a.tryLock(t, "job")
			h, err := b.Holder(t.Context(), "job")
			if err != nil || h.Token != k.Token() || h.Revision != k.Revision() {
				t.Errorf("Holder = %+v, %v, want token %d", h, err, k.Token())
			}
			if got, want := k.Remaining(), 12500*time.Millisecond; got > want {
				t.Errorf("Remaining = %v, want at most %v: trust counts from the sending, 1 s ago", got, want)
			}
			time.Sleep(time.Minute)
			wantHeldOn(t, k)
			release(t, k)
		})
	}
}

// N31, K1, N32, A5: no hold begins with a lease that is over.
func TestAcquireThatWasStoredButAnsweredTooLateIsNoHold(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		let := a.link.HoldReply(func(string, []byte) bool { return true })
		go func() {
			time.Sleep(14 * time.Second) // after the end of trust, before the end of the TTL
			let()
		}()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		k, err := a.Lock(ctx, "job")
		if err != nil {
			t.Fatal(err)
		}
		if got := k.Remaining(); got < 13*time.Second {
			t.Errorf("Remaining = %v, want a lease of its own", got)
		}
		h, err := b.Holder(t.Context(), "job")
		if err != nil || h.Token != k.Token() {
			t.Errorf("Holder = %+v, %v, want token %d", h, err, k.Token())
		}
		release(t, k)
	})
}

// K3, K4: who gives up before the answer is here holds nothing and leaves nothing.
func TestCancelledAcquireIsRemovedThoughItWasStored(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		a.link.Delay(300 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := a.TryLock(ctx, "job"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("TryLock = %v, want %v", err, context.DeadlineExceeded)
		}
		time.Sleep(2 * time.Second)
		if got := s.keys("lock."); len(got) > 0 {
			t.Errorf("keys = %v, want none", got)
		}
		release(t, b.tryLock(t, "job"))
	})
}

// H14, L9: a create that lands after its caller gave up bars nobody for long: who
// waits for it asks its process, which ends it.
func TestGhostOfACancelledAcquireIsEndedWhenSomebodyAsks(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		let := a.link.HoldRequest(to(jobSubject))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := a.TryLock(ctx, "job"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("TryLock = %v, want %v", err, context.DeadlineExceeded)
		}
		time.Sleep(5 * time.Second)
		let()
		time.Sleep(time.Millisecond)
		if h, err := b.Holder(t.Context(), "job"); err != nil || h.Owner != "a" {
			t.Fatalf("Holder = %+v, %v, want the ghost of a", h, err)
		}
		began := time.Now()
		k := b.lock(t, "job")
		if got := time.Since(began); got > 300*time.Millisecond {
			t.Errorf("Lock took %v, want far less than a TTL", got)
		}
		release(t, k)
	})
}

func TestGhostOfACancelledAcquireIsEndedByTheNextAcquireOfItsProcess(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, _ := two(t)
		let := a.link.HoldRequest(to(jobSubject))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := a.TryLock(ctx, "job"); err == nil {
			t.Fatal("TryLock = nil, want an error")
		}
		time.Sleep(5 * time.Second)
		let()
		time.Sleep(time.Millisecond)
		began := time.Now()
		release(t, a.tryLock(t, "job"))
		if got := time.Since(began); got > 100*time.Millisecond {
			t.Errorf("TryLock took %v, want milliseconds", got)
		}
	})
}

// K10: the deadline is ctx's, whatever happens meanwhile.
func TestWaitingEndsExactlyWithItsContext(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := a.tryLock(t, "job")
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
		defer cancel()
		_, err := b.Lock(ctx, "job")
		if got, want := time.Since(began), 20*time.Minute; got != want {
			t.Errorf("Lock took %v, want %v", got, want)
		}
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, kvlock.ErrHeld) {
			t.Errorf("Lock = %v, want %v and %v", err, context.DeadlineExceeded, kvlock.ErrHeld)
		}
		wantHeldOn(t, k)
	})
}

// N5, N59: an outage is not a holder.
func TestTryLockWithoutServerSaysSo(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a := s.process("a")
		s.srv.StopServer(0)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		_, err := a.TryLock(ctx, "job")
		if errors.Is(err, kvlock.ErrHeld) || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, bucket.ErrBusy) {
			t.Errorf("TryLock = %v, want %v and %v", err, context.DeadlineExceeded, bucket.ErrBusy)
		}
		if got, want := time.Since(began), 3*time.Second; got != want {
			t.Errorf("TryLock took %v, want %v", got, want)
		}
	})
}

// K28: a panic, and runtime.Goexit, release.
func TestDoReleasesAfterAPanic(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		func() {
			defer func() {
				if got := recover(); got != "boom" {
					t.Errorf("recover = %v, want boom", got)
				}
			}()
			_ = a.Do(t.Context(), "job", func(context.Context, *kvlock.Lock) error { panic("boom") })
		}()
		release(t, b.tryLock(t, "job"))
	})
}

// K48, N19, N21, N22, N81, S8: nothing is released while the function runs.
func TestDoKeepsTheLockUntilTheFunctionHasReturned(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		failed := errors.New("failed")
		var lock *kvlock.Lock
		done := make(chan error)
		go func() {
			done <- a.Do(ctx, "job", func(ctx context.Context, k *kvlock.Lock) error {
				lock = k
				<-ctx.Done()
				if cause := context.Cause(ctx); !errors.Is(cause, stop) {
					t.Errorf("cause = %v, want %v", cause, stop)
				}
				time.Sleep(time.Minute) // four TTLs
				wantHeldOn(t, k)
				return failed
			})
		}()
		time.Sleep(20 * time.Second)
		cancel(stop)
		time.Sleep(59 * time.Second)
		if _, err := b.TryLock(t.Context(), "job"); !errors.Is(err, kvlock.ErrHeld) {
			t.Errorf("TryLock = %v, want %v", err, kvlock.ErrHeld)
		}
		if err := <-done; !errors.Is(err, failed) || errors.Is(err, kvlock.ErrLost) {
			t.Errorf("Do = %v, want %v", err, failed)
		}
		if err := lock.Err(); !errors.Is(err, kvlock.ErrReleased) {
			t.Errorf("Err = %v, want %v", err, kvlock.ErrReleased)
		}
		release(t, b.tryLock(t, "job"))
	})
}

func TestDoReportsALossAlsoIfTheFunctionSucceeds(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, _ := two(t)
		err := a.Do(t.Context(), "job", func(ctx context.Context, k *kvlock.Lock) error {
			a.link.Cut()
			<-ctx.Done()
			wantLost(t, "cause", context.Cause(ctx), kvlock.Expired)
			return nil
		})
		wantLost(t, "Do", err, kvlock.Expired)
	})
}

// S4, K31: the context of the work does not wait for a timer.
func TestErrOfTheContextAsksTheClock(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, _ := two(t)
		err := a.Do(t.Context(), "job", func(ctx context.Context, k *kvlock.Lock) error {
			a.link.Cut()
			time.Sleep(13500 * time.Millisecond) // this timer and the lock's are due at once
			if ctx.Err() == nil || k.Context().Err() == nil || k.Err() == nil || k.Remaining() != 0 {
				t.Errorf("at the end of trust: %v, %v, %v, %v, want ended", ctx.Err(), k.Context().Err(), k.Err(), k.Remaining())
			}
			child, cancel := context.WithCancel(ctx)
			defer cancel()
			if child.Err() == nil {
				t.Error("Err of a child = nil, want ended")
			}
			return nil
		})
		wantLost(t, "Do", err, kvlock.Expired)
	})
}

// N89: names that are near to each other are different locks.
func TestEveryNameIsALockOfItsOwnOrAnError(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		names := []string{"a", "A", "a.b", "a b", "ä", "*", ">", "..", "a/b", "a_b", "=", "=41", "$KV", "\x00", "\xff", strings.Repeat("n", 200)}
		for _, name := range names {
			a.tryLock(t, name)
		}
		seen := make(map[string]bool)
		for h, err := range b.Holders(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			seen[h.Name] = true
		}
		for _, name := range names {
			if !seen[name] {
				t.Errorf("Holders lack %q", name)
			}
		}
		if len(seen) != len(names) {
			t.Errorf("holders = %d, want %d", len(seen), len(names))
		}
		for _, name := range []string{"", strings.Repeat("n", 201)} {
			if _, err := a.TryLock(t.Context(), name); !errors.Is(err, kvlock.ErrName) {
				t.Errorf("TryLock(%d bytes) = %v, want %v", len(name), err, kvlock.ErrName)
			}
		}
	})
}

// H20, N95: a TTL is rounded up once, and counts everywhere as rounded.
func TestTTLIsRoundedUpOrRefused(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a", kvlock.WithTTL(2001*time.Millisecond)), s.process("b")
		k := a.tryLock(t, "job")
		if got, want := k.Remaining(), 2500*time.Millisecond; got != want {
			t.Errorf("Remaining = %v, want %v", got, want)
		}
		if h, err := b.Holder(t.Context(), "job"); err != nil || h.TTL != 3*time.Second {
			t.Errorf("Holder = %+v, %v, want TTL 3s", h, err)
		}
		for _, ttl := range []time.Duration{-1, 0, 500 * time.Millisecond, time.Second, 61 * time.Second} {
			_, err := kvlock.New(t.Context(), natstest.JetStream(t, a.nc), kvlock.WithTTL(ttl))
			if !errors.Is(err, kvlock.ErrTTL) {
				t.Errorf("New with TTL %v = %v, want %v", ttl, err, kvlock.ErrTTL)
			}
		}
	})
}

// K15, N6: the marker of a delete that never ends does not bar the lock.
func TestLockIsTakenOverAnyMarker(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		for range 3 {
			release(t, a.tryLock(t, "job"))
			release(t, b.tryLock(t, "job"))
			if err := s.kv().Delete(t.Context(), "lock.job"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			release(t, b.tryLock(t, "job"))
			time.Sleep(time.Minute)
			release(t, a.tryLock(t, "job"))
		}
	})
}

// S10: what somebody else wrote is an error that says what it is.
func TestForeignRecordIsATypedError(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a := s.process("a")
		for _, tt := range []struct{ value, want string }{
			{"hello", `kvlock: take "job": key "lock.job": value: have "hello", want a JSON object`},
			{`{"v":2,"kind":"lock"}`, `kvlock: take "job": key "lock.job": version: have 2, want 1`},
			{`{"v":1,"kind":"door"}`, `kvlock: take "job": key "lock.job": kind: have "door", want one of ["lock" "permit" "rw" "reader" "semaphore"]`},
			{`{"v":1,"kind":"lock","nonce":"n","process":">","ttl":5}`, `kvlock: take "job": key "lock.job": process: have ">", want 1 to 64 letters and digits`},
			{`{"v":1,"kind":"lock","nonce":"n","process":"p","ttl":0}`, `kvlock: take "job": key "lock.job": ttl: have 0, want 1 to 86400`},
		} {
			if _, err := s.kv().PutString(t.Context(), "lock.job", tt.value); err != nil {
				t.Fatal(err)
			}
			_, err := a.Lock(t.Context(), "job")
			if !errors.Is(err, kvlock.ErrRecord) || err.Error() != tt.want {
				t.Errorf("Lock over %s = %v, want %s", tt.value, err, tt.want)
			}
			if _, err := a.Holder(t.Context(), "job"); !errors.Is(err, kvlock.ErrRecord) {
				t.Errorf("Holder of %s = %v, want %v", tt.value, err, kvlock.ErrRecord)
			}
		}
	})
}

// B1: nobody gets anything in a bucket that may have been lost, and who waits gets it
// at the exact end.
func TestQuarantineOfANewBucketIsWaitedFor(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Connect(t, natstest.Server(t))
		l, err := kvlock.New(t.Context(), natstest.JetStream(t, nc),
			kvlock.WithBucketOptions(bucket.Storage(jetstream.MemoryStorage), bucket.MaxTTL(20*time.Second)))
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err = l.TryLock(t.Context(), "job")
		if q, ok := errors.AsType[*kvlock.QuarantineError](err); !ok || q.Left != 20*time.Second {
			t.Errorf("TryLock = %v, want quarantine of 20s", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := l.Lock(ctx, "job"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Lock = %v, want %v", err, context.DeadlineExceeded)
		}
		k, err := l.Lock(t.Context(), "job")
		if err != nil {
			t.Fatal(err)
		}
		if got, want := time.Since(began), 20*time.Second; got != want {
			t.Errorf("lock gained after %v, want %v", got, want)
		}
		release(t, k)
		if err := l.Close(t.Context()); err != nil {
			t.Errorf("Close = %v, want nil", err)
		}
	})
}

func TestCloseEndsAWaitForTheQuarantine(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Connect(t, natstest.Server(t))
		l, err := kvlock.New(t.Context(), natstest.JetStream(t, nc))
		if err != nil {
			t.Fatal(err)
		}
		waits := make(chan error)
		go func() {
			_, err := l.Lock(t.Context(), "job")
			waits <- err
		}()
		synctest.Wait()
		if err := l.Close(t.Context()); err != nil {
			t.Errorf("Close = %v, want nil", err)
		}
		if err := <-waits; !errors.Is(err, kvlock.ErrClosed) {
			t.Errorf("Lock = %v, want %v", err, kvlock.ErrClosed)
		}
	})
}

// Close releases what is held, ends who waits, and lets functions return first.
func TestCloseReleasesEverythingOnceItsFunctionsHaveReturned(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		raw := a.tryLock(t, "raw")
		taken := b.tryLock(t, "taken")
		waits := a.waiting(t.Context(), "taken")
		var all sync.WaitGroup
		began := time.Now()
		all.Go(func() {
			_ = a.Do(t.Context(), "do", func(ctx context.Context, k *kvlock.Lock) error {
				<-ctx.Done()
				if cause := context.Cause(ctx); !errors.Is(cause, kvlock.ErrClosed) {
					t.Errorf("cause = %v, want %v", cause, kvlock.ErrClosed)
				}
				time.Sleep(3 * time.Second)
				wantHeldOn(t, k)
				return nil
			})
		})
		synctest.Wait()
		if err := a.Close(t.Context()); err != nil {
			t.Errorf("Close = %v, want nil", err)
		}
		if got, want := time.Since(began), 3*time.Second; got != want {
			t.Errorf("Close took %v, want %v", got, want)
		}
		all.Wait()
		if got := <-waits; !errors.Is(got.err, kvlock.ErrClosed) {
			t.Errorf("Lock = %v, want %v", got.err, kvlock.ErrClosed)
		}
		if err := raw.Err(); !errors.Is(err, kvlock.ErrReleased) {
			t.Errorf("Err = %v, want %v", err, kvlock.ErrReleased)
		}
		if got := s.keys(""); len(got) != 1 {
			t.Errorf("keys = %v, want lock.taken only", got)
		}
		if err := a.Close(t.Context()); err != nil {
			t.Errorf("second Close = %v, want nil", err)
		}
		if _, err := a.TryLock(t.Context(), "raw"); !errors.Is(err, kvlock.ErrClosed) {
			t.Errorf("TryLock = %v, want %v", err, kvlock.ErrClosed)
		}
		release(t, taken)
	})
}
