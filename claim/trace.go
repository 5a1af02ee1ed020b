package claim

import "time"

// A Trace is told what happens to a worker and its partitions. Every func may be
// nil. They are called from the goroutines of the [Claimer], several at once, while
// no mutex is held, and must not block: what they wait for is not served meanwhile.
// A token says which hold of the partition it is about.
type Trace struct {
	// Joined is called when a session has begun, and SessionLost when it was lost
	// against the worker's will; err matches [ErrSessionLost].
	Joined      func(epoch uint64)
	SessionLost func(err error)

	// Renewed is called after a heartbeat was confirmed. Took is the time since it was
	// sent. RenewFailed is called after one that was not; remaining is how long the
	// session is still trusted if none is.
	Renewed     func(took time.Duration)
	RenewFailed func(remaining time.Duration)

	// Gained is called when a partition was gained, before its handler is called.
	Gained func(partition string, token uint64)

	// Moved is called when a partition was handed over to this worker and its
	// handler is called. Gap is how long nobody ran it: from the return of the
	// handler before to the sending of the hand-over, by the clock of that worker,
	// and from its storing, by the server's clock, to now, by this one's. It is as
	// exact as the last two agree.
	Moved func(partition string, token uint64, gap time.Duration)

	// Draining is called when a handler was asked to drain, with the cause that its
	// context would end with.
	Draining func(partition string, token uint64, cause error)

	// HandedOver is called when a partition was given away: to another worker, or
	// to nobody if that is empty. Took is the time since its handler was asked to
	// drain, 0 if none ran.
	HandedOver func(partition string, token uint64, to string, took time.Duration)

	// Lost is called when a claim has ended otherwise.
	Lost func(partition string, token uint64, cause error)

	// Failed is called when a handler has failed, for the given number of times in a
	// row, and will be called again after the pause; not again if that is 0.
	Failed func(partition string, token uint64, err error, attempts int, again time.Duration)

	// Stalled is called when a handler has not called [Partition.Beat] for too long.
	Stalled func(partition string, token uint64, silent time.Duration)

	// Stuck is called every 10 s while a handler does not return though its context
	// has ended.
	Stuck func(partition string, token uint64, cause error)

	// Overrun is called when a handler that is stuck has lost its partition; see
	// [WithForceAfter].
	Overrun func(partition string, token uint64)

	// Quarantined is called when this worker has put a partition into quarantine.
	Quarantined func(partition string, attempts int, cause error)

	// Degraded is called when the store is away for longer than the session can be
	// trusted, with true, and with false when it can be trusted again; see
	// [WithDegraded].
	Degraded func(degraded bool)
}

// WithTrace sets who is told what happens. The default, nil, is nobody.
func WithTrace(t *Trace) Option {
	return func(o *options) error {
		if t != nil {
			o.trace = *t
		}
		return nil
	}
}

func (t *Trace) joined(epoch uint64) {
	if t.Joined != nil {
		t.Joined(epoch)
	}
}

func (t *Trace) sessionLost(err error) {
	if t.SessionLost != nil {
		t.SessionLost(err)
	}
}

func (t *Trace) renewed(s *session, sent time.Time, confirmed bool) {
	switch {
	case confirmed && t.Renewed != nil:
		t.Renewed(time.Since(sent))
	case !confirmed && t.RenewFailed != nil:
		t.RenewFailed(max(0, s.left()))
	}
}

func (t *Trace) gained(h *hold) {
	if t.Gained != nil {
		t.Gained(h.slot.name, h.token)
	}
}

func (t *Trace) moved(h *hold, gap time.Duration) {
	if t.Moved != nil {
		t.Moved(h.slot.name, h.token, gap)
	}
}

func (t *Trace) draining(h *hold, cause error) {
	if t.Draining != nil {
		t.Draining(h.slot.name, h.token, cause)
	}
}

func (t *Trace) handedOver(h *hold, to string) {
	if t.HandedOver == nil {
		return
	}
	var took time.Duration
	if !h.asked.IsZero() {
		took = time.Since(h.asked)
	}
	t.HandedOver(h.slot.name, h.token, to, took)
}

func (t *Trace) lost(h *hold, cause error) {
	if t.Lost != nil {
		t.Lost(h.slot.name, h.token, cause)
	}
}

func (t *Trace) failed(h *hold, err error, again time.Duration) {
	if t.Failed != nil {
		t.Failed(h.slot.name, h.token, err, h.failures, again)
	}
}

func (t *Trace) stalled(h *hold, silent time.Duration) {
	if t.Stalled != nil {
		t.Stalled(h.slot.name, h.token, silent)
	}
}

func (t *Trace) stuck(h *hold, cause error) {
	if t.Stuck != nil {
		t.Stuck(h.slot.name, h.token, cause)
	}
}

func (t *Trace) overrun(h *hold) {
	if t.Overrun != nil {
		t.Overrun(h.slot.name, h.token)
	}
}

func (t *Trace) quarantined(partition string, attempts int, cause error) {
	if t.Quarantined != nil {
		t.Quarantined(partition, attempts, cause)
	}
}

func (t *Trace) degraded(is bool) {
	if t.Degraded != nil {
		t.Degraded(is)
	}
}
