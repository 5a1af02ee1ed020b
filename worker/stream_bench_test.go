package worker_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded"
	"tenure/embedded/natstest"
	"tenure/worker"
)

// BenchmarkStream reads what is published at the same time: by the stream task,
// by as many plain consumers with the same filters, and by one plain consumer that
// shares everything. All acknowledge every message.
func BenchmarkStream(b *testing.B) {
	for _, size := range []struct{ partitions, connections int }{{64, 4}, {1000, 20}} {
		for _, reader := range []struct {
			name  string
			start func(*benchStream)
		}{{"task", (*benchStream).task}, {"plain", (*benchStream).plain}, {"shared", (*benchStream).shared}} {
			b.Run(fmt.Sprintf("%dx%d/%s", size.partitions, size.connections, reader.name), func(b *testing.B) {
				s := newBenchStream(b, size.partitions, size.connections)
				reader.start(s)
				s.run(b)
			})
		}
	}
}

type benchStream struct {
	b          *testing.B
	js         []jetstream.JetStream // one for each worker
	partitions int
	left       atomic.Int64
	done       chan struct{}
}

func newBenchStream(b *testing.B, partitions, connections int) *benchStream {
	b.Helper()
	server := natstest.Server(b, embedded.Listen("127.0.0.1:0"))
	s := &benchStream{b: b, partitions: partitions}
	for range connections + 1 {
		s.js = append(s.js, natstest.JetStream(b, natstest.Connect(b, server)))
	}
	_, err := s.js[0].CreateStream(b.Context(), jetstream.StreamConfig{
		Name: "ORDERS", Subjects: []string{"orders.>"}, Storage: jetstream.MemoryStorage, MaxConsumers: 10 * partitions,
	})
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// handled counts a message.
func (s *benchStream) handled() {
	if s.left.Add(-1) == 0 {
		close(s.done)
	}
}

func (s *benchStream) run(b *testing.B) {
	s.publish(b, s.partitions) // until everybody reads
	b.ResetTimer()
	s.publish(b, b.N)
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
}

// publish stores n messages and waits until they are handled.
func (s *benchStream) publish(b *testing.B, n int) {
	b.Helper()
	s.done = make(chan struct{})
	s.left.Store(int64(n))
	for i := range n {
		subject := "orders." + strconv.Itoa(i%s.partitions) + ".x"
		if _, err := s.js[0].PublishAsync(subject, []byte("message"), jetstream.WithStallWait(time.Minute)); err != nil {
			b.Fatal(err)
		}
	}
	<-s.done
}

func (s *benchStream) task() {
	ctx, cancel := context.WithCancel(s.b.Context())
	var running sync.WaitGroup
	s.b.Cleanup(func() { cancel(); running.Wait() })
	tasks := make([]*worker.Stream, len(s.js))
	for i, js := range s.js {
		tasks[i] = &worker.Stream{
			JS: js, Stream: "ORDERS", Filter: "orders.{partition}.>",
			Handle: func(context.Context, worker.Partition, *worker.Message) error { s.handled(); return nil },
		}
	}
	for i := range s.partitions {
		h := newPlace(strconv.Itoa(i)).gain()
		running.Go(func() { _ = tasks[1+i%(len(s.js)-1)].Run(ctx, h) })
	}
}

func (s *benchStream) plain() {
	for i := range s.partitions {
		s.consume(s.js[1+i%(len(s.js)-1)], "c"+strconv.Itoa(i), "orders."+strconv.Itoa(i)+".>", 64)
	}
}

func (s *benchStream) shared() {
	for _, js := range s.js[1:] {
		s.consume(js, "shared", "orders.>", 500)
	}
}

// consume acknowledges every message of a plain consumer.
func (s *benchStream) consume(js jetstream.JetStream, name, filter string, ahead int) {
	s.b.Helper()
	consumer, err := js.CreateOrUpdateConsumer(s.b.Context(), "ORDERS", jetstream.ConsumerConfig{
		Durable: name, FilterSubject: filter, AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: max(1000, ahead),
	})
	if err != nil {
		s.b.Fatal(err)
	}
	consuming, err := consumer.Consume(func(m jetstream.Msg) {
		if err := m.Ack(); err != nil {
			s.b.Error(err)
		}
		s.handled()
	}, jetstream.PullMaxMessages(ahead))
	if err != nil {
		s.b.Fatal(err)
	}
	s.b.Cleanup(consuming.Stop)
}
