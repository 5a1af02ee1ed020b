package kvlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"tenure/embedded/natstest"
	"tenure/kvlock"
	"tenure/kvlock/bucket"
)

const dataSubject = "$KV.tenure.data.x"

func put(t testing.TB, k *kvlock.Lock, key, value string) {
	t.Helper()
	if err := k.Put(t.Context(), key, []byte(value)); err != nil {
		t.Errorf("Put(%q, %q) = %v, want nil", key, value, err)
	}
}

// wantData checks what is stored under a key; "" is nothing. It returns the revision.
func (p *process) wantData(t testing.TB, key, want string) uint64 {
	t.Helper()
	got, revision, err := p.Data(t.Context(), key)
	switch {
	case want == "" && !errors.Is(err, kvlock.ErrNotFound):
		t.Errorf("Data(%q) = %q, %v, want %v", key, got, err, kvlock.ErrNotFound)
	case want != "" && (err != nil || string(got) != want):
		t.Errorf("Data(%q) = %q, %v, want %q", key, got, err, want)
	}
	return revision
}

func TestFencedWritesAreStoredDuringTheHoldOnly(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := a.tryLock(t, "job")
		b.wantData(t, "x", "")
		put(t, k, "x", "1")
		time.Sleep(time.Minute) // many renewals
		put(t, k, "x", "2")
		put(t, k, "a b.c", "3")
		b.wantData(t, "x", "2")
		b.wantData(t, "a b.c", "3")
		if err := k.PutAll(t.Context(), map[string][]byte{"x": []byte("4"), "y": []byte("5")}); err != nil {
			t.Errorf("PutAll = %v, want nil", err)
		}
		b.wantData(t, "x", "4")
		b.wantData(t, "y", "5")
		for range 2 {
			if err := k.Delete(t.Context(), "y"); err != nil {
				t.Errorf("Delete = %v, want nil", err)
			}
		}
		b.wantData(t, "y", "")
		subject := a.Bucket().Subject("events.x")
		if err := k.Publish(t.Context(), subject, []byte("6")); err != nil {
			t.Errorf("Publish = %v, want nil", err)
		}
		if e, err := b.Bucket().Get(t.Context(), "events.x"); err != nil || string(e.Value) != "6" {
			t.Errorf("event = %q, %v, want 6", e.Value, err)
		}
		release(t, k)
		for what, err := range map[string]error{
			"Put":     k.Put(t.Context(), "x", []byte("7")),
			"PutAll":  k.PutAll(t.Context(), map[string][]byte{"x": nil, "y": nil}),
			"none":    k.PutAll(t.Context(), nil),
			"Delete":  k.Delete(t.Context(), "x"),
			"Publish": k.Publish(t.Context(), subject, []byte("7")),
		} {
			if !errors.Is(err, kvlock.ErrReleased) {
				t.Errorf("%s after Release = %v, want %v", what, err, kvlock.ErrReleased)
			}
		}
		b.wantData(t, "x", "4")
	})
}

// S3, K51: the writer is paused after its last look at the clock; the next holder has
// not written anything. The server refuses.
func TestWriteOfAPausedHolderIsRefusedByTheServer(t *testing.T) {
	writes := map[string]func(context.Context, *kvlock.Lock) error{
		"Put": func(ctx context.Context, k *kvlock.Lock) error { return k.Put(ctx, "x", []byte("late")) },
		"PutAll": func(ctx context.Context, k *kvlock.Lock) error {
			return k.PutAll(ctx, map[string][]byte{"x": []byte("late"), "y": []byte("late")})
		},
		"Delete": func(ctx context.Context, k *kvlock.Lock) error { return k.Delete(ctx, "x") },
	}
	for what, write := range writes {
		natstest.Bubble(t, func(t *testing.T) {
			var refused []error
			var mu sync.Mutex
			s := newSite(t)
			a := s.process("a", kvlock.WithTrace(&kvlock.Trace{FencedRefused: func(_ string, _ uint64, err error) {
				mu.Lock()
				defer mu.Unlock()
				refused = append(refused, err)
			}}))
			b := s.process("b")
			first := a.tryLock(t, "job")
			put(t, first, "x", "1")
			let := a.link.HoldRequest(func(s string) bool { return strings.HasPrefix(s, "$KV.tenure.data.") })
			done := make(chan error, 1)
			go func() { done <- write(t.Context(), first) }()
			time.Sleep(time.Millisecond)
			a.link.Cut()
			time.Sleep(16 * time.Second)
			second := b.tryLock(t, "job")
			a.link.Mend()
			let()
			wantLost(t, what, <-done, kvlock.Expired)
			time.Sleep(time.Minute)
			b.wantData(t, "x", "1")
			b.wantData(t, "y", "")
			mu.Lock()
			if len(refused) != 1 || !errors.Is(refused[0], kvlock.ErrLost) {
				t.Errorf("FencedRefused = %v, want one loss", refused)
			}
			mu.Unlock()
			release(t, second)
		})
	}
}

// H13, F2: a write that timed out is still under way when the next one of the same hold
// is made, and arrives after it.
func TestLateWriteDoesNotOverwriteTheNextOfTheSameHold(t *testing.T) {
	for _, patient := range []bool{false, true} { // does the caller of the first wait on?
		natstest.Bubble(t, func(t *testing.T) {
			a, b := two(t)
			k := a.tryLock(t, "job")
			fence := k.Revision()
			let := a.link.HoldRequest(once(dataSubject))
			a.link.DropRequest(1, to(jobSubject)) // the renewal that the doubt calls for, too
			ctx := t.Context()
			if !patient {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
				defer cancel()
			}
			err := k.Put(ctx, "x", []byte("1"))
			switch {
			case patient && err != nil:
				t.Errorf("Put = %v, want nil", err)
			case patient:
				b.wantData(t, "x", "1") // repeated
			case !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, bucket.ErrDoubt):
				t.Errorf("Put = %v, want a deadline and a doubt", err)
			}
			put(t, k, "x", "2")
			if k.Revision() == fence {
				t.Errorf("revision = %d, want a renewal before the next write", fence)
			}
			let()
			time.Sleep(time.Minute)
			b.wantData(t, "x", "2")
			wantHeldOn(t, k)
		})
	}
}

// F1: the hold was ended by somebody whose message did not arrive: a write finds out.
func TestRefusedWriteMakesTheHolderLook(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := a.tryLock(t, "job")
		b.link.DropRequest(-1, toProcesses)
		if err := b.Break(t.Context(), "job", "enough"); err != nil {
			t.Fatalf("Break = %v", err)
		}
		wantHeldOn(t, k)
		began := time.Now()
		lost := wantLost(t, "Put", k.Put(t.Context(), "x", []byte("1")), kvlock.Revoked)
		if lost.Text != "enough" {
			t.Errorf("text = %q, want that of Break", lost.Text)
		}
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("Put took %v, want a few attempts", took)
		}
		b.wantData(t, "x", "")
	})
}

// once matches the first message to a subject.
func once(subject string) func(string) bool {
	seen := false
	return func(s string) bool {
		if s != subject || seen {
			return false
		}
		seen = true
		return true
	}
}

// F2: the answer is lost, the write is there, so it is not written again.
func TestWriteWhoseAnswerWasLostIsStoredOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := a.tryLock(t, "job")
		a.link.DropReply(1, func(s string, _ []byte) bool { return s == dataSubject })
		began := time.Now()
		put(t, k, "x", "1")
		if took := time.Since(began); took < time.Second || took > 1100*time.Millisecond {
			t.Errorf("Put took %v, want an attempt of 1s and a renewal", took)
		}
		if at := b.wantData(t, "x", "1"); at > k.Revision() {
			t.Errorf("data at revision %d, want it before the renewal at %d", at, k.Revision())
		}
		a.link.DropReply(1, func(s string, _ []byte) bool { return strings.HasPrefix(s, "$KV.tenure.data.") })
		if err := k.PutAll(t.Context(), map[string][]byte{"x": []byte("2"), "y": []byte("3")}); err != nil {
			t.Errorf("PutAll = %v, want nil", err)
		}
		b.wantData(t, "x", "2")
		b.wantData(t, "y", "3")
		wantHeldOn(t, k)
	})
}

// F1: the fence was moved by a renewal whose acknowledgement is not here yet.
func TestWriteBesideARenewalIsTriedAgain(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := a.tryLock(t, "job")
		a.link.DropReply(2, func(s string, _ []byte) bool { return s == jobSubject })
		time.Sleep(5*time.Second + time.Millisecond) // stored, and not known
		put(t, k, "x", "1")
		b.wantData(t, "x", "1")
		wantHeldOn(t, k)
	})
}

// S9: nobody serves for a while; the hold lasts, and so does the write.
func TestWriteOutlastsAServerThatIsAway(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := a.tryLock(t, "job")
		a.link.Cut()
		time.AfterFunc(8*time.Second, a.link.Mend)
		put(t, k, "x", "1")
		b.wantData(t, "x", "1")
		wantHeldOn(t, k)
		a.link.Cut()
		began := time.Now()
		err := k.Put(t.Context(), "x", []byte("2"))
		wantLost(t, "Put", err, kvlock.Expired)
		if took := time.Since(began); took > 13500*time.Millisecond+20*time.Millisecond {
			t.Errorf("Put took %v, want at most what is left of trust", took)
		}
		if !errors.Is(err, bucket.ErrDoubt) {
			t.Errorf("Put = %v, want the doubt in it", err)
		}
	})
}

func TestFencedWritesOfOneHoldAtOnceAreAllStored(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := a.tryLock(t, "job")
		a.link.Delay(time.Millisecond)
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() { put(t, k, fmt.Sprint(i), "v") })
		}
		all.Wait()
		for i := range 50 {
			b.wantData(t, fmt.Sprint(i), "v")
		}
	})
}

// S10.
func TestBadFencedWritesAreErrorsAndStoreNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a := s.process("a")
		k := a.tryLock(t, "job")
		many := make(map[string][]byte)
		for i := range kvlock.MaxBatch {
			many[fmt.Sprint("m", i)] = []byte("v")
		}
		if err := k.PutAll(t.Context(), many); err != nil {
			t.Errorf("PutAll of %d = %v, want nil", len(many), err)
		}
		if got := len(s.keys("data.m")); got != kvlock.MaxBatch {
			t.Errorf("stored = %d, want %d", got, kvlock.MaxBatch)
		}
		many["x"] = nil
		err := k.PutAll(t.Context(), many)
		limit, ok := errors.AsType[*kvlock.OptionError](err)
		if !ok || !errors.Is(err, kvlock.ErrOption) || limit.Have != "1001" {
			t.Errorf("PutAll of 1,001 = %v, want an OptionError", err)
		}
		if err := k.Put(t.Context(), "", nil); !errors.Is(err, kvlock.ErrName) {
			t.Errorf("Put without a key = %v, want %v", err, kvlock.ErrName)
		}
		if err := k.Put(t.Context(), "x", bytes.Repeat([]byte("x"), 2<<20)); !errors.Is(err, bucket.ErrFull) {
			t.Errorf("Put of 2 MB = %v, want %v", err, bucket.ErrFull)
		}
		if err := k.PutAll(t.Context(), map[string][]byte{"x": bytes.Repeat([]byte("x"), 2<<20), "y": nil}); !errors.Is(err, bucket.ErrFull) {
			t.Errorf("PutAll with 2 MB = %v, want %v", err, bucket.ErrFull)
		}
		for _, subject := range []string{
			"other", "$KV.tenure.", "$KV.tenure.lock.job", "$KV.tenure.lock", "$KV.tenure.claim.g.p", "$KV.tenure.a..b", "$KV.tenure.a.*", "$KV.tenure.a b",
		} {
			if err := k.Publish(t.Context(), subject, nil); !errors.Is(err, kvlock.ErrName) {
				t.Errorf("Publish to %q = %v, want %v", subject, err, kvlock.ErrName)
			}
		}
		if got := s.keys("data.x"); len(got) != 0 {
			t.Errorf("keys = %q, want none", got)
		}
		wantHeldOn(t, k)
	})
}
