package cli

import (
	"time"

	"tenure/config"
)

// StopTimeout returns how long the end of a pool with these settings may take.
func StopTimeout(cfg *config.Config) time.Duration {
	return (&workCommand{Lease: &cfg.Lease, Pool: &cfg.Pool}).stopTimeout()
}
