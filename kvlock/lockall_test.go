package kvlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tenure/embedded/natstest"
	"tenure/kvlock"
)

func (p *process) lockAll(t testing.TB, names ...string) *kvlock.Locks {
	t.Helper()
	s, err := p.LockAll(t.Context(), names...)
	if err != nil {
		t.Fatalf("LockAll(%q) = %v, want nil", names, err)
	}
	return s
}

func namesOf(s *kvlock.Locks) (names []string) {
	for k := range s.All() {
		names = append(names, k.Name())
	}
	return names
}

func TestAllOrNoneAreTakenInOneBatch(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		site := newSite(t)
		a, b := site.process("a"), site.process("b")
		s := a.lockAll(t, "y", "x", "z", "x")
		if got, want := namesOf(s), []string{"x", "y", "z"}; !slices.Equal(got, want) {
			t.Errorf("names = %q, want %q", got, want)
		}
		x, y, z := s.Lock("x").Token(), s.Lock("y").Token(), s.Lock("z").Token()
		if y != x+1 || z != x+2 {
			t.Errorf("tokens = %d, %d, %d, want consecutive ones", x, y, z)
		}
		if s.Lock("other") != nil {
			t.Error("Lock of another name is not nil")
		}
		for _, name := range namesOf(s) {
			_, err := b.TryLock(t.Context(), name)
			wantHeld(t, err, "a", s.Lock(name).Token())
		}
		time.Sleep(time.Minute)
		if err := s.Err(); err != nil || s.Context().Err() != nil {
			t.Errorf("Err = %v, want nil", err)
		}
		if got := s.Remaining(); got <= 0 || got > 13500*time.Millisecond {
			t.Errorf("Remaining = %v, want what is left of trust", got)
		}
		for range 2 {
			if err := s.Release(t.Context()); err != nil {
				t.Errorf("Release = %v, want nil", err)
			}
		}
		if err := s.Err(); !errors.Is(err, kvlock.ErrReleased) || !errors.Is(context.Cause(s.Context()), kvlock.ErrReleased) {
			t.Errorf("Err = %v, %v, want %v", err, context.Cause(s.Context()), kvlock.ErrReleased)
		}
		// Over the own markers: still a batch.
		again := a.lockAll(t, "x", "y")
		if x, y := again.Lock("x").Token(), again.Lock("y").Token(); y != x+1 {
			t.Errorf("tokens = %d, %d, want consecutive ones", x, y)
		}
	})
}

// H18: the batch is refused over somebody else's marker, and by a holder: one by one then.
func TestAllAreTakenThoughOneIsContended(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		release(t, b.tryLock(t, "x")) // a marker
		held := b.tryLock(t, "y")
		release(t, held)
		held = b.tryLock(t, "y")
		done := make(chan *kvlock.Locks, 1)
		go func() { done <- a.lockAll(t, "x", "y", "z") }()
		time.Sleep(20 * time.Second)
		if _, err := b.TryLock(t.Context(), "x"); !errors.Is(err, kvlock.ErrHeld) {
			t.Errorf("TryLock of one that is held meanwhile = %v, want %v", err, kvlock.ErrHeld)
		}
		b.tryLock(t, "z") // comes later, and is free
		if z, err := b.Holder(t.Context(), "z"); err != nil || z.Owner != "b" {
			t.Errorf("Holder = %v, %v, want b", z, err)
		}
		release(t, held)
		time.Sleep(10 * time.Millisecond)
		select {
		case s := <-done:
			t.Fatalf("LockAll = %q, want it to wait for z", namesOf(s))
		default:
		}
		if err := b.Break(t.Context(), "z", "go on", kvlock.Force()); err != nil {
			t.Fatal(err)
		}
		s := <-done
		if got := namesOf(s); len(got) != 3 || s.Err() != nil {
			t.Errorf("names = %q, Err = %v, want all three", got, s.Err())
		}
	})
}

// H18: a batch over an own marker does not pass the line.
func TestLockAllDoesNotPassTheLine(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := a.tryLock(t, "x")
		line := b.waiting(t.Context(), "x")
		b.link.Delay(50 * time.Millisecond)
		go func() { _ = k.Release(t.Context()) }()
		time.Sleep(10 * time.Millisecond)
		go func() {
			got := <-line
			if got.err != nil {
				t.Errorf("Lock = %v, want nil", got.err)
				return
			}
			time.Sleep(time.Second)
			_ = got.lock.Release(t.Context())
		}()
		began := time.Now()
		a.lockAll(t, "x", "y")
		if took := time.Since(began); took < time.Second {
			t.Errorf("LockAll took %v, want the hold of the first in line to end first", took)
		}
	})
}

// L14: nothing is left when the waiting ends.
func TestNoneIsHeldAfterLockAllGaveUp(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		site := newSite(t)
		a, b := site.process("a"), site.process("b")
		b.tryLock(t, "y")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		_, err := a.LockAll(ctx, "x", "y", "z")
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, kvlock.ErrHeld) {
			t.Errorf("LockAll = %v, want the deadline and who holds it", err)
		}
		if took := time.Since(began); took > time.Minute+250*time.Millisecond {
			t.Errorf("LockAll took %v, want one minute", took)
		}
		if got, want := append(site.keys("lock."), site.keys("wait.")...), []string{"lock.y"}; !slices.Equal(got, want) {
			t.Errorf("keys = %q, want %q", got, want)
		}
	})
}

// K64: whoever wants A and B, and whoever wants B and A, get them in turn.
func TestLocksInAnyOrderDoNotDeadlock(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		site := newSite(t)
		var history natstest.History
		var all sync.WaitGroup
		for i, names := range [][]string{{"A", "B"}, {"B", "A"}, {"B", "C", "A"}, {"C", "A"}} {
			p := site.process(fmt.Sprint(i))
			p.link.Delay(time.Duration(i) * 300 * time.Microsecond)
			all.Go(func() {
				for range 50 {
					err := p.DoAll(t.Context(), names, func(_ context.Context, s *kvlock.Locks) error {
						var holds []*natstest.Hold
						for k := range s.All() {
							holds = append(holds, history.Begin(fmt.Sprint(i), k.Name(), k.Token()))
						}
						time.Sleep(3 * time.Millisecond)
						for _, h := range holds {
							h.End()
						}
						return nil
					})
					if err != nil {
						t.Errorf("DoAll = %v, want nil", err)
					}
				}
			})
		}
		began := time.Now()
		all.Wait()
		history.Check(t)
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("200 holds took %v, want nobody to wait for a timer", took)
		}
	})
}

// One member lost is all lost; the others are held until the function has returned.
func TestLossOfOneLockEndsAllWhenTheFunctionHasReturned(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		err := a.DoAll(t.Context(), []string{"x", "y"}, func(ctx context.Context, s *kvlock.Locks) error {
			if err := b.Break(t.Context(), "y", "enough", kvlock.Force()); err != nil {
				t.Fatal(err)
			}
			<-ctx.Done()
			if lost := wantLost(t, "cause", context.Cause(ctx), kvlock.Removed); lost.Name != "y" {
				t.Errorf("lost = %q, want y", lost.Name)
			}
			wantLost(t, "Err", s.Err(), kvlock.Removed)
			wantLost(t, "Context", context.Cause(s.Context()), kvlock.Removed)
			if got := s.Remaining(); got != 0 {
				t.Errorf("Remaining = %v, want 0", got)
			}
			time.Sleep(time.Minute)
			_, err := b.TryLock(t.Context(), "x")
			wantHeld(t, err, "a", s.Lock("x").Token())
			return nil
		})
		wantLost(t, "DoAll", err, kvlock.Removed)
		b.tryLock(t, "x")
	})
}

// The same without DoAll: what nobody releases is free one TTL later.
func TestRestOfALostCompoundIsFreeOneTTLLater(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		s := a.lockAll(t, "x", "y")
		if err := b.Break(t.Context(), "y", "enough", kvlock.Force()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		<-s.Context().Done()
		if got := <-b.waiting(t.Context(), "x"); got.err != nil || got.at.Sub(began).Round(10*time.Millisecond) != 15*time.Second {
			t.Errorf("Lock = %v after %v, want the lock after 15s", got.err, got.at.Sub(began))
		}
		wantLost(t, "Release", s.Release(t.Context()), kvlock.Removed)
	})
}

// L9, S7: the answer to the batch is lost; it is found, or it comes late and is ended.
func TestBatchInDoubtIsReadBack(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		site := newSite(t)
		a := site.process("a")
		toLocks := func(s string) bool { return strings.HasPrefix(s, "$KV.tenure.lock.") }
		a.link.DropReply(1, func(s string, _ []byte) bool { return toLocks(s) })
		s := a.lockAll(t, "x", "y", "z")
		if x, y, z := s.Lock("x").Token(), s.Lock("y").Token(), s.Lock("z").Token(); y != x+1 || z != x+2 {
			t.Errorf("tokens = %d, %d, %d, want those of the batch", x, y, z)
		}
		if err := s.Release(t.Context()); err != nil {
			t.Errorf("Release = %v, want nil", err)
		}
		// The caller has gone when the batch arrives: whoever meets it has it ended.
		time.Sleep(5 * time.Second)
		let := a.link.HoldRequest(toLocks)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := a.LockAll(ctx, "x", "y", "z"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("LockAll = %v, want a deadline", err)
		}
		let()
		time.Sleep(time.Second)
		b, began := site.process("b"), time.Now()
		b.lockAll(t, "x", "y", "z")
		if took := time.Since(began); took > time.Second {
			t.Errorf("LockAll over a late batch took %v, want no wait for its TTL", took)
		}
	})
}

// A member is lost while the others are waited for: they are taken anew.
func TestLossWhileOthersAreWaitedForBeginsAnew(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		held := b.tryLock(t, "y")
		done := make(chan *kvlock.Locks, 1)
		go func() { done <- a.lockAll(t, "x", "y") }()
		time.Sleep(time.Second)
		first, err := b.Holder(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Break(t.Context(), "x", "enough", kvlock.Force()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		second, err := b.Holder(t.Context(), "x")
		if err != nil || second.Token <= first.Token {
			t.Errorf("Holder = %+v, %v, want a later hold than %d", second, err, first.Token)
		}
		release(t, held)
		if s := <-done; s.Err() != nil {
			t.Errorf("Err = %v, want nil", s.Err())
		}
	})
}

func TestBadSetsOfNamesAreErrors(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		site := newSite(t)
		a := site.process("a")
		many := make([]string, kvlock.MaxBatch+1)
		for i := range many {
			many[i] = fmt.Sprint(i)
		}
		for _, names := range [][]string{nil, many} {
			_, err := a.LockAll(t.Context(), names...)
			if limit, ok := errors.AsType[*kvlock.OptionError](err); !ok || limit.Have != strconv.Itoa(len(names)) || !errors.Is(err, kvlock.ErrOption) {
				t.Errorf("LockAll of %d = %v, want an OptionError", len(names), err)
			}
		}
		if _, err := a.LockAll(t.Context(), "x", ""); !errors.Is(err, kvlock.ErrName) {
			t.Errorf("LockAll with a bad name = %v, want %v", err, kvlock.ErrName)
		}
		if got := site.keys("lock."); len(got) != 0 {
			t.Errorf("keys = %q, want none", got)
		}
		s := a.lockAll(t, many[1:]...)
		if err := s.Release(t.Context()); err != nil {
			t.Errorf("Release = %v, want nil", err)
		}
	})
}

// S5: what becomes of the others after the first loss does not change the reason.
func TestErrOfSeveralLocksStaysThatOfTheFirstLoss(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		ks, err := a.LockAll(t.Context(), "x", "y")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Break(t.Context(), "y", "why"); err != nil {
			t.Fatal(err)
		}
		<-ks.Context().Done()
		first := wantLost(t, "cause", context.Cause(ks.Context()), kvlock.Revoked)
		a.link.Cut()
		time.Sleep(14 * time.Second) // x is lost too
		if err := ks.Lock("x").Err(); !errors.Is(err, kvlock.ErrLost) && !errors.Is(err, kvlock.ErrReleased) {
			t.Errorf("Err of x = %v, want ended", err)
		}
		if err := ks.Err(); err != error(first) {
			t.Errorf("Err = %v, want %v", err, first)
		}
	})
}
