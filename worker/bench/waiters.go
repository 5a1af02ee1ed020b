package bench

import (
	"context"
	"errors"
	"sync"
	"time"

	"tenure/kvlock/bucket"
)

// idleWaiters measures what 1,000 waiters in one process cost while nothing happens.
// The server is in the same process, so its share counts too.
func idleWaiters(ctx context.Context, s *site) error {
	const waiters = 1000
	ls, err := s.processes(ctx, 2)
	if err != nil {
		return err
	}
	name := bucket.Nonce()
	held, err := ls[0].Lock(ctx, name)
	if err != nil {
		return err
	}
	before := cpuTime()
	if err := sleep(ctx, 3*time.Second); err != nil {
		return err
	}
	alone := share(before, 3*time.Second)

	wait, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errIdle := errors.New("waited long enough")
	var done sync.WaitGroup
	for range waiters {
		done.Go(func() {
			if _, err := ls[1].Lock(wait, name); !errors.Is(err, errIdle) {
				cancel(err)
			}
		})
	}
	err = stand(wait, ls[1].Bucket(), name, waiters)
	if err == nil {
		err = sleep(wait, 2*time.Second) // until all have told the holder, and each other
	}
	var used float64
	var consumers int
	if err == nil {
		// One TTL: each of them looks once in that time.
		before, ttl := cpuTime(), ls[1].TTL()
		err = sleep(wait, ttl)
		used = share(before, ttl)
	}
	if err == nil {
		consumers, err = s.consumers(ctx)
	}
	cancel(errIdle)
	done.Wait()
	if cause := context.Cause(wait); !errors.Is(cause, errIdle) {
		return cause
	}
	if err != nil {
		return err
	}
	s.result("idle-waiters-1000", atMost("cpu_percent", used, 1), plain("cpu_without_percent", alone), atMost("consumers", float64(consumers), 1))
	return held.Release(ctx)
}

// share returns how much of one core was used in the time d since before.
func share(before, d time.Duration) float64 {
	return 100 * float64(cpuTime()-before) / float64(d)
}

// consumers returns how many consumers the bucket's stream has.
func (s *site) consumers(ctx context.Context) (int, error) {
	b := s.lockers[0].Bucket()
	stream, err := b.JetStream().Stream(ctx, b.Stream())
	if err != nil {
		return 0, err
	}
	return stream.CachedInfo().State.Consumers, nil
}

// sleep waits for d, or until ctx is done.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
