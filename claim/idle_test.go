package claim_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded/natstest"
)

// What an idle group costs: O(workers) writes, however many partitions there are,
// and each heartbeat goes to three others at most.
func TestIdleGroupCostsOneHeartbeatPerWorkerDeliveredToThreeOthersAtMost(t *testing.T) {
	workers, partitions := 50, 5000
	if testing.Short() {
		workers, partitions = 20, 200
	}
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, partitions)
		g.ttl = 15 * time.Second
		all := g.crew(workers)
		time.Sleep(2*time.Minute + time.Second) // between heartbeats
		if n := len(owners(all...)); n != partitions {
			t.Fatalf("partitions that run = %d, want %d", n, partitions)
		}

		var sent, plans, lists atomic.Int64
		for _, w := range all {
			w.link.HoldRequest(func(subject string) bool {
				switch {
				case strings.HasPrefix(subject, "$KV.tenure.plan."):
					plans.Add(1)
				case strings.HasPrefix(subject, "$KV."):
					sent.Add(1)
				case strings.HasPrefix(subject, "$JS.API.CONSUMER.CREATE."):
					lists.Add(1)
				}
				return false
			})
		}
		js := natstest.JetStream(t, natstest.Connect(t, g.srv))
		count := func() (state jetstream.StreamState, delivered uint64) {
			t.Helper()
			s, err := js.Stream(t.Context(), "KV_tenure")
			if err != nil {
				t.Fatal(err)
			}
			consumers := s.ListConsumers(t.Context())
			for c := range consumers.Info() {
				delivered += c.Delivered.Consumer
			}
			if err := consumers.Err(); err != nil {
				t.Fatal(err)
			}
			return s.CachedInfo().State, delivered
		}
		before, from := count()
		time.Sleep(time.Minute)
		after, to := count()

		stored, beats := after.LastSeq-before.LastSeq, float64(workers*60*3)/g.ttl.Seconds()
		// A list of the members is a consumer of its own, which is gone again.
		delivered := to - from + uint64(int(lists.Load())*workers)
		t.Logf("%d workers, %d partitions, a minute: %d stored (%.2f × the heartbeats), %d sent, %d deliveries of heartbeats (%.2f each), %d lists, %d consumers",
			workers, partitions, stored, float64(stored)/beats, sent.Load(), delivered, float64(delivered)/beats, lists.Load(), after.Consumers)
		if limit := 1.3 * beats; float64(stored) > limit || float64(sent.Load()) > limit {
			t.Errorf("messages to the bucket = %d sent, %d stored, want at most %.0f", sent.Load(), stored, limit)
		}
		if limit := 3 * beats; float64(delivered) > limit || to == from {
			t.Errorf("deliveries of heartbeats = %d, want at most %.0f, and some", delivered, limit)
		}
		if n := plans.Load(); n != 0 { // C27: heartbeats alone are no reason to plan
			t.Errorf("plans stored in a minute without a change = %d, want 0", n)
		}
		// N64, C52: nothing accumulates.
		if after.Msgs != before.Msgs || after.Consumers > workers+2 {
			t.Errorf("bucket has %d entries, %d consumers, want %d and one per worker", after.Msgs, after.Consumers, before.Msgs)
		}
	})
}
