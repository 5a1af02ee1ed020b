package claim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"
)

// ErrWithdrawn is the cause with which the context of a Prepare ends when this
// worker is not going to get the partition after all.
var ErrWithdrawn = errors.New("move was withdrawn")

// A preparation is one call of the func given to [WithPrepare].
type preparation struct {
	ctx  context.Context
	end  context.CancelCauseFunc
	done chan struct{} // closed when the func has returned
	plan uint64        // revision of the plan that the move is ordered by
}

// WithPrepare sets a func that warms up for a partition that is about to be handed
// over to this worker, while its owner still drains. It is called once per move, in
// a goroutine of its own, when this worker has agreed to take the partition, which
// is before the owner's handler is asked to drain. It is not called for partitions
// that nobody runs. The values of Run's ctx are in its ctx.
//
// It never delays the hand-over. When the partition has come, the handler waits
// until prepare has returned, at most for limit, 0 for not at all; then prepare's
// ctx ends and the handler is called whether prepare has returned or not. An error
// or a panic of prepare is logged, and the handler is called all the same.
//
// The ctx lives on when prepare has returned, for whoever watches over what was
// prepared. It ends with cause [ErrWithdrawn] as soon as this worker is not going
// to get the partition, with that of the session if it is lost, with [ErrStopped]
// when Run ends, and with [context.Canceled] when the handler is called.
func WithPrepare(prepare func(ctx context.Context, partition string) error, limit time.Duration) Option {
	return func(o *options) error {
		if limit < 0 {
			return fmt.Errorf("prepare limit: have %v, want 0 or more: %w", limit, ErrTTL)
		}
		o.prepare, o.prepareLimit = prepare, limit
		return nil
	}
}

// prepare calls Prepare for a partition that sess has agreed to take, unless that
// was done. The offer names the plan by which it is made, which may be newer than
// the one that is followed here.
func (c *Claimer) prepare(sess *session, name string, plan uint64) {
	if c.opts.prepare == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if before := c.preparing[name]; before != nil && before.ctx.Err() == nil {
		before.plan = max(before.plan, plan)
		return
	}
	if c.handler == nil || !c.stopAt.IsZero() {
		return
	}
	p := &preparation{done: make(chan struct{}), plan: plan}
	p.ctx, p.end = context.WithCancelCause(sess.ctx)
	c.preparing[name] = p
	c.prepared.Go(func() {
		defer close(p.done)
		defer func() {
			if v := recover(); v != nil {
				c.log.ErrorContext(p.ctx, "preparing a partition", slog.String("partition", name), slog.Any("err", &PanicError{Value: v, Stack: debug.Stack()}))
			}
		}()
		if err := c.opts.prepare(p.ctx, name); err != nil {
			c.log.WarnContext(p.ctx, "preparing a partition", slog.String("partition", name), slog.Any("err", err))
		}
	})
}

// withdraw ends the preparations for partitions that the plan followed now gives to
// others, and all of them when the worker stops; mu is held.
func (c *Claimer) withdraw() {
	for name, p := range c.preparing {
		ref, _, known := c.lookup(name)
		switch {
		case !c.stopAt.IsZero():
			p.end(ErrStopped)
		case known && ref.ID != c.id && c.planAt >= p.plan:
			p.end(ErrWithdrawn)
		case p.ctx.Err() == nil:
			continue
		}
		delete(c.preparing, name)
	}
}

// awaitPrepared waits until Prepare for a partition that was gained has returned,
// at most for the limit, and ends it.
func (c *Claimer) awaitPrepared(ctx context.Context, name string) {
	c.mu.Lock()
	p := c.preparing[name]
	delete(c.preparing, name)
	c.mu.Unlock()
	if p == nil {
		return
	}
	defer p.end(nil)
	limit := time.NewTimer(c.opts.prepareLimit)
	defer limit.Stop()
	select {
	case <-p.done:
		return
	default:
	}
	select {
	case <-p.done:
	case <-ctx.Done():
	case <-p.ctx.Done():
	case <-limit.C:
		c.log.WarnContext(ctx, "partition is not prepared in time, going on without", slog.String("partition", name), slog.Duration("after", c.opts.prepareLimit))
	}
}
