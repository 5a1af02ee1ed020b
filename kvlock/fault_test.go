package kvlock_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded/natstest"
	"tenure/kvlock"
	"tenure/kvlock/fence"
)

var (
	seeds = flag.Int("seeds", 40, "how many seeds the random-fault test runs")
	seed  = flag.Uint64("seed", 1, "the first seed that the random-fault test runs")
)

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
	lets    []func() // end what is held back
	history natstest.History
	linear  linear
	witness *witness

	mu     sync.Mutex
	broken map[string]bool // names that somebody tried to break
	calls  []call
	spans  []span
	still  []span // when nothing failed
}

// A thing is what a worker can take.
type thing struct {
	name     string
	try, get func(context.Context) (*kvlock.Lock, error)
}

// thingsOf returns what is taken in a run: a lock, and either another one or a
// semaphore.
func (c *chaos) thingsOf(p *process) []thing {
	things := []thing{lockThing(p, "x")}
	if c.seed%2 == 0 {
		return append(things, lockThing(p, "y"))
	}
	s, err := p.Semaphore(c.t.Context(), "pool", 2)
	if err != nil {
		c.t.Fatal(err)
	}
	return append(things, thing{"pool", s.TryLock, s.Lock})
}

func lockThing(p *process, name string) thing {
	return thing{
		name,
		func(ctx context.Context) (*kvlock.Lock, error) { return p.TryLock(ctx, name) },
		func(ctx context.Context) (*kvlock.Lock, error) { return p.Lock(ctx, name) },
	}
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
	for range 2 {
		for range burst {
			time.Sleep(time.Duration(c.rnd.Int64N(int64(2 * time.Second))))
			c.fault()
		}
		c.mend()
		time.Sleep(settle)
		from := time.Now()
		time.Sleep(quiet)
		c.still = append(c.still, span{from: from, to: time.Now()})
	}
	stop()
	all.Wait()
	c.history.Check(c.t)
	c.checkOrder()
	c.recovers()
	c.witness.check(c)
	c.t.Logf("%d calls, %d holds", len(c.calls), len(c.spans))
}

// fault does one random thing to one process, or to all.
func (c *chaos) fault() {
	p := c.ps[c.rnd.IntN(len(c.ps))]
	within := func(d time.Duration) time.Duration { return time.Duration(c.rnd.Int64N(int64(d))) }
	toBucket := func(subject string) bool { return strings.HasPrefix(subject, "$KV.tenure.") }
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
		p.link.DropReply(1 + c.rnd.IntN(4))
	case 10:
		p.link.DuplicateReply(1 + c.rnd.IntN(4))
	case 11:
		p.link.DropRequest(1+c.rnd.IntN(4), toProcesses)
	case 12:
		p.link.DropRequest(1+c.rnd.IntN(2), toBucket)
	case 13:
		let := p.link.HoldRequest(toBucket)
		c.lets = append(c.lets, let)
		time.AfterFunc(within(5*time.Second), let)
	case 14:
		let := p.link.HoldReply()
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
	for _, let := range c.lets {
		let()
	}
	c.lets = nil
	for _, p := range c.ps {
		// What was to be lost still may be: one more message of each kind ends that.
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

// recovers checks that everybody gets every lock again, and that nothing is left.
func (c *chaos) recovers() {
	ctx, cancel := context.WithTimeout(c.t.Context(), progress)
	defer cancel()
	var all sync.WaitGroup
	for _, things := range c.things {
		for _, what := range things {
			all.Go(func() {
				k, err := what.get(ctx)
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
	limit := func(key string) bool { return key == "slot.pool" }
	if left := slices.DeleteFunc(c.site.keys(""), limit); len(left) > 0 {
		c.t.Errorf("keys left = %v, want none", left)
	}
}

// A worker is one goroutine that takes locks and writes under them.
type worker struct {
	*chaos
	things []thing
	who    string
	client int
	rnd    *rand.Rand
}

func (w *worker) within(d time.Duration) time.Duration { return time.Duration(w.rnd.Int64N(int64(d))) }

// work takes locks and writes under them until ctx ends.
func (w *worker) work(ctx context.Context) {
	for ctx.Err() == nil {
		what := w.things[w.rnd.IntN(len(w.things))]
		take, cancel := context.WithCancel(ctx)
		if w.rnd.IntN(2) == 0 {
			take, cancel = context.WithTimeout(ctx, w.within(10*time.Second))
		} else { // a wait without a known end: its ticket lives for an hour
			time.AfterFunc(w.within(10*time.Second), cancel)
		}
		begun, since := w.linear.now(), time.Now()
		var k *kvlock.Lock
		var err error
		if w.rnd.IntN(4) == 0 {
			k, err = what.try(take)
		} else {
			k, err = what.get(take)
		}
		w.record(call{span{who: w.who, name: what.name, from: since, to: time.Now()}, err == nil})
		cancel()
		if err != nil {
			time.Sleep(w.within(200 * time.Millisecond))
			continue
		}
		w.linear.add(w.client, k.Name(), input{op: gains, token: k.Token()}, begun, true)
		w.hold(ctx, k)
	}
}

func (c *chaos) record(made call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, made)
}

// A belief watches one hold from the outside.
type belief struct {
	k     *kvlock.Lock
	least time.Time // it cannot be lost by time before
}

// sample notes for how long the hold cannot be lost by time.
func (b *belief) sample() {
	if left := b.k.Remaining(); left > 0 {
		if until := time.Now().Add(left); until.After(b.least) {
			b.least = until
		}
	}
}

// hold works under a hold for a while, sometimes past its end, and writes once more
// after it.
func (w *worker) hold(ctx context.Context, k *kvlock.Lock) {
	b := belief{k: k}
	b.sample()
	s := span{who: w.who, name: k.Name(), from: time.Now(), token: k.Token()}
	h := w.history.Begin(w.who, k.Name(), k.Token())
	var writes *natstest.Hold // from the moment that the resource knows of the hold
	if w.raise(k) {
		writes = w.history.Begin(w.who, "resource "+k.Name(), k.Token())
	}
	end := sync.OnceFunc(func() {
		s.to = time.Now()
		begun := w.linear.now()
		h.End()
		if writes != nil {
			writes.End()
		}
		w.linear.add(w.client, k.Name(), input{op: ends, token: k.Token()}, begun, true)
	})
	lost := make(chan struct{})
	stop := context.AfterFunc(k.Context(), func() {
		end()
		close(lost)
	})
	careless := w.rnd.IntN(4) == 0 // it does not look whether it still has the lock
	long := time.Second
	if w.rnd.IntN(3) == 0 {
		long = 2 * chaosTTL
	}
	for range w.rnd.IntN(4) {
		pause := time.NewTimer(w.within(long))
		if careless {
			<-pause.C
		} else {
			select {
			case <-pause.C:
			case <-lost:
			}
		}
		pause.Stop()
		b.sample()
		w.write(k, writes)
	}
	if stop() {
		end()
	} else {
		<-lost
		w.justified(&b, s.to)
	}
	w.mu.Lock()
	w.spans = append(w.spans, s)
	w.mu.Unlock()
	before := k.Err()
	err := k.Release(ctx)
	if reason, ok := errors.AsType[*kvlock.LostError](err); ok && before == nil && reason.Reason != kvlock.Revoked {
		w.t.Errorf("Release = %v after Err = nil at the same time", err)
	}
	if err == nil && w.witness.stands(k.Name(), k.Token()) {
		w.t.Errorf("hold of %q with token %d stands after Release = nil", k.Name(), k.Token())
	}
	time.Sleep(w.within(time.Second))
	w.write(k, writes)
}

// justified checks that a hold was lost by time, not before trust ended, or was
// broken: nothing else happens in a run. A lost answer is no loss (S7), nor is a
// refusal (S9).
func (w *worker) justified(b *belief, at time.Time) {
	lost, ok := errors.AsType[*kvlock.LostError](b.k.Err())
	w.mu.Lock()
	broken := w.broken[b.k.Name()]
	w.mu.Unlock()
	switch {
	case !ok:
		w.t.Errorf("Err = %v of a hold that was not released, want lost", b.k.Err())
	case lost.Reason == kvlock.Expired && at.Before(b.least):
		w.t.Errorf("%v at %v, though it had trust until %v", lost, clock(at), clock(b.least))
	case lost.Reason == kvlock.Revoked && broken:
	case lost.Reason != kvlock.Expired:
		w.t.Errorf("%v, want lost by time or because somebody broke it", lost)
	}
}

// resource returns the key of what is written to under a hold.
func resource(k *kvlock.Lock) string { return strings.ReplaceAll(k.Name(), "#", "/") }

// raise raises the mark of the guarded resource.
func (w *worker) raise(k *kvlock.Lock) bool {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
	defer cancel()
	begun := w.linear.now()
	err := w.guard.Raise(ctx, resource(k), k.Token())
	w.linear.write(w.client, k, begun, err)
	return err == nil && k.Err() == nil
}

// write writes to the guarded resource.
func (w *worker) write(k *kvlock.Lock, h *natstest.Hold) {
	if h == nil {
		return
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
	defer cancel()
	attempt, begun := h.Write(), w.linear.now()
	revision, err := w.guard.Put(ctx, resource(k), k.Token(), []byte("v"))
	w.linear.write(w.client, k, begun, err)
	switch {
	case err == nil:
		attempt.Accepted(revision)
	case errors.Is(err, fence.ErrStale):
		attempt.Refused(err)
	}
}

func clock(at time.Time) string { return at.UTC().Format("15:04:05.000000") }
