package natstest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded/natstest"
)

// bucket makes a bucket in memory.
func bucket(t *testing.T, nc *nats.Conn) jetstream.KeyValue {
	t.Helper()
	kv, err := natstest.JetStream(t, nc).CreateKeyValue(t.Context(), jetstream.KeyValueConfig{
		Bucket: "b", Storage: jetstream.MemoryStorage, LimitMarkerTTL: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

func TestReplyTakesTwiceTheDelay(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		link := natstest.NewLink(t, natstest.Server(t))
		kv := bucket(t, link.Connect())
		link.Delay(250 * time.Millisecond)
		asked := time.Now()
		if _, err := kv.PutString(t.Context(), "k", "v"); err != nil {
			t.Fatal(err)
		}
		if got, want := time.Since(asked), 500*time.Millisecond; got != want {
			t.Errorf("round trip = %v, want %v", got, want)
		}
	})
}

func TestRequestSentIntoACutArrivesWhenMended(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		srv := natstest.Server(t)
		link := natstest.NewLink(t, srv)
		nc := link.Connect()
		kv := bucket(t, nc)
		link.Cut()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := kv.PutString(ctx, "k", "v"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Put into the cut = %v, want %v", err, context.DeadlineExceeded)
		}
		time.Sleep(5 * time.Second)
		if got := nc.Status(); got != nats.CONNECTED {
			t.Errorf("status = %v, want %v", got, nats.CONNECTED)
		}
		link.Mend()
		time.Sleep(time.Millisecond)
		if _, err := kv.Get(t.Context(), "k"); err != nil {
			t.Errorf("Get after Mend = %v, want the value", err)
		}
	})
}

func TestDroppedReplyWasCarriedOut(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		link := natstest.NewLink(t, natstest.Server(t))
		kv := bucket(t, link.Connect())
		link.DropReply(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := kv.PutString(ctx, "k", "v"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Put = %v, want %v", err, context.DeadlineExceeded)
		}
		if _, err := kv.Get(t.Context(), "k"); err != nil {
			t.Errorf("Get = %v, want the value", err)
		}
	})
}
