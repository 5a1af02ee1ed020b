package fence_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded"
	"tenure/embedded/natstest"
	"tenure/kvlock"
	"tenure/kvlock/bucket"
	"tenure/kvlock/fence"
)

// A resource is something that a guard guards, as a holder sees it.
type resource interface {
	write(ctx context.Context, hold *kvlock.Lock, text string) error
	raise(ctx context.Context, hold *kvlock.Lock) error
	texts(t *testing.T) []string // that were accepted
}

// K51, K54, N30: whoever is cut off past its TTL, and goes on as if nothing had
// happened, is refused once the next holder has written or raised the mark.
func TestPausedHolderIsRefused(t *testing.T) {
	resources := []struct {
		name string
		make func(t *testing.T, srv *embedded.Server) resource
	}{
		{"Guard", func(*testing.T, *embedded.Server) resource { return new(guardedSlice) }},
		{"KV", newGuardedKey},
		{"SQLite", func(t *testing.T, _ *embedded.Server) resource { return guardedTable{newSQLite(t)} }},
		{"PostgreSQL", func(t *testing.T, _ *embedded.Server) resource { return guardedTable{newPostgreSQL(t)} }},
		{"HTTP", func(*testing.T, *embedded.Server) resource { return newService(new(fence.Guard)) }},
		{"HTTP, marks in KV", func(t *testing.T, srv *embedded.Server) resource {
			return newService(newGuardedKey(t, srv).(*guardedKey).guard)
		}},
		{"HTTP, marks in SQLite", func(t *testing.T, _ *embedded.Server) resource { return newService(newSQLite(t).guard) }},
	}
	for _, r := range resources {
		t.Run(r.name+"/next holder writes", func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				srv := natstest.Server(t)
				res := r.make(t, srv)
				late, next := handOver(t, srv, res)
				wantNil(t, "write of the next holder", res.write(t.Context(), next, "b"))
				wantStale(t, res.write(t.Context(), late, "late"), late, next)
				wantStale(t, res.raise(t.Context(), late), late, next)
				wantNil(t, "write of the next holder", res.write(t.Context(), next, "b again"))
				if got, want := res.texts(t), []string{"a", "b", "b again"}; !slices.Equal(got, want) {
					t.Errorf("accepted = %q, want %q", got, want)
				}
			})
		})
		t.Run(r.name+"/next holder raises the mark", func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				srv := natstest.Server(t)
				res := r.make(t, srv)
				late, next := handOver(t, srv, res)
				wantNil(t, "raise of the next holder", res.raise(t.Context(), next))
				wantStale(t, res.write(t.Context(), late, "late"), late, next)
				if got, want := res.texts(t), []string{"a"}; !slices.Equal(got, want) {
					t.Errorf("accepted = %q, want %q", got, want)
				}
			})
		})
	}
}

// handOver has one holder write "a", cuts it off, and has another one gain the lock
// the moment that the TTL is over.
func handOver(t *testing.T, srv *embedded.Server, res resource) (late, next *kvlock.Lock) {
	t.Helper()
	a, link := newLocker(t, srv)
	b, _ := newLocker(t, srv)
	late, err := a.TryLock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Minute) // many renewals
	wantNil(t, "write of the first holder", res.write(t.Context(), late, "a"))
	link.Cut()
	if next, err = b.Lock(t.Context(), "job"); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(late.Err(), kvlock.ErrLost) {
		t.Errorf("Err of the first hold = %v, want %v", late.Err(), kvlock.ErrLost)
	}
	if late.Token() >= next.Token() { // K49: also asked late, it is its own
		t.Errorf("tokens = %d, %d, want the second larger", late.Token(), next.Token())
	}
	return late, next
}

func newLocker(t *testing.T, srv *embedded.Server) (*kvlock.Locker, *natstest.Link) {
	t.Helper()
	link := natstest.NewLink(t, srv)
	l, err := kvlock.New(t.Context(), natstest.JetStream(t, link.Connect()), kvlock.WithBucketOptions(bucket.Fresh()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		_ = l.Close(ctx) // fails if the link is cut
	})
	return l, link
}

func wantNil(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s = %v, want nil", what, err)
	}
}

func wantStale(t *testing.T, err error, late, next *kvlock.Lock) {
	t.Helper()
	stale, ok := errors.AsType[*fence.StaleError](err)
	if !ok || !errors.Is(err, fence.ErrStale) || stale.Have != late.Token() || stale.Want != next.Token() {
		t.Errorf("late call = %v, want token %d to be stale at mark %d", err, late.Token(), next.Token())
	}
}

// guardedSlice is in memory, guarded by a [fence.Guard].
type guardedSlice struct {
	guard fence.Guard
	lines []string
}

func (s *guardedSlice) write(ctx context.Context, hold *kvlock.Lock, text string) error {
	return s.guard.Do(ctx, hold.Name(), hold.Token(), func() error {
		s.lines = append(s.lines, text)
		return nil
	})
}

func (s *guardedSlice) raise(ctx context.Context, hold *kvlock.Lock) error {
	return s.guard.Raise(ctx, hold.Name(), hold.Token())
}

func (s *guardedSlice) texts(*testing.T) []string { return s.lines }

// guardedKey is a key with all that was written to it as its history.
type guardedKey struct {
	guard *fence.KV
	lines []string
}

func newGuardedKey(t *testing.T, srv *embedded.Server) resource {
	t.Helper()
	// A connection of its own: the one who is cut off from the locks reaches it.
	js := natstest.JetStream(t, natstest.Connect(t, srv))
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "res", Storage: jetstream.MemoryStorage})
	if err != nil {
		t.Fatal(err)
	}
	return &guardedKey{guard: fence.NewKV(kv)}
}

func (k *guardedKey) write(ctx context.Context, hold *kvlock.Lock, text string) error {
	_, err := k.guard.Put(ctx, hold.Name(), hold.Token(), []byte(text))
	if err != nil {
		return err
	}
	v, err := k.guard.Get(ctx, hold.Name())
	k.lines = append(k.lines, string(v.Data))
	return err
}

func (k *guardedKey) raise(ctx context.Context, hold *kvlock.Lock) error {
	return k.guard.Raise(ctx, hold.Name(), hold.Token())
}

func (k *guardedKey) texts(t *testing.T) []string {
	t.Helper()
	v, err := k.guard.Get(t.Context(), "job")
	if err != nil || string(v.Data) != k.lines[len(k.lines)-1] {
		t.Errorf("Get = %q, %v, want %q", v.Data, err, k.lines[len(k.lines)-1])
	}
	return k.lines
}

// guardedTable is the table lines of a database.
type guardedTable struct{ db *database }

func (g guardedTable) write(ctx context.Context, hold *kvlock.Lock, text string) error {
	return g.db.guard.Do(ctx, hold.Name(), hold.Token(), line(ctx, hold.Token(), text))
}

func (g guardedTable) raise(ctx context.Context, hold *kvlock.Lock) error {
	return g.db.guard.Raise(ctx, hold.Name(), hold.Token())
}

func (g guardedTable) texts(t *testing.T) []string {
	t.Helper()
	_, texts := g.db.lines(t)
	return texts
}
