package kvlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded"
	"tenure/embedded/natstest"
	"tenure/kvlock"
	"tenure/kvlock/bucket"
)

// newLocker returns a Locker with a connection of its own, closed when the test
// ends. The bucket is in memory and fresh.
func newLocker(t testing.TB, nc *nats.Conn, owner string, opts ...kvlock.Option) *kvlock.Locker {
	t.Helper()
	base := []kvlock.Option{
		kvlock.WithOwner(owner),
		kvlock.WithBucketOptions(bucket.Fresh(), bucket.Storage(jetstream.MemoryStorage)),
	}
	l, err := kvlock.New(t.Context(), natstest.JetStream(t, nc), append(base, opts...)...)
	if err != nil {
		t.Fatalf("New = %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := l.Close(ctx); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			t.Logf("Close = %v", err)
		}
	})
	return l
}

// pair returns two Lockers, and the links that they have.
func pair(t testing.TB, opts ...kvlock.Option) (a, b *kvlock.Locker, la, lb *natstest.Link) {
	t.Helper()
	s := natstest.Server(t)
	la, lb = natstest.NewLink(t, s), natstest.NewLink(t, s)
	return newLocker(t, la.Connect(), "a", opts...), newLocker(t, lb.Connect(), "b", opts...), la, lb
}

var (
	_ = server.Options{}
	_ = embedded.Tune
)
