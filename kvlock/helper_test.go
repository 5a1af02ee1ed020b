package kvlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded"
	"tenure/embedded/natstest"
	"tenure/kvlock"
	"tenure/kvlock/bucket"
)

// A site is a server with any number of processes on it, each with a Locker, a
// connection and a link of its own.
type site struct {
	t   testing.TB
	srv *embedded.Server
}

// A process is one Locker as other processes see it.
type process struct {
	*kvlock.Locker
	link *natstest.Link
	nc   *nats.Conn
}

func newSite(t testing.TB, opts ...embedded.Option) *site {
	t.Helper()
	return &site{t, natstest.Server(t, opts...)}
}

// process returns a process whose Locker is closed when the test ends. The bucket is
// made fresh, and in memory unless options say otherwise.
func (s *site) process(owner string, opts ...kvlock.Option) *process {
	s.t.Helper()
	link := natstest.NewLink(s.t, s.srv)
	nc := link.Connect()
	base := []kvlock.Option{kvlock.WithOwner(owner), kvlock.WithBucketOptions(bucket.Fresh())}
	l, err := kvlock.New(s.t.Context(), natstest.JetStream(s.t, nc), append(base, opts...)...)
	if err != nil {
		s.t.Fatalf("New = %v", err)
	}
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), 2*time.Minute)
		defer cancel()
		_ = l.Close(ctx) // what a test did to the server may be in the way
	})
	return &process{l, link, nc}
}

// two returns two processes on one server.
func two(t testing.TB, opts ...kvlock.Option) (a, b *process) {
	t.Helper()
	s := newSite(t)
	return s.process("a", opts...), s.process("b", opts...)
}

func (p *process) tryLock(t testing.TB, name string) *kvlock.Lock {
	t.Helper()
	k, err := p.TryLock(t.Context(), name)
	if err != nil {
		t.Fatalf("TryLock = %v, want nil", err)
	}
	return k
}

func (p *process) lock(t testing.TB, name string) *kvlock.Lock {
	t.Helper()
	k, err := p.Lock(t.Context(), name)
	if err != nil {
		t.Fatalf("Lock = %v, want nil", err)
	}
	return k
}

// A gained is what a Lock call in another goroutine came to.
type gained struct {
	lock *kvlock.Lock
	err  error
	at   time.Time
}

// waiting calls Lock in a goroutine and returns once it waits. ctx governs the call.
func (p *process) waiting(ctx context.Context, name string) <-chan gained {
	c := make(chan gained, 1)
	go func() {
		k, err := p.Lock(ctx, name)
		c <- gained{k, err, time.Now()}
	}()
	time.Sleep(time.Millisecond) // in a bubble: until it is asleep
	return c
}

func wantHeld(t testing.TB, err error, owner string, token uint64) {
	t.Helper()
	held, ok := errors.AsType[*kvlock.HeldError](err)
	if !ok || !errors.Is(err, kvlock.ErrHeld) || held.Owner != owner || held.Token != token {
		t.Errorf("TryLock = %v, want held by %q (token %d)", err, owner, token)
	}
}

func wantLost(t testing.TB, what string, err error, reason kvlock.Reason) *kvlock.LostError {
	t.Helper()
	lost, ok := errors.AsType[*kvlock.LostError](err)
	if !ok || !errors.Is(err, kvlock.ErrLost) || lost.Reason != reason {
		t.Errorf("%s = %v, want lost because %v", what, err, reason)
		return &kvlock.LostError{}
	}
	return lost
}

func wantHeldOn(t testing.TB, k *kvlock.Lock) {
	t.Helper()
	if err := k.Err(); err != nil {
		t.Errorf("Err = %v, want nil", err)
	}
	if err := k.Context().Err(); err != nil {
		t.Errorf("Context().Err = %v (%v), want nil", err, context.Cause(k.Context()))
	}
}

func release(t testing.TB, k *kvlock.Lock) {
	t.Helper()
	if err := k.Release(t.Context()); err != nil {
		t.Errorf("Release = %v, want nil", err)
	}
}

// keys returns the keys of the bucket that have a value and begin with prefix, as
// anybody else sees them, once the tickets of those who were served are gone.
func (s *site) keys(prefix string) []string {
	s.t.Helper()
	time.Sleep(kvlock.Lingering)
	return s.keysNow(prefix)
}

// keysNow returns the same at once.
func (s *site) keysNow(prefix string) []string {
	s.t.Helper()
	synctest.Wait()
	nc := natstest.Connect(s.t, s.srv)
	defer nc.Close()
	b, err := bucket.Open(s.t.Context(), natstest.JetStream(s.t, nc), bucket.AttachOnly())
	if err != nil {
		s.t.Fatal(err)
	}
	entries, err := b.Snapshot(s.t.Context(), ">")
	if err != nil {
		s.t.Fatal(err)
	}
	var keys []string
	for _, e := range entries {
		if !e.Marker && strings.HasPrefix(e.Key, prefix) {
			keys = append(keys, e.Key)
		}
	}
	return keys
}

// kv returns the bucket as any KV client sees it.
func (s *site) kv() jetstream.KeyValue {
	s.t.Helper()
	kv, err := natstest.JetStream(s.t, natstest.Connect(s.t, s.srv)).KeyValue(s.t.Context(), bucket.DefaultName)
	if err != nil {
		s.t.Fatal(err)
	}
	return kv
}

// to matches messages to a subject, for the faults of a link.
func to(subject string) func(string) bool {
	return func(s string) bool { return s == subject }
}

// toProcesses matches the requests between processes.
func toProcesses(subject string) bool { return strings.HasPrefix(subject, "_tenure.") }

const jobSubject = "$KV.tenure.lock.job"
