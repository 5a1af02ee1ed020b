package claim_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
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

// TestRandomFaults lets workers come, go and suffer for a while, and operators have
// their will with the group. It checks that no two handlers of a partition ever
// believed at once, that tokens grew, that no checkpoint was stored under a later
// claim, that checkpoints never ran backwards, that nothing was handed over that no
// plan had ordered, and that everything is owned and running within two TTLs after
// the faults have ended.
func TestRandomFaults(t *testing.T) {
	for i := range *seeds {
		seed := *firstSeed + uint64(i)
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) { randomFaults(t, seed) })
		})
	}
}

// A handler that counts in its checkpoint, in one of several ways of being bad.
func (g *group) counting(kind int, calm <-chan struct{}) claim.Handler {
	t := g.t
	return func(ctx context.Context, p *claim.Partition) error {
		_, count, _ := strings.Cut(string(p.Checkpoint()), ":")
		n, _ := strconv.Atoi(count)
		if floor := g.confirmed(p.Name(), p.Token(), n); n < floor {
			t.Errorf("%s of %s began at checkpoint %d, want at least %d", p.Worker(), p.Name(), n, floor)
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
				if err := p.Save(ctx, fmt.Appendf(nil, "%d:%d", p.Token(), n)); err == nil {
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

func randomFaults(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	t.Logf("replay with -seed %d -seeds 1", seed)
	parts := 1 + rng.IntN(8)
	g := newGroup(t, parts, claim.WithDrainTimeout(3*time.Second), claim.WithBackoff(100*time.Millisecond, 2*time.Second))
	g.srv = natstest.Server(t, embedded.Store(t.TempDir()))
	witness := g.witness()
	calm := make(chan struct{}) // closed when the faults have ended

	var all, dead []*worker
	starts := 0
	spawn := func() {
		starts++
		var opts []claim.Option
		switch rng.IntN(6) {
		case 0:
			opts = append(opts, claim.WithRejoinDelay(0))
		case 1:
			opts = append(opts, claim.WithRestart())
		case 2:
			opts = append(opts, claim.WithHeartbeats(4))
		}
		all = append(all, g.startWith(fmt.Sprintf("w%d", rng.IntN(6)), g.counting(rng.IntN(4), calm), opts...))
	}
	pick := func() *worker { return all[rng.IntN(len(all))] }
	spawn()
	g.parts = nil // later ones take what is set up
	for range rng.IntN(3) {
		spawn()
	}
	admin := g.admin()
	someone := func() string { return fmt.Sprintf("w%d", rng.IntN(6)) }
	some := func() []string { return []string{strconv.Itoa(rng.IntN(parts))} }
	operate := func() {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		switch rng.IntN(10) { // it may be refused, or fail: nobody promised it anything
		case 0:
			_ = admin.Pin(ctx, someone(), some(), claim.Absent())
		case 1:
			_ = admin.Unpin(ctx, some())
		case 2:
			_ = admin.Pause(ctx, some())
		case 3:
			_ = admin.Resume(ctx, some())
		case 4:
			_ = admin.Cordon(ctx, []string{someone()}, claim.Absent())
		case 5:
			_ = admin.Drain(ctx, []string{someone()}, claim.Absent())
		case 6:
			_ = admin.Uncordon(ctx, []string{someone()})
		case 7:
			_ = admin.Move(ctx, some()[0], someone())
		case 8:
			_ = admin.Kick(ctx, someone())
		case 9:
			var opts []claim.VerbOption
			if rng.IntN(2) == 0 {
				opts = append(opts, claim.AfterDrain())
			}
			_ = admin.Resize(ctx, claim.Numbered(1+rng.IntN(8)), opts...)
		}
	}

	var release []func()
	var requests atomic.Int64 // every third is held back where that is asked for
	for range 12 + rng.IntN(20) {
		time.Sleep(time.Duration(rng.IntN(4000)) * time.Millisecond)
		switch w := pick(); rng.IntN(18) {
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
		case 13:
			if len(all) > 1 { // killed: nobody hears of it any more
				w.link.Cut()
				w.stop()
				dead = append(dead, w)
				for i := range all {
					if all[i] == w {
						all = append(all[:i], all[i+1:]...)
						break
					}
				}
			}
		default:
			operate()
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
	fresh := g.startWith("fresh", g.counting(0, calm))
	all = append(all, fresh)
	for i := range 6 {
		_ = admin.Uncordon(t.Context(), []string{fmt.Sprintf("w%d", i)}) // which may be neither there nor cordoned
	}
	s, err := fresh.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, len(s.Partitions))
	for i, p := range s.Partitions {
		names[i] = p.Name
	}
	if err := admin.Resume(t.Context(), names); err != nil {
		t.Fatal(err)
	}
	// The slowest handler takes 5 s; one TTL more if it looks like an outage.
	time.Sleep(2*g.ttl + 5*time.Second)
	synctest.Wait()
	for name, o := range owners(all...) {
		if len(o) < 2 {
			t.Errorf("partition %s is run by %q", name, o)
		}
	}
	if n := len(owners(all...)); n != len(names) {
		t.Errorf("%d of %d partitions run: %v", n, len(names), owners(all...))
		if s, err := fresh.Status(t.Context()); err == nil {
			t.Logf("%+v", s)
		}
	}
	witness.end()
	g.history.Check(t)
	if t.Failed() && os.Getenv("TENURE_TEST_LOG") == "" {
		t.Logf("%d workers were started; set TENURE_TEST_LOG=1 for their logs", starts)
	}
	for _, w := range dead {
		w.link.Mend() // so that it ends
	}
}

// C12, C14, C59, N63, N70: while only the membership changes, exactly as many partitions
// move as have to, in whatever order workers come and go, and then nothing moves.
func TestRandomMembershipMovesTheMinimum(t *testing.T) {
	for i := range max(1, *seeds/4) {
		seed := *firstSeed + uint64(i)
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) { randomMembership(t, seed) })
		})
	}
}

func randomMembership(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	t.Logf("replay with -seed %d -seeds 1", seed)
	parts := 5 + rng.IntN(40)
	g := newGroup(t, parts)
	all := []*worker{g.start("first")}
	time.Sleep(2 * time.Second)
	for step := range 20 {
		before, want := g.startsOf(), 0
		if len(all) == 1 || len(all) < 9 && rng.IntN(2) == 0 {
			all = append(all, g.start(fmt.Sprint("w", step)))
			want = parts / len(all)
		} else {
			i := rng.IntN(len(all))
			want = loads(all[i])[0]
			all[i].leave()
			all = append(all[:i], all[i+1:]...)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := g.startsOf() - before; n != want {
			t.Errorf("step %d, %d workers: partitions moved = %d, want %d", step, len(all), n, want)
		}
		if l := loads(all...); l[len(l)-1]-l[0] > 1 {
			t.Errorf("step %d: loads = %v, want them within one", step, l)
		}
	}
	before := g.startsOf()
	time.Sleep(time.Minute)
	if n := g.startsOf() - before; n != 0 {
		t.Errorf("partitions moved in a quiet minute = %d, want 0", n)
	}
	g.history.Check(t)
}
