package claim

import (
	"errors"
	"fmt"
	"time"

	"tenure/claim/plan"
)

// ErrUnhealthy reports that a worker does not do, and will not soon do, its share.
// The error is a [*HealthError].
var ErrUnhealthy = errors.New("worker is unhealthy")

// A HealthError says why a worker is unhealthy. It matches [ErrUnhealthy] and,
// through Err, what keeps it from being healthy.
type HealthError struct {
	Worker string
	Reason string
	Since  time.Time // zero if it is not known
	Err    error     // may be nil
}

func (e *HealthError) Error() string {
	s := fmt.Sprintf("%v: worker %q: %s", ErrUnhealthy, e.Worker, e.Reason)
	if !e.Since.IsZero() {
		s += fmt.Sprintf(" for %v", time.Since(e.Since).Round(time.Millisecond))
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *HealthError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrUnhealthy}
	}
	return []error{ErrUnhealthy, e.Err}
}

// Healthy returns nil while the worker does its share, or may soon. It is a
// [*HealthError] when Run does not run, when there has been no session for the
// assignment timeout (see [WithAssignmentTimeout]), or when the worker has had
// nothing for as long although partitions are free: no plan knows this session, or
// the plan leaves partitions to nobody for want of workers. A worker that an operator
// has cordoned or drained, or that is simply not needed, is healthy.
//
// It reads memory only, and may be called as often as one likes.
func (c *Claimer) Healthy() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	bad := func(reason string, since time.Time, err error) error {
		return &HealthError{Worker: c.id, Reason: reason, Since: since, Err: err}
	}
	sess, late := c.session.Load(), func(t time.Time) bool { return time.Since(t) >= c.opts.assignment }
	switch {
	case c.handler == nil:
		return bad("Run does not run", time.Time{}, nil)
	case !c.stopAt.IsZero():
		return nil // it drains
	case sess == nil || sess.ctx.Err() != nil:
		if late(c.apart) {
			return bad("it has no session", c.apart, c.joinErr)
		}
	case len(c.running) == 0 && !c.starved.IsZero() && late(c.starved):
		return bad("it is given nothing though partitions are free", c.starved, nil)
	}
	return nil
}

// Ready returns nil while the worker has a session that it can rely on, does not
// stop, and is [Claimer.Healthy]; else a [*HealthError]. It reads memory only, and may
// be called as often as one likes.
func (c *Claimer) Ready() error {
	if err := c.Healthy(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	bad := func(reason string, since time.Time, err error) error {
		return &HealthError{Worker: c.id, Reason: reason, Since: since, Err: err}
	}
	switch sess := c.session.Load(); {
	case !c.stopAt.IsZero():
		return bad("it drains", c.stopAt, nil)
	case sess == nil:
		return bad("it has no session", c.apart, c.joinErr)
	case sess.left() <= 0:
		return bad("its session cannot be relied on", sess.sent(), nil)
	}
	return nil
}

// Leads reports whether the worker plans for the group now, as far as it knows.
func (c *Claimer) Leads() bool {
	sess := c.session.Load()
	return sess != nil && sess.ctx.Err() == nil && sess.leads.Load()
}

// starve notes whether the plan, or the want of one, gives nothing to this session
// without a reason; mu is held.
func (c *Claimer) starve(sess *session) {
	switch {
	case !c.isStarved(sess):
		c.starved = time.Time{}
	case c.starved.IsZero():
		c.starved = time.Now()
	}
}

func (c *Claimer) isStarved(sess *session) bool {
	if contains(c.set.Cordoned, c.id) || contains(c.set.Drained, c.id) {
		return false
	}
	if c.plan == nil {
		return true
	}
	known, free := false, false
	for i, w := range c.plan.Assign {
		if w >= 0 && c.plan.Workers[w] == (plan.WorkerRef{ID: c.id, Epoch: sess.epoch}) {
			return false
		}
		free = free || w < 0 && (c.plan.Why[i] == plan.NoRoom || c.plan.Why[i] == plan.NoWorker)
	}
	for _, w := range c.plan.Workers {
		known = known || w.ID == c.id && w.Epoch == sess.epoch
	}
	return free || !known
}
