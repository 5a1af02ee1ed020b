package fence_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tenure/kvlock/fence"
)

func TestGuardLetsNoWriteInBetween(t *testing.T) {
	var g fence.Guard
	inside, order := make(chan struct{}), make(chan string, 2)
	var all sync.WaitGroup
	leave := make(chan struct{})
	all.Go(func() {
		if err := g.Do(t.Context(), "r", 1, func() error {
			close(inside)
			<-leave
			order <- "old"
			return nil
		}); err != nil {
			t.Errorf("Do = %v, want nil", err)
		}
	})
	<-inside
	all.Go(func() {
		if err := g.Do(t.Context(), "r", 2, func() error { order <- "new"; return nil }); err != nil {
			t.Errorf("Do = %v, want nil", err)
		}
	})
	if err := g.Do(t.Context(), "other", 1, func() error { return nil }); err != nil {
		t.Errorf("Do of another resource = %v, want nil", err)
	}
	close(leave)
	all.Wait()
	if first, second := <-order, <-order; first != "old" || second != "new" {
		t.Errorf("order = %s, %s, want old, new", first, second)
	}
	failed := errors.New("failed")
	if err := g.Do(t.Context(), "r", 3, func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("Do = %v, want %v", err, failed)
	}
	if got := g.Mark("r"); got != 3 {
		t.Errorf("Mark = %d, want 3: a failed write may have had an effect", got)
	}
	if err := g.Do(t.Context(), "r", 2, func() error { t.Error("stale write ran"); return nil }); !errors.Is(err, fence.ErrStale) {
		t.Errorf("Do = %v, want %v", err, fence.ErrStale)
	}
}

// K53
func TestZeroIsNeverATokenOfGuard(t *testing.T) {
	var g fence.Guard
	if err := g.Raise(t.Context(), "k", 0); !errors.Is(err, fence.ErrStale) {
		t.Errorf("Raise = %v, want %v", err, fence.ErrStale)
	}
}

func TestGuardWaitsUntilContextIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g fence.Guard
		err := g.Do(t.Context(), "r", 1, func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began := time.Now()
			if err := g.Raise(ctx, "r", 2); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Raise during a write = %v, want %v", err, context.DeadlineExceeded)
			}
			if took := time.Since(began); took != time.Second {
				t.Errorf("Raise took %v, want 1s", took)
			}
			return nil
		})
		if err != nil {
			t.Errorf("Do = %v, want nil", err)
		}
		if got := g.Mark("r"); got != 1 {
			t.Errorf("Mark = %d, want 1", got)
		}
		if err := g.Raise(t.Context(), "r", 2); err != nil {
			t.Errorf("Raise after the write = %v, want nil", err)
		}
	})
}

// H22: what Save has stored refuses the old holder after a restart too.
func TestSavedMarkRefusesOldTokenAfterRestart(t *testing.T) {
	disk := make(map[string]uint64)
	broken := errors.New("disk is full")
	var fail error
	save := func(_ context.Context, resource string, mark uint64) error {
		if fail == nil {
			disk[resource] = mark
		}
		return fail
	}
	first := fence.Guard{Save: save}
	for _, token := range []uint64{10, 11, 11} {
		if err := first.Do(t.Context(), "r", token, func() error {
			if disk["r"] != token {
				t.Errorf("saved mark = %d during the write, want %d", disk["r"], token)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	fail = broken
	if err := first.Do(t.Context(), "r", 12, func() error { t.Error("unsaved write ran"); return nil }); !errors.Is(err, broken) {
		t.Errorf("Do = %v, want %v", err, broken)
	}
	if err := first.Do(t.Context(), "r", 11, func() error { return nil }); err != nil {
		t.Errorf("Do under the saved mark = %v, want nil", err)
	}
	fail = nil

	second := fence.Guard{Save: save}
	for resource, mark := range maps.Clone(disk) {
		if err := second.Raise(t.Context(), resource, mark); err != nil {
			t.Fatal(err)
		}
	}
	if err := second.Raise(t.Context(), "r", 10); !errors.Is(err, fence.ErrStale) {
		t.Errorf("Raise after the restart = %v, want %v", err, fence.ErrStale)
	}
}

// S10: every guard refuses the same names before it stores anything.
func TestBadResourceIsAnInputError(t *testing.T) {
	_, kv := newKV(t)
	var g fence.Guard
	for _, resource := range []string{"", strings.Repeat("x", 501), "a\x00b", "\xff"} {
		if err := g.Raise(t.Context(), resource, 1); !errors.Is(err, fence.ErrInput) {
			t.Errorf("Guard.Raise(%q) = %v, want %v", resource, err, fence.ErrInput)
		}
		if g.Mark(resource) != 0 {
			t.Errorf("Mark(%q) = %d, want 0", resource, g.Mark(resource))
		}
	}
	for _, key := range []string{"", "a b", ".a", "a."} {
		if err := kv.Raise(t.Context(), key, 1); !errors.Is(err, fence.ErrInput) {
			t.Errorf("KV.Raise(%q) = %v, want %v", key, err, fence.ErrInput)
		}
		if _, err := kv.Get(t.Context(), key); !errors.Is(err, fence.ErrInput) {
			t.Errorf("KV.Get(%q) = %v, want %v", key, err, fence.ErrInput)
		}
	}
}
