package cli

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// untilSignal returns a context that SIGINT, SIGTERM or SIGHUP ends, with a
// [*signalError] as the cause. After the first one signals do again what they do
// by default: a second one ends a command that takes too long to end.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1) // the first one is all that counts
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
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
