package bench

import (
	"context"
	"time"

	"tenure/kvlock/bucket"
)

// fenced measures writes under a lock, which are refused once the hold has ended.
func fenced(ctx context.Context, s *site) error {
	k, err := s.lockers[0].Lock(ctx, bucket.Nonce())
	if err != nil {
		return err
	}
	value := make([]byte, rawSize)
	var one samples
	for range rounds {
		if err := s.raw.write(ctx); err != nil {
			return err
		}
		key := bucket.Nonce()
		began := time.Now()
		if err := k.Put(ctx, key, value); err != nil {
			return err
		}
		one = append(one, time.Since(began))
	}
	s.result("fenced-put", compared(one, s.raw.taken(), 1, 1.25)...)

	const many = 100
	var all, batch samples
	for range rounds / 5 {
		if err := s.raw.write(ctx); err != nil {
			return err
		}
		t, err := s.raw.batch(ctx, many)
		if err != nil {
			return err
		}
		batch = append(batch, t)
		values := make(map[string][]byte, many)
		for range many {
			values[bucket.Nonce()] = value
		}
		began := time.Now()
		if err := k.PutAll(ctx, values); err != nil {
			return err
		}
		all = append(all, time.Since(began))
	}
	s.result("fenced-put-100", append(compared(all, s.raw.taken(), 1, 10),
		plain("raw_batch_p50_us", micros(batch.at(50))), plain("times_raw_batch", float64(all.at(50))/float64(batch.at(50))))...)
	return k.Release(ctx)
}
