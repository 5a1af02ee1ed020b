package kvlock_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded/natstest"
	"tenure/kvlock"
	"tenure/kvlock/fence"
)

var (
	seeds = flag.Int("seeds", fewer(40), "how many seeds the random-fault test runs")
	seed  = flag.Uint64("seed", 1, "the first seed that the random-fault test runs")
)

// fewer returns how many of n seeds a test runs by itself: a quarter under the race
// detector, where each takes several times as long. CI runs all of them without it.
func fewer(n int) int {
	if natstest.Race {
		return n / 4
	}
	return n
}

// S1, S2, S3, S7, S8, S9, the order of the line, that it moves again when the faults
// end, and that nothing is left behind. Run a seed again with -run RandomFaults
// -seeds 1 -seed N.
func TestPromisesHoldUnderRandomFaults(t *testing.T) {
	n := *seeds
	if testing.Short() {
		n = min(n, 5)
	}
	for s := *seed; s < *seed+uint64(n); s++ {
		t.Run(fmt.Sprintf("seed=%d", s), func(t *testing.T) {
			var c *chaos
			natstest.Bubble(t, func(t *testing.T) {
				c = newChaos(t, s)
				c.run()
			})
			if c != nil {
				c.linear.check(t) // in real time, since it has a deadline
			}
		})
	}
}

// The pace of a run. Faults come in two bursts; what the second one left is over
// after settle, and from then on the line has to be in order.
const (
	chaosTTL = 3 * time.Second
	burst    = 25              // faults
	settle   = 3 * chaosTTL    // a tombstone, a TTL, and the timers of those who wait
	quiet    = 6 * time.Second // in which the order of the line counts
	progress = 4 * chaosTTL    // for everybody to get every lock again
	garbage  = 12 * time.Second
)

// chaos is one run: processes that take locks and write under them, while faults
// come and go.
type chaos struct {
	t       *testing.T
	rnd     *rand.Rand // of the faults only; the workers have their own
	seed    uint64
	site    *site
	ps      []*process
	names   []string  // of locks
	things  [][]thing // by process
	guard   *fence.KV
	lets    []func()    // end what is held back
	faulty  atomic.Bool // else no message is lost
	history natstest.History
	linear  linear
	witness *witness
	reign   reign

	mu     sync.Mutex
	broken map[string]bool // names that somebody tried to break
	calls  []call
	spans  []span
	still  []span // when nothing failed
}

// A call is one call of Lock or TryLock.
type call struct {
	span
	gained bool
}

// A span is what lasted for a while: a call, or the belief in a hold.
type span struct {
	who, name string
	from, to  time.Time
	token     uint64
	shared    bool // by readers
}

func newChaos(t *testing.T, seed uint64) *chaos {
	c := &chaos{
		t: t, rnd: rand.New(rand.NewPCG(seed, 0)), seed: seed, site: newSite(t),
		names: []string{"x", "y"}, broken: make(map[string]bool),
	}
	for i := range 3 {
		p := c.site.process(string(rune('a'+i)), kvlock.WithTTL(chaosTTL))
		c.ps = append(c.ps, p)
		c.things = append(c.things, c.thingsOf(p))
	}
	nc := natstest.Connect(t, c.site.srv)
	kv, err := natstest.JetStream(t, nc).CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "resource"})
	if err != nil {
		t.Fatal(err)
	}
	c.guard = fence.NewKV(kv)
	c.witness = newWitness(t, nc)
	return c
}

func (c *chaos) run() {
	ctx, stop := context.WithCancel(c.t.Context())
	var all sync.WaitGroup
	for i := range c.ps {
		for j := range 2 {
			w := &worker{
				chaos: c, things: c.things[i], who: fmt.Sprintf("%s%d", "abc"[i:i+1], j), client: 2*i + j,
				rnd: rand.New(rand.NewPCG(c.seed, uint64(10*i+j+1))),
			}
			all.Go(func() { w.work(ctx) })
		}
	}
	c.reign.begin(ctx, c, &all)
	for range 2 {
		c.faulty.Store(true)
		for range burst {
			time.Sleep(time.Duration(c.rnd.Int64N(int64(2 * time.Second))))
			c.fault()
		}
		c.mend()
		time.Sleep(settle)
		from := time.Now()
		time.Sleep(quiet)
		c.still = append(c.still, span{from: from, to: time.Now()})
		c.reign.isSeen(c)
	}
	stop()
	all.Wait()
	c.history.Check(c.t)
	c.checkOrder()
	c.checkReaders()
	c.reign.check(c)
	c.recovers()
	c.witness.check(c)
	c.t.Logf("%d calls, %d holds", len(c.calls), len(c.spans))
}

// fault does one random thing to one process, or to all.
func (c *chaos) fault() {
	p := c.ps[c.rnd.IntN(len(c.ps))]
	within := func(d time.Duration) time.Duration { return time.Duration(c.rnd.Int64N(int64(d))) }
	// What a burst left to be lost is not lost in the quiet after it.
	toBucket := func(subject string) bool { return c.faulty.Load() && strings.HasPrefix(subject, "$KV.tenure.") }
	toProcess := func(subject string) bool { return c.faulty.Load() && toProcesses(subject) }
	answer := func(subject string, _ []byte) bool {
		return toBucket(subject) || c.faulty.Load() && strings.HasPrefix(subject, "$JS.API.")
	}
	switch c.rnd.IntN(16) {
	case 0:
		p.link.Cut()
	case 1: // a pause of the whole process, as others see it, past the TTL at times
		p.link.Cut()
		time.AfterFunc(within(2*chaosTTL), p.link.Mend)
	case 2:
		p.link.CutUp()
	case 3:
		p.link.CutDown()
	case 4, 5:
		for _, p := range c.ps {
			p.link.Mend()
		}
	case 6:
		p.link.Break()
	case 7:
		p.link.Delay(within(400 * time.Millisecond))
	case 8, 9:
		p.link.DropReply(1+c.rnd.IntN(4), answer)
	case 10:
		p.link.DuplicateReply(1+c.rnd.IntN(4), answer)
	case 11:
		p.link.DropRequest(1+c.rnd.IntN(4), toProcess)
	case 12:
		p.link.DropRequest(1+c.rnd.IntN(2), toBucket)
	case 13:
		let := p.link.HoldRequest(toBucket)
		c.lets = append(c.lets, let)
		time.AfterFunc(within(5*time.Second), let)
	case 14:
		let := p.link.HoldReply(answer)
		c.lets = append(c.lets, let)
		time.AfterFunc(within(5*time.Second), let)
	case 15:
		if c.rnd.IntN(2) == 0 {
			natstest.Restart(c.t, c.site.srv)
			return
		}
		name := c.names[c.rnd.IntN(len(c.names))]
		c.mu.Lock()
		c.broken[name] = true
		c.mu.Unlock()
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
		defer cancel()
		_ = p.Locker.Break(ctx, name, "chaos") // it need not be held
	}
}

// mend ends all faults.
func (c *chaos) mend() {
	c.faulty.Store(false)
	for _, let := range c.lets {
		let()
	}
	c.lets = nil
	for _, p := range c.ps {
		p.link.Mend()
		p.link.Delay(0)
	}
}

// checkOrder checks that nobody who came later was served before somebody who was
// standing in line, while nothing failed.
func (c *chaos) checkOrder() {
	const soon = 500 * time.Millisecond // in which a ticket is surely stored
	for _, still := range c.still {
		for _, waits := range c.calls {
			if waits.from.Before(still.from) {
				continue // its ticket may have been lost and written anew
			}
			for _, other := range c.calls {
				if other.gained && other.name == waits.name && other.to.Before(still.to) &&
					other.from.Sub(waits.from) > soon && waits.to.Sub(other.to) > soon {
					c.t.Errorf("%s asked for %q at %v and got it at %v, though %s was waiting from %v to %v (gained: %v)", other.who, other.name,
						clock(other.from), clock(other.to), waits.who, clock(waits.from), clock(waits.to), waits.gained)
				}
			}
		}
	}
}

// checkReaders checks that nobody wrote while somebody read (S1).
func (c *chaos) checkReaders() {
	for _, r := range c.spans {
		for _, w := range c.spans {
			if r.shared && !w.shared && r.name == w.name && r.from.Before(w.to) && w.from.Before(r.to) {
				c.t.Errorf("%s read %q from %v to %v, while %s held it from %v to %v", r.who, r.name, clock(r.from), clock(r.to), w.who, clock(w.from), clock(w.to))
			}
		}
	}
}

// recovers checks that everybody gets every lock again, and that nothing is left.
func (c *chaos) recovers() {
	ctx, cancel := context.WithTimeout(c.t.Context(), progress)
	defer cancel()
	var all sync.WaitGroup
	for _, things := range c.things {
		for _, what := range things {
			all.Go(func() {
				k, err := what.take(ctx, true)
				if err == nil {
					err = k.Release(ctx)
				}
				if err != nil {
					c.t.Errorf("Lock and Release of %q after the faults = %v, want nil", what.name, err)
				}
			})
		}
	}
	all.Wait()
	time.Sleep(garbage)
	stays := func(key string) bool { return key == "slot.pool" || strings.HasPrefix(key, "data.") }
	if left := slices.DeleteFunc(c.site.keys(""), stays); len(left) > 0 {
		c.t.Errorf("keys left = %v, want none", left)
	}
}

func (c *chaos) record(made call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, made)
}

func clock(at time.Time) string { return at.UTC().Format("15:04:05.000000") }
