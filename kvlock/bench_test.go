package kvlock_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded"
	"tenure/embedded/natstest"
	"tenure/kvlock"
	"tenure/kvlock/bucket"
)

// A benchSite is a server to measure on.
type benchSite struct {
	name    string
	opts    []embedded.Option
	storage jetstream.StorageType
}

func benchSites() []benchSite {
	return []benchSite{
		{"inproc-memory", nil, jetstream.MemoryStorage},
		{"r1-memory-tcp", []embedded.Option{embedded.Listen("127.0.0.1:0")}, jetstream.MemoryStorage},
		{"r1-file-tcp", []embedded.Option{embedded.Listen("127.0.0.1:0"), embedded.SyncEvery(2 * time.Minute)}, jetstream.FileStorage},
	}
}

func (s benchSite) start(b *testing.B, lockers int) []*kvlock.Locker {
	b.Helper()
	srv := natstest.Server(b, s.opts...)
	ls := make([]*kvlock.Locker, lockers)
	for i := range ls {
		var nc *nats.Conn
		var err error
		if srv.URL() == "" {
			nc, err = srv.Connect(kvlock.ConnOptions()...)
		} else {
			nc, err = nats.Connect(srv.URL(), kvlock.ConnOptions()...)
		}
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(nc.Close)
		ls[i], err = kvlock.New(b.Context(), natstest.JetStream(b, nc),
			kvlock.WithOwner(strconv.Itoa(i)), kvlock.WithBucketOptions(bucket.Fresh(), bucket.Storage(s.storage)))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = ls[i].Close(context.WithoutCancel(b.Context())) })
	}
	time.Sleep(1100 * time.Millisecond) // a younger bucket costs a request more
	return ls
}

// A rawWriter publishes as a lock is taken, with an expected revision and a TTL, and
// nothing else. It is measured in turn with what is compared with it.
type rawWriter struct {
	l    *kvlock.Locker
	took []time.Duration
}

func (r *rawWriter) write(b *testing.B) {
	b.Helper()
	m := &nats.Msg{Subject: r.l.Bucket().Subject("raw." + bucket.Nonce()), Data: make([]byte, 250), Header: nats.Header{
		"Nats-Expected-Last-Subject-Sequence": {"0"},
		"Nats-TTL":                            {"15s"},
	}}
	began := time.Now()
	if _, err := r.l.Bucket().JetStream().PublishMsg(b.Context(), m); err != nil {
		b.Fatal(err)
	}
	r.took = append(r.took, time.Since(began))
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func report(b *testing.B, took []time.Duration, raw time.Duration) {
	b.Helper()
	p50 := median(took)
	b.ReportMetric(float64(p50.Nanoseconds())/1e3, "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-µs")
	b.ReportMetric(float64(p50)/float64(raw), "x-raw")
	b.ReportMetric(0, "ns/op")
}

func BenchmarkAcquire(b *testing.B) {
	for _, site := range benchSites() {
		b.Run(site.name, func(b *testing.B) {
			l := site.start(b, 1)[0]
			raw := &rawWriter{l: l}
			var took, cycle []time.Duration
			for b.Loop() {
				raw.write(b)
				name := bucket.Nonce()
				began := time.Now()
				k, err := l.TryLock(b.Context(), name)
				if err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
				if err := k.Release(b.Context()); err != nil {
					b.Fatal(err)
				}
				cycle = append(cycle, time.Since(began))
			}
			report(b, took, median(raw.took))
			b.ReportMetric(float64(median(cycle))/float64(median(raw.took)), "cycle-x-raw")
		})
	}
}

func BenchmarkAcquireAgain(b *testing.B) {
	for _, site := range benchSites() {
		b.Run(site.name, func(b *testing.B) {
			l := site.start(b, 1)[0]
			raw := &rawWriter{l: l}
			var took []time.Duration
			for b.Loop() {
				raw.write(b)
				began := time.Now()
				k, err := l.TryLock(b.Context(), "job")
				if err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
				if err := k.Release(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			report(b, took, median(raw.took))
		})
	}
}

// The line stands before the first release; then it passes.
func BenchmarkHandOver(b *testing.B) {
	for _, site := range benchSites() {
		for _, n := range []int{4, 16, 64, 256} {
			b.Run(fmt.Sprintf("%s/line=%d", site.name, n), func(b *testing.B) {
				ls := site.start(b, 4)
				raw := &rawWriter{l: ls[0]}
				var took []time.Duration
				var passing time.Duration
				for round := range max(4, 1024/n) {
					for range n {
						raw.write(b)
					}
					t, all := passLine(b, ls, fmt.Sprint("job", round), n, 0)
					took, passing = append(took, t...), passing+all
				}
				each := passing / time.Duration(len(took))
				for b.Loop() { // measured above
				}
				report(b, took, median(raw.took))
				b.ReportMetric(float64(each)/float64(median(raw.took)), "each-x-raw")
			})
		}
	}
}

// passLine lets n waiters stand in line and pass, and returns the time of every
// hand-over, from the call of Release to the return of the next Lock, and of all.
func passLine(b *testing.B, ls []*kvlock.Locker, job string, n int, work time.Duration) (took []time.Duration, all time.Duration) {
	b.Helper()
	first, err := ls[0].Lock(b.Context(), job)
	if err != nil {
		b.Fatal(err)
	}
	var released time.Time // handed on with the lock
	var done sync.WaitGroup
	for i := range n {
		done.Go(func() {
			k, err := ls[i%len(ls)].Lock(b.Context(), job)
			if err != nil {
				b.Error(err)
				return
			}
			took = append(took, time.Since(released))
			time.Sleep(work)
			released = time.Now()
			if err := k.Release(b.Context()); err != nil {
				b.Error(err)
			}
		})
	}
	standing := func() int {
		st, err := ls[0].Bucket().State(b.Context(), "wait."+job+".*")
		if err != nil {
			b.Fatal(err)
		}
		return len(st.Keys)
	}
	for standing() < n {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond) // they tell the holder
	began := time.Now()
	released = began
	if err := first.Release(b.Context()); err != nil {
		b.Fatal(err)
	}
	done.Wait()
	all = time.Since(began)
	return took, all
}
