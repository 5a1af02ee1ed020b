package worker

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/fx"
)

// ErrStopping is the cause with which the pool's context ends when the
// application stops.
var ErrStopping = errors.New("application stops")

// Module runs a [Pool] from start to stop of an application that provides
// []*claim.Claimer, a [Task] and *slog.Logger. The start does not wait for
// partitions. The stop drains the pool and waits for it, so the application's stop
// timeout has to be longer than the drain timeout and the grace of the task. If the
// pool fails, the application stops with exit code 1; a [*Supervisor], which the
// module provides, says why.
//
// The program's own `tenure work` is such an application.
var Module = fx.Module("worker", fx.Provide(NewPool, supervise), fx.Invoke(func(*Supervisor) {}))

// A Supervisor is a [Pool] that runs with an application. Its methods may be called
// concurrently.
type Supervisor struct {
	done chan struct{}
	err  error // set before done is closed
}

// Done returns a channel that is closed when the pool has ended: after the stop of the
// application, or when it has failed.
func (s *Supervisor) Done() <-chan struct{} { return s.done }

// Err returns why the pool has failed, nil if it has not or still runs. See [Pool.Run].
func (s *Supervisor) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// supervise ties the pool to the application's life.
func supervise(lc fx.Lifecycle, sd fx.Shutdowner, pool *Pool) *Supervisor {
	s := &Supervisor{done: make(chan struct{})}
	ctx, cancel := context.WithCancelCause(context.Background())
	lc.Append(fx.Hook{
		OnStart: func(context.Context) error {
			go func() {
				defer close(s.done)
				if s.err = pool.Run(ctx); s.err != nil {
					_ = sd.Shutdown(fx.ExitCode(1)) // fails only if already shutting down
				}
			}()
			return nil
		},
		OnStop: func(stop context.Context) error {
			cancel(ErrStopping)
			select {
			case <-s.done:
				return nil
			case <-stop.Done():
				return fmt.Errorf("worker: stop: %w", context.Cause(stop))
			}
		},
	})
	return s
}
