package claim

import (
	"fmt"
	"time"
)

// DefaultQuarantineAfter is how many failures in a row put a partition into
// quarantine: with the default pauses between them, after twelve minutes.
const DefaultQuarantineAfter = 20

// WithQuarantineAfter sets after how many failures in a row, of handlers on any
// worker, a partition is put into quarantine: it is run by nobody, and no load,
// until [Admin.Resume]. 0 means never: for handlers that fail when something is away
// that all of them need, and shall go on trying until it is back. A handler that has
// returned nil, or has run for longer than the longest pause of [WithBackoff], has
// not failed in a row. The default is [DefaultQuarantineAfter].
func WithQuarantineAfter(n int) Option {
	return func(o *options) error {
		if n < 0 {
			return fmt.Errorf("quarantine: have %d failures, want 0 or more", n)
		}
		o.quarantine = n
		return nil
	}
}

// WithForceAfter overruns a handler that does not return within d after its context
// has ended because it did not drain in time, or because it was given up as stalled:
// the partition is handed over while the handler still runs.
//
// For that partition only one thing of what this package promises is left then: the
// server refuses what the old handler writes through its [Partition], and whoever
// checks its token refuses it too. But it may go on doing everything else beside the
// new owner's handler. This worker does not get the partition again before it has
// returned, and Run does not return before either. The default of 0 never hands
// anything over before the handler has returned.
func WithForceAfter(d time.Duration) Option {
	return func(o *options) error {
		if d < 0 {
			return fmt.Errorf("force after: have %v, want 0 or more: %w", d, ErrTTL)
		}
		o.force = d
		return nil
	}
}

// WithStallAfter has a partition reported as stalled whose handler has not called
// [Partition.Beat] for d, counted from its start: in the log, the trace and the
// status, until it does. Nothing else happens to it, unless [WithGiveUpStalled] is
// given too, and nothing at all to other partitions. The default of 0 asks for no
// beats.
func WithStallAfter(d time.Duration) Option {
	return func(o *options) error {
		if d < 0 {
			return fmt.Errorf("stall after: have %v, want 0 or more: %w", d, ErrTTL)
		}
		o.stall = d
		return nil
	}
}

// WithGiveUpStalled has a partition that is stalled given up, alone: the context of
// its handler ends with cause [ErrStalled], and when the handler has returned the
// partition is given back as after a failure, so that another worker gets it, if
// there is one that has room. A handler that does not return keeps it; see
// [WithForceAfter].
func WithGiveUpStalled() Option {
	return func(o *options) error { o.giveUp = true; return nil }
}

// WithDegraded has the handlers run on while the store is away for longer than the
// session can be trusted. [Partition.Degraded] is then true, [Partition.Remaining] 0,
// and every write through the [Partition] fails with [ErrDegraded]; nothing is gained
// or handed over. When the store is back and the session is still alive there, since
// nobody has proven it dead and its key has not expired, everything goes on as if
// nothing had happened; else the handlers' contexts end with [ErrSessionLost], and
// the worker joins again.
//
// This gives up the promise of one handler per partition: if it is not the store that
// is away but this worker that is cut off, others run its partitions beside it from
// one TTL on. Tasks that look at [Partition.Remaining], as those of package worker for
// commands and streams do, stop all the same. The default is to end the handlers.
func WithDegraded() Option {
	return func(o *options) error { o.degraded = true; return nil }
}

// Beat says that the handler makes progress; see [WithStallAfter]. It does no I/O.
func (p *Partition) Beat() {
	p.beat.Store(int64(time.Since(p.began)))
	if p.stalled.Load() {
		p.hold.slot.signal()
	}
}

// lasted returns how long ago the handler was called.
func (p *Partition) lasted() time.Duration { return time.Since(p.began) }

// silent returns how long ago the handler has called Beat, or was called itself.
func (p *Partition) silent() time.Duration {
	return time.Since(p.began) - time.Duration(p.beat.Load())
}

// Degraded reports that the store is away for longer than the claim could be trusted,
// and the handler runs on all the same; see [WithDegraded].
func (p *Partition) Degraded() bool {
	return p.returned() == nil && p.hold.degraded() != nil
}

// mark stores whether the partition is stalled, for people to see.
func (h *hold) mark(p *Partition) {
	if h.lock(h.ctx) != nil {
		return
	}
	defer h.unlock()
	// The claim may be given away as soon as the handler has returned.
	if stalled := p.stalled.Load(); p.returned() == nil && h.record.Stalled != stalled {
		rec := h.mine()
		rec.Stalled = stalled
		_, _ = h.rewrite(h.ctx, rec, nil) // the slot asks the hold
	}
}
