package kvlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tenure/embedded/natstest"
	"tenure/kvlock"
	"tenure/kvlock/bucket"
)

// K30, N30, N40, S4: silence is noticed by the clock alone, at the exact time.
func TestCutHolderLosesLockBeforeNextTakesIt(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		first := a.tryLock(t, "job")
		time.Sleep(61 * time.Second) // many renewals, the last one 1 s ago
		a.link.Cut()
		cut := time.Now()
		if got, want := first.Remaining(), 12500*time.Millisecond; got != want {
			t.Errorf("Remaining = %v, want TTL - margin - 1s = %v", got, want)
		}
		<-first.Context().Done()
		if got, want := time.Since(cut), 12500*time.Millisecond; got != want {
			t.Errorf("loss after %v, want %v", got, want)
		}
		wantLost(t, "cause", context.Cause(first.Context()), kvlock.Expired)
		wantLost(t, "Err", first.Err(), kvlock.Expired)
		_, err := b.TryLock(t.Context(), "job")
		wantHeld(t, err, "a", first.Token())
		time.Sleep(1500*time.Millisecond + 300*time.Millisecond) // margin, lateness of the server
		second := b.tryLock(t, "job")
		if second.Token() <= first.Token() {
			t.Errorf("token = %d, want more than %d", second.Token(), first.Token())
		}
		if got := first.Token(); got >= second.Token() { // K49
			t.Errorf("token of the lost handle = %d, want its own", got)
		}
	})
}

// K47, N24, N47, N50, N51: a holder that comes back finds its hold over and leaves
// the next one alone.
func TestHolderBackFromCutLeavesNextHolderAlone(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		first := a.tryLock(t, "job")
		a.link.Cut()
		time.Sleep(16 * time.Second)
		second := b.tryLock(t, "job")
		a.link.Mend()
		wantLost(t, "Err", first.Err(), kvlock.Expired)
		wantLost(t, "Release", first.Release(t.Context()), kvlock.Expired)
		time.Sleep(time.Minute)
		wantHeldOn(t, second)
		wantLost(t, "Err a minute later", first.Err(), kvlock.Expired)
		release(t, second)
	})
}

// N1, N43, K25, K26, K50: renewal keeps the TTL; the token stays; after a crash the
// key goes.
func TestHoldIsRenewedForEverUnderOneTokenAndGoneATTLAfterACrash(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t, kvlock.WithTTL(3*time.Second))
		k := a.tryLock(t, "job")
		token, revision := k.Token(), k.Revision()
		if token == 0 || revision != token {
			t.Errorf("token, revision = %d, %d, want the same, not 0", token, revision)
		}
		for range 100 {
			time.Sleep(time.Second)
			wantHeldOn(t, k)
		}
		if k.Token() != token {
			t.Errorf("token = %d, want %d", k.Token(), token)
		}
		if got := k.Revision(); got < revision+99 {
			t.Errorf("revision = %d, want at least %d", got, revision+99)
		}
		a.link.Cut()
		time.Sleep(3500 * time.Millisecond)
		b.tryLock(t, "job")
	})
}

// K19, K21, N23, N34, N45: an answer that was lost costs nothing.
func TestRenewalsWithLostAnswersAreReadBack(t *testing.T) {
	for _, lost := range []int{1, 2, 3} {
		natstest.Bubble(t, func(t *testing.T) {
			a, _ := two(t)
			k := a.tryLock(t, "job")
			time.Sleep(4 * time.Second)
			a.link.DropReply(lost, func(subject string, _ []byte) bool { return subject == jobSubject })
			time.Sleep(time.Minute)
			wantHeldOn(t, k)
			release(t, k)
		})
	}
}

// K22, N48: a server that takes requests and never answers is a loss at the deadline.
func TestHungServerIsALossAtTheDeadline(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, _ := two(t)
		k := a.tryLock(t, "job")
		began := time.Now()
		a.link.DropReply(-1)
		<-k.Context().Done()
		if got, want := time.Since(began), 13500*time.Millisecond; got != want {
			t.Errorf("loss after %v, want %v", got, want)
		}
		lost := wantLost(t, "cause", context.Cause(k.Context()), kvlock.Expired)
		if !errors.Is(lost, bucket.ErrDoubt) {
			t.Errorf("cause = %v, want one that says why renewals failed", lost)
		}
	})
}

// H15, L1, L8: an acknowledgement that comes after the end of trust does not count,
// and what it stored is ended at once.
func TestLateRenewalIsEndedAndNotBelieved(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := a.tryLock(t, "job")
		hold := a.link.HoldRequest(to(jobSubject))
		<-k.Context().Done()
		time.Sleep(100 * time.Millisecond)
		hold() // all renewals land now, 1.4 s before the TTL ends
		time.Sleep(time.Second + time.Millisecond)
		wantLost(t, "Err", k.Err(), kvlock.Expired)
		b.tryLock(t, "job")
	})
}

// K27, K10: the context of the taking does not govern the hold.
func TestHoldOutlivesTheContextItWasTakenWith(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, _ := two(t)
		type key struct{}
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "v"), 10*time.Second)
		k, err := a.Lock(ctx, "job")
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		time.Sleep(time.Minute)
		wantHeldOn(t, k)
		if got := k.Context().Value(key{}); got != "v" {
			t.Errorf("Value = %v, want v", got)
		}
		release(t, k)
		if cause := context.Cause(k.Context()); !errors.Is(cause, kvlock.ErrReleased) {
			t.Errorf("cause = %v, want %v", cause, kvlock.ErrReleased)
		}
	})
}

// K33, N33, N44, H6: the holder notices within one renewal that its key was removed.
func TestRemovedKeyIsALossWithinOneRenewal(t *testing.T) {
	for _, remove := range []struct {
		name string
		by   func(t *testing.T, s *site)
	}{
		{"purge", func(t *testing.T, s *site) {
			if err := s.kv().Purge(t.Context(), "lock.job"); err != nil {
				t.Fatal(err)
			}
		}},
		{"delete", func(t *testing.T, s *site) {
			if err := s.kv().Delete(t.Context(), "lock.job"); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(remove.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				s := newSite(t)
				a, b := s.process("a"), s.process("b")
				k := a.tryLock(t, "job")
				remove.by(t, s)
				removed := time.Now()
				<-k.Context().Done()
				if got := time.Since(removed); got > 5*time.Second {
					t.Errorf("loss after %v, want at most 5s", got)
				}
				wantLost(t, "cause", context.Cause(k.Context()), kvlock.Removed)
				second := b.tryLock(t, "job") // K15: over the marker
				if second.Token() <= k.Token() {
					t.Errorf("token = %d, want more than %d", second.Token(), k.Token())
				}
			})
		})
	}
}

// K34, N24, N59: the cause says who took it. (Each other reason has a test of its own.)
func TestTakenLockIsALossThatSaysByWhom(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		k := a.tryLock(t, "job")
		if err := s.kv().Purge(t.Context(), "lock.job"); err != nil {
			t.Fatal(err)
		}
		second := b.tryLock(t, "job")
		<-k.Context().Done()
		lost := wantLost(t, "cause", context.Cause(k.Context()), kvlock.Taken)
		if lost.By != "b" || lost.Next != second.Token() || lost.Token != k.Token() {
			t.Errorf("lost = %+v, want by b with token %d", lost, second.Token())
		}
		wantLost(t, "Release", k.Release(t.Context()), kvlock.Taken)
		time.Sleep(time.Minute)
		wantHeldOn(t, second)
	})
}

func TestClosedConnectionIsALossAtTheNextRenewal(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, _ := two(t)
		k := a.tryLock(t, "job")
		a.nc.Close()
		<-k.Context().Done()
		lost := wantLost(t, "cause", context.Cause(k.Context()), kvlock.Closed)
		if !errors.Is(lost, nats.ErrConnectionClosed) {
			t.Errorf("cause = %v, want one that matches %v", lost, nats.ErrConnectionClosed)
		}
	})
}

// K36, N29, N38, N39, S9: an outage shorter than trust is no loss.
func TestRestartOfTheServerIsNoLoss(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a := s.process("a")
		k := a.tryLock(t, "job")
		token := k.Token()
		s.srv.StopServer(0)
		time.Sleep(7 * time.Second)
		if err := s.srv.StartServer(0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		wantHeldOn(t, k)
		if k.Token() != token {
			t.Errorf("token = %d, want %d", k.Token(), token)
		}
		release(t, k)
		if again := a.tryLock(t, "job"); again.Token() <= token {
			t.Errorf("token = %d, want more than %d", again.Token(), token)
		}
	})
}

func TestBrokenConnectionIsNoLoss(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, _ := two(t)
		k := a.tryLock(t, "job")
		for range 20 {
			time.Sleep(2 * time.Second)
			a.link.Break()
		}
		wantHeldOn(t, k)
		release(t, k)
	})
}

// K52, N87, H7, S1, S2, B1: a bucket deleted, and made again.
func TestBucketMadeAnewEndsHoldsIsQuarantinedAndHasLargerTokens(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		k := a.tryLock(t, "job")
		time.Sleep(time.Hour) // a and b have known the bucket for long
		js := natstest.JetStream(t, natstest.Connect(t, s.srv))
		if err := js.DeleteStream(t.Context(), "KV_tenure"); err != nil {
			t.Fatal(err)
		}
		again, err := bucket.Open(t.Context(), js)
		if err != nil {
			t.Fatal(err)
		}
		// b knows nothing of it. a still trusts, so b must not get the lock.
		wantHeldOn(t, k)
		if _, err := b.TryLock(t.Context(), "job"); !errors.Is(err, kvlock.ErrBucket) {
			t.Errorf("TryLock in the bucket made anew = %v, want %v", err, kvlock.ErrBucket)
		}
		if _, err := b.TryLock(t.Context(), "other"); !errors.Is(err, kvlock.ErrBucket) {
			t.Errorf("TryLock after that = %v, want %v", err, kvlock.ErrBucket)
		}
		lost := time.Now()
		<-k.Context().Done()
		if got := time.Since(lost); got > 5*time.Second {
			t.Errorf("loss after %v, want at most one renewal", got)
		}
		wantLost(t, "cause", context.Cause(k.Context()), kvlock.Gone)

		c, err := kvlock.New(t.Context(), nil, kvlock.WithBucket(again))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(t.Context())
		if _, err := c.TryLock(t.Context(), "job"); !errors.Is(err, kvlock.ErrQuarantine) {
			t.Errorf("TryLock = %v, want %v", err, kvlock.ErrQuarantine)
		}
		next, err := c.Lock(t.Context(), "job")
		if err != nil {
			t.Fatal(err)
		}
		if got, want := time.Since(again.Created()), time.Minute; got != want {
			t.Errorf("lock gained %v after the bucket was made, want %v", got, want)
		}
		if next.Token() <= k.Token() {
			t.Errorf("token = %d, want more than %d", next.Token(), k.Token())
		}
		release(t, next)
	})
}

func TestDeletedBucketIsALoss(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a := s.process("a")
		k := a.tryLock(t, "job")
		if err := natstest.JetStream(t, natstest.Connect(t, s.srv)).DeleteStream(t.Context(), "KV_tenure"); err != nil {
			t.Fatal(err)
		}
		<-k.Context().Done()
		wantLost(t, "cause", context.Cause(k.Context()), kvlock.Gone)
		wantLost(t, "Release", k.Release(t.Context()), kvlock.Gone)
	})
}

// K23: the schedule of renewals does not creep.
func TestRenewalsKeepTheirScheduleUnderDelay(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, _ := two(t)
		k := a.tryLock(t, "job")
		first := k.Revision()
		a.link.Delay(300 * time.Millisecond)
		time.Sleep(time.Hour + time.Second)
		if got, want := k.Revision()-first, uint64(720); got != want {
			t.Errorf("renewals in an hour = %d, want %d", got, want)
		}
		wantHeldOn(t, k)
	})
}
