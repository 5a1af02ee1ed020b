package claim_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded/natstest"
	"tenure/kvlock/bucket"
)

// foreign returns bytes that are no record in place of value: nothing, noise, pieces of it,
// and what it would be with one field of another type, version or range. Whoever writes a
// true record with another owner in it can take a partition from its worker; what that one
// writes under its token is refused then.
func foreign(rnd *rand.Rand, value []byte) []byte {
	noise := make([]byte, 1+rnd.IntN(64))
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	all := [][]byte{{}, noise, []byte("null"), []byte("[]"), []byte("{}"), []byte(`{"v":1}`), []byte(strings.Repeat("[", 1000)), value[:len(value)/2], append(slices.Clone(value), '}')}
	var fields map[string]any
	if json.Unmarshal(value, &fields) == nil {
		odd := map[string]any{"v": 2, "state": "x", "owner": 7, "epoch": uint64(1) << 63, "nonce": []any{}}
		for _, name := range slices.Sorted(maps.Keys(odd)) {
			if was, there := fields[name]; there {
				fields[name] = odd[name]
				if changed, err := json.Marshal(fields); err == nil {
					all = append(all, changed)
				}
				fields[name] = was
			}
		}
	}
	return all[rnd.IntN(len(all))]
}

// C1, S4, S10: whatever somebody writes over the keys of a group, nobody panics, and no
// partition is handled twice; when the foreign bytes are gone every partition is handled.
func TestForeignBytesInEveryKeyMakeNoSecondOwner(t *testing.T) {
	seeds := uint64(6)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) { foreignBytes(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func foreignBytes(t *testing.T, rnd *rand.Rand) {
	g := newGroup(t, 6)
	workers := []*worker{g.start("a"), g.start("b"), g.start("c")}
	g.wantLoads(2*time.Second, []int{2, 2, 2}, workers...)

	js := natstest.JetStream(t, natstest.Connect(t, g.srv))
	kv, err := js.KeyValue(t.Context(), bucket.DefaultName)
	if err != nil {
		t.Fatal(err)
	}
	wrote := make(map[string]uint64) // the revisions of what is foreign
	put := func(key string, value []byte) {
		revision, err := kv.Put(t.Context(), key, value)
		if err != nil {
			t.Fatalf("Put %s = %v", key, err)
		}
		wrote[key] = revision
	}
	for range 12 {
		keys, err := kv.Keys(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			if e, err := kv.Get(t.Context(), key); err == nil && rnd.IntN(3) == 0 {
				put(key, foreign(rnd, e.Value()))
			}
		}
		for _, prefix := range []string{"member", "claim", "plan", "group", "check"} {
			put(fmt.Sprintf("%s.orders.%d", prefix, rnd.IntN(20)), foreign(rnd, []byte("{}")))
		}
		time.Sleep(time.Duration(rnd.Int64N(int64(5 * time.Second))))
	}

	// All have heard of what they lost by now; then the operator removes what is foreign.
	time.Sleep(g.ttl)
	for key, revision := range wrote {
		if e, err := kv.Get(t.Context(), key); err == nil && e.Revision() == revision {
			if err := kv.Purge(t.Context(), key, jetstream.LastRevision(revision)); err != nil {
				t.Fatal(err)
			}
		}
	}
	time.Sleep(3 * g.ttl)
	synctest.Wait()
	owner := owners(workers...)
	for _, p := range g.parts {
		if len(owner[p]) != 1 {
			t.Errorf("partition %s is handled by %q, want one worker", p, owner[p])
		}
	}
	for _, w := range workers {
		select {
		case <-w.done:
			t.Errorf("Run of %s = %v, want it to go on", w.ID(), w.err)
		default:
		}
	}
	g.history.Check(t)
}

// C4: a message is a hint: whatever it says, no partition moves.
func TestForeignMessagesMoveNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 6)
		a, b := g.start("a"), g.start("b")
		g.wantLoads(2*time.Second, []int{3, 3}, a, b)
		before, starts := owners(a, b), g.startsOf()

		nc := natstest.Connect(t, g.srv)
		js := natstest.JetStream(t, nc)
		kv, err := js.KeyValue(t.Context(), bucket.DefaultName)
		if err != nil {
			t.Fatal(err)
		}
		var subjects []string
		for _, w := range []*worker{a, b} {
			e, err := kv.Get(t.Context(), "member.orders."+w.ID())
			if err != nil {
				t.Fatal(err)
			}
			var member struct {
				Epoch uint64 `json:"epoch"`
			}
			if err := json.Unmarshal(e.Value(), &member); err != nil {
				t.Fatal(err)
			}
			if member.Epoch == 0 {
				t.Fatalf("member record %s has no epoch", e.Value())
			}
			subjects = append(subjects, fmt.Sprintf("_tenure.tenure.claim.orders.%s.%d", w.ID(), member.Epoch))
		}
		rnd := rand.New(rand.NewPCG(1, 2))
		pick := func(of ...any) any { return of[rnd.IntN(len(of))] }
		for range 3000 {
			data, err := json.Marshal(map[string]any{
				"op":        pick("ping", "offer", "yours", "yield", "", 7),
				"partition": pick("0", "1", "5", "6", ">", "*", "a.b", "", strings.Repeat("x", 300), "\x00", nil),
				"revision":  pick(0, 1, uint64(1)<<50, uint64(1)<<63, -1),
			})
			if err != nil {
				t.Fatal(err)
			}
			if rnd.IntN(10) == 0 {
				data = data[:rnd.IntN(len(data))]
			}
			if err := nc.Publish(subjects[rnd.IntN(2)], data); err != nil {
				t.Fatal(err)
			}
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * g.ttl)
		synctest.Wait()
		if have := owners(a, b); fmt.Sprint(have) != fmt.Sprint(before) {
			t.Errorf("owners = %v, want %v as before", have, before)
		}
		if n := g.startsOf(); n != starts {
			t.Errorf("handlers were started %d times, want %d as before", n, starts)
		}
		c := g.start("c")
		g.wantLoads(2*time.Second, []int{2, 2, 2}, a, b, c) // and what is ordered moves
		g.history.Check(t)
	})
}

// H6, C11: a claim is not read while it is held. Who writes over it, or removes it, is
// seen by the leader, which tells the owner:
//
//	kv purge claim.orders.0 ; leader sees a marker that nobody wrote who may ;
//	leader tells the owner ; owner reads the marker above its own revision: lost
//
// Else the next move would give the partition to another, and both would run it, for as
// long as the first one does not write.
func TestClaimThatSomebodyElseWroteOverEndsItsHandlerAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		a, b := g.start("a"), g.start("b")
		g.wantLoads(2*time.Second, []int{2, 2}, a, b)
		kv, err := natstest.JetStream(t, natstest.Connect(t, g.srv)).KeyValue(t.Context(), bucket.DefaultName)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range g.parts {
			if err := kv.Purge(t.Context(), "claim.orders."+p); err != nil {
				t.Fatal(err)
			}
		}
		before := time.Now()
		time.Sleep(time.Second)
		synctest.Wait()
		for _, p := range g.parts {
			again := g.starts[p][len(g.starts[p])-1]
			if n := len(g.starts[p]); n != 2 || again.at.Sub(before) > 100*time.Millisecond || again.token <= g.starts[p][0].token {
				t.Errorf("partition %s: starts %v, want a second one at once, under a larger token", p, g.starts[p])
			}
		}
		g.wantLoads(0, []int{2, 2}, a, b)

		// What cannot be read as a claim bars everybody, until it is removed.
		if _, err := kv.PutString(t.Context(), "claim.orders.0", "hello"); err != nil {
			t.Fatal(err)
		}
		g.wantLoads(time.Second, []int{1, 2}, a, b)
		g.wantLoads(3*g.ttl, []int{1, 2}, a, b)
		if err := kv.Purge(t.Context(), "claim.orders.0"); err != nil {
			t.Fatal(err)
		}
		g.wantLoads(2*time.Second, []int{2, 2}, a, b)
		c := g.start("c")
		g.wantLoads(2*time.Second, []int{1, 1, 2}, a, b, c)
		g.history.Check(t)
	})
}
