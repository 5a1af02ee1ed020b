package claim_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tenure/claim"
	"tenure/embedded"
	"tenure/embedded/natstest"
)

var (
	seeds     = flag.Int("seeds", 40, "how many seeds TestRandomFaults tries")
	firstSeed = flag.Uint64("seed", 1, "the first of them; with -seeds 1 it replays one")
)

// TestRandomFaults lets workers come, go and suffer for a while, and checks that
// no two handlers of a partition ever believed at once, that tokens grew, that
// checkpoints never ran backwards, and that everything is owned and running
// within two TTLs after the faults have ended.
func TestRandomFaults(t *testing.T) {
	for i := range *seeds {
		seed := *firstSeed + uint64(i)
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) { randomFaults(t, seed) })
		})
	}
}

func randomFaults(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	t.Logf("replay with -seed %d -seeds 1", seed)
	parts := 1 + rng.IntN(8)
	g := newGroup(t, parts, claim.WithDrainTimeout(3*time.Second), claim.WithBackoff(100*time.Millisecond, 2*time.Second))
	g.srv = natstest.Server(t, embedded.Store(t.TempDir()))
	calm := make(chan struct{}) // closed when the faults have ended

	// Every handler counts in its checkpoint; whoever reads a smaller count than
	// was confirmed for a smaller token has lost something.
	handler := func(kind int) claim.Handler {
		return func(ctx context.Context, p *claim.Partition) error {
			n, _ := strconv.Atoi(string(p.Checkpoint()))
			if floor := g.confirmed(p.Name(), p.Token(), n); n < floor {
				t.Errorf("seed %d: %s of %s began at checkpoint %d, want at least %d", seed, p.Worker(), p.Name(), n, floor)
			}
			tick := time.NewTicker(700 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					if kind == 1 {
						time.Sleep(2 * time.Second) // slow to see the end
					}
					return context.Cause(ctx)
				case <-p.Draining():
					switch kind {
					case 1:
						time.Sleep(time.Second)
					case 2:
						time.Sleep(5 * time.Second) // ignores the deadline
					}
					return nil
				case <-tick.C:
					n++
					if err := p.Save(ctx, []byte(strconv.Itoa(n))); err == nil {
						g.confirm(p.Name(), p.Token(), n)
					}
					select {
					case <-calm:
					default:
						if kind == 3 && n%7 == 0 {
							return errors.New("bad luck")
						}
						if kind == 3 && n%11 == 0 {
							panic("worse luck")
						}
					}
				}
			}
		}
	}

	var all []*worker
	starts := 0
	spawn := func() {
		opts := []claim.Option{claim.WithHeartbeats(3)}
		if starts++; starts > 1 {
			opts = append(opts, claim.WithPartitions()) // whatever they are by now
		}
		all = append(all, g.startWith(fmt.Sprintf("w%d", rng.IntN(6)), handler(rng.IntN(4)), opts...))
	}
	pick := func() *worker { return all[rng.IntN(len(all))] }
	for range 1 + rng.IntN(3) {
		spawn()
	}
	admin := g.admin()
	var release []func()
	var requests atomic.Int64 // every third is held back where that is asked for
	for range 12 + rng.IntN(20) {
		time.Sleep(time.Duration(rng.IntN(4000)) * time.Millisecond)
		switch w := pick(); rng.IntN(15) {
		case 0, 1:
			if len(all) < 8 {
				spawn()
			}
		case 2:
			w.stop()
		case 3, 4:
			w.link.Cut()
		case 5, 6:
			w.link.Mend()
		case 7:
			w.link.DropReply(1 + rng.IntN(4))
		case 8:
			w.link.Delay(time.Duration(rng.IntN(800)) * time.Millisecond)
		case 9:
			release = append(release, w.link.HoldRequest(func(string) bool { return requests.Add(1)%3 == 0 }))
		case 10:
			if len(release) > 0 {
				release[0]()
				release = release[1:]
			}
		case 11:
			w.link.Break()
		case 12:
			natstest.Restart(t, g.srv)
		case 13, 14:
			operate(t, admin, rng, parts)
		}
	}
	close(calm)
	for _, f := range release {
		f()
	}
	for _, w := range all {
		w.link.Delay(0)
		w.link.DropReply(0)
		w.link.Mend()
	}
	restore(t, admin, parts)
	fresh := g.startWith("fresh", handler(0), claim.WithPartitions())
	all = append(all, fresh)
	time.Sleep(2*g.ttl + 5*time.Second) // the slowest handler takes 5 s
	synctest.Wait()
	for name, o := range owners(all...) {
		if len(o) < 2 {
			t.Errorf("seed %d: partition %s is run by %q", seed, name, o)
		}
	}
	if n := len(owners(all...)); n != parts {
		t.Errorf("seed %d: %d of %d partitions run: %v", seed, n, parts, owners(all...))
		for _, name := range g.parts {
			if owners(all...)[name] == "" {
				x, err := admin.Explain(t.Context(), name)
				t.Logf("%+v, %v", x, err)
			}
		}
	}
	g.history.Check(t)
	if t.Failed() && os.Getenv("TENURE_TEST_LOG") == "" {
		t.Logf("%d workers were started; set TENURE_TEST_LOG=1 for their logs", starts)
	}
}

// operate has an operator do something. A refusal is no failure of the test.
func operate(t *testing.T, admin *claim.Admin, rng *rand.Rand, parts int) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	worker, p := fmt.Sprintf("w%d", rng.IntN(6)), []string{strconv.Itoa(rng.IntN(parts))}
	var err error
	switch rng.IntN(9) {
	case 0:
		err = admin.Pause(ctx, p)
	case 1:
		err = admin.Resume(ctx, p)
	case 2:
		err = admin.Pin(ctx, worker, p)
	case 3:
		err = admin.Move(ctx, p[0], worker)
	case 4:
		err = admin.Cordon(ctx, []string{worker}, claim.Absent())
	case 5:
		err = admin.Drain(ctx, []string{worker}, claim.Absent())
	case 6:
		err = admin.Uncordon(ctx, []string{worker})
	case 7:
		err = admin.Resize(ctx, claim.Numbered(1+rng.IntN(2*parts)))
	case 8:
		err = admin.Resize(ctx, claim.Numbered(1+rng.IntN(2*parts)), claim.AfterDrain())
	}
	t.Logf("operator: %v", err)
}

// restore takes everything back that operate did.
func restore(t *testing.T, admin *claim.Admin, parts int) {
	t.Helper()
	ok(t, admin.Resize(t.Context(), claim.Numbered(parts)))
	ok(t, admin.Resume(t.Context(), claim.Numbered(parts)))
	ok(t, admin.Unpin(t.Context(), claim.Numbered(parts)))
	for i := range 6 {
		worker := []string{fmt.Sprintf("w%d", i)}
		ok(t, admin.Cordon(t.Context(), worker, claim.Absent()))
		ok(t, admin.Uncordon(t.Context(), worker))
	}
}
