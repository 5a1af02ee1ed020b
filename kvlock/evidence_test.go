package kvlock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tenure/embedded/natstest"
	"tenure/kvlock"
)

// B3, H5, S9: a record that is missing without a trace is no evidence, since a leader
// that was cut off answers from the past. Time ends the hold, and not before.
func TestMissingRecordIsNoEvidenceOfALoss(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a := s.process("a")
		k := a.tryLock(t, "job")
		began := time.Now()
		stream, err := natstest.JetStream(t, natstest.Connect(t, s.srv)).Stream(t.Context(), "KV_tenure")
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.DeleteMsg(t.Context(), k.Token()); err != nil {
			t.Fatal(err)
		}
		<-k.Context().Done()
		if got, want := time.Since(began), 13500*time.Millisecond; got != want {
			t.Errorf("loss after %v, want %v", got, want)
		}
		wantLost(t, "cause", context.Cause(k.Context()), kvlock.Expired)
	})
}

// N8: however many locks a process held, a TTL after its crash none is left.
func TestEveryLockOfACrashedProcessIsGoneATTLLater(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a := s.process("a", kvlock.WithTTL(2*time.Second))
		const n = 300
		for i := range n {
			a.tryLock(t, fmt.Sprint(i))
			time.Sleep(3 * time.Millisecond)
		}
		time.Sleep(20 * time.Second)
		if got := len(s.keys("lock.")); got != n {
			t.Errorf("locks = %d, want %d", got, n)
		}
		a.link.Cut()
		time.Sleep(2500 * time.Millisecond)
		if got := s.keys(""); len(got) > 0 {
			t.Errorf("keys = %d, want none", len(got))
		}
	})
}

// N13, K37, K39: locks and waiters have no consumer, so none piles up when everybody
// comes back at once.
func TestNoConsumerIsLeftAfterManyRestarts(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		holder := s.process("holder").tryLock(t, "job")
		const n = 20
		waits := make(chan gained, n)
		for i := range n {
			p := s.process(fmt.Sprint(i))
			go func() {
				k, err := p.Lock(t.Context(), "job")
				if err == nil {
					err = k.Release(t.Context())
				}
				waits <- gained{err: err}
			}()
		}
		time.Sleep(time.Second)
		for range 10 {
			natstest.Restart(t, s.srv)
			time.Sleep(300 * time.Millisecond)
		}
		stream, err := natstest.JetStream(t, natstest.Connect(t, s.srv)).Stream(t.Context(), "KV_tenure")
		if err != nil {
			t.Fatal(err)
		}
		if got := stream.CachedInfo().State.Consumers; got != 0 {
			t.Errorf("consumers = %d, want none", got)
		}
		release(t, holder)
		for range n {
			if got := <-waits; got.err != nil {
				t.Errorf("Lock = %v, want nil", got.err)
			}
		}
	})
}

// N4: 500 goroutines of five processes, one at a time.
func TestManyGoroutinesExcludeEachOtherAndTokensRise(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		var history natstest.History
		done := make(chan error)
		const n = 500
		for p := range 5 {
			p := s.process(fmt.Sprint(p))
			for i := range n / 5 {
				go func() {
					done <- p.Do(t.Context(), "job", func(_ context.Context, k *kvlock.Lock) error {
						defer history.Begin(fmt.Sprint(i), "job", k.Token()).End()
						time.Sleep(time.Millisecond)
						return nil
					})
				}()
			}
		}
		for range n {
			if err := <-done; err != nil {
				t.Errorf("Do = %v, want nil", err)
			}
		}
		history.Check(t)
	})
}

// K15, N6: a marker that somebody else left a moment ago does not come out as an error
// of the server.
func TestMarkerOfSomebodyElseDoesNotBarTheLock(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a := s.process("a")
		js := natstest.JetStream(t, natstest.Connect(t, s.srv))
		for range 50 {
			m := nats.NewMsg(jobSubject)
			m.Header.Set("KV-Operation", "PURGE")
			m.Header.Set("Nats-TTL", "1s")
			if _, err := js.PublishMsg(t.Context(), m); err != nil { // a marker that a knows nothing of
				t.Fatal(err)
			}
			release(t, a.tryLock(t, "job"))
		}
	})
}
