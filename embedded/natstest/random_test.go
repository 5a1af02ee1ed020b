package natstest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded/natstest"
)

// Whatever happens to the link and the server: what was acknowledged is stored,
// clients come back after it, and nothing is left running. A failing seed is in
// the name of its subtest.
func TestRandomFaultsLoseNothingAcknowledged(t *testing.T) {
	seeds := uint64(50)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) { randomFaults(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func randomFaults(t *testing.T, rnd *rand.Rand) {
	srv := natstest.Server(t)
	witness := bucket(t, natstest.Connect(t, srv), jetstream.FileStorage)
	link := natstest.NewLink(t, srv)
	ctx, stop := context.WithCancel(t.Context())
	acked := make(chan []string)
	const writers = 3
	for w := range writers {
		kv, err := natstest.JetStream(t, link.Connect()).KeyValue(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			var keys []string
			for i := 0; ctx.Err() == nil; i++ {
				key := fmt.Sprintf("w%d.%d", w, i)
				attempt, cancel := context.WithTimeout(ctx, time.Second)
				if _, err := kv.Create(attempt, key, nil); err == nil {
					keys = append(keys, key)
				}
				cancel()
				time.Sleep(500 * time.Millisecond)
			}
			acked <- keys
		}()
	}

	release := func() {}
	faults := []func(){
		link.Cut, link.CutUp, link.CutDown, link.Mend, link.Mend, link.Break,
		func() { link.Delay(time.Duration(rnd.IntN(300)) * time.Millisecond) },
		func() { link.DropReply(rnd.IntN(5)) },
		func() { link.DuplicateReply(rnd.IntN(5)) },
		func() { link.DropRequest(rnd.IntN(5), toBucket) },
		func() { release(); release = link.HoldRequest(toBucket) },
		func() { release(); release = link.HoldReply() },
		func() { release() },
		func() { natstest.Restart(t, srv) },
	}
	for range 20 {
		faults[rnd.IntN(len(faults))]()
		time.Sleep(time.Duration(rnd.IntN(20_000)) * time.Millisecond)
	}
	link.Mend()
	link.Delay(0)
	release()
	time.Sleep(time.Minute)
	before, err := witness.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Minute)
	after, err := witness.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if after.Values() <= before.Values() {
		t.Errorf("values = %d a minute after %d, want more: writers are back", after.Values(), before.Values())
	}

	stop()
	stored, err := witness.Keys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(stored)
	for range writers {
		for _, key := range <-acked {
			if _, ok := slices.BinarySearch(stored, key); !ok {
				t.Errorf("%q was acknowledged and is not stored", key)
			}
		}
	}
}
