package worker

import (
	"context"
	"math/rand/v2"
	"time"
)

// A Backoff says how long to wait before something is tried again: Min after
// the first failure, twice as long after each one that follows, up to Max.
// A fifth is added or taken off at random, so that partitions that failed
// together do not return together.
type Backoff struct {
	Min time.Duration // 0 is the default of the field it is used in
	Max time.Duration // 0 is the default of the field it is used in
}

// or fills what is not set.
func (b Backoff) or(low, high time.Duration) Backoff {
	if b.Min <= 0 {
		b.Min = low
	}
	if b.Max <= 0 {
		b.Max = max(high, b.Min)
	}
	return b
}

// after returns the wait after n failures in a row, n at least 1.
func (b Backoff) after(n int) time.Duration {
	wait := b.Min
	for range n - 1 {
		if wait *= 2; wait >= b.Max {
			break
		}
	}
	wait = min(wait, b.Max)
	return wait + time.Duration((rand.Float64()-0.5)*0.4*float64(wait))
}

// pause waits for d. It reports false, at once, when ctx is done or p drains.
func pause(ctx context.Context, p Partition, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil && !isDraining(p)
	case <-ctx.Done():
	case <-p.Draining():
	}
	return false
}
