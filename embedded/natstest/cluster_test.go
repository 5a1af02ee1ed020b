package natstest_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded/natstest"
)

// stream makes a stream of three replicas and returns a function that publishes
// to it until that works.
func stream(t *testing.T, c *natstest.ThreeNodes, js jetstream.JetStream) (publish func()) {
	t.Helper()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "s", Subjects: []string{"s.>"}, Replicas: 3}); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		deadline := time.Now().Add(20 * time.Second)
		for {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := js.Publish(ctx, "s.x", nil)
			cancel()
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("Publish = %v, want success within 20 s", err)
			}
		}
	}
}

func TestClusterOutlivesItsLeader(t *testing.T) {
	if testing.Short() {
		t.Skip("elections in real time")
	}
	c := natstest.Cluster(t)
	js := natstest.JetStream(t, c.Connect())
	publish := stream(t, c, js)
	publish()

	first := c.Leader("s")
	c.Kill(first)
	killed := time.Now()
	publish()
	t.Logf("published %v after the crash", time.Since(killed))
	if time.Since(killed) < time.Second {
		t.Error("published at once, want an outage as after a crash")
	}
	second := c.Leader("s")
	if second == first {
		t.Errorf("Leader = %d, want another than the one killed", second)
	}
	c.Restart(first)
	publish()
	if old := c.StepDown("s"); old != second {
		t.Errorf("StepDown = %d, want %d", old, second)
	}
	publish()
	info, err := js.Stream(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	if got := info.CachedInfo().State.Msgs; got < 4 {
		t.Errorf("messages = %d, want all 4", got)
	}
}

func TestIsolatedLeaderIsReplaced(t *testing.T) {
	if testing.Short() {
		t.Skip("elections in real time")
	}
	c := natstest.Cluster(t)
	js := natstest.JetStream(t, c.Connect())
	publish := stream(t, c, js)
	publish()

	old := c.Leader("s")
	isolated := natstest.JetStream(t, c.ConnectTo(old))
	c.Isolate(old)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := isolated.Publish(ctx, "s.x", nil); err == nil {
		t.Error("Publish to the isolated leader was acknowledged")
	}
	at := time.Now()
	next := c.Leader("s")
	t.Logf("new leader %v after the isolation", time.Since(at))
	if next == old {
		t.Errorf("Leader = %d, want another than the one isolated", next)
	}
	c.Heal()
	publish()
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		if _, err := isolated.Publish(ctx, "s.x", nil); err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("server does not serve again after Heal")
		}
	}
}
