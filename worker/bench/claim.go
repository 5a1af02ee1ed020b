package bench

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"tenure/claim"
	"tenure/kvlock/bucket"
)

// claims measures groups of workers, each worker on a connection of its own.
func claims(ctx context.Context, s *site) error {
	for _, measure := range []func(context.Context, *site) error{coldStart, claimHandOver, claimCrash, idleMessages, planner} {
		if err := measure(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// A crew is the workers of one group.
type crew struct {
	s          *site
	group      string
	partitions []string
	ttl        time.Duration
	members    []*member
	fail       context.CancelCauseFunc // ends everything, with why

	mu       sync.Mutex
	running  map[string]*member // by partition
	returned map[string]time.Time
	gaps     samples       // from the return of a handler to the call of the next
	changed  chan struct{} // holds one: running has changed
}

type member struct {
	*claim.Claimer
	nc   *nats.Conn
	stop context.CancelFunc
	done chan struct{}
}

// newCrew returns a crew without workers. Its ctx ends with the first worker that
// fails, and with the returned function, which waits for all of them.
func newCrew(ctx context.Context, s *site, partitions int, ttl time.Duration) (*crew, context.Context, func()) {
	c := &crew{
		s: s, group: bucket.Nonce(), partitions: claim.Numbered(partitions), ttl: ttl,
		running: make(map[string]*member), returned: make(map[string]time.Time), changed: make(chan struct{}, 1),
	}
	ctx, c.fail = context.WithCancelCause(ctx)
	return c, ctx, func() {
		c.fail(nil)
		for _, m := range c.members {
			<-m.done
			m.nc.Close()
		}
	}
}

// hire makes n workers, which do not run yet.
func (c *crew) hire(ctx context.Context, n int) ([]*member, error) {
	for range n {
		b, err := c.s.open(ctx)
		if err != nil {
			return nil, err
		}
		m := &member{nc: b.JetStream().Conn(), done: make(chan struct{})}
		m.Claimer, err = claim.New(ctx, b.JetStream(), c.group, claim.WithBucket(b), claim.WithTTL(c.ttl),
			claim.WithID("w"+strconv.Itoa(len(c.members))), claim.WithPartitions(c.partitions...))
		if err != nil {
			return nil, err
		}
		c.members = append(c.members, m)
		m.stop = func() { close(m.done) } // it does not run
	}
	return c.members[len(c.members)-n:], nil
}

// run starts a worker.
func (c *crew) run(ctx context.Context, m *member) {
	m.done = make(chan struct{})
	ctx, m.stop = context.WithCancel(ctx)
	go func() {
		defer close(m.done)
		err := m.Run(ctx, func(ctx context.Context, p *claim.Partition) error {
			c.began(m, p.Name())
			defer c.ended(m, p.Name())
			select {
			case <-p.Draining():
			case <-ctx.Done():
			}
			return nil
		})
		if err != nil && !errors.Is(err, nats.ErrConnectionClosed) { // which is a crash
			c.fail(err)
		}
	}()
}

func (c *crew) began(m *member, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.returned[name]; ok {
		c.gaps = append(c.gaps, time.Since(at))
	}
	c.running[name] = m
	c.notify()
}

func (c *crew) ended(m *member, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.returned[name] = time.Now()
	if c.running[name] == m { // after a loss the next one may run already
		delete(c.running, name)
	}
	c.notify()
}

func (c *crew) notify() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// await waits until the number of partitions that run, and of those that m runs,
// satisfies ok.
func (c *crew) await(ctx context.Context, m *member, ok func(all, own int) bool) error {
	for {
		c.mu.Lock()
		own := 0
		for _, at := range c.running {
			if at == m {
				own++
			}
		}
		good := ok(len(c.running), own)
		c.mu.Unlock()
		if good {
			return nil
		}
		select {
		case <-c.changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// start hires n workers, runs them and waits until everything runs.
func (c *crew) start(ctx context.Context, n int) (time.Duration, error) {
	ms, err := c.hire(ctx, n)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	for _, m := range ms {
		c.run(ctx, m)
	}
	err = c.await(ctx, nil, func(all, _ int) bool { return all == len(c.partitions) })
	return time.Since(began), err
}

// coldStart measures from the start of 100 workers on an empty group until all of its
// 10,000 partitions run.
func coldStart(ctx context.Context, s *site) error {
	c, ctx, end := newCrew(ctx, s, 10_000, bucket.DefaultTTL)
	defer end()
	used := cpuTime()
	took, err := c.start(ctx, 100)
	if err != nil {
		return err
	}
	used = cpuTime() - used
	s.result("claim-cold-start", atMost("seconds", took.Seconds(), 5), plain("cpu_seconds", used.Seconds()))
	return nil
}

// claimHandOver measures how long nobody runs a partition that moves, while a fifth
// worker comes and goes.
func claimHandOver(ctx context.Context, s *site) error {
	const partitions, workers, share, times = 64, 4, 12, 10
	c, ctx, end := newCrew(ctx, s, partitions, bucket.DefaultTTL)
	defer end()
	if _, err := c.start(ctx, workers); err != nil {
		return err
	}
	if err := sleep(ctx, time.Second); err != nil { // the last of them may have come late
		return err
	}
	c.mu.Lock()
	c.gaps = nil
	c.mu.Unlock()
	for range times {
		ms, err := c.hire(ctx, 1)
		if err != nil {
			return err
		}
		fifth := ms[0]
		c.run(ctx, fifth)
		if err := c.await(ctx, fifth, func(all, own int) bool { return all == partitions && own == share }); err != nil {
			return err
		}
		fifth.stop()
		if err := c.await(ctx, fifth, func(all, own int) bool { return all == partitions && own == 0 }); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.result("claim-handover", atMost("p50_ms", millis(c.gaps.at(50)), 3), atMost("p99_ms", millis(c.gaps.at(99)), 50),
		plain("moves", float64(len(c.gaps))), plain("moves_least", 2*share*times))
	return nil
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// claimCrash measures from the moment that a worker with 100 partitions is gone until
// they run elsewhere.
func claimCrash(ctx context.Context, s *site) error {
	const partitions, workers = 300, 3
	const ttl = 5 * time.Second
	c, ctx, end := newCrew(ctx, s, partitions, ttl)
	defer end()
	if _, err := c.start(ctx, workers); err != nil {
		return err
	}
	victim := c.members[0]
	if err := c.await(ctx, victim, func(all, own int) bool { return all == partitions && own == partitions/workers }); err != nil {
		return err
	}
	if err := sleep(ctx, time.Second); err != nil {
		return err
	}
	began := time.Now()
	victim.nc.Close()
	if err := c.await(ctx, victim, func(all, own int) bool { return all == partitions && own == 0 }); err != nil {
		return err
	}
	s.result("claim-crash", atMost("seconds", time.Since(began).Seconds(), (ttl+time.Second).Seconds()), plain("ttl_seconds", ttl.Seconds()))
	return nil
}

// idleMessages counts for a minute what 50 workers with 5,000 partitions send and
// receive while nothing happens.
func idleMessages(ctx context.Context, s *site) error {
	const partitions, workers = 5000, 50
	const ttl, lasts = bucket.DefaultTTL, time.Minute
	c, ctx, end := newCrew(ctx, s, partitions, ttl)
	defer end()
	if _, err := c.start(ctx, workers); err != nil {
		return err
	}
	if err := sleep(ctx, ttl); err != nil { // until nothing is left of the start
		return err
	}
	before, err := s.traffic(ctx)
	if err != nil {
		return err
	}
	if err := sleep(ctx, lasts); err != nil {
		return err
	}
	after, err := s.traffic(ctx)
	if err != nil {
		return err
	}
	writes := float64(after.writes - before.writes)
	heartbeats := workers * lasts.Seconds() * bucket.DefaultRenewals / ttl.Seconds()
	var figures []Figure
	if s.server != nil { // another's counters are not ours to read
		figures = append(figures, atMost("messages_per_minute", float64(after.in-before.in), 1.3*heartbeats))
	}
	s.result("claim-idle-messages", append(figures,
		plain("heartbeats_per_minute", writes), atMost("deliveries_per_heartbeat", float64(after.delivered-before.delivered)/writes, 3))...)
	return nil
}

// A traffic is what a server has counted so far.
type traffic struct {
	in        int64  // messages from clients
	writes    uint64 // to the bucket
	delivered uint64 // by all consumers of the bucket
}

func (s *site) traffic(ctx context.Context) (traffic, error) {
	var t traffic
	if s.server != nil {
		for _, srv := range s.server.Servers() {
			v, err := srv.Varz(nil)
			if err != nil {
				return t, err
			}
			t.in += v.InMsgs
		}
	}
	b := s.lockers[0].Bucket()
	stream, err := b.JetStream().Stream(ctx, b.Stream())
	if err != nil {
		return t, err
	}
	t.writes = stream.CachedInfo().State.LastSeq
	consumers := stream.ListConsumers(ctx)
	for info := range consumers.Info() {
		t.delivered += info.Delivered.Consumer
	}
	return t, consumers.Err()
}
