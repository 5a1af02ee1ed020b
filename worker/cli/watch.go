package cli

import (
	"context"
	"errors"
	"log/slog"
	"syscall"
	"time"

	"tenure/kvlock"
	"tenure/worker/proc"
)

const (
	// killMargin is how long before the end of trust a child is killed at the
	// latest. 100 ms have to be left; the rest pays for a late timer and the kill.
	killMargin = 200 * time.Millisecond

	// patience is how long a child that was asked to end may take while the hold
	// is good after all.
	patience = 10 * time.Second

	// look is how often a hold is looked at, at least: a machine that was
	// suspended shall not need a whole TTL to notice.
	look = 500 * time.Millisecond
)

// A hold is what a child may run under. A lock is one.
type hold interface {
	Context() context.Context
	Err() error
	Remaining() time.Duration
}

// A watch ends a child before the hold that it runs under ends.
//
// Trust in a hold is renewed long before it is over, so what remains of it goes up
// and down. Once it is low, renewals have failed for a while: the child is asked to
// end, while there is still time for it. It is killed before trust is over, come
// what may. A hold that is proven to be lost leaves the child the same little time,
// but no more than was left of trust when that was last looked at.
type watch struct {
	hold  hold
	child *proc.Group
	grace time.Duration // from SIGTERM to SIGKILL, with a hold that is lost
	log   *slog.Logger
}

// newWatch returns a watch over child. trust is that of a hold just renewed.
//
// The grace is an eighth of it: of a healthy hold more than that remains after a
// renewal that got no answer, so no child is asked to end too early.
func newWatch(hold hold, child *proc.Group, trust time.Duration, log *slog.Logger) *watch {
	return &watch{hold: hold, child: child, grace: trust / 8, log: log}
}

// run watches until the child has ended. It reports whether the child was asked
// to end for the hold's sake, or had not ended when the hold did.
func (w *watch) run(ctx context.Context) (ended bool) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	over := w.hold.Context().Done()
	lost := false
	var trusted, limit time.Time // when trust ends, as last seen; until when the child may run on once it was asked to end
	for {
		select {
		case <-w.child.Done():
			return ended || w.hold.Err() != nil
		case <-over:
			over = nil
		case <-timer.C:
		}

		now := time.Now()
		if left := w.hold.Remaining(); left > 0 {
			trusted = now.Add(left)
		}
		left, err := trusted.Sub(now), w.hold.Err()
		if !ended && (err != nil || left <= w.grace+killMargin) {
			ended, limit = true, now.Add(patience)
			w.log.WarnContext(ctx, "command is asked to end", slog.Duration("remaining", max(0, left)), slog.Any("err", err))
			_ = w.child.Signal(syscall.SIGTERM) // fails only if the child has ended
		}
		if err != nil && !lost {
			lost, limit = true, now.Add(w.grace)
			if isExpired(err) {
				limit = now // this process or the machine stood still: others may go on already
			}
		}
		next := left - w.grace - killMargin
		if ended {
			if next = min(limit.Sub(now), left-killMargin); next <= 0 {
				_ = w.child.Kill() // fails only if the child has ended
				next = look        // a kill may take effect late; there is nothing else to do
			}
		}
		timer.Reset(min(look, next))
	}
}

func isExpired(err error) bool {
	lost, ok := errors.AsType[*kvlock.LostError](err)
	return ok && lost.Reason == kvlock.Expired
}
