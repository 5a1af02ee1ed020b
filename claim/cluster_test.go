package claim_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"tenure/claim"
	"tenure/embedded/natstest"
	"tenure/kvlock/bucket"
)

// A crew is workers on a cluster of three servers, in real time.
type crew struct {
	t       *testing.T
	cluster *natstest.ThreeNodes
	parts   int
	ttl     time.Duration
	opts    []claim.Option
	history natstest.History

	mu     sync.Mutex
	owner  map[string]string // by partition: whose handler was the last to begin
	events int               // handlers that began
	crew   map[string]*sailor
}

// A sailor is one worker of a crew.
type sailor struct {
	stop context.CancelFunc
	done chan error
}

// newCrew starts 20 workers for 1,000 partitions, fewer where all are slowed down.
func newCrew(t *testing.T, ttl time.Duration, opts ...claim.Option) *crew {
	t.Helper()
	workers, partitions := 20, 1000
	if natstest.Race {
		workers, partitions = 5, 100
	}
	c := &crew{
		t: t, cluster: natstest.Cluster(t), parts: partitions, ttl: ttl, opts: opts,
		owner: make(map[string]string), crew: make(map[string]*sailor),
	}
	if _, err := bucket.Open(t.Context(), natstest.JetStream(t, c.cluster.Connect()), bucket.Fresh(), bucket.Replicas(3)); err != nil {
		t.Fatal(err)
	}
	for i := range workers {
		c.join(fmt.Sprintf("w%02d", i))
	}
	c.settle()
	return c
}

func (c *crew) join(id string) {
	c.t.Helper()
	nc := c.cluster.Connect()
	js := natstest.JetStream(c.t, nc)
	opts := append([]claim.Option{
		claim.WithPartitions(claim.Numbered(c.parts)...), claim.WithID(id), claim.WithTTL(c.ttl), claim.WithLogger(logger(c.t)),
	}, c.opts...)
	w, err := claim.New(c.t.Context(), js, "orders", opts...)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(c.t.Context()))
	s := &sailor{stop: stop, done: make(chan error, 1)}
	c.crew[id] = s
	c.t.Cleanup(func() { // before that of the connection
		if c.crew[id] == s {
			c.leave(id)
		}
	})
	go func() {
		defer nc.Close()
		s.done <- w.Run(ctx, func(ctx context.Context, p *claim.Partition) error {
			held := c.history.Begin(id, p.Name(), p.Token())
			defer held.End()
			defer context.AfterFunc(ctx, held.End)()
			c.mu.Lock()
			c.owner[p.Name()] = id
			c.events++
			c.mu.Unlock()
			select {
			case <-p.Draining():
			case <-ctx.Done():
			}
			return nil
		})
	}()
}

func (c *crew) leave(id string) {
	c.t.Helper()
	s := c.crew[id]
	delete(c.crew, id)
	s.stop()
	select {
	case err := <-s.done:
		if err != nil {
			c.t.Errorf("Run of %s = %v, want nil", id, err)
		}
	case <-time.After(time.Minute):
		c.t.Fatalf("Run of %s has not returned after a minute", id)
	}
}

// settle waits until each worker runs its share.
func (c *crew) settle() {
	c.t.Helper()
	c.await("each worker runs its share", func() bool {
		loads := make(map[string]int)
		for _, id := range c.owner {
			loads[id]++
		}
		least, most, n := c.parts, 0, 0
		for id := range c.crew {
			least, most, n = min(least, loads[id]), max(most, loads[id]), n+loads[id]
		}
		return n == c.parts && most-least <= 1
	})
}

// await waits until the condition, which may look at what mu guards, holds.
func (c *crew) await(what string, holds func() bool) {
	c.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		c.mu.Lock()
		done := holds()
		c.mu.Unlock()
		if done {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("not within a minute: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (c *crew) owners() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[string]string, len(c.owner))
	maps.Copy(all, c.owner)
	return all
}

// unmoved runs do, waits for what may come of it, and reports what moved.
func (c *crew) unmoved(what string, do func()) {
	c.t.Helper()
	before := c.owners()
	c.mu.Lock()
	events := c.events
	c.mu.Unlock()
	began := time.Now()
	do()
	moved := 0
	for p, id := range c.owners() {
		if before[p] != id {
			moved++
		}
	}
	c.mu.Lock()
	events = c.events - events
	c.mu.Unlock()
	c.t.Logf("%s: %v, %d moved, %d handlers began anew", what, time.Since(began).Round(time.Millisecond), moved, events)
	if moved != 0 {
		c.t.Errorf("%s: partitions moved = %d, want none", what, moved)
	}
}

// C1, C61, N38, N39: a TTL that outlasts the election, 20 workers and 1,000
// partitions. The leader of the bucket is killed, a minority is cut off, and the
// servers are restarted one by one: nothing moves.
func TestClusterFaultsMoveNoPartition(t *testing.T) {
	if testing.Short() {
		t.Skip("in real time, with elections")
	}
	c := newCrew(t, 15*time.Second)
	c.unmoved("leader killed", func() {
		killed := c.cluster.Leader("KV_tenure")
		c.cluster.Kill(killed)
		c.cluster.Leader("KV_tenure")
		time.Sleep(c.ttl) // for whoever would be taken for dead
		c.cluster.Restart(killed)
	})
	c.unmoved("minority cut off", func() {
		cut := (c.cluster.Leader("KV_tenure") + 1) % 3
		c.cluster.Isolate(cut)
		time.Sleep(8 * time.Second)
		c.cluster.Heal()
		time.Sleep(c.ttl)
	})
	c.unmoved("servers restarted one by one", func() {
		for i := range 3 {
			c.cluster.Restart(i)
			c.cluster.Leader("KV_tenure")
			time.Sleep(time.Second)
		}
		time.Sleep(5 * time.Second)
	})
	c.history.Check(t)
}

// C21: workers with ids of their own that say that they come back are restarted one
// after the other: each finds what it had, and nobody else was given any of it.
func TestRollingRestartOfWorkersMovesNoPartition(t *testing.T) {
	if testing.Short() {
		t.Skip("in real time, on a cluster")
	}
	c := newCrew(t, 15*time.Second, claim.WithRestart())
	c.unmoved("workers restarted one by one", func() {
		share := c.parts / len(c.crew)
		for _, id := range slices.Sorted(maps.Keys(c.crew)) {
			c.leave(id)
			c.mu.Lock()
			before := c.events
			c.mu.Unlock()
			c.join(id)
			c.await("its partitions run again", func() bool { return c.events == before+share })
		}
	})
	c.history.Check(t)
}
