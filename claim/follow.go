package claim

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"tenure/claim/plan"
	"tenure/kvlock/bucket"
)

// predecessorGrace is how long after the end of its predecessor's lease a worker
// first tries to prove it dead, and probeEvery how often from then on: the server
// removes a key up to 300 ms late.
const (
	predecessorGrace = 300 * time.Millisecond
	probeEvery       = 200 * time.Millisecond
)

// Why a watch was ended on purpose.
var (
	errPredecessorEnded = errors.New("predecessor has ended")
	errDeposed          = errors.New("a worker with a smaller epoch is alive")
)

// follow keeps this worker's view of the group until the session ends. The live
// session with the smallest epoch leads; every other one watches the session
// just before it and, when that has ended, looks for the next one (rule C7).
// There is no election and no lock: two leaders for a while are harmless, since
// plans are evidence of nothing.
func (c *Claimer) follow(sess *session) error {
	ctx := sess.ctx
	for !sess.ended() {
		before, found, err := c.predecessor(ctx, sess)
		switch {
		case err != nil:
		case found:
			err = c.shadow(ctx, before)
		default:
			err = c.lead(ctx, sess)
		}
		if ctx.Err() != nil {
			break
		}
		if permanent(err) {
			return err
		}
		if err != nil && !errors.Is(err, errPredecessorEnded) && !errors.Is(err, errDeposed) {
			c.log.WarnContext(ctx, "following the group", slog.Any("err", err))
			_ = pause(ctx, probeEvery) // the loop asks the session
		}
	}
	return nil
}

// neighbour is a session as this worker sees it.
type neighbour struct {
	worker   string
	key      string
	epoch    uint64
	ttl      time.Duration
	rejoin   time.Duration // see member
	revision uint64        // of its last heartbeat seen
	beat     time.Time     // when that was, by the local clock
}

// predecessor returns the live session with the largest epoch below this one's.
// The list it is taken from contains this session's own entry, so it is at least
// as new as the join (rule B7): who joined before is in it, or has ended.
func (c *Claimer) predecessor(ctx context.Context, sess *session) (n neighbour, found bool, err error) {
	list, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	entries, err := c.bucket.Snapshot(list, memberKey(c.g, "*"))
	if err != nil {
		return n, false, err
	}
	var own, last time.Time // of heartbeats, by the server's clock
	place := int64(0)
	for _, e := range entries {
		other, m, ok := c.observe(e)
		switch epoch := m.epoch(e.Revision); {
		case !ok || epoch > sess.epoch:
		case epoch == sess.epoch:
			own = e.Time
		case epoch <= n.epoch:
			place++
		default:
			place++
			n = neighbour{worker: other, key: e.Key, epoch: epoch, ttl: time.Duration(m.TTL) * time.Second, rejoin: m.rejoin(), revision: e.Revision}
			last, found = e.Time, true
		}
	}
	if own.IsZero() {
		return n, false, errors.New("list of members does not contain this one")
	}
	sess.place.Store(place)
	// How long ago, the own heartbeat tells. It only says when to look whether
	// the predecessor is still there, so a wrong clock does no harm.
	n.beat = sess.sent().Add(min(0, last.Sub(own)))
	return n, found, nil
}

// observe takes what a member entry proves, and returns the session it is of.
func (c *Claimer) observe(e bucket.Entry) (worker string, m member, session bool) {
	worker, err := bucket.DecodeName(e.Key[strings.LastIndexByte(e.Key, '.')+1:])
	if err != nil {
		return "", m, false
	}
	c.deaths.observe(worker, e)
	m, err = parseMember(e)
	if err != nil && !e.Marker {
		c.log.Warn("member key holds bytes that are no record", slog.String("key", e.Key))
	}
	return worker, m, err == nil && m.session() && !c.deaths.proven(worker, m.epoch(e.Revision))
}

// shadow follows the plan and the settings, and watches the predecessor, until
// that is proven to have ended.
func (c *Claimer) shadow(ctx context.Context, n neighbour) error {
	ctx, end := context.WithCancelCause(ctx)
	beats := make(chan uint64, 1) // the newest heartbeat's revision
	guarded := make(chan struct{})
	go func() {
		defer close(guarded)
		c.guard(ctx, end, n, beats)
	}()
	err := c.bucket.Watch(ctx, func(e bucket.Entry) {
		if e.Key != n.key {
			c.learn(e)
			return
		}
		if _, m, ok := c.observe(e); ok && m.epoch(e.Revision) == n.epoch {
			select {
			case <-beats:
			default:
			}
			beats <- e.Revision
		} else {
			end(errPredecessorEnded)
		}
	}, func() {}, planKey(c.g), groupKey(c.g), n.key)
	end(err)
	<-guarded
	return err
}

// guard ends the watch when the predecessor is proven dead. It needs no event:
// an expiry sends none.
func (c *Claimer) guard(ctx context.Context, end context.CancelCauseFunc, n neighbour, beats <-chan uint64) {
	timer := time.NewTimer(time.Until(n.beat.Add(n.ttl + predecessorGrace)))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case revision := <-beats:
			if revision > n.revision {
				n.revision = revision
				timer.Reset(n.ttl + predecessorGrace)
			}
		case <-timer.C:
			// After an outage everybody has one heartbeat interval to report.
			if until := c.session.Load().outage().Add(c.lease.Every); until.After(time.Now()) {
				timer.Reset(time.Until(until))
				continue
			}
			if c.probe(ctx, n.worker, n.epoch, n.rejoin) {
				end(errPredecessorEnded)
				return
			}
			// Refused: it lives, or its key is not removed yet. Which of the
			// two a newer heartbeat tells, should the watch be blind.
			timer.Reset(probeEvery)
			read, cancel := context.WithTimeout(ctx, c.lease.Attempt)
			if e, err := c.bucket.Get(read, n.key); err == nil && e.Revision > n.revision {
				n.revision = e.Revision
				timer.Reset(n.ttl + predecessorGrace)
			}
			cancel()
		}
	}
}

// learn takes in a new plan or new settings.
func (c *Claimer) learn(e bucket.Entry) {
	switch {
	case e.Marker:
		return
	case e.Key == groupKey(c.g):
		s, err := parseSettings(e)
		if err != nil {
			c.log.Error("settings of the group cannot be read, keeping the old ones", slog.Any("err", err))
			return
		}
		c.mu.Lock()
		if s.Layout != c.setRev {
			c.names, c.setRev = s.partitions(), s.Layout
			c.index = make(map[string]int, len(c.names))
			for i, name := range c.names {
				c.index[name] = i
			}
			for _, s := range c.slots {
				s.signal() // it may be removed
			}
		}
		c.set, c.setAt = s, e.Revision
		p, at := c.deferred, c.deferredAt
		c.mu.Unlock()
		if p != nil {
			c.accept(p, at)
		}
	case e.Key == planKey(c.g):
		p, err := plan.Parse(e.Value)
		if err != nil {
			c.log.Error("plan cannot be read, keeping the old one", slog.Any("err", err))
			return
		}
		c.accept(p, e.Revision)
	}
}

// accept follows a plan, unless it was made from less than the present one
// (rule C8) or from other settings than are known.
func (c *Claimer) accept(p *plan.Plan, revision uint64) {
	sess := c.session.Load()
	c.mu.Lock()
	defer c.mu.Unlock()
	if revision > c.planRev {
		c.planRev, c.planner = revision, p.Version
	}
	if c.plan != nil && p.View < c.plan.View {
		return
	}
	if p.Settings != c.setRev || len(p.Assign) != len(c.names) {
		c.deferred, c.deferredAt = p, revision
		return
	}
	c.plan, c.planAt, c.deferred = p, revision, nil
	clear(c.rescues)
	c.withdraw()
	if sess == nil || c.handler == nil {
		return
	}
	c.starve(sess)
	for i, w := range p.Assign {
		if w >= 0 && p.Workers[w].ID == c.id && p.Workers[w].Epoch == sess.epoch {
			c.ensure(c.names[i])
		}
	}
	for _, s := range c.slots {
		s.signal()
	}
}

// ensure starts the slot of a partition if there is none; mu is held.
func (c *Claimer) ensure(name string) {
	if c.slots[name] != nil || c.handler == nil || !c.stopAt.IsZero() {
		return
	}
	enc, err := bucket.EncodeName(name)
	if err != nil {
		return
	}
	s := &slot{c: c, name: name, claimKey: claimKey(c.g, enc), checkKey: checkKey(c.g, enc), wake: make(chan struct{}, 1)}
	c.slots[name] = s
	c.slotsDone.Add(1)
	go s.run(c.handler)
}

// retire removes a slot that has nothing to do, unless that has just changed.
func (c *Claimer) retire(s *slot) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	sess := c.session.Load()
	if sess != nil && sess.ctx.Err() == nil && c.stopAt.IsZero() {
		ref, _, known := c.lookup(s.name)
		_, rescued := c.rescued(s.name)
		if c.hints[s.name] != 0 || rescued || known && ref.ID == c.id && ref.Epoch == sess.epoch {
			return false
		}
	}
	delete(c.slots, s.name)
	return true
}

// target returns the session that the plan gives a partition to, the plan's
// revision, and whether it knows the partition. An empty id means nobody.
func (c *Claimer) target(name string) (to plan.WorkerRef, revision uint64, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to, _, known = c.lookup(name)
	return to, c.planAt, known
}

// following returns the plan that is followed, nil if there is none.
func (c *Claimer) following() *plan.Plan {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.plan
}

// wants reports whether the plan gives the partition to sess, and why.
func (c *Claimer) wants(sess *session, name string) (bool, plan.Reason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopAt.IsZero() {
		return false, 0
	}
	ref, why, known := c.lookup(name)
	if known && ref.ID == c.id && ref.Epoch == sess.epoch {
		return true, why
	}
	_, rescued := c.rescued(name)
	return rescued, plan.Kept
}

// lookup returns what the plan says of a partition; mu is held.
func (c *Claimer) lookup(name string) (ref plan.WorkerRef, why plan.Reason, known bool) {
	i, ok := c.index[name]
	if !ok || c.plan == nil || i >= len(c.plan.Assign) || c.plan.Settings != c.setRev {
		return ref, 0, false
	}
	if w := c.plan.Assign[i]; w >= 0 {
		ref = c.plan.Workers[w]
	}
	return ref, c.plan.Why[i], true
}

// removed reports whether the group does not have the partition any more. Settings
// from before the layout that it was handed over in say nothing about it.
func (c *Claimer) removed(name string, layout uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, there := c.index[name]
	return c.index != nil && !there && layout <= c.setRev
}

// followed returns why the plan that is followed puts a partition where it does,
// the plan's revision, and the known layout.
func (c *Claimer) followed(name string) (why plan.Reason, revision, layout uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, why, _ = c.lookup(name)
	return why, c.planAt, c.setRev
}

// behind reports whether a claim was given back by a plan, or for a layout, that
// this worker has not seen yet.
func (c *Claimer) behind(r record) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return r.Plan > c.planAt || r.Layout > c.setRev
}

// layout returns the revision since which the partitions are the known ones.
func (c *Claimer) layout() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.setRev
}

// hint notes that the claim of a partition may name this worker.
func (c *Claimer) hint(name string, revision uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if revision <= c.floors[name] {
		return
	}
	// The partition may be unknown: the settings have not been read yet, or it was
	// removed while it was handed over. What becomes of it the slot decides.
	c.hints[name] = revision
	c.ensure(name)
	if s := c.slots[name]; s != nil {
		s.signal()
	}
}

// takeHint returns whether there is a hint for the partition, and forgets it.
func (c *Claimer) takeHint(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.hints[name]
	delete(c.hints, name)
	return ok
}

func (c *Claimer) floor(name string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.floors[name]
}

func (c *Claimer) setFloor(name string, revision uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.floors[name] = max(c.floors[name], revision)
}

func (c *Claimer) setRunning(name string, p *Partition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p == nil {
		delete(c.running, name)
		return
	}
	c.running[name] = p
}

// setBusy notes whether a handler of the partition has yet to return.
func (c *Claimer) setBusy(name string, busy bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if busy {
		c.busy[name] = true
	} else {
		delete(c.busy, name)
	}
}

func (c *Claimer) isBusy(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.busy[name]
}

func (c *Claimer) wakeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.slots {
		s.signal()
	}
}
