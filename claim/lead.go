package claim

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"tenure/claim/plan"
	"tenure/kvlock/bucket"
)

// How long the leader waits for more changes before it plans: workers start in
// swarms, but whoever leaves or dies leaves partitions behind.
const (
	joinDebounce  = 200 * time.Millisecond
	leaveDebounce = 20 * time.Millisecond
	maxDebounce   = 2 * time.Second
)

// A leader is the part of a worker that plans for the group while its session
// has the smallest epoch. It alone watches all members and all claims.
type leader struct {
	c    *Claimer
	sess *session

	mu      sync.Mutex
	members map[string]*seen // by worker
	claims  map[string]owner // by partition
	view    uint64           // revision up to which the inputs are known
	isReady bool             // the initial state of everything is known

	absent map[string]absence // by worker
	died   []time.Time        // when sessions were proven dead, within the last TTL

	ordered []time.Time          // when moves for balance were ordered, within the last minute
	cooling map[string]time.Time // partitions that stay where they are until then

	more  bool      // the last plan left moves to be ordered later
	due   time.Time // plan then, if not zero
	first time.Time // of the changes not planned for yet
	wake  chan struct{}
}

// seen is a live member as the leader sees it.
type seen struct {
	member
	epoch uint64
	at    time.Time // of its last heartbeat, by the server's clock
	beat  time.Time // the same by the local clock
}

// lead plans for the group until the session ends or turns out not to be the
// one with the smallest epoch, and follows its own plans like every worker.
func (c *Claimer) lead(ctx context.Context, sess *session) error {
	l := &leader{
		c: c, sess: sess, wake: make(chan struct{}, 1),
		members: make(map[string]*seen), claims: make(map[string]owner), absent: make(map[string]absence),
	}
	c.log.InfoContext(ctx, "worker leads the group", slog.Uint64("epoch", sess.epoch))
	sess.leads.Store(true)
	defer sess.leads.Store(false)
	ctx, end := context.WithCancelCause(ctx)
	watched := make(chan error, 1)
	go func() {
		err := c.bucket.Watch(ctx, l.take, l.ready,
			memberKey(c.g, "*"), claimKey(c.g, "*"), planKey(c.g), groupKey(c.g))
		end(err)
		watched <- err
	}()
	err := l.run(ctx)
	end(err)
	return firstErr(err, <-watched)
}

// take is called with every entry of the group.
func (l *leader) take(e bucket.Entry) {
	kind, _, _ := strings.Cut(e.Key, ".")
	l.mu.Lock()
	defer l.mu.Unlock()
	l.view = e.Revision
	switch kind {
	case "member":
		l.takeMember(e)
	case "claim":
		l.takeClaim(e)
	default:
		l.c.learn(e)
		switch {
		case kind == "group" && l.isReady:
			l.change(leaveDebounce) // somebody waits for it
		case kind == "group":
			l.change(joinDebounce)
		}
	}
}

func (l *leader) takeMember(e bucket.Entry) {
	worker, m, alive := l.c.observe(e)
	if worker == "" {
		return
	}
	before := l.members[worker]
	if !alive {
		certificate := m.State == dead
		if before != nil && l.c.deaths.proven(worker, before.epoch) {
			l.gone(worker, before, e.Expired || certificate && m.By != worker)
		}
		switch {
		case m.State == revoked && before != nil:
			delete(l.members, worker) // it may live: it hands over what it has, or is waited out
			l.change(leaveDebounce)
		case certificate && !l.isReady:
			l.absent[worker] = absence{stored: e.Time, rejoin: m.rejoin(), died: m.By != worker}
		case certificate && m.By == worker:
			l.await(worker, time.Now().Add(m.rejoin()))
		}
		return
	}
	if m.State != joining {
		delete(l.absent, worker)
	}
	now := &seen{member: m, epoch: m.epoch(e.Revision), at: e.Time, beat: time.Now()}
	l.members[worker] = now
	switch {
	case before == nil || before.epoch != now.epoch || before.State != now.State:
		if now.State == draining {
			l.change(leaveDebounce)
		} else {
			l.change(joinDebounce)
		}
	case before.Capacity != now.Capacity || before.Weight != now.Weight || before.Zone != now.Zone || before.Build != now.Build:
		l.change(joinDebounce)
	}
}

func (l *leader) takeClaim(e bucket.Entry) {
	name, err := bucket.DecodeName(e.Key[strings.LastIndexByte(e.Key, '.')+1:])
	if err != nil {
		return
	}
	before := l.claims[name]
	r, err := parseRecord(e)
	if foreign := err != nil || r.By != before.worker; foreign && before.worker != "" && !l.c.deaths.proven(before.worker, before.epoch) {
		// Neither its owner's write nor a take-over. The owner does not read it by itself.
		go l.c.tell(before.worker, before.epoch, message{Op: opLook, Partition: name}) // not with mu held
	}
	switch {
	case e.Marker:
		delete(l.claims, name)
		return
	case err != nil:
		l.c.log.Warn("claim key holds bytes that are no record", slog.String("key", e.Key))
		return
	}
	l.claims[name] = ownerOf(r, e.Revision)
	// What has moved may let others begin, or make room in the budget of moves.
	if l.isReady && (before.worker != r.Owner || before.layout != r.Layout) && (l.more || l.c.waits()) || before.quarantined != r.Quarantined || before.avoid != r.Avoid {
		l.change(leaveDebounce)
	}
}

// ready is called when the initial state is complete.
func (l *leader) ready() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isReady = true
	// What was read for the first time may be old. The leader's own heartbeat is
	// among it and tells how old. That the server's clock is asked is harmless: it
	// only says when to look whether the others are still there.
	own := l.members[l.c.id]
	if own != nil {
		sent := l.sess.sent()
		for _, m := range l.members {
			if beat := sent.Add(m.at.Sub(own.at)); beat.Before(m.beat) {
				m.beat = beat
			}
		}
	}
	l.settle(own)
	if l.c.following() != nil {
		l.change(leaveDebounce) // the last leader has gone: somebody may wait
	} else {
		l.change(joinDebounce)
	}
}

// change notes that a plan is due; mu is held.
func (l *leader) change(debounce time.Duration) {
	now := time.Now()
	if l.due.IsZero() {
		l.first = now
	}
	due := now.Add(debounce)
	if latest := l.first.Add(maxDebounce); due.After(latest) {
		due = latest
	}
	// A death does not wait for the end of a wave of joins.
	if l.due.IsZero() || debounce == joinDebounce || due.Before(l.due) {
		l.due = due
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run proves silent members dead and plans when something has changed.
func (l *leader) run(ctx context.Context) error {
	timer := newAlarm()
	defer timer.Stop()
	relist := time.Now().Add(l.c.lease.TTL)
	for {
		next := relist
		if silent, at := l.nextSilent(); silent != nil {
			if !at.After(time.Now()) {
				l.test(ctx, silent)
				continue
			}
			next = earlier(next, at)
		}
		l.mu.Lock()
		if at := l.resume(); !at.IsZero() && l.due.IsZero() {
			l.due = at
		}
		if at := l.returned(); !at.IsZero() {
			next = earlier(next, at)
		}
		due := l.due
		l.mu.Unlock()
		if !due.IsZero() {
			if !due.After(time.Now()) {
				if err := l.publish(ctx); err != nil {
					return err
				}
				continue
			}
			next = earlier(next, due)
		}
		timer.set(max(time.Until(next), time.Nanosecond))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-l.wake:
		case <-timer.C:
		}
		if !time.Now().Before(relist) {
			relist = time.Now().Add(l.c.lease.TTL)
			if err := l.deposed(ctx); err != nil {
				return err
			}
			l.remind()
			l.mu.Lock()
			l.change(leaveDebounce) // also if another's plan came in between
			l.mu.Unlock()
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// suspect is a session that should be tested for being dead.
type suspect struct {
	worker string
	epoch  uint64
	rejoin time.Duration // see member
}

// nextSilent returns the session whose lease, as far as seen, ends first, and
// when that is.
func (l *leader) nextSilent() (who *suspect, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.isReady {
		return nil, at
	}
	for worker, m := range l.members {
		if worker == l.c.id {
			continue
		}
		if end := m.beat.Add(time.Duration(m.TTL) * time.Second); who == nil || end.Before(at) {
			who, at = &suspect{worker, m.epoch, m.rejoin()}, end
		}
	}
	// After an outage everybody has one heartbeat interval to report.
	return who, later(at, l.sess.outage().Add(l.c.lease.Every))
}

// test tries to prove a silent session dead. Refused, it is tried again soon,
// unless a heartbeat comes.
func (l *leader) test(ctx context.Context, who *suspect) {
	proven := l.c.probe(ctx, who.worker, who.epoch, who.rejoin)
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.members[who.worker]
	switch {
	case m == nil || m.epoch != who.epoch:
	case proven:
		l.gone(who.worker, m, true)
	default:
		again := time.Now().Add(probeEvery - time.Duration(m.TTL)*time.Second)
		if again.After(m.beat) {
			m.beat = again
		}
	}
}

// deposed lists the members anew and returns an error if one with a smaller
// epoch is alive: then this session should not lead.
func (l *leader) deposed(ctx context.Context) error {
	before, found, err := l.c.predecessor(ctx, l.sess)
	if err != nil {
		l.c.log.WarnContext(ctx, "listing the members", slog.Any("err", err))
		return nil // the next time will tell
	}
	if found {
		l.c.log.InfoContext(ctx, "worker leads no longer", slog.String("to", before.worker), slog.Uint64("epoch", before.epoch))
		return errDeposed
	}
	return nil
}

// remind tells live workers of claims that name them though the plan does not: such
// a worker may not know.
//
//	The plan gives p to b; a hands it over, and the hint is lost; the next plan gives
//	p to nobody. b has no reason to look, and nobody else to remind it.
func (l *leader) remind() {
	l.mu.Lock()
	lost := make(map[string]owner)
	for name, o := range l.claims {
		if m := l.members[o.worker]; m == nil || m.epoch != o.epoch {
			continue
		}
		if to, _, known := l.c.target(name); !known || to.ID != o.worker || to.Epoch != o.epoch {
			lost[name] = o
		}
	}
	l.mu.Unlock()
	for name, o := range lost {
		l.c.tell(o.worker, o.epoch, message{Op: opYours, Partition: name, Revision: o.revision})
	}
}

// publish makes a plan and stores it if it differs from the present one. It is
// refused, and tried again with what comes, if another plan was stored since.
func (l *leader) publish(ctx context.Context) error {
	in, settings, view, ok := l.input()
	if !ok {
		return nil
	}
	l.vacate(ctx)
	c := l.c
	c.mu.Lock()
	present, revision, planner := c.plan, c.planRev, c.planner
	// What is stored may be another plan than the one that is followed: made from
	// less, or from other settings. Who joins next would find it.
	if c.planAt != c.planRev {
		present = nil
	}
	c.mu.Unlock()
	if planner > plan.Version {
		c.log.InfoContext(ctx, "plan was made by a newer planner, leaving it", slog.Int("have", plan.Version), slog.Int("want", planner))
		return nil
	}
	result := plan.Make(in)
	l.later(result.More)
	p := plan.NewPlan(in, result)
	p.View, p.Settings, p.Leader, p.LeaderEpoch = view, settings, c.id, l.sess.epoch
	if present != nil && present.Settings == settings &&
		slices.Equal(present.Workers, p.Workers) && slices.Equal(present.Assign, p.Assign) {
		return nil
	}
	data, err := p.Marshal()
	if err != nil {
		return err
	}
	try, cancel := context.WithTimeout(ctx, l.sess.timeout())
	defer cancel()
	stored, err := c.bucket.Write(try, bucket.Write{Key: planKey(c.g), Last: revision, Value: data})
	switch {
	case err == nil:
		l.count(in, result)
		c.log.InfoContext(ctx, "plan made", slog.Int("workers", len(p.Workers)), slog.Int("partitions", len(p.Assign)),
			slog.Int("moves", result.Moves), slog.Uint64("view", view), slog.Uint64("revision", stored))
		return nil
	case permanent(err) || errors.Is(err, bucket.ErrFull):
		return err
	}
	// The plan that stands comes by the watch.
	c.log.DebugContext(ctx, "plan", slog.Any("err", err))
	l.mu.Lock()
	l.change(leaveDebounce)
	l.mu.Unlock()
	return nil
}

// input collects what the planner needs, and returns the layout and the view that
// it is of. Nothing is due any more then.
func (l *leader) input() (in plan.Input, layout, view uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.due = time.Time{}
	st := l.state()
	if !l.isReady || len(st.names) == 0 {
		return in, 0, 0, false
	}
	in = st.input()
	in.Policy.MaxMoves = l.allowance(in, st.settings.policy().MovesPerMinute)
	return in, st.settings.Layout, l.view, true
}

// state returns what is known of the group; mu is held.
func (l *leader) state() *state {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	st := &state{
		group: c.group, settings: c.set, names: c.names, members: l.members, claims: l.claims, present: c.plan,
		absent: func(worker string) bool { _, ok := l.absent[worker]; return ok },
	}
	if st.present != nil && st.present.Settings != c.setRev {
		st.present = nil
	}
	st.cooling = l.cool(st)
	return st
}
