package claim

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tenure/claim/plan"
	"tenure/kvlock/bucket"
)

// A Claimer is one worker of a group. Make it with [New]; its methods may be
// called concurrently.
type Claimer struct {
	bucket *bucket.Bucket
	group  string
	g      string // group as part of a key
	id     string
	lease  bucket.Lease
	opts   options
	log    *slog.Logger

	deaths  deaths
	past    map[string]bool // nonces of this process's sessions; only join uses it
	session atomic.Pointer[session]
	window  chan struct{} // bounds how many claims are taken at once

	slotsDone sync.WaitGroup
	prepared  sync.WaitGroup // calls of Prepare

	mu        sync.Mutex
	handler   Handler // not nil while Run runs
	stopAt    time.Time
	slots     map[string]*slot
	running   map[string]*Partition
	busy      map[string]bool // partitions with a handler that has not returned
	preparing map[string]*preparation
	hints     map[string]uint64
	rescues   map[string]uint64 // per partition to be taken without a plan: newest plan then
	floors    map[string]uint64 // per partition: newest revision that this process gave away or lost
	names     []string          // of the partitions, by index
	index     map[string]int
	setRev    uint64 // revision of the settings that names come from
	set       settings
	setAt     uint64 // the revision of set
	plan      *plan.Plan
	planAt    uint64 // its revision
	planRev   uint64 // the newest revision of the plan's key that was seen
	planner   int    // version of the planner that made the plan there

	apart   time.Time // since when there is no session
	joinErr error     // of the last try to get one
	starved time.Time // since when this session is given nothing without a reason, see starve

	deferred   *plan.Plan // made from settings that have not come yet
	deferredAt uint64     // its revision
}

// takeWindow is how many claims one worker takes at a time.
const takeWindow = 128

// New returns a worker of the named group, which has 1 to 200 bytes. It opens
// the bucket if none is given and stores the group's partitions if they are
// given and the group is new. Nothing is claimed before [Claimer.Run].
//
// It blocks until the server has answered or ctx is done. Errors match
// [ErrName], [ErrTTL], [ErrGroup] (settings differ, or the group does not
// exist), [ErrBucket], [ErrServer] or [ErrPermission].
func New(ctx context.Context, js jetstream.JetStream, group string, opts ...Option) (*Claimer, error) {
	o := options{
		ttl: bucket.DefaultTTL, renewals: bucket.DefaultRenewals, drain: DefaultDrainTimeout, weight: 1,
		backoff: DefaultBackoff, maxBackoff: DefaultMaxBackoff, rejoin: -1, quarantine: DefaultQuarantineAfter, log: slog.New(slog.DiscardHandler),
	}
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, fmt.Errorf("claim: %w", err)
		}
	}
	g, err := bucket.EncodeName(group)
	if err != nil {
		return nil, fmt.Errorf("claim: group %w", err)
	}
	lease, err := bucket.NewLease(o.ttl, o.margin, o.renewals)
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	switch {
	case o.id == "":
		o.id = generatedID()
		o.rejoin = max(0, o.rejoin)
		if o.restart {
			return nil, fmt.Errorf("claim: restart: have no worker id, want one that stays: %w", ErrName)
		}
	case o.rejoin < 0:
		o.rejoin = DefaultRejoinDelay
		if !o.restart {
			o.rejoin = min(o.rejoin, lease.TTL) // a death lasts no longer by it
		}
	}
	if o.assignment == 0 {
		o.assignment = max(DefaultAssignmentTimeout, 4*lease.TTL)
	}
	if o.restart && o.rejoin == 0 {
		return nil, fmt.Errorf("claim: restart: have a rejoin delay of 0, want more: %w", ErrTTL)
	}
	var want settings
	if o.partitions != nil {
		if want, err = newSettings(slices.Clone(o.partitions)); err != nil {
			return nil, fmt.Errorf("claim: group %q: %w", group, err)
		}
	}
	if o.bucket == nil {
		if o.bucket, err = bucket.Open(ctx, js, bucket.Logger(o.log)); err != nil {
			return nil, fmt.Errorf("claim: %w", err)
		}
	}
	if lease.TTL > o.bucket.MaxTTL() {
		return nil, fmt.Errorf("claim: %w", &bucket.TTLError{Setting: "TTL", Have: lease.TTL, Want: fmt.Sprintf("at most %v, the bucket's largest", o.bucket.MaxTTL())})
	}
	c := &Claimer{
		bucket: o.bucket, group: group, g: g, id: o.id, lease: lease, opts: o,
		log:    o.log.With(slog.String("group", group), slog.String("worker", o.id)),
		past:   make(map[string]bool),
		window: make(chan struct{}, takeWindow),
		slots:  make(map[string]*slot), running: make(map[string]*Partition),
		hints: make(map[string]uint64), rescues: make(map[string]uint64), floors: make(map[string]uint64),
		busy: make(map[string]bool), preparing: make(map[string]*preparation),
	}
	if err := c.setUp(ctx, want); err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	return c, nil
}

// setUp stores the group's settings if it is new, or verifies them.
func (c *Claimer) setUp(ctx context.Context, want settings) error {
	key := groupKey(c.g)
	for {
		try, cancel := context.WithTimeout(ctx, time.Second)
		e, err := c.bucket.Get(try, key)
		cancel()
		switch {
		case err == nil && !e.Marker:
			have, err := parseSettings(e)
			if err != nil {
				return fmt.Errorf("group %q: %w", c.group, err)
			}
			if want.Version != 0 && !have.same(want) {
				return &GroupError{Group: c.group, Have: describe(have), Want: describe(want)}
			}
			return nil
		case (err == nil || errors.Is(err, bucket.ErrNotFound)) && want.Version == 0:
			return fmt.Errorf("group %q: %w: it does not exist; name its partitions to set it up", c.group, ErrGroup)
		case err == nil || errors.Is(err, bucket.ErrNotFound):
			// After any outcome it is read again: stored by this process or by
			// another, it has to agree.
			try, cancel := context.WithTimeout(ctx, time.Second)
			_, err = c.bucket.Write(try, bucket.Write{Key: key, Last: e.Revision, Value: want.encode()})
			cancel()
		}
		if err == nil || errors.Is(err, bucket.ErrConflict) {
			continue
		}
		if permanent(err) || errors.Is(err, bucket.ErrFull) {
			return err
		}
		if cause := pause(ctx, 2*retryPause); cause != nil {
			return fmt.Errorf("group %q: %w (%w)", c.group, cause, err)
		}
	}
}

// ID returns the worker's id.
func (c *Claimer) ID() string { return c.id }

// Group returns the group's name.
func (c *Claimer) Group() string { return c.group }

// Run joins the group and calls handler for every partition that the worker
// comes to own, each in a goroutine of its own, until ctx is done. Then it tells
// the others, asks the handlers to drain, hands every partition over as soon as
// its handler has returned, leaves the group and returns nil.
//
// Losing the session, by an outage longer than the TTL, a pause or a proof of
// death, ends the handlers with [ErrSessionLost], after which Run joins again.
// It returns an error only if it cannot go on: the bucket is gone ([ErrBucket]),
// a subject is denied ([ErrPermission]), the connection was closed, the worker's id
// is in use ([ErrWorkerID], see [WithIDTimeout]), or another Run of this claimer
// runs ([ErrRunning]). It returns only after every handler
// has returned; one that ignores its context is waited for, and reported in the
// log.
func (c *Claimer) Run(ctx context.Context, handler Handler) error {
	c.mu.Lock()
	if c.handler != nil {
		c.mu.Unlock()
		return fmt.Errorf("claim: %w", ErrRunning)
	}
	c.handler, c.stopAt = handler, time.Time{}
	c.apart, c.joinErr = time.Now(), nil
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.stopAt = time.Now() // no new slots from here on
		c.withdraw()
		c.mu.Unlock()
		c.slotsDone.Wait()
		c.prepared.Wait()
		c.mu.Lock()
		c.handler = nil
		c.mu.Unlock()
	}()

	for again := false; ; again = true {
		sess, err := c.join(ctx, again)
		if err != nil && ctx.Err() != nil {
			return nil // nothing is owned
		}
		if err == nil {
			err = c.work(ctx, sess)
			if ctx.Err() != nil {
				return nil // drained, or lost while it did
			}
		}
		if err != nil && (permanent(err) || errors.Is(err, ErrWorkerID)) {
			return fmt.Errorf("claim: %w", err)
		}
		c.setApart(err)
		c.log.WarnContext(ctx, "joining again", slog.Any("err", err))
		if pause(ctx, retryPause) != nil {
			return nil
		}
	}
}

// work serves one session until it is lost, or until ctx is done and everything
// was given away. It returns why the session was lost.
func (c *Claimer) work(ctx context.Context, sess *session) error {
	stopListening, err := c.listen(sess)
	if err != nil {
		sess.lose("it cannot be spoken to", err)
		return err
	}
	defer stopListening()
	c.forget()
	c.session.Store(sess)
	c.mu.Lock()
	c.starved = time.Now()
	c.mu.Unlock()
	c.opts.trace.joined(sess.epoch)

	rescued := make(chan struct{})
	go func() {
		defer close(rescued)
		c.rescue(sess)
	}()
	followed := make(chan error, 1)
	go func() { followed <- c.follow(sess) }()
	var failed error
	select {
	case <-ctx.Done():
		c.drain(sess)
	case <-sess.ctx.Done():
	case failed = <-followed:
		sess.lose("the group cannot be followed", failed)
		followed <- failed
	}
	// The followers and the slots of a lost session end by themselves.
	sess.end(ErrStopped)
	<-followed
	<-rescued
	<-sess.stopped
	c.wakeAll()
	if cause := context.Cause(sess.ctx); errors.Is(cause, ErrSessionLost) {
		c.opts.trace.sessionLost(cause)
	}
	return firstErr(failed, context.Cause(sess.ctx))
}

// drain gives everything away and ends the session. It returns early if the
// session is lost.
func (c *Claimer) drain(sess *session) {
	c.mu.Lock()
	c.stopAt = time.Now()
	c.withdraw()
	c.mu.Unlock()
	c.log.InfoContext(sess.ctx, "worker drains")
	if !c.opts.restart {
		sess.set(draining)
	}
	c.wakeAll()
	empty := make(chan struct{})
	go func() {
		c.slotsDone.Wait()
		close(empty)
	}()
	select {
	case <-empty:
		ctx, cancel := context.WithTimeout(context.WithoutCancel(sess.ctx), c.lease.TTL)
		defer cancel()
		sess.leave(ctx)
		c.log.InfoContext(ctx, "worker left")
	case <-sess.ctx.Done():
		<-empty // their handlers see the end of the session
	}
}

// setApart notes that there is no session, and why.
func (c *Claimer) setApart(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if sess := c.session.Load(); sess != nil {
		c.session.Store(nil)
		c.apart = time.Now()
	}
	c.joinErr = err
}

// forget drops what was known of the group: a new session begins with what it
// reads itself.
func (c *Claimer) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.plan, c.planAt, c.planRev, c.planner, c.deferred = nil, 0, 0, 0, nil
	clear(c.rescues)
}

// Held returns an iterator over the partitions whose handlers run now, in the
// order of their names.
func (c *Claimer) Held() iter.Seq[*Partition] {
	c.mu.Lock()
	held := make([]*Partition, 0, len(c.running))
	for _, p := range c.running {
		held = append(held, p)
	}
	c.mu.Unlock()
	slices.SortFunc(held, func(a, b *Partition) int { return strings.Compare(a.Name(), b.Name()) })
	return slices.Values(held)
}

// Status returns what the bucket says of the whole group. See [ReadStatus].
func (c *Claimer) Status(ctx context.Context) (Status, error) {
	return ReadStatus(ctx, c.bucket, c.group)
}

func (c *Claimer) memberKey(worker string) (string, error) {
	id, err := bucket.EncodeName(worker)
	if err != nil {
		return "", err
	}
	return memberKey(c.g, id), nil
}

// member returns the first record of a new session.
func (c *Claimer) member(state memberState) member {
	host, _ := os.Hostname() // for people only
	return member{
		Version: recordVersion, State: state, Nonce: bucket.Nonce(), TTL: int64(c.lease.TTL / time.Second),
		Capacity: c.opts.capacity, Weight: c.opts.weight, Zone: c.opts.zone, Build: c.opts.build, Host: host, PID: os.Getpid(),
		Machine: machine(), Start: startOf(os.Getpid()), Rejoin: c.opts.rejoin.Milliseconds(),
	}
}

// stopping reports whether Run's ctx has ended, and since how long.
func (c *Claimer) stopping() (bool, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.stopAt.IsZero(), time.Since(c.stopAt)
}

// pauseAfter returns the pause after the given number of failures in a row.
func (o options) pauseAfter(failures int) time.Duration {
	d := o.backoff
	for range failures - 1 {
		if d *= 2; d >= o.maxBackoff {
			return o.maxBackoff
		}
	}
	return d
}

// generatedID returns an id that no other process has, with the host's name in
// it for people.
func generatedID() string {
	host, _ := os.Hostname()
	host, _, _ = strings.Cut(host, ".")
	if host == "" || len(host) > 64 {
		host = "worker"
	}
	return host + "-" + bucket.Nonce()[:8]
}
