package kvlock_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"tenure/embedded/natstest"
	"tenure/kvlock"
)

// toTickets matches the tickets of a line.
func toTickets(subject string) bool { return strings.HasPrefix(subject, "$KV.tenure.wait.") }

// wantAtOnce waits for a hold that has to be gained at a given time.
func wantAtOnce(t *testing.T, what string, c <-chan gained, at time.Time) *kvlock.Lock {
	t.Helper()
	got := <-c
	if got.err != nil {
		t.Fatalf("%s: Lock = %v, want nil", what, got.err)
	}
	if !got.at.Equal(at) {
		t.Errorf("%s: Lock returned %v too late", what, got.at.Sub(at))
	}
	return got.lock
}

// A1: also who knows the marker, since it is its own, looks at the line first.
func TestReleaserDoesNotOvertakeTheLineOnItsOwnMarker(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := a.tryLock(t, "job")
		waits := b.waiting(t.Context(), "job")
		let := a.link.HoldRequest(toProcesses) // b is not told
		go release(t, k)
		time.Sleep(time.Millisecond)
		for range 4 {
			_, err := a.TryLock(t.Context(), "job")
			wantHeld(t, err, "", 0)
		}
		let()
		got := <-waits
		if got.err != nil {
			t.Fatal(got.err)
		}
		release(t, got.lock)
	})
}

// H2, H3: two waiters are told that the lock is free, since the answer of the first
// was lost. One gets it, and the other one is the next.
func TestOfTwoWhoAreToldThatTheLockIsFreeOneTakesIt(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b, c := s.process("a"), s.process("b"), s.process("c")
		k := a.tryLock(t, "job")
		ofB := b.waiting(t.Context(), "job")
		ofC := c.waiting(t.Context(), "job")
		let := b.link.HoldRequest(to(jobSubject)) // its write is on its way for long
		a.link.DropReply(1, func(subject string, _ []byte) bool { return toProcesses(subject) })
		released := time.Now()
		release(t, k)
		second := wantAtOnce(t, "told after the silence", ofC, released.Add(250*time.Millisecond))
		let()
		time.Sleep(5 * time.Second)
		wantHeldOn(t, second)
		select {
		case got := <-ofB:
			t.Fatalf("Lock = %+v while c holds it", got)
		default:
		}
		released = time.Now()
		release(t, second)
		third := wantAtOnce(t, "told first", ofB, released)
		if third.Token() <= second.Token() {
			t.Errorf("token = %d, want more than %d", third.Token(), second.Token())
		}
		release(t, third)
	})
}

// H8, L5: a ticket is never written again, so it keeps its place.
func TestTicketKeepsItsPlaceHoweverLongTheWait(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b, c := s.process("a"), s.process("b"), s.process("c")
		k := a.tryLock(t, "job")
		ofB := b.waiting(t.Context(), "job")
		first := s.keys("wait.")
		entry, err := s.kv().Get(t.Context(), first[0])
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Minute)
		ofC := c.waiting(t.Context(), "job")
		time.Sleep(time.Minute)
		later, err := s.kv().Get(t.Context(), first[0])
		if err != nil || later.Revision() != entry.Revision() {
			t.Errorf("ticket = %v, %v, want that of revision %d", later, err, entry.Revision())
		}
		released := time.Now()
		release(t, k)
		second := wantAtOnce(t, "first in line", ofB, released)
		released = time.Now()
		release(t, second)
		release(t, wantAtOnce(t, "second in line", ofC, released))
	})
}

// H9: the holder releases between the first look of a waiter and its ticket, or
// between that and its note. No wake-up is lost by it.
func TestReleaseWhileAWaiterIsComingToTheLineWakesIt(t *testing.T) {
	for _, tt := range []struct {
		name string
		late func(string) bool
	}{
		{"before the ticket", toTickets},
		{"before the note", toProcesses},
	} {
		t.Run(tt.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				a, b := two(t)
				k := a.tryLock(t, "job")
				let := b.link.HoldRequest(tt.late)
				waits := b.waiting(t.Context(), "job")
				release(t, k)
				time.Sleep(100 * time.Millisecond)
				let()
				release(t, wantAtOnce(t, "coming to the line", waits, time.Now()))
			})
		})
	}
}

// H9: the holder reads the line beside its release and finds nobody, and a waiter comes
// before the release is stored:
//
//	a, gained with a ticket      b
//	decides to release
//	reads the line: none
//	                             writes its ticket
//	                             asks to be noted: "not mine"
//	                             reads the lock: held, again and again
//	purges
//	                             reads the marker, and takes it
//
// Noted, it would sleep for as long as a lease lasts: nobody looks at the line again.
func TestWaiterThatCameAfterTheLineWasReadIsServed(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b, c := s.process("a"), s.process("b"), s.process("c")
		first := c.tryLock(t, "job")
		ofA := a.waiting(t.Context(), "job")
		release(t, first)
		k := (<-ofA).lock
		let := a.link.HoldRequest(to(jobSubject))
		released := make(chan struct{})
		go func() {
			defer close(released)
			release(t, k)
		}()
		synctest.Wait() // the line is read
		waits := b.waiting(t.Context(), "job")
		let()
		<-released
		asked := time.Now()
		got := <-waits
		if got.err != nil || got.at.Sub(asked) > 20*time.Millisecond {
			t.Fatalf("Lock = %v, %v after the release, want nil, within 20ms", got.err, got.at.Sub(asked))
		}
		release(t, got.lock)
	})
}

// H9: a leader that was cut off answers the read of the line from before the waiter came.
// The holder knows better, since it was told of the waiter, and reads again once its
// release is stored.
func TestNotedWaiterThatTheLineDoesNotShowIsServed(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		b := s.process("b")
		a, relay := s.relayed("a")
		k := a.tryLock(t, "job")
		reads := 0
		lie := func(_ string, data []byte) []byte {
			if !bytes.Contains(data, []byte(`"next_by_subj":"$KV.tenure.wait.`)) {
				return nil
			}
			if reads++; reads > 2 { // when it is told of the waiter, and beside the release
				return nil
			}
			return noMessage
		}
		relay.answer.Store(&lie)
		waits := b.waiting(t.Context(), "job")
		released := time.Now()
		release(t, k)
		release(t, wantAtOnce(t, "not seen in the line", waits, released))
		if reads != 3 {
			t.Errorf("reads of the line = %d, want 3", reads)
		}
	})
}

// The ticket of a waiter that was served stays for a moment. It keeps nobody from the lock
// who comes when that is released.
func TestTicketThatLingersIsInNobodysWay(t *testing.T) {
	for _, again := range []string{"b", "c"} {
		natstest.Bubble(t, func(t *testing.T) {
			s := newSite(t)
			ps := map[string]*process{"a": s.process("a"), "b": s.process("b"), "c": s.process("c")}
			k := ps["a"].tryLock(t, "job")
			waits := ps["b"].waiting(t.Context(), "job")
			release(t, k)
			release(t, (<-waits).lock)
			before := s.keysNow("wait.")
			if len(before) != 1 {
				t.Errorf("tickets = %v, want that of b", before)
			}
			release(t, ps["b"].lock(t, "job"))
			if got := s.keysNow("wait."); !slices.Equal(got, before) {
				t.Errorf("tickets = %v, want %v: b knows that nobody waits, and writes none", got, before)
			}
			release(t, ps[again].tryLock(t, "job"))
		})
	}
}

// A ticket that lingers goes before Close returns.
func TestCloseLeavesNoTicketThatLingers(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		k := a.tryLock(t, "job")
		waits := b.waiting(t.Context(), "job")
		release(t, k)
		if got := <-waits; got.err != nil {
			t.Fatal(got.err)
		}
		began := time.Now()
		if err := b.Close(t.Context()); err != nil {
			t.Errorf("Close = %v, want nil", err)
		}
		if got := time.Since(began); got != 0 {
			t.Errorf("Close took %v, want 0s", got)
		}
		if got := s.keysNow(""); len(got) > 0 {
			t.Errorf("keys = %v, want none", got)
		}
	})
}

// K7: whose ticket an operator removed does not hold the lock, and gets it in its time.
func TestRemovedTicketIsNoHold(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		k := a.tryLock(t, "job")
		waits := b.waiting(t.Context(), "job")
		for _, key := range s.keys("wait.") {
			if err := s.kv().Purge(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		select {
		case got := <-waits:
			t.Fatalf("Lock = %+v while a holds it", got)
		default:
		}
		released := time.Now()
		release(t, k)
		release(t, wantAtOnce(t, "in line again", waits, released))
	})
}

// K2: a waiter whose connection was closed does not wait for what it cannot get.
func TestClosedConnectionEndsTheWaitingAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := a.tryLock(t, "job")
		waits := b.waiting(t.Context(), "job")
		time.Sleep(time.Second)
		closed := time.Now()
		b.nc.Close()
		select {
		case got := <-waits:
			if !errors.Is(got.err, nats.ErrConnectionClosed) || got.at.Sub(closed) > time.Second {
				t.Errorf("Lock = %v after %v, want %v at once", got.err, got.at.Sub(closed), nats.ErrConnectionClosed)
			}
		case <-time.After(time.Minute):
			t.Error("Lock still waits a minute after its connection was closed")
		}
		if _, err := b.TryLock(t.Context(), "other"); !errors.Is(err, nats.ErrConnectionClosed) {
			t.Errorf("TryLock = %v, want %v", err, nats.ErrConnectionClosed)
		}
		wantHeldOn(t, k)
		synctest.Wait()
	})
}

// A4: a first write that did not arrive is written again. A ticket beside a lock that
// nobody has would be passed by every newcomer.
func TestFirstWriteThatWasLostIsRepeatedWithoutATicket(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a := s.process("a")
		a.link.DropRequest(1, to(jobSubject))
		tickets := 0
		a.link.HoldRequest(func(subject string) bool {
			if toTickets(subject) {
				tickets++
			}
			return false
		})
		began := time.Now()
		k := a.lock(t, "job")
		if got, want := time.Since(began), 1100*time.Millisecond; got > want {
			t.Errorf("Lock took %v, want at most %v", got, want)
		}
		if tickets > 0 {
			t.Errorf("tickets written = %d, want none", tickets)
		}
		release(t, k)
	})
}

// H23, B5, L9: a gaining write was stored, its answer was lost, and before it is read
// back an operator broke the hold that nobody has yet. Nobody gets that one, and the
// one who asked for it gets another.
func TestHoldBrokenBeforeItWasKnownIsNobodys(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		a.link.DropReply(1, func(subject string, _ []byte) bool { return subject == jobSubject })
		waits := a.waiting(t.Context(), "job")
		h, err := b.Holder(t.Context(), "job")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Break(t.Context(), "job", "early"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		select {
		case got := <-waits:
			if got.err != nil || got.lock.Token() <= h.Token {
				t.Errorf("Lock = %+v, want a hold with a token above %d", got, h.Token)
			}
			wantHeldOn(t, got.lock)
		case <-ctx.Done():
			t.Error("Lock still waits after 5 s")
		}
	})
}

// K77: what the holder's clock says is for people to read. The server's TTL decides.
func TestClockOfTheHolderDecidesNothing(t *testing.T) {
	for _, since := range []string{"1999-01-01T00:00:00Z", "2999-01-01T00:00:00Z"} {
		natstest.Bubble(t, func(t *testing.T) {
			s := newSite(t)
			a := s.process("a")
			m := nats.NewMsg(jobSubject)
			m.Header.Set("Nats-TTL", "10s")
			m.Data = []byte(`{"v":1,"kind":"lock","owner":"old","process":"p","nonce":"n","since":"` + since + `","ttl":10}`)
			ack, err := natstest.JetStream(t, natstest.Connect(t, s.srv)).PublishMsg(t.Context(), m)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(10*time.Second - time.Millisecond)
			_, err = a.TryLock(t.Context(), "job")
			wantHeld(t, err, "old", ack.Sequence)
			time.Sleep(301 * time.Millisecond)
			release(t, a.tryLock(t, "job"))
		})
	}
}
