package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"tenure/kvlock"
	"tenure/kvlock/bucket"
)

// handOvers measures a line of waiters that stands still, and lines that pass. The
// first comes first: afterwards the server is busy for a while with what has expired.
func handOvers(ctx context.Context, s *site) error {
	if err := idleWaiters(ctx, s); err != nil {
		return err
	}
	ls, err := s.processes(ctx, 4)
	if err != nil {
		return err
	}
	s.raw.from = nil
	for _, l := range ls {
		s.raw.from = append(s.raw.from, l.Bucket())
	}
	var shortest time.Duration // p50 of the shortest line
	for _, n := range []int{4, 16, 64, 256} {
		var took samples
		var passing time.Duration
		for range max(4, 1024/n) {
			t, all, err := s.passLine(ctx, ls, n)
			if err != nil {
				return err
			}
			took, passing = append(took, t...), passing+all
		}
		if n == 4 {
			shortest = took.at(50)
		}
		raw := s.raw.taken()
		each := passing / time.Duration(len(took))
		s.result(fmt.Sprint("handover-", n), append(compared(took, raw, 1, 4),
			atMost("each_ratio", float64(each)/float64(raw.at(50)), 8),
			atMost("times_handover_4", float64(took.at(50))/float64(shortest), 1.5))...)
	}
	return nil
}

// passLine lets n waiters stand in line and pass, and returns the time of every
// hand-over, from the call of Release to the return of the next Lock, and of all.
// Raw operations are measured while the line stands, on the connections of all
// processes, so that both find them and the machine awake.
func (s *site) passLine(ctx context.Context, ls []*kvlock.Locker, n int) (took samples, all time.Duration, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	name := bucket.Nonce()
	first, err := ls[0].Lock(ctx, name)
	if err != nil {
		return nil, 0, err
	}
	var released time.Time // goes with the lock, as took does
	var done sync.WaitGroup
	for i := range n {
		done.Go(func() {
			k, err := ls[i%len(ls)].Lock(ctx, name)
			if err != nil {
				cancel(err)
				return
			}
			took = append(took, time.Since(released))
			released = time.Now()
			if err := k.Release(ctx); err != nil {
				cancel(err)
			}
		})
	}
	err = stand(ctx, ls[0].Bucket(), name, n)
	for until := time.Now().Add(settling); err == nil && time.Now().Before(until); {
		err = s.raw.write(ctx)
	}
	released = time.Now()
	began := released
	if failed := first.Release(ctx); err == nil {
		err = failed
	}
	if err != nil {
		cancel(err)
	}
	done.Wait()
	return took, time.Since(began), context.Cause(ctx)
}

// settling is how long it takes at most until the holder knows that n stand in line.
const settling = 20 * time.Millisecond

// stand waits until n waiters stand in line.
func stand(ctx context.Context, b *bucket.Bucket, name string, n int) error {
	enc, err := bucket.EncodeName(name)
	if err != nil {
		return err
	}
	for {
		st, err := b.State(ctx, "wait."+enc+".*")
		if err != nil {
			return err
		}
		if len(st.Keys) >= n {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
}
