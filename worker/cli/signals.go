package cli

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"

	"tenure/worker/proc"
)

// untilSignal returns a context that SIGINT, SIGTERM or SIGHUP ends, with a
// [*signalError] as the cause. After the first one signals do again what they do
// by default: a second one ends a command that takes too long to end.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1) // the first one is all that counts
	notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case s := <-signals:
			cancel(&signalError{s.(syscall.Signal)})
		case <-ctx.Done():
		}
		signal.Stop(signals)
	})
	return ctx, func() {
		cancel(context.Canceled)
		watching.Wait()
	}
}

// notify is [signal.Notify], but leaves a SIGHUP that is ignored so: nohup.
func notify(signals chan<- os.Signal, all ...os.Signal) {
	for _, s := range all {
		if s != syscall.SIGHUP || !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
}

// lastSignal is the largest number of a signal on Linux; elsewhere there are fewer.
const lastSignal = 64

// relayed returns the signals that a child gets with us: all but those that
// cannot be had, that are about our own doing, or that the Go runtime and the C
// library use between themselves.
func relayed() []os.Signal {
	var all []os.Signal
	for s := syscall.Signal(1); s <= lastSignal; s++ {
		switch s {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGURG, 32, 33, 34:
		default:
			all = append(all, s)
		}
	}
	return all
}

// ends reports whether a program that does nothing about s is ended by it.
func ends(s syscall.Signal) bool {
	switch s {
	case syscall.SIGCONT, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGWINCH:
		return false
	}
	return true
}

// A relay passes the signals of this process on to the process group of a child.
// Before there is one, the first signal that would end a program ends the context
// of the relay, and no child starts any more.
type relay struct {
	cancel context.CancelCauseFunc
	stop   func()

	mu    sync.Mutex
	ended error       // why no child starts any more
	asked error       // what the child was told that ends us too, unless it ended by itself
	child *proc.Group // nil before the start
}

// newRelay returns a relay and the context that it ends. The end of ctx itself
// counts as SIGTERM. Call close at the end.
func newRelay(ctx context.Context) (*relay, context.Context) {
	r := new(relay)
	waiting, cancel := context.WithCancelCause(ctx)
	r.cancel = cancel
	signals := make(chan os.Signal, 2*lastSignal) // more than can come before relay looks
	notify(signals, relayed()...)
	closed := make(chan struct{})
	var relaying sync.WaitGroup
	relaying.Go(func() { r.relay(ctx, signals, closed) })
	r.stop = sync.OnceFunc(func() {
		signal.Stop(signals)
		close(closed)
		relaying.Wait()
		cancel(context.Canceled)
	})
	return r, waiting
}

// close ends the relay: signals do again what they do by default.
func (r *relay) close() { r.stop() }

// relay delivers signals until the relay is closed.
func (r *relay) relay(ctx context.Context, signals <-chan os.Signal, closed <-chan struct{}) {
	over := ctx.Done()
	for {
		select {
		case s := <-signals:
			r.deliver(s.(syscall.Signal), &signalError{s.(syscall.Signal)})
		case <-over:
			over = nil
			r.deliver(syscall.SIGTERM, context.Cause(ctx))
		case <-closed:
			return
		}
	}
}

// deliver gives s to the child, or ends the waiting with cause.
func (r *relay) deliver(s syscall.Signal, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case s == syscall.SIGPIPE:
		// Nobody reads our log any more. That must not end us, and is nothing to
		// the child.
	case r.child != nil:
		err := r.child.Signal(s) // fails only if the child has ended
		if s == syscall.SIGTERM || s == syscall.SIGINT || s == syscall.SIGQUIT || err != nil && ends(s) {
			r.asked = cause
		}
	case r.ended == nil && ends(s):
		r.ended = cause
		r.cancel(cause)
	}
}

// start starts the child, unless a signal came first: then it returns the cause.
func (r *relay) start(cmd *exec.Cmd) (*proc.Group, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended != nil {
		return nil, r.ended
	}
	child, err := proc.Start(cmd)
	r.child = child
	return child, err
}

// again says that the child has ended and another one shall start later. It returns
// the cause if that must not be: the child was sent a signal that asks to end, and may
// have ended for another reason.
func (r *relay) again() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.child, r.ended = nil, r.asked
	return r.ended
}

// cause returns what ended the waiting, nil if nothing did.
func (r *relay) cause() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}
