package bench

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tenure/kvlock"
	"tenure/kvlock/bucket"
)

const (
	manyHolds = 10_000

	// The holds want to be renewed every 250 ms, which is twice as often as the
	// budget asks for: the rate is what comes through. Trust lasts for long.
	manyTTL      = 30 * time.Second
	manyRenewals = 120

	// window is how many writes are under way at a time while they are prepared.
	window = 256
)

// renewals measures one process that holds very many locks: what a hold takes of its
// memory, and how many renewals it gets through in a second.
func renewals(ctx context.Context, s *site) error {
	// The server is in the same process. What it takes for as many entries is
	// measured first, with raw ones.
	start := memory()
	rawRate, err := s.rawRenewals(ctx)
	if err != nil {
		return err
	}
	server := memory() - start

	l, err := s.locker(ctx, kvlock.WithTTL(manyTTL), kvlock.WithRenewals(manyRenewals))
	if err != nil {
		return err
	}
	start = memory()
	holds, err := takeMany(ctx, l)
	if err != nil {
		return err
	}
	if err := sleep(ctx, 2*time.Second); err != nil { // all were renewed several times
		return err
	}
	perHold := (memory() - start - server) / manyHolds
	before, began, used := revisions(holds), time.Now(), cpuTime()
	if err := sleep(ctx, 5*time.Second); err != nil {
		return err
	}
	after, seconds, used := revisions(holds), time.Since(began).Seconds(), cpuTime()-used
	lost, idle := 0, 0
	for i, k := range holds {
		if k.Err() != nil {
			lost++
		}
		if after[i] == before[i] {
			idle++
		}
	}
	// Nobody else writes, so every revision is a renewal.
	renewed := float64(maximum(after) - maximum(before))
	s.result("renew-10000",
		atLeast("renewals_per_s", renewed/seconds, 20_000), plain("raw_per_s", rawRate), plain("cpu_us_each", micros(used)/renewed),
		atMost("bytes_per_hold", perHold, 10_000), atMost("lost", float64(lost), 0),
		atMost("not_renewed_in_5s", float64(idle), 0))
	return nil
}

// takeMany takes many locks, with a window of them under way.
func takeMany(ctx context.Context, l *kvlock.Locker) ([]*kvlock.Lock, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	holds := make([]*kvlock.Lock, manyHolds)
	next := make(chan int)
	var done sync.WaitGroup
	for range window {
		done.Go(func() {
			for i := range next {
				k, err := l.TryLock(ctx, bucket.Nonce())
				if err != nil {
					cancel(err)
				}
				holds[i] = k
			}
		})
	}
	for i := range holds {
		next <- i
	}
	close(next)
	done.Wait()
	return holds, context.Cause(ctx)
}

// rawRenewals writes as many entries as there will be holds, and then updates each as
// a renewal does, with a window of publishes under way. It returns how many updates
// there were in a second.
func (s *site) rawRenewals(ctx context.Context) (perSecond float64, err error) {
	b := s.lockers[0].Bucket()
	js, err := jetstream.New(b.JetStream().Conn(), jetstream.WithPublishAsyncMaxPending(window))
	if err != nil {
		return 0, err
	}
	keys := make([]string, manyHolds)
	for i := range keys {
		keys[i] = bucket.Nonce()
	}
	last := make([]uint64, manyHolds)
	var began time.Time
	const updates = 2
	for round := range 1 + updates {
		if round == 1 {
			began = time.Now()
		}
		acks := make([]jetstream.PubAckFuture, manyHolds)
		for i, key := range keys {
			if acks[i], err = js.PublishMsgAsync(s.raw.message(key, last[i]), jetstream.WithStallWait(10*time.Second)); err != nil {
				return 0, err
			}
		}
		for i, ack := range acks {
			select {
			case got := <-ack.Ok():
				last[i] = got.Sequence
			case err := <-ack.Err():
				return 0, err
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			}
		}
	}
	return updates * manyHolds / time.Since(began).Seconds(), nil
}

// memory returns what the process has in use.
func memory() float64 {
	runtime.GC()
	runtime.GC() // what had a finalizer or stood in a pool
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}

func revisions(holds []*kvlock.Lock) []uint64 {
	all := make([]uint64, len(holds))
	for i, k := range holds {
		all[i] = k.Revision()
	}
	return all
}

func maximum(revisions []uint64) (most uint64) {
	for _, r := range revisions {
		most = max(most, r)
	}
	return most
}
