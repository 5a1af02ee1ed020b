package fence_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded/natstest"
	"tenure/kvlock/fence"
)

func newKV(t *testing.T) (jetstream.KeyValue, *fence.KV) {
	t.Helper()
	nc := natstest.Connect(t, natstest.Server(t))
	kv, err := natstest.JetStream(t, nc).CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "res", Storage: jetstream.MemoryStorage})
	if err != nil {
		t.Fatal(err)
	}
	return kv, fence.NewKV(kv)
}

// K54, N30, N60: a writer that was paused past its hold is refused.
func TestStaleTokenIsRefusedByKV(t *testing.T) {
	_, guard := newKV(t)
	ctx := t.Context()
	if _, err := guard.Put(ctx, "k", 10, []byte("a")); err != nil {
		t.Fatal(err)
	}
	if _, err := guard.Put(ctx, "k", 11, []byte("b")); err != nil {
		t.Fatal(err)
	}
	_, err := guard.Put(ctx, "k", 10, []byte("late"))
	want := fence.StaleError{Resource: "k", Have: 10, Want: 11}
	if got, ok := errors.AsType[*fence.StaleError](err); !ok || *got != want || !errors.Is(err, fence.ErrStale) {
		t.Errorf("Put = %v, want %v", err, &want)
	}
	if _, err := guard.Put(ctx, "k", 11, []byte("c")); err != nil {
		t.Errorf("Put with the same token = %v, want nil", err)
	}
	got, err := guard.Get(ctx, "k")
	if err != nil || string(got.Data) != "c" || got.Mark != 11 {
		t.Errorf("Get = %q at %d, %v, want %q at 11", got.Data, got.Mark, err, "c")
	}
}

// K51: the next holder raises the mark before it writes.
func TestRaisedMarkRefusesOldTokenAndKeepsData(t *testing.T) {
	_, guard := newKV(t)
	ctx := t.Context()
	if _, err := guard.Put(ctx, "k", 10, []byte("a")); err != nil {
		t.Fatal(err)
	}
	if err := guard.Raise(ctx, "k", 12); err != nil {
		t.Fatal(err)
	}
	if _, err := guard.Put(ctx, "k", 10, []byte("late")); !errors.Is(err, fence.ErrStale) {
		t.Errorf("Put = %v, want %v", err, fence.ErrStale)
	}
	if err := guard.Raise(ctx, "k", 11); !errors.Is(err, fence.ErrStale) {
		t.Errorf("Raise = %v, want %v", err, fence.ErrStale)
	}
	if got, err := guard.Get(ctx, "k"); err != nil || string(got.Data) != "a" || got.Mark != 12 {
		t.Errorf("Get = %q at %d, %v, want %q at 12", got.Data, got.Mark, err, "a")
	}
	if err := guard.Raise(ctx, "new", 5); err != nil {
		t.Errorf("Raise of a missing key = %v, want nil", err)
	}
	if _, err := guard.Get(ctx, "new"); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("Get = %v, want %v", err, jetstream.ErrKeyNotFound)
	}
	if _, err := guard.Put(ctx, "new", 4, nil); !errors.Is(err, fence.ErrStale) {
		t.Errorf("Put = %v, want %v", err, fence.ErrStale)
	}
}

// H22: a delete must not forget the mark.
func TestDeleteKeepsTheMark(t *testing.T) {
	_, guard := newKV(t)
	ctx := t.Context()
	if err := guard.Delete(ctx, "k", 10); err != nil {
		t.Fatal(err)
	}
	if _, err := guard.Get(ctx, "k"); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("Get = %v, want %v", err, jetstream.ErrKeyNotFound)
	}
	if _, err := guard.Put(ctx, "k", 9, []byte("late")); !errors.Is(err, fence.ErrStale) {
		t.Errorf("Put = %v, want %v", err, fence.ErrStale)
	}
	if _, err := guard.Put(ctx, "k", 10, []byte("x\ny")); err != nil {
		t.Errorf("Put = %v, want nil", err)
	}
	if got, err := guard.Get(ctx, "k"); err != nil || string(got.Data) != "x\ny" {
		t.Errorf("Get = %q, %v, want %q", got.Data, err, "x\ny")
	}
}

// K53
func TestZeroIsNeverATokenOfKV(t *testing.T) {
	_, guard := newKV(t)
	if _, err := guard.Put(t.Context(), "k", 0, nil); !errors.Is(err, fence.ErrStale) {
		t.Errorf("Put = %v, want %v", err, fence.ErrStale)
	}
}

func TestValueOfSomebodyElseIsAnErrorAndStays(t *testing.T) {
	kv, guard := newKV(t)
	for _, value := range []string{"", "hello", "tenure-fence 1 \n", "tenure-fence 1 x\n", "tenure-fence 1 7", "tenure-fence 2 7\n", "tenure-fence 1 -7\n"} {
		if _, err := kv.PutString(t.Context(), "k", value); err != nil {
			t.Fatal(err)
		}
		if _, err := guard.Put(t.Context(), "k", 10, []byte("mine")); !errors.Is(err, fence.ErrFormat) {
			t.Errorf("Put over %q = %v, want %v", value, err, fence.ErrFormat)
		}
		if e, err := kv.Get(t.Context(), "k"); err != nil || string(e.Value()) != value {
			t.Errorf("value = %q, %v, want %q", e.Value(), err, value)
		}
	}
}

func TestManyWritersOfOneKeyAllSucceedAndTheLargestTokenStays(t *testing.T) {
	_, guard := newKV(t)
	var all sync.WaitGroup
	for token := uint64(1); token <= 20; token++ {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if _, err := guard.Put(ctx, "k", token, fmt.Append(nil, token)); err != nil && !errors.Is(err, fence.ErrStale) {
				t.Errorf("Put = %v, want nil or %v", err, fence.ErrStale)
			}
		})
	}
	all.Wait()
	got, err := guard.Get(t.Context(), "k")
	if err != nil || string(got.Data) != "20" || got.Mark != 20 {
		t.Errorf("Get = %q at %d, %v, want %q at 20", got.Data, got.Mark, err, "20")
	}
}
