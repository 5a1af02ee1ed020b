package kvlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"tenure/kvlock"
)

// mainElection is what is campaigned for in a run, by Campaign and by Run.
const mainElection = "main"

// A reign is what is known of the election of a run.
type reign struct {
	elections []*kvlock.Election // by process

	mu     sync.Mutex
	seen   []kvlock.Holder // by loop over Observe: what it showed last
	values map[string]bool // of all leaders
	told   []claimed
}

// A claimed value was confirmed by Proclaim.
type claimed struct {
	token  uint64
	serial int
	at     time.Time
}

// elect returns the election as a thing to take.
func (c *chaos) elect(p *process) thing {
	e := p.Election(mainElection)
	c.reign.elections = append(c.reign.elections, e)
	c.names = []string{"x", mainElection}
	return lockThing(mainElection, func(ctx context.Context, patient bool) (*kvlock.Lock, error) {
		if !patient {
			return p.TryLock(ctx, mainElection)
		}
		return e.Campaign(ctx, "")
	})
}

// begin starts what goes on beside the workers of a run with an election: in each process
// somebody observes, one of them twice, and somebody campaigns again and again.
func (g *reign) begin(ctx context.Context, c *chaos, all *sync.WaitGroup) {
	if len(g.elections) == 0 {
		return
	}
	g.seen = make([]kvlock.Holder, len(g.elections)+1)
	for i, e := range g.elections {
		all.Go(func() { g.observe(ctx, c, e, i) })
		all.Go(func() { g.campaign(ctx, c, e, i) })
	}
	all.Go(func() { g.observe(ctx, c, g.elections[0], len(g.elections)) })
}

// observe checks that what is shown goes forward.
func (g *reign) observe(ctx context.Context, c *chaos, e *kvlock.Election, loop int) {
	newest := uint64(0)
	for h := range e.Observe(ctx) {
		if h.Token != 0 && h.Token < newest {
			c.t.Errorf("Observe showed token %d after token %d", h.Token, newest)
		}
		newest = max(newest, h.Token)
		g.mu.Lock()
		g.seen[loop] = h
		g.mu.Unlock()
	}
	if ctx.Err() == nil {
		c.t.Error("Observe ended before its context")
	}
}

// campaign leads again and again; a loss does not end it, nor does one term overlap another.
func (g *reign) campaign(ctx context.Context, c *chaos, e *kvlock.Election, i int) {
	w := &worker{chaos: c, who: fmt.Sprintf("%s-run", "abc"[i:i+1]), client: 6 + i, rnd: rand.New(rand.NewPCG(c.seed, uint64(100+i)))}
	var leading atomic.Int32
	begun := w.linear.now()
	err := e.Run(ctx, "", func(ctx context.Context, k *kvlock.Lock) error {
		if leading.Add(1) != 1 {
			c.t.Errorf("two terms of %s at once", w.who)
		}
		defer leading.Add(-1)
		w.linear.add(w.client, k.Name(), input{op: gains, token: k.Token()}, begun, true)
		w.hold(ctx, mainElection, holding{k, []*kvlock.Lock{k}})
		begun = w.linear.now()
		return nil
	})
	if ctx.Err() == nil || !errors.Is(err, context.Cause(ctx)) {
		c.t.Errorf("Run = %v, want %v at the end", err, context.Cause(ctx))
	}
	if n := leading.Load(); n != 0 {
		c.t.Errorf("%d terms of %s go on after Run", n, w.who)
	}
}

// proclaim changes the value of a leader.
func (w *worker) proclaim(k *kvlock.Lock) {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
	defer cancel()
	w.serial++
	g, n, value := &w.reign, w.serial, fmt.Sprintf("%d %d", k.Token(), w.serial)
	g.mu.Lock()
	if g.values == nil {
		g.values = map[string]bool{"": true}
	}
	g.values[value] = true
	g.mu.Unlock()
	if err := k.Proclaim(ctx, value); err != nil {
		return
	}
	if token, shown := w.witness.leader(); token == k.Token() && shown != value {
		w.t.Errorf("Proclaim of %q = nil, and %q is stored", value, shown)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.told = append(g.told, claimed{k.Token(), n, time.Now()})
}

// isSeen checks that all see the leader, and its value, when nothing fails.
func (g *reign) isSeen(c *chaos) {
	if len(g.elections) == 0 {
		return
	}
	synctest.Wait()
	want := kvlock.Holder{}
	for h, err := range c.ps[0].Holders(c.t.Context()) {
		if err != nil {
			c.t.Errorf("Holders: %v", err)
		}
		if h.Name == mainElection && !h.Resting {
			want = h
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, h := range g.seen {
		if h.Token != want.Token || h.Value != want.Value {
			c.t.Errorf("loop %d over Observe shows token %d with %q, want %d with %q", i, h.Token, h.Value, want.Token, want.Value)
		}
	}
}

// check checks the values that were stored: each is one of its own leader's, the newest
// that was confirmed or a later one.
func (g *reign) check(c *chaos) {
	if len(g.elections) == 0 {
		return
	}
	c.witness.stopped()
	for _, seen := range c.witness.seen {
		if seen.name != mainElection || seen.token == 0 || seen.kind == sawData {
			continue
		}
		var token uint64
		var serial int
		_, _ = fmt.Sscan(seen.value, &token, &serial) // none at first
		if seen.value != "" && (token != seen.token || !g.values[seen.value]) {
			c.t.Errorf("value %q was stored with token %d at %v", seen.value, seen.token, clock(seen.at))
		}
		for _, told := range g.told {
			if told.token == seen.token && seen.at.After(told.at) && serial < told.serial {
				c.t.Errorf("value %q was stored with token %d at %v, after %d was confirmed at %v", seen.value, seen.token, clock(seen.at), told.serial, clock(told.at))
			}
		}
	}
	c.t.Logf("%d values confirmed", len(g.told))
}
