package kvlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"tenure/embedded/natstest"
	"tenure/kvlock"
)

func TestCutHolderLosesLockBeforeNextTakesIt(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b, link, _ := pair(t)
		first, err := a.TryLock(t.Context(), "job")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(61 * time.Second) // many renewals, the last one 1 s ago
		link.Cut()
		cut := time.Now()
		<-first.Context().Done()
		if got, want := time.Since(cut), 12500*time.Millisecond; got != want {
			t.Errorf("loss after %v, want %v: TTL - margin - age of the last renewal", got, want)
		}
		cause := context.Cause(first.Context())
		if lost, ok := errors.AsType[*kvlock.LostError](cause); !ok || lost.Reason != kvlock.Expired {
			t.Errorf("cause = %v, want %v", cause, kvlock.Expired)
		}
		if _, err := b.TryLock(t.Context(), "job"); !errors.Is(err, kvlock.ErrHeld) {
			t.Errorf("TryLock before the TTL = %v, want %v", err, kvlock.ErrHeld)
		}
		time.Sleep(2 * time.Second)
		second, err := b.TryLock(t.Context(), "job")
		if err != nil {
			t.Fatalf("TryLock after the TTL = %v", err)
		}
		if second.Token() <= first.Token() {
			t.Errorf("second token = %d, want more than %d", second.Token(), first.Token())
		}
	})
}

func TestWaiterGetsLock(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b, _, _ := pair(t)
		first, err := a.Lock(t.Context(), "job")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(time.Second)
			if err := first.Release(t.Context()); err != nil {
				t.Errorf("Release = %v", err)
			}
		}()
		began := time.Now()
		second, err := b.Lock(t.Context(), "job")
		if err != nil {
			t.Fatal(err)
		}
		if got := time.Since(began); got != time.Second {
			t.Errorf("Lock took %v, want 1s", got)
		}
		if err := second.Release(t.Context()); err != nil {
			t.Errorf("Release = %v", err)
		}
		third, err := b.TryLock(t.Context(), "job")
		if err != nil {
			t.Fatal(err)
		}
		if err := third.Release(t.Context()); err != nil {
			t.Errorf("Release = %v", err)
		}
	})
}
