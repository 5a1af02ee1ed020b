package kvlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tenure/embedded/natstest"
	"tenure/kvlock"
)

func (p *process) semaphore(t testing.TB, limit int) *kvlock.Semaphore {
	t.Helper()
	s, err := p.Semaphore(t.Context(), "pool", limit)
	if err != nil {
		t.Fatalf("Semaphore = %v, want nil", err)
	}
	return s
}

// asking calls take in a goroutine and returns once it waits.
func asking(ctx context.Context, take func(context.Context) (*kvlock.Lock, error)) <-chan gained {
	c := make(chan gained, 1)
	go func() {
		k, err := take(ctx)
		c <- gained{k, err, time.Now()}
	}()
	time.Sleep(time.Millisecond) // in a bubble: until it is asleep
	return c
}

func must(t testing.TB, take func(context.Context) (*kvlock.Lock, error)) *kvlock.Lock {
	t.Helper()
	k, err := take(t.Context())
	if err != nil {
		t.Fatalf("taking = %v, want nil", err)
	}
	return k
}

// A tally checks at every gain how many holds are believed in.
type tally struct {
	mu    sync.Mutex
	holds map[believer]bool // true for an exclusive one
	most  int
	took  int
}

type believer interface{ Err() error }

// gain adds a hold and fails the test if there are more than limit, or others beside
// an exclusive one.
func (y *tally) gain(t *testing.T, k believer, exclusive bool, limit int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.holds == nil {
		y.holds = make(map[believer]bool)
	}
	if k.Err() != nil {
		return
	}
	y.took++
	y.holds[k] = exclusive
	n := 0
	for other, alone := range y.holds {
		switch {
		case other.Err() != nil:
			delete(y.holds, other)
		case other != k && (alone || exclusive):
			t.Errorf("at %v: a hold beside an exclusive one", time.Now())
		default:
			n++
		}
	}
	if y.most = max(y.most, n); n > limit {
		t.Errorf("at %v: %d holds are believed in, want at most %d", time.Now(), n, limit)
	}
}

// faults strikes links at random until ctx is done, and mends them.
func faults(ctx context.Context, rnd *rand.Rand, ps []*process) {
	for ctx.Err() == nil {
		p := ps[rnd.IntN(len(ps))]
		let := func() {}
		switch rnd.IntN(6) {
		case 0:
			p.link.Cut()
		case 1:
			p.link.CutDown()
		case 2:
			p.link.Break()
		case 3:
			p.link.DropReply(1 + rnd.IntN(3))
		case 4:
			let = p.link.HoldRequest(func(s string) bool { return strings.HasPrefix(s, "$KV.") })
		case 5:
			p.link.Delay(time.Duration(rnd.IntN(300)) * time.Millisecond)
		}
		time.Sleep(time.Duration(rnd.IntN(4000)) * time.Millisecond)
		let()
		p.link.Mend()
		p.link.Delay(0)
	}
}

// H10, S1, S6: never more than the limit, whatever the network does, and in the end
// all of them can be had again.
func TestSemaphoreNeverHasMorePermitsThanItsLimit(t *testing.T) {
	n := fewer(20)
	if testing.Short() {
		n = 3
	}
	for seed := range uint64(n) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				const limit = 3
				s := newSite(t)
				rnd := rand.New(rand.NewPCG(seed, 1))
				ctx, stop := context.WithTimeout(t.Context(), time.Minute)
				defer stop()
				var y tally
				var all sync.WaitGroup
				var ps []*process
				for i := range 4 {
					p := s.process(string(rune('a'+i)), kvlock.WithTTL(chaosTTL))
					ps = append(ps, p)
					sem := p.semaphore(t, limit)
					for j := range 2 {
						mine := rand.New(rand.NewPCG(seed, uint64(10*i+j+10)))
						all.Go(func() {
							for ctx.Err() == nil {
								wait, cancel := context.WithTimeout(ctx, time.Duration(mine.IntN(8000))*time.Millisecond)
								_ = sem.Do(wait, func(ctx context.Context, k *kvlock.Lock) error {
									y.gain(t, k, false, limit)
									work := time.NewTimer(time.Duration(mine.IntN(3000)) * time.Millisecond)
									defer work.Stop()
									select {
									case <-work.C:
									case <-k.Context().Done():
									}
									return nil
								})
								cancel()
							}
						})
					}
				}
				faults(ctx, rnd, ps)
				all.Wait()
				time.Sleep(2 * chaosTTL)
				if y.most < limit {
					t.Errorf("most permits at once = %d, want %d: the test is too weak", y.most, limit)
				}
				sem := ps[0].semaphore(t, limit)
				for range limit {
					k := must(t, sem.TryLock)
					defer release(t, k)
				}
				if _, err := sem.TryLock(t.Context()); !errors.Is(err, kvlock.ErrHeld) {
					t.Errorf("TryLock = %v, want %v", err, kvlock.ErrHeld)
				}
				t.Logf("%d permits", y.took)
			})
		})
	}
}

func TestPermitNamesTheScopeOfItsToken(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		sem := a.semaphore(t, 2)
		names := []string{}
		for range 2 {
			k := must(t, sem.TryLock)
			defer release(t, k)
			names = append(names, k.Name())
		}
		slices.Sort(names)
		if want := []string{"pool#0", "pool#1"}; !slices.Equal(names, want) {
			t.Errorf("names = %q, want %q", names, want)
		}
		_, err := b.semaphore(t, 2).TryLock(t.Context())
		held, ok := errors.AsType[*kvlock.HeldError](err)
		if !ok || held.Owner != "a" || !slices.Contains(names, held.Name) {
			t.Errorf("TryLock = %v, want held by %q", err, "a")
		}
		b.tryLock(t, "pool") // the lock of that name is another thing
	})
}

// K55: first come, first served, over processes, in no time.
func TestWaitersForPermitsAreServedInTheOrderOfTheirComing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		const n = 12
		var sems []*kvlock.Semaphore
		for _, owner := range []string{"a", "b", "c"} {
			sems = append(sems, s.process(owner).semaphore(t, 2))
		}
		holds := []*kvlock.Lock{must(t, sems[0].TryLock), must(t, sems[1].TryLock)}
		var waits []<-chan gained
		for i := range n {
			waits = append(waits, asking(t.Context(), sems[i%3].Lock))
		}
		for i, w := range waits {
			select {
			case got := <-w:
				t.Fatalf("Lock of waiter %d = %v before any release", i, got.err)
			default:
			}
			began := time.Now()
			release(t, holds[i])
			got := <-w
			if got.err != nil || !got.at.Equal(began) {
				t.Fatalf("Lock of waiter %d = %v, %v after the release, want nil, at once", i, got.err, got.at.Sub(began))
			}
			holds = append(holds, got.lock)
		}
		release(t, holds[n])
		release(t, holds[n+1])
		if got, want := s.keys(""), []string{"slot.pool"}; !slices.Equal(got, want) {
			t.Errorf("keys = %v, want %v", got, want)
		}
	})
}

// L12: two releases may both tell the first in line; one of them goes on to the next.
func TestReleasesAtTheSameTimeServeAsManyWaiters(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b, c := s.process("a").semaphore(t, 3), s.process("b").semaphore(t, 3), s.process("c").semaphore(t, 3)
		holds := []*kvlock.Lock{must(t, a.TryLock), must(t, b.TryLock), must(t, a.TryLock)}
		waits := []<-chan gained{asking(t.Context(), c.Lock), asking(t.Context(), b.Lock), asking(t.Context(), c.Lock)}
		began := time.Now()
		for _, k := range holds {
			go release(t, k)
		}
		for i, w := range waits {
			got := <-w
			if got.err != nil || !got.at.Equal(began) {
				t.Errorf("Lock of waiter %d = %v, %v after the releases, want nil, at once", i, got.err, got.at.Sub(began))
			}
			defer release(t, got.lock)
		}
	})
}

// K62, S6: the permits of the dead come back one by one, each when its TTL ends.
func TestPermitsOfTheDeadComeBackOneByOne(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b, c := s.process("a"), s.process("b"), s.process("c")
		ofA, ofB, ofC := a.semaphore(t, 3), b.semaphore(t, 3), c.semaphore(t, 3)
		for range 2 {
			must(t, ofA.TryLock)
			time.Sleep(2 * time.Second)
		}
		var dies []time.Time
		for h, err := range b.Holders(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			dies = append(dies, h.Expires())
		}
		alive := must(t, ofB.TryLock)
		a.link.Cut()
		waits := []<-chan gained{asking(t.Context(), ofC.Lock), asking(t.Context(), ofB.Lock)}
		for i, w := range waits {
			got := <-w
			if got.err != nil {
				t.Fatal(got.err)
			}
			if after := got.at.Sub(dies[i]); after < 0 || after > 500*time.Millisecond {
				t.Errorf("permit %d came back %v after the end of its TTL, want 0s to 500ms", i, after)
			}
			defer release(t, got.lock)
		}
		wantHeldOn(t, alive)
		release(t, alive)
	})
}

// K25: a renewal extends its own permit and no other.
func TestRenewalExtendsItsOwnPermitOnly(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		must(t, a.semaphore(t, 2).TryLock)
		a.link.Cut()
		k := must(t, b.semaphore(t, 2).TryLock)
		defer release(t, k)
		time.Sleep(15300 * time.Millisecond)
		synctest.Wait()
		wantHeldOn(t, k)
		if got := s.keys("slot.pool."); len(got) != 1 {
			t.Errorf("permits = %v, want that of b only", got)
		}
	})
}

// K6, L11: who stops waiting leaves nothing behind, and keeps nobody waiting.
func TestCancelledWaiterForAPermitLeavesNothingBehind(t *testing.T) {
	for _, delay := range []time.Duration{0, 10, 50, 90, 110, 150, 190, 210, 290, 310, 390, 410, 490} {
		natstest.Bubble(t, func(t *testing.T) {
			s := newSite(t)
			a, b, c := s.process("a"), s.process("b"), s.process("c")
			ofB, ofC := b.semaphore(t, 1), c.semaphore(t, 1)
			k := must(t, a.semaphore(t, 1).TryLock)
			ctx, cancel := context.WithCancel(t.Context())
			first := asking(ctx, ofB.Lock)
			second := asking(t.Context(), ofC.Lock)
			b.link.Delay(100 * time.Millisecond)
			released := time.Now()
			go func() {
				time.Sleep(delay * time.Millisecond)
				cancel()
			}()
			release(t, k)
			if got := <-first; got.err == nil {
				release(t, got.lock)
			}
			got := <-second
			if got.err != nil {
				t.Fatalf("Lock = %v, want nil", got.err)
			}
			if after := got.at.Sub(released); after > 2*time.Second {
				t.Errorf("canceled after %dms: next one served %v after the release", delay, after)
			}
			release(t, got.lock)
			time.Sleep(3 * time.Second)
			if got, want := s.keys(""), []string{"slot.pool"}; !slices.Equal(got, want) {
				t.Errorf("keys = %v, want %v", got, want)
			}
		})
	}
}

// S7, L8: an answer that was lost costs neither the permit nor another one.
func TestPermitWhoseAnswerWasLostIsFound(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a := s.process("a")
		sem := a.semaphore(t, 2)
		a.link.DropReply(1)
		k := must(t, sem.TryLock)
		if got := s.keys("slot.pool."); len(got) != 1 {
			t.Errorf("permits = %v, want one", got)
		}
		release(t, k)
	})
}

// L9: a late write of a permit is refused, since the slot has been written again.
func TestGhostOfAPermitIsRefused(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a := s.process("a")
		sem := a.semaphore(t, 5)
		held := 0
		let := a.link.HoldRequest(func(s string) bool {
			if !strings.HasPrefix(s, "$KV.tenure.slot.") {
				return false
			}
			held++
			return held == 1
		})
		k := must(t, sem.Lock)
		let()
		time.Sleep(time.Millisecond)
		if got := s.keys("slot.pool."); len(got) != 1 {
			t.Errorf("permits = %v, want one", got)
		}
		release(t, k)
	})
}

// L8, L9: a write that comes after its caller has given up is kept out, of a lock as of a
// permit: else nobody had it for one TTL.
func TestLateWriteOfACallThatGaveUpIsKeptOut(t *testing.T) {
	for _, what := range []string{"lock", "permit"} {
		t.Run(what, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				a, b := two(t)
				key, takeA, takeB := "lock.pool", a.lockOf("pool"), b.lockOf("pool")
				if what == "permit" {
					key, takeA, takeB = "slot.pool.0", semaphoreOf(a.semaphore(t, 1)), semaphoreOf(b.semaphore(t, 1))
				}
				held := 0
				let := a.link.HoldRequest(func(s string) bool {
					if s != "$KV.tenure."+key {
						return false
					}
					held++
					return held == 1
				})
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer cancel()
				if _, err := takeA(ctx, false); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("TryLock = %v, want %v", err, context.DeadlineExceeded)
				}
				time.Sleep(5 * time.Second) // any marker of a release has ended
				let()
				time.Sleep(time.Millisecond)
				k, err := takeB(t.Context(), false)
				if err != nil {
					t.Fatalf("TryLock = %v, want nil", err)
				}
				release(t, k)
			})
		})
	}
}

func semaphoreOf(s *kvlock.Semaphore) func(context.Context, bool) (*kvlock.Lock, error) {
	return func(ctx context.Context, patient bool) (*kvlock.Lock, error) {
		if patient {
			return s.Lock(ctx)
		}
		return s.TryLock(ctx)
	}
}

func TestLimitIsAgreedUponAndAnotherOneIsAnError(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		a.semaphore(t, 3)
		b.semaphore(t, 3)
		_, err := b.Semaphore(t.Context(), "pool", 4)
		limit, ok := errors.AsType[*kvlock.LimitError](err)
		if !ok || !errors.Is(err, kvlock.ErrLimit) || limit.Name != "pool" || limit.Have != 3 || limit.Want != 4 {
			t.Errorf("Semaphore = %v, want a limit of 3 in place of 4", err)
		}
		for _, n := range []int{-1, 0, kvlock.MaxPermits + 1} {
			if _, err := b.Semaphore(t.Context(), "other", n); !errors.Is(err, kvlock.ErrOption) {
				t.Errorf("Semaphore with limit %d = %v, want %v", n, err, kvlock.ErrOption)
			}
		}
		if _, err := b.Semaphore(t.Context(), "", 1); !errors.Is(err, kvlock.ErrName) {
			t.Errorf("Semaphore without a name = %v, want %v", err, kvlock.ErrName)
		}
		if err := b.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Semaphore(t.Context(), "pool", 3); !errors.Is(err, kvlock.ErrClosed) {
			t.Errorf("Semaphore of a closed Locker = %v, want %v", err, kvlock.ErrClosed)
		}
	})
}

func TestHigherLimitServesThoseWhoWait(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		ofA, ofB := s.process("a").semaphore(t, 1), s.process("b").semaphore(t, 1)
		k := must(t, ofA.TryLock)
		defer release(t, k)
		waits := []<-chan gained{asking(t.Context(), ofB.Lock), asking(t.Context(), ofB.Lock), asking(t.Context(), ofB.Lock)}
		began := time.Now()
		if err := ofA.Resize(t.Context(), 3); err != nil {
			t.Fatalf("Resize = %v, want nil", err)
		}
		for i, w := range waits[:2] {
			got := <-w
			if got.err != nil || !got.at.Equal(began) {
				t.Fatalf("Lock of waiter %d = %v, %v after the resize, want nil, at once", i, got.err, got.at.Sub(began))
			}
			defer release(t, got.lock)
		}
		time.Sleep(time.Minute)
		select {
		case got := <-waits[2]:
			t.Errorf("Lock of the third = %v, want that it waits", got.err)
		default:
		}
		release(t, k)
		release(t, (<-waits[2]).lock)
	})
}

// Permits above a lower limit run out: a client that was not told of it takes the last
// one within a TTL.
func TestLowerLimitLetsPermitsRunOut(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		ofA, ofB := a.semaphore(t, 3), b.semaphore(t, 3)
		var holds []*kvlock.Lock
		for range 3 {
			holds = append(holds, must(t, ofB.TryLock))
		}
		waits := asking(t.Context(), ofB.Lock)
		if err := ofA.Resize(t.Context(), 1); err != nil {
			t.Fatalf("Resize = %v, want nil", err)
		}
		time.Sleep(16 * time.Second)
		for _, k := range holds {
			wantHeldOn(t, k)
			if k.Name() != "pool#0" {
				release(t, k)
			}
		}
		time.Sleep(time.Minute)
		select {
		case got := <-waits:
			t.Errorf("Lock = %q, %v while the one permit is held, want that it waits", got.lock.Name(), got.err)
		default:
		}
		if _, err := ofB.TryLock(t.Context()); !errors.Is(err, kvlock.ErrHeld) {
			t.Errorf("TryLock = %v, want %v", err, kvlock.ErrHeld)
		}
		for _, k := range holds {
			if k.Name() == "pool#0" {
				release(t, k)
			}
		}
		got := <-waits
		if got.err != nil || got.lock.Name() != "pool#0" {
			t.Fatalf("Lock = %v, want pool#0", got.err)
		}
		release(t, got.lock)
		if n := ofB.Limit(); n != 1 {
			t.Errorf("Limit = %d, want 1", n)
		}
	})
}

// N96: one release wakes one waiter.
func TestReleaseOfAPermitWakesOneWaiter(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b, c := s.process("a"), s.process("b"), s.process("c")
		k := must(t, a.semaphore(t, 1).TryLock)
		first := asking(t.Context(), b.semaphore(t, 1).Lock)
		sem := c.semaphore(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		var rest []<-chan gained
		for range 50 {
			rest = append(rest, asking(ctx, sem.Lock))
		}
		before := c.nc.Stats().OutMsgs
		release(t, k)
		got := <-first
		synctest.Wait()
		if n := c.nc.Stats().OutMsgs - before; n > 0 {
			t.Errorf("messages of those who still wait = %d, want none", n)
		}
		release(t, got.lock)
		release(t, (<-rest[0]).lock)
		release(t, (<-rest[1]).lock)
		cancel()
		for _, w := range rest[2:] {
			if got := <-w; got.err == nil {
				release(t, got.lock)
			}
		}
	})
}

// A permit that was given back between the look at the slots and the ticket is found
// by the look after the ticket.
func TestReleaseBeforeTheTicketIsSeenAfterIt(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := must(t, a.semaphore(t, 1).TryLock)
		sem := b.semaphore(t, 1)
		b.link.Delay(100 * time.Millisecond)
		began := time.Now()
		waits := asking(t.Context(), sem.Lock) // looks for 600 ms; the ticket arrives 100 ms later
		time.Sleep(time.Until(began.Add(650 * time.Millisecond)))
		release(t, k)
		got := <-waits
		if after := got.at.Sub(began); got.err != nil || after > 2*time.Second {
			t.Fatalf("Lock = %v after %v, want nil within 2s", got.err, after)
		}
		release(t, got.lock)
	})
}

func TestHoldersListPermits(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := must(t, a.semaphore(t, 1).TryLock)
		defer release(t, k)
		var list []kvlock.Holder
		for h, err := range b.Holders(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, h)
		}
		if len(list) != 1 || list[0].Name != "pool#0" || list[0].Kind != "permit" || list[0].Key != "slot.pool.0" || list[0].Token != k.Token() {
			t.Errorf("Holders = %+v, want the permit", list)
		}
	})
}

// S6: permits that end at the same time serve as many waiters, whoever looks first.
func TestPermitsThatEndTogetherServeAsManyWaiters(t *testing.T) {
	for range 8 {
		natstest.Bubble(t, func(t *testing.T) {
			s := newSite(t)
			a, b, c := s.process("a"), s.process("b"), s.process("c")
			sem := a.semaphore(t, 2)
			must(t, sem.TryLock)
			must(t, sem.TryLock)
			end := time.Now().Add(15 * time.Second)
			a.link.Cut() // before any renewal
			for _, w := range []<-chan gained{asking(t.Context(), b.semaphore(t, 2).Lock), asking(t.Context(), c.semaphore(t, 2).Lock)} {
				got := <-w
				if after := got.at.Sub(end); got.err != nil || after > 500*time.Millisecond {
					t.Errorf("Lock = %v, %v after the end of the TTLs, want nil within 500ms", got.err, after)
				}
				defer release(t, got.lock)
			}
		})
	}
}

// L11: a waiter that was told of a slot, and stops waiting before it takes it, passes
// the news on.
func TestWaiterThatGivesUpAfterItWasToldPassesTheSlotOn(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b, c := s.process("a"), s.process("b"), s.process("c")
		ofB, ofC := b.semaphore(t, 1), c.semaphore(t, 1)
		k := must(t, a.semaphore(t, 1).TryLock)
		b.link.Delay(100 * time.Millisecond)
		began := time.Now()
		until := func(d time.Duration) { time.Sleep(time.Until(began.Add(d * time.Millisecond))) }
		ctx, cancel := context.WithCancel(t.Context())
		first := asking(ctx, ofB.Lock) // its ticket is acknowledged after 800 ms, then it looks for 400 ms
		until(800)
		second := asking(t.Context(), ofC.Lock)
		until(850)
		go release(t, k)
		until(960) // it has heard, and still looks
		cancel()
		if got := <-first; got.err == nil {
			t.Error("Lock = nil, want an error: the test is too weak")
			release(t, got.lock)
		}
		got := <-second
		if after := got.at.Sub(began); got.err != nil || after > 2*time.Second {
			t.Fatalf("Lock = %v after %v, want nil within 2s", got.err, after)
		}
		release(t, got.lock)
	})
}
