package claim_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tenure/claim"
	"tenure/embedded/natstest"
	"tenure/kvlock/bucket"
)

// BenchmarkColdStart measures from the start of 100 workers on an empty group
// of 10,000 partitions until every handler runs.
func BenchmarkColdStart(b *testing.B) {
	const workers, partitions = 100, 10_000
	for b.Loop() {
		srv := natstest.Server(b)
		ctx, stop := context.WithCancel(b.Context())
		var running atomic.Int64
		all := make(chan struct{})
		var wg sync.WaitGroup
		var claimers []*claim.Claimer
		for range workers {
			js := natstest.JetStream(b, natstest.Connect(b, srv))
			bk, err := bucket.Open(ctx, js, bucket.Fresh())
			if err != nil {
				b.Fatal(err)
			}
			c, err := claim.New(ctx, js, "g", claim.WithBucket(bk), claim.WithPartitions(claim.Numbered(partitions)...))
			if err != nil {
				b.Fatal(err)
			}
			claimers = append(claimers, c)
		}
		began := time.Now()
		for _, c := range claimers {
			wg.Go(func() {
				_ = c.Run(ctx, func(ctx context.Context, p *claim.Partition) error {
					if running.Add(1) == partitions {
						close(all)
					}
					select {
					case <-p.Draining():
					case <-ctx.Done():
					}
					return nil
				})
			})
		}
		<-all
		b.ReportMetric(time.Since(began).Seconds(), "s/cold-start")
		began = time.Now()
		stop()
		wg.Wait()
		b.ReportMetric(time.Since(began).Seconds(), "s/all-leave")
	}
}
