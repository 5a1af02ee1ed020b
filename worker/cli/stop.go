package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"

	"tenure/claim"
)

// A stop is told by signals how a pool ends: the first one drains it, the second
// one ends it now.
type stop struct {
	drain, now context.Context // their causes are a [*signalError], or errAsked
	ask        func()          // drains without a signal
	close      func()          // signals do again what they do by default
	lost       *atomic.Int64   // partitions that were lost during the drain
}

// errAsked is the cause of a drain that was asked for over NATS.
var errAsked = errors.New("drain was asked for")

// newStop returns a stop whose drain also ends with ctx.
func newStop(ctx context.Context) *stop {
	drain, endDrain := context.WithCancelCause(ctx)
	now, endNow := context.WithCancelCause(context.WithoutCancel(ctx))
	signals := make(chan os.Signal, 2) // the first two are all that counts
	notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	// Without it, who stops reading our output would end us before we have handed
	// anything over.
	pipes := make(chan os.Signal, 1) // never read
	notify(pipes, syscall.SIGPIPE)

	closed := make(chan struct{})
	var listening sync.WaitGroup
	listening.Go(func() {
		for {
			select {
			case s := <-signals:
				cause := &signalError{s.(syscall.Signal)}
				if drain.Err() != nil {
					endNow(cause)
				}
				endDrain(cause)
			case <-closed:
				return
			}
		}
	})
	return &stop{lost: new(atomic.Int64), drain: drain, now: now, ask: func() { endDrain(errAsked) }, close: func() {
		signal.Stop(signals)
		signal.Stop(pipes)
		close(closed)
		listening.Wait()
		endDrain(context.Canceled)
		endNow(context.Canceled)
	}}
}

// watched returns the trace with what is lost during the drain counted too.
func (s *stop) watched(trace *claim.Trace) *claim.Trace {
	both := *trace
	both.Lost = func(partition string, token uint64, cause error) {
		if s.drain.Err() != nil {
			s.lost.Add(1)
		}
		trace.Lost(partition, token, cause)
	}
	return &both
}

// outcome returns how a pool has ended that returned err.
func (s *stop) outcome(err error) error {
	lost := s.lost.Load()
	switch {
	case s.now.Err() != nil:
		return context.Cause(s.now) // whatever became of the drain
	case s.drain.Err() == nil && err == nil:
		return errors.New("the pool has ended though nobody asked it to") // a mistake of ours, and not a success
	case s.drain.Err() != nil && errors.Is(err, context.Cause(s.drain)):
		return nil // it had not begun to work
	case err == nil && lost > 0:
		return &codeError{exitLost, fmt.Errorf("the session was lost during the drain, with %d partitions: others have them within the TTL", lost)}
	default:
		return err
	}
}

// undo is what is to be done at the end, in reverse.
type undo []func()

func (u *undo) add(f func()) { *u = append(*u, f) }

func (u *undo) run() {
	for i := len(*u) - 1; i >= 0; i-- {
		(*u)[i]()
	}
}
