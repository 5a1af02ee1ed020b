package kvlock_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"tenure/embedded/natstest"
	"tenure/kvlock"
)

// N88: who holds what, and who stands in line, of every shape.
func TestReadLocksShowsHoldersAndTheirLines(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b, c := s.process("a"), s.process("b"), s.process("c")
		read := func() []kvlock.LockStatus {
			t.Helper()
			all, err := kvlock.ReadLocks(t.Context(), a.Bucket())
			if err != nil {
				t.Fatal(err)
			}
			return all
		}
		if got := read(); len(got) != 0 {
			t.Errorf("locks = %+v, want none", got)
		}
		k := a.tryLock(t, "job x")
		ctx, cancel := context.WithCancel(t.Context())
		first := b.waiting(ctx, "job x")
		time.Sleep(time.Second)
		second := c.waiting(ctx, "job x")
		time.Sleep(time.Second)
		synctest.Wait()
		pool, err := a.Semaphore(t.Context(), "pool", 2)
		if err != nil {
			t.Fatal(err)
		}
		p, err := pool.TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := read()
		if len(got) != 2 || got[0].Name != "job x" || got[1].Name != "pool" {
			t.Fatalf("locks = %+v, want job x and pool", got)
		}
		if h := got[0].Holders; len(h) != 1 || h[0].Owner != "a" || h[0].Token != k.Token() {
			t.Errorf("holders = %+v, want a", h)
		}
		w := got[0].Waiters
		if len(w) != 2 || w[0].Owner != "b" || w[1].Owner != "c" || w[1].Since.Sub(w[0].Since).Round(10*time.Millisecond) != time.Second {
			t.Errorf("waiters = %+v, want b and, a second later, c", w)
		}
		if h := got[1].Holders; len(h) != 1 || h[0].Name != p.Name() || h[0].Kind != "permit" {
			t.Errorf("holders of the pool = %+v, want %s", h, p.Name())
		}
		cancel()
		<-first
		<-second
		release(t, p)
		release(t, k)
		time.Sleep(time.Second)
		if got := read(); slices.ContainsFunc(got, func(l kvlock.LockStatus) bool { return len(l.Holders)+len(l.Waiters) > 0 }) {
			t.Errorf("locks = %+v, want none", got)
		}
	})
}
