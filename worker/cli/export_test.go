package cli

import (
	"context"
	"time"

	"tenure/config"
)

// StopTimeout returns how long the end of a pool with these settings may take.
func StopTimeout(cfg *config.Config) time.Duration {
	return (&workCommand{Lease: &cfg.Lease, Pool: &cfg.Pool}).stopTimeout()
}

// UnaskedEnd returns the exit code of a pool that ends with err though nobody has asked it
// to end.
func UnaskedEnd(err error) int {
	stop := newStop(context.Background())
	defer stop.close()
	return exitCode(stop.outcome(err))
}
