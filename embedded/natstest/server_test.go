package natstest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded"
	"tenure/embedded/natstest"
)

func TestBubbleHasItsOwnTime(t *testing.T) {
	started := time.Now()
	natstest.Bubble(t, func(t *testing.T) {
		nc := natstest.Connect(t, natstest.Server(t))
		time.Sleep(24 * time.Hour)
		if err := nc.Flush(); err != nil {
			t.Error(err)
		}
	})
	if took := time.Since(started); took > time.Minute {
		t.Errorf("a day in the bubble took %v", took)
	}
}

// A key alone in its bucket is there until the very nanosecond at which its TTL
// ends. Among others it may go up to 250 ms later, as the server does not look
// more often.
func TestKeyExpiresAtItsExactTime(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		kv := bucket(t, natstest.Connect(t, natstest.Server(t)), jetstream.MemoryStorage)
		if _, err := kv.Create(t.Context(), "k", nil, jetstream.KeyTTL(15*time.Second)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15*time.Second - time.Nanosecond)
		if _, err := kv.Get(t.Context(), "k"); err != nil {
			t.Errorf("Get before the TTL ends = %v, want the key", err)
		}
		time.Sleep(time.Nanosecond)
		settle()
		if _, err := kv.Get(t.Context(), "k"); !errors.Is(err, jetstream.ErrKeyNotFound) {
			t.Errorf("Get when the TTL ends = %v, want %v", err, jetstream.ErrKeyNotFound)
		}
	})
}

func TestRestartKeepsData(t *testing.T) {
	dir := t.TempDir()
	natstest.Bubble(t, func(t *testing.T) {
		srv := natstest.Server(t, embedded.Store(dir))
		back := make(chan time.Time, 1)
		nc := natstest.Connect(t, srv, nats.ReconnectHandler(func(*nats.Conn) { back <- time.Now() }))
		kv := bucket(t, nc, jetstream.FileStorage)
		if _, err := kv.Create(t.Context(), "k", nil, jetstream.KeyTTL(15*time.Second)); err != nil {
			t.Fatal(err)
		}
		down := time.Now()
		srv.StopServer(0)
		time.Sleep(5 * time.Second)
		if _, err := kv.Get(t.Context(), "k"); err == nil {
			t.Error("Get from a stopped server succeeded")
		}
		if err := srv.StartServer(0); err != nil {
			t.Fatal(err)
		}
		if got, want := (<-back).Sub(down), 5100*time.Millisecond; got > want {
			t.Errorf("connected again after %v, want %v at most", got, want)
		}
		if _, err := kv.Get(t.Context(), "k"); err != nil {
			t.Errorf("Get after the restart = %v, want the key", err)
		}
		time.Sleep(time.Until(down.Add(15 * time.Second)))
		settle()
		if _, err := kv.Get(t.Context(), "k"); !errors.Is(err, jetstream.ErrKeyNotFound) {
			t.Errorf("Get when the TTL ends = %v, want %v", err, jetstream.ErrKeyNotFound)
		}
	})
	natstest.Bubble(t, func(t *testing.T) {
		srv := natstest.Server(t, embedded.Store(dir))
		if srv.Fresh() {
			t.Error("Fresh = true, want false for a used store")
		}
		if _, err := natstest.JetStream(t, natstest.Connect(t, srv)).KeyValue(t.Context(), "b"); err != nil {
			t.Errorf("KeyValue in the next server = %v, want the bucket", err)
		}
	})
}

func TestRestartLosesMemoryStreams(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		srv := natstest.Server(t)
		nc := natstest.Connect(t, srv)
		bucket(t, nc, jetstream.MemoryStorage)
		natstest.Restart(t, srv)
		time.Sleep(100 * time.Millisecond)
		settle()
		if _, err := natstest.JetStream(t, nc).KeyValue(t.Context(), "b"); !errors.Is(err, jetstream.ErrBucketNotFound) {
			t.Errorf("KeyValue = %v, want %v", err, jetstream.ErrBucketNotFound)
		}
	})
}
