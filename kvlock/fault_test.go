package kvlock_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
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
	seeds = flag.Int("seeds", 40, "how many seeds the random-fault test runs")
	seed  = flag.Uint64("seed", 0, "the only seed that the random-fault test runs")
)

// S1, S2, S3, S7, S8, and that the line moves again when the faults end. Run a seed
// again with -run RandomFaults -seed N.
func TestPromisesHoldUnderRandomFaults(t *testing.T) {
	first, n := uint64(1), *seeds
	if testing.Short() {
		n = min(n, 5)
	}
	if *seed != 0 {
		first, n = *seed, 1
	}
	for s := first; s < first+uint64(n); s++ {
		t.Run(fmt.Sprintf("seed=%d", s), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) { newChaos(t, s).run() })
		})
	}
}

// chaos is one run: processes that take locks and write under them, while faults
// come and go.
type chaos struct {
	t       *testing.T
	rnd     *rand.Rand // of the faults only; the workers have their own
	seed    uint64
	site    *site
	ps      []*process
	names   []string
	history natstest.History
	holds   atomic.Int64
	lost    atomic.Int64
	guard   *fence.KV
	lets    []func() // end what is held back
}

const chaosTTL = 3 * time.Second

func newChaos(t *testing.T, seed uint64) *chaos {
	c := &chaos{t: t, rnd: rand.New(rand.NewPCG(seed, 0)), seed: seed, site: newSite(t), names: []string{"x", "y"}}
	for i := range 3 {
		c.ps = append(c.ps, c.site.process(string(rune('a'+i)), kvlock.WithTTL(chaosTTL)))
	}
	kv, err := natstest.JetStream(t, natstest.Connect(t, c.site.srv)).CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "resource"})
	if err != nil {
		t.Fatal(err)
	}
	c.guard = fence.NewKV(kv)
	return c
}

func (c *chaos) run() {
	ctx, stop := context.WithCancel(c.t.Context())
	var all sync.WaitGroup
	for i, p := range c.ps {
		for j := range 2 {
			all.Go(func() {
				c.work(ctx, p, fmt.Sprintf("%s%d", "abc"[i:i+1], j), rand.New(rand.NewPCG(c.seed, uint64(10*i+j+1))))
			})
		}
	}
	for range 50 {
		time.Sleep(time.Duration(c.rnd.Int64N(int64(2 * time.Second))))
		c.fault()
	}
	for _, p := range c.ps {
		p.link.Mend()
		p.link.Delay(0)
	}
	for _, let := range c.lets {
		let()
	}
	stop()
	all.Wait()
	c.history.Check(c.t)
	c.t.Logf("%d holds, %d lost", c.holds.Load(), c.lost.Load())
	c.recovers()
}

// recovers checks that everybody gets every lock again, and that nothing is left.
func (c *chaos) recovers() {
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for _, p := range c.ps {
		for _, name := range c.names {
			all.Go(func() {
				if err := p.Do(ctx, name, func(context.Context, *kvlock.Lock) error { return nil }); err != nil {
					c.t.Errorf("Do after the faults = %v, want nil", err)
				}
			})
		}
	}
	all.Wait()
	time.Sleep(2 * chaosTTL)
	if left := c.site.keys("lock."); len(left) > 0 {
		c.t.Errorf("locks left = %v, want none", left)
	}
	if left := c.site.keys("wait."); len(left) > 0 {
		c.t.Logf("tickets left: %v", left)
	}
}

// work takes locks and writes under them until ctx ends.
func (c *chaos) work(ctx context.Context, p *process, who string, rnd *rand.Rand) {
	for ctx.Err() == nil {
		name := c.names[rnd.IntN(len(c.names))]
		take, cancel := context.WithTimeout(ctx, time.Duration(rnd.Int64N(int64(10*time.Second))))
		var k *kvlock.Lock
		var err error
		if rnd.IntN(4) == 0 {
			k, err = p.TryLock(take, name)
		} else {
			k, err = p.Lock(take, name)
		}
		cancel()
		if err != nil {
			time.Sleep(time.Duration(rnd.Int64N(int64(200 * time.Millisecond))))
			continue
		}
		c.hold(ctx, k, who, rnd)
	}
}

// hold works under a hold for a while, and writes once more after its end.
func (c *chaos) hold(ctx context.Context, k *kvlock.Lock, who string, rnd *rand.Rand) {
	h := c.history.Begin(who, k.Name(), k.Token())
	var writes *natstest.Hold // from the moment that the resource knows of the hold
	if c.raise(k) {
		writes = c.history.Begin(who, "resource "+k.Name(), k.Token())
	}
	for range rnd.IntN(4) {
		pause := time.NewTimer(time.Duration(rnd.Int64N(int64(time.Second))))
		select {
		case <-pause.C:
			c.write(k, writes)
		case <-k.Context().Done():
		}
		pause.Stop()
	}
	lost := k.Err()
	h.End()
	if writes != nil {
		writes.End()
	}
	c.holds.Add(1)
	if lost != nil {
		c.lost.Add(1)
	}
	err := k.Release(ctx)
	if lost == nil && errors.Is(err, kvlock.ErrLost) {
		c.t.Errorf("Release = %v after Err = nil at the same time", err)
	}
	time.Sleep(time.Duration(rnd.Int64N(int64(time.Second))))
	c.write(k, writes)
}

// raise raises the mark of the guarded resource.
func (c *chaos) raise(k *kvlock.Lock) bool {
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
	defer cancel()
	return c.guard.Raise(ctx, k.Name(), k.Token()) == nil && k.Err() == nil
}

// write writes to the guarded resource.
func (c *chaos) write(k *kvlock.Lock, h *natstest.Hold) {
	if h == nil {
		return
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
	defer cancel()
	w := h.Write()
	revision, err := c.guard.Put(ctx, k.Name(), k.Token(), []byte("v"))
	switch {
	case err == nil:
		w.Accepted(revision)
	case errors.Is(err, fence.ErrStale):
		w.Refused(err)
	}
}

// fault does one random thing to one process, or to all.
func (c *chaos) fault() {
	p := c.ps[c.rnd.IntN(len(c.ps))]
	switch c.rnd.IntN(12) {
	case 0, 1:
		p.link.Cut()
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
		p.link.Delay(time.Duration(c.rnd.Int64N(int64(400 * time.Millisecond))))
	case 8:
		p.link.DropReply(1 + c.rnd.IntN(4))
	case 9:
		p.link.DropRequest(1+c.rnd.IntN(4), func(subject string) bool { return strings.HasPrefix(subject, "_tenure.") })
	case 10:
		let := p.link.HoldRequest(func(subject string) bool { return strings.HasPrefix(subject, "$KV.tenure.") })
		c.lets = append(c.lets, let)
		time.AfterFunc(time.Duration(c.rnd.Int64N(int64(5*time.Second))), let)
	case 11:
		if c.rnd.IntN(2) == 0 {
			natstest.Restart(c.t, c.site.srv)
			return
		}
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
		defer cancel()
		_ = p.Locker.Break(ctx, c.names[c.rnd.IntN(len(c.names))], "chaos") // it need not be held
	}
}
