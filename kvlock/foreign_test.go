package kvlock_test

import (
	"context"
	"encoding/json"
	"errors"
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
	"tenure/kvlock"
)

// foreign returns bytes that none of ours wrote in place of value: nothing, noise, pieces
// of it, and what it would be with one field changed to something unusual.
func foreign(rnd *rand.Rand, value []byte) [][]byte {
	noise := make([]byte, 1+rnd.IntN(64))
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	all := [][]byte{{}, noise, []byte("null"), []byte("[]"), []byte(`{"v":1}`), []byte(strings.Repeat("[", 10_000)), value[:len(value)/2], append(slices.Clone(value), '}')}
	var fields map[string]any
	if json.Unmarshal(value, &fields) != nil {
		return all
	}
	odd := []any{nil, "", ">", "*", "a.b", "\x00", strings.Repeat("x", 5000), -1, 0, 1e300, 1 << 40, true, []any{}, map[string]any{}}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		was := fields[name]
		fields[name] = odd[rnd.IntN(len(odd))]
		if changed, err := json.Marshal(fields); err == nil {
			all = append(all, changed)
		}
		fields[name] = was
	}
	return all
}

// S1, S2, S9, S10: whatever somebody writes over every key of the bucket, nobody panics or
// gets what another has, who loses a hold hears why, and when the foreign bytes are gone
// everything can be taken again.
func TestForeignBytesInEveryKeyMakeNoSecondHolder(t *testing.T) {
	seeds := uint64(4)
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
	s := newSite(t)
	var history natstest.History
	ctx, stop := context.WithCancel(t.Context())
	defer stop()

	// Two processes want one of each kind, again and again.
	done := make(chan struct{})
	var workers int
	taken := make(map[string]int)
	count := make(chan string, 1000)
	for i := range 2 {
		p := s.process(fmt.Sprintf("p%d", i), kvlock.WithTTL(3*time.Second))
		pool, err := p.Semaphore(ctx, "pool", 1)
		if err != nil {
			t.Fatal(err)
		}
		for name, take := range map[string]func(context.Context) (*kvlock.Lock, error){
			"job":   func(ctx context.Context) (*kvlock.Lock, error) { return p.Lock(ctx, "job") },
			"rw":    func(ctx context.Context) (*kvlock.Lock, error) { return p.RWLock("rw").Lock(ctx) },
			"pool":  pool.Lock,
			"chief": func(ctx context.Context) (*kvlock.Lock, error) { return p.Election("chief").Campaign(ctx, "me") },
		} {
			workers++
			go func() {
				defer func() { done <- struct{}{} }()
				for ctx.Err() == nil {
					k, err := take(ctx)
					if err != nil {
						time.Sleep(200 * time.Millisecond)
						continue
					}
					select {
					case count <- name:
					default:
					}
					held := history.Begin(fmt.Sprintf("p%d", i), k.Name(), k.Token())
					unhook := context.AfterFunc(k.Context(), held.End)
					select {
					case <-k.Context().Done():
						if lost, ok := errors.AsType[*kvlock.LostError](k.Err()); !ok || lost.Reason == "" {
							t.Errorf("the hold of %s ended with %v, want a reason", name, k.Err())
						}
					case <-time.After(time.Second):
					case <-ctx.Done():
					}
					unhook()
					held.End()
					_ = k.Release(context.WithoutCancel(ctx)) // it may be lost
				}
			}()
		}
	}
	time.Sleep(2 * time.Second)

	kv := s.kv()
	wrote := make(map[string]uint64) // the revisions of what is foreign
	put := func(key string, value []byte) {
		revision, err := kv.Put(t.Context(), key, value)
		if err != nil {
			t.Fatalf("Put %s = %v", key, err)
		}
		wrote[key] = revision
	}
	for range 20 {
		for _, key := range s.keys("") {
			e, err := kv.Get(t.Context(), key)
			if err != nil {
				continue // it has just gone
			}
			all := foreign(rnd, e.Value())
			put(key, all[rnd.IntN(len(all))])
		}
		for _, prefix := range []string{"lock.", "slot.", "read.", "wait.", "data.", "member.", "x."} {
			name := []string{"job", "rw", "pool", "chief", "new"}[rnd.IntN(5)]
			put(prefix+name+"."+fmt.Sprint(rnd.IntN(1000)), foreign(rnd, []byte("{}"))[rnd.IntN(5)])
		}
		time.Sleep(time.Duration(rnd.Int64N(int64(2 * time.Second))))
	}
	if len(wrote) < 100 {
		t.Errorf("%d keys were written, want more", len(wrote))
	}

	// Whoever had a hold has heard of its loss by now; then the operator removes what is
	// foreign. To remove the key of a hold that lives would be another thing: see Break.
	time.Sleep(3 * time.Second)
	for key, revision := range wrote {
		if e, err := kv.Get(t.Context(), key); err == nil && e.Revision() == revision {
			if err := kv.Purge(t.Context(), key, jetstream.LastRevision(revision)); err != nil {
				t.Fatal(err)
			}
		}
	}
	time.Sleep(15 * time.Second)
	for len(count) > 0 {
		<-count
	}
	time.Sleep(15 * time.Second)
	for len(count) > 0 {
		taken[<-count]++
	}
	for _, name := range []string{"job", "rw", "pool", "chief"} {
		if taken[name] < 3 {
			t.Errorf("%s was taken %d times after the foreign bytes were gone, want more", name, taken[name])
		}
	}
	stop()
	for range workers {
		<-done
	}
	history.Check(t)
}

// S1: a request is a hint: whatever it says, a hold goes on and the line moves.
func TestForeignRequestsChangeNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		k := a.lock(t, "job")
		other := a.lock(t, "other")
		waits := b.waiting(t.Context(), "job")

		var subjects, nonces []string
		for _, key := range s.keys("") {
			e, err := s.kv().Get(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			var r struct{ Process, Nonce string }
			if err := json.Unmarshal(e.Value(), &r); err != nil {
				t.Fatal(err)
			}
			if subject := "_tenure.tenure." + r.Process; !slices.Contains(subjects, subject) {
				subjects = append(subjects, subject)
			}
			nonces = append(nonces, r.Nonce)
		}
		if len(subjects) != 2 || len(nonces) != 3 {
			t.Fatalf("the bucket has processes %q and nonces %q, want 2 and 3", subjects, nonces)
		}
		nc := natstest.Connect(t, s.srv)
		rnd := rand.New(rand.NewPCG(1, 2))
		pick := func(of ...any) any { return of[rnd.IntN(len(of))] }
		for range 4000 {
			data, err := json.Marshal(map[string]any{
				"op":    pick("ping", "note", "note", "free", "next", "look", "gone", "", 7),
				"lock":  pick("job", "other", ">", "*", ">", "*", "a.b", "", "job.slot", strings.Repeat("x", 300), "\x00"),
				"part":  pick("", "0", "7", "zz", ">", nil),
				"nonce": pick(nonces[rnd.IntN(len(nonces))], "", ">", "nobody"),
				"token": pick(0, k.Token(), other.Token(), 1<<50),
				"at":    pick(0, 1, k.Token(), 1<<50),
				"low":   pick(0, k.Token(), 1<<50),
				"place": pick(nil, map[string]any{}, map[string]any{"process": "p", "nonce": "n", "revision": uint64(1) << 50}, 5),
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
		synctest.Wait()
		stream, err := natstest.JetStream(t, nc).Stream(t.Context(), "KV_tenure")
		if err != nil {
			t.Fatal(err)
		}
		info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("$KV.tenure.>"))
		if err != nil {
			t.Fatal(err)
		}
		if n := len(info.State.Subjects); n != 3 {
			t.Errorf("the bucket has the subjects %v, want those of two locks and a ticket", info.State.Subjects)
		}
		time.Sleep(time.Minute)
		wantHeldOn(t, k)
		wantHeldOn(t, other)
		release(t, other)
		began := time.Now()
		release(t, k)
		got := <-waits
		if got.err != nil {
			t.Fatalf("Lock = %v, want nil", got.err)
		}
		// A lie about the line may cost its place the news, but not more than a timer.
		if took := got.at.Sub(began); took > 3*time.Second {
			t.Errorf("the next holder came after %v, want at most 3s", took)
		}
		wantHeldOn(t, got.lock)
		release(t, got.lock)
	})
}
