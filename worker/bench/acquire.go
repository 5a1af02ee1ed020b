package bench

import (
	"context"
	"time"

	"tenure/kvlock"
	"tenure/kvlock/bucket"
)

// rounds is how often an operation is measured.
const rounds = 1000

// acquire measures taking and releasing a lock that nobody else wants.
func acquire(ctx context.Context, s *site) error {
	l := s.lockers[0]
	var took, cycle samples
	for i := range rounds + rounds/10 {
		if i == rounds/10 { // the first ones warm up
			took, cycle = nil, nil
			s.raw.taken()
		}
		if err := s.raw.write(ctx); err != nil {
			return err
		}
		t, c, err := takeAndRelease(ctx, l, bucket.Nonce())
		if err != nil {
			return err
		}
		took, cycle = append(took, t), append(cycle, c)
	}
	raw := s.raw.taken()
	s.result("acquire", compared(took, raw, 1, 1.25)...)

	var again samples
	name := bucket.Nonce()
	for range rounds {
		if err := s.raw.write(ctx); err != nil {
			return err
		}
		t, _, err := takeAndRelease(ctx, l, name)
		if err != nil {
			return err
		}
		again = append(again, t)
	}
	s.result("acquire-again", compared(again[1:], s.raw.taken(), 1, 2.5)...)
	s.result("cycle", compared(cycle, raw, 2, 1.25)...)
	return nil
}

// takeAndRelease returns how long the taking took, and both.
func takeAndRelease(ctx context.Context, l *kvlock.Locker, name string) (taken, both time.Duration, err error) {
	began := time.Now()
	k, err := l.TryLock(ctx, name)
	if err != nil {
		return 0, 0, err
	}
	taken = time.Since(began)
	err = k.Release(ctx)
	return taken, time.Since(began), err
}
