package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// A stop is told by signals how a pool ends: the first one drains it, the second
// one ends it now.
type stop struct {
	drain, now context.Context // their causes are a [*signalError], or errAsked
	ask        func()          // drains without a signal
	close      func()          // signals do again what they do by default
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
	return &stop{drain: drain, now: now, ask: func() { endDrain(errAsked) }, close: func() {
		signal.Stop(signals)
		signal.Stop(pipes)
		close(closed)
		listening.Wait()
		endDrain(context.Canceled)
		endNow(context.Canceled)
	}}
}

// undo is what is to be done at the end, in reverse.
type undo []func()

func (u *undo) add(f func()) { *u = append(*u, f) }

func (u *undo) run() {
	for i := len(*u) - 1; i >= 0; i-- {
		(*u)[i]()
	}
}
