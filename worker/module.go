package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"go.uber.org/fx"
)

// ErrStopping is the cause with which the pool's context ends when the
// application stops.
var ErrStopping = errors.New("application stops")

// Module runs a [Pool] from start to stop of an application that provides
// []*claim.Claimer, a [Task] and *slog.Logger. The start does not wait for
// partitions. The stop drains the pool and waits for it, so the application's stop
// timeout has to be longer than the drain timeout and the grace of the task. If the
// pool fails, the application stops with exit code 1.
var Module = fx.Module("worker", fx.Provide(NewPool), fx.Invoke(supervise))

// supervise ties the pool to the application's life.
func supervise(lc fx.Lifecycle, sd fx.Shutdowner, pool *Pool) {
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan struct{})
	lc.Append(fx.Hook{
		OnStart: func(context.Context) error {
			go func() {
				defer close(done)
				if err := pool.Run(ctx); err != nil {
					pool.log.ErrorContext(ctx, "pool failed", slog.Any("err", err))
					_ = sd.Shutdown(fx.ExitCode(1)) // fails only if already shutting down
				}
			}()
			return nil
		},
		OnStop: func(stop context.Context) error {
			cancel(ErrStopping)
			select {
			case <-done:
				return nil
			case <-stop.Done():
				return fmt.Errorf("worker: stop: %w", context.Cause(stop))
			}
		},
	})
}
