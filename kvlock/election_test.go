package kvlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tenure/embedded/natstest"
	"tenure/kvlock"
)

func TestLeadersValueIsReadableByAll(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		if _, err := b.Election("main").Leader(t.Context()); !errors.Is(err, kvlock.ErrFree) {
			t.Errorf("Leader = %v, want %v", err, kvlock.ErrFree)
		}
		k, err := a.Election("main").Campaign(t.Context(), "10.0.0.1:80")
		if err != nil {
			t.Fatalf("Campaign = %v", err)
		}
		wantLeader := func(value string) {
			t.Helper()
			if h, err := b.Election("main").Leader(t.Context()); err != nil || h.Value != value || h.Token != k.Token() || h.Owner != "a" {
				t.Errorf("Leader = %+v, %v, want a with %q", h, err, value)
			}
		}
		wantLeader("10.0.0.1:80")
		time.Sleep(time.Minute) // renewals keep it
		wantLeader("10.0.0.1:80")
		a.link.DropReply(1, func(s string, _ []byte) bool { return s == "$KV.tenure.lock.main" })
		if err := k.Proclaim(t.Context(), "10.0.0.1:81"); err != nil {
			t.Errorf("Proclaim = %v, want nil", err)
		}
		wantLeader("10.0.0.1:81")
		if _, err := b.TryLock(t.Context(), "main"); !errors.Is(err, kvlock.ErrHeld) {
			t.Errorf("TryLock of an election that is led = %v, want %v", err, kvlock.ErrHeld)
		}
		long := strings.Repeat("x", kvlock.MaxValue+1)
		if err := k.Proclaim(t.Context(), long); !errors.Is(err, kvlock.ErrOption) {
			t.Errorf("Proclaim of too much = %v, want %v", err, kvlock.ErrOption)
		}
		if _, err := a.Election("other").Campaign(t.Context(), long); !errors.Is(err, kvlock.ErrOption) {
			t.Errorf("Campaign with too much = %v, want %v", err, kvlock.ErrOption)
		}
		if err := a.Election("other").Run(t.Context(), long, nil); !errors.Is(err, kvlock.ErrOption) {
			t.Errorf("Run with too much = %v, want %v", err, kvlock.ErrOption)
		}
		release(t, k)
		if err := k.Proclaim(t.Context(), "x"); !errors.Is(err, kvlock.ErrReleased) {
			t.Errorf("Proclaim after Release = %v, want %v", err, kvlock.ErrReleased)
		}
	})
}

// K66, N44, N85: after a loss, and after an operator's break, it leads again without a
// restart. K67: two terms do not overlap, and nothing runs when Run has returned.
func TestRunCampaignsAgainAfterALoss(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		ctx, stop := context.WithCancelCause(t.Context())
		var running, terms atomic.Int64
		tokens := make(chan uint64, 10)
		done := make(chan error, 1)
		go func() {
			done <- a.Election("main").Run(ctx, "a", func(ctx context.Context, k *kvlock.Lock) error {
				if running.Add(1) != 1 {
					t.Error("two terms at once")
				}
				defer running.Add(-1)
				terms.Add(1)
				tokens <- k.Token()
				<-ctx.Done()
				time.Sleep(3 * time.Second) // slow to stop
				return ctx.Err()
			})
		}()
		first := <-tokens
		if err := b.Break(t.Context(), "main", "maintenance"); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		second := <-tokens
		if took := time.Since(began); second <= first || took < 3*time.Second || took > 3100*time.Millisecond {
			t.Errorf("token %d after %v, want more than %d as soon as the first term has returned", second, took, first)
		}
		a.link.Cut()
		time.Sleep(20 * time.Second)
		k := b.tryLock(t, "main") // another leads meanwhile
		a.link.Mend()
		time.Sleep(time.Minute)
		release(t, k)
		third := <-tokens
		if third <= k.Token() {
			t.Errorf("token = %d, want more than %d", third, k.Token())
		}
		reason := errors.New("stop")
		stop(reason)
		began = time.Now()
		if err := <-done; !errors.Is(err, reason) {
			t.Errorf("Run = %v, want %v", err, reason)
		}
		if took := time.Since(began); took != 3*time.Second || running.Load() != 0 {
			t.Errorf("Run returned after %v with %d terms running, want it to wait for the term", took, running.Load())
		}
		if terms.Load() != 3 {
			t.Errorf("terms = %d, want 3", terms.Load())
		}
		b.tryLock(t, "main") // free at once
	})
}

// K70: who resigns frees the lock at once and stands at the end.
func TestWhoResignsGoesToTheEndOfTheLine(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		site := newSite(t)
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var mu sync.Mutex
		var order []string
		began := time.Now()
		for _, name := range []string{"a", "b", "c"} {
			p := site.process(name)
			all.Go(func() {
				err := p.Election("main").Run(ctx, name, func(ctx context.Context, _ *kvlock.Lock) error {
					mu.Lock()
					order = append(order, name)
					mu.Unlock()
					time.Sleep(2 * time.Second)
					return nil
				})
				if !errors.Is(err, context.Canceled) {
					t.Errorf("Run = %v, want %v", err, context.Canceled)
				}
			})
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Until(began.Add(17 * time.Second)))
		stop()
		all.Wait()
		want := []string{"a", "b", "c", "a", "b", "c", "a", "b", "c"}
		if !slices.Equal(order, want) {
			t.Errorf("order = %q, want %q", order, want)
		}
	})
}

func TestWhoResignsAloneBacksOff(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, _ := two(t)
		var terms []time.Duration
		began, failed := time.Now(), errors.New("failed")
		err := a.Election("main").Run(t.Context(), "", func(context.Context, *kvlock.Lock) error {
			if terms = append(terms, time.Since(began)); len(terms) == 3 {
				return failed
			}
			return nil
		})
		if want := []time.Duration{0, time.Second, 2 * time.Second}; !slices.Equal(terms, want) {
			t.Errorf("terms began at %v, want %v", terms, want)
		}
		if !errors.Is(err, failed) {
			t.Errorf("Run = %v, want what its function returned", err)
		}
		if h, err := a.Election("main").Leader(t.Context()); !errors.Is(err, kvlock.ErrFree) {
			t.Errorf("Leader = %v, %v, want nobody", h, err)
		}
	})
}

// K69: the same owner twice is two candidates.
func TestSameOwnerTwiceIsOneLeader(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		site := newSite(t)
		a, b := site.process("same"), site.process("same")
		k, err := a.Election("main").Campaign(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := b.Election("main").Campaign(ctx, ""); !errors.Is(err, kvlock.ErrHeld) {
			t.Errorf("Campaign = %v, want %v", err, kvlock.ErrHeld)
		}
		wantHeldOn(t, k)
	})
}

func TestRunEndsWithTheLocker(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, _ := two(t)
		done := make(chan error, 1)
		go func() {
			done <- a.Election("main").Run(t.Context(), "", func(ctx context.Context, _ *kvlock.Lock) error {
				<-ctx.Done()
				return nil
			})
		}()
		time.Sleep(time.Second)
		if err := a.Close(t.Context()); err != nil {
			t.Errorf("Close = %v, want nil", err)
		}
		time.Sleep(2 * time.Second)
		if err := <-done; !errors.Is(err, kvlock.ErrClosed) {
			t.Errorf("Run = %v, want %v", err, kvlock.ErrClosed)
		}
	})
}

// consumers returns how many consumers the bucket has.
func (s *site) consumers() int {
	s.t.Helper()
	stream, err := natstest.JetStream(s.t, natstest.Connect(s.t, s.srv)).Stream(s.t.Context(), "KV_tenure")
	if err != nil {
		s.t.Fatal(err)
	}
	return stream.CachedInfo().State.Consumers
}

// Every change is seen, that of the value and an expiry, of which there is no event, too.
func TestObserveSeesEveryChange(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		site := newSite(t)
		a, b, c := site.process("a"), site.process("b"), site.process("c")
		el := c.Election("main")
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		var mu sync.Mutex
		seen := make([][]string, 2)
		var all sync.WaitGroup
		for i := range seen {
			all.Go(func() {
				for h := range el.Observe(ctx) {
					mu.Lock()
					seen[i] = append(seen[i], fmt.Sprintf("%s=%s %.0fs", h.Owner, h.Value, time.Since(began).Seconds()))
					mu.Unlock()
				}
			})
		}
		time.Sleep(5 * time.Second)
		if got := site.consumers(); got != 1 {
			t.Errorf("consumers = %d, want one for both loops", got)
		}
		k, err := a.Election("main").Campaign(t.Context(), "1")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(35 * time.Second) // 40 s, many renewals
		if err := k.Proclaim(t.Context(), "2"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second) // 50 s
		release(t, k)
		time.Sleep(10 * time.Second) // 60 s
		if _, err := b.Election("main").Campaign(t.Context(), "3"); err != nil {
			t.Fatal(err)
		}
		b.link.Cut() // it expires at 75 s
		time.Sleep(40 * time.Second)
		cancel()
		all.Wait()
		want := []string{"= 0s", "a=1 5s", "a=2 40s", "= 50s", "b=3 60s", "= 75s"}
		for _, got := range seen {
			if !slices.Equal(got, want) {
				t.Errorf("seen = %q, want %q", got, want)
			}
		}
		synctest.Wait()
		if got := site.consumers(); got != 0 {
			t.Errorf("consumers after the last loop = %d, want none", got)
		}
		for h := range el.Observe(t.Context()) { // again, and left by break
			if h.Token != 0 {
				t.Errorf("leader = %+v, want nobody", h)
			}
			break
		}
		if got := site.consumers(); got != 0 {
			t.Errorf("consumers after a break = %d, want none", got)
		}
	})
}
