package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tenure/claim"
	"tenure/kvlock/bucket"
	"tenure/worker"
)

// streamMessages is how many messages each reader is measured with.
const streamMessages = 40_000

// A fleet is a number of partitions and of processes that read them.
type fleet struct{ partitions, workers int }

// streams measures a stream task beside plain consumers that acknowledge every
// message: as many of them with the same filters, and one that all share.
func streams(ctx context.Context, s *site) error {
	few, many := fleet{64, 4}, fleet{1000, 20}
	for _, backlog := range []bool{false, true} {
		suffix := ""
		if backlog {
			suffix = "-backlog"
		}
		rates, err := s.read(ctx, few, backlog, stockTask, stockSame, stockShared)
		if err != nil {
			return err
		}
		of := rates[0] / rates[1]
		ratio := plain("ratio", of)
		if !backlog {
			ratio = atLeast("ratio", of, 0.8)
		}
		s.result("stream"+suffix, ratio, plain("msgs_per_s", rates[0]), plain("raw_msgs_per_s", rates[1]), plain("shared_msgs_per_s", rates[2]))

		rates, err = s.read(ctx, many, backlog, stockTask, stockShared)
		if err != nil {
			return err
		}
		of = rates[0] / rates[1]
		ratio = plain("ratio", of)
		if !backlog {
			ratio = atLeast("ratio", of, 0.5)
		}
		s.result("stream-1000x20"+suffix, ratio, plain("msgs_per_s", rates[0]), plain("raw_msgs_per_s", rates[1]))
	}
	return nil
}

// read measures how many messages a second each of the readers handles: those that
// are published at the same time, or those that are there already.
func (s *site) read(ctx context.Context, f fleet, backlog bool, readers ...func(context.Context, *stock) error) ([]float64, error) {
	rates := make([]float64, 0, len(readers))
	for _, reader := range readers {
		rate, err := s.readOnce(ctx, f, backlog, reader)
		if err != nil {
			return nil, err
		}
		rates = append(rates, rate)
	}
	return rates, nil
}

func (s *site) readOnce(ctx context.Context, f fleet, backlog bool, reader func(context.Context, *stock) error) (float64, error) {
	k, err := s.newStock(ctx, f)
	if err != nil {
		return 0, err
	}
	defer k.close(ctx)
	ctx, k.fail = context.WithCancelCause(ctx)

	if backlog {
		if err := k.publish(ctx, streamMessages); err != nil {
			return 0, err
		}
		k.expect(streamMessages)
	} else {
		k.expect(f.partitions)
	}
	if err := reader(ctx, k); err != nil {
		return 0, err
	}
	if !backlog { // until everybody reads
		if err := k.publish(ctx, f.partitions); err != nil {
			return 0, err
		}
		close(k.open)
		if err := k.await(ctx); err != nil {
			return 0, err
		}
		k.expect(streamMessages)
	}
	began := time.Now()
	if backlog {
		close(k.open)
	} else if err := k.publish(ctx, streamMessages); err != nil {
		return 0, err
	}
	if err := k.await(ctx); err != nil {
		return 0, err
	}
	return streamMessages / time.Since(began).Seconds(), nil
}

// A stock is a stream with messages of all partitions in turn, and who reads them.
type stock struct {
	fleet
	s     *site
	name  string // of the stream, and what its subjects begin with
	from  jetstream.JetStream
	to    []jetstream.JetStream // one for each worker
	conns []*nats.Conn
	stops []func()      // end who reads, last one first
	open  chan struct{} // closed when readers may begin
	fail  context.CancelCauseFunc

	left atomic.Int64
	done chan struct{} // closed when left is 0
}

func (s *site) newStock(ctx context.Context, f fleet) (*stock, error) {
	k := &stock{fleet: f, s: s, name: "bench-" + bucket.Nonce(), open: make(chan struct{})}
	for range f.workers + 1 {
		nc, js, err := s.dial(ctx)
		if err != nil {
			k.close(ctx)
			return nil, err
		}
		k.conns, k.to = append(k.conns, nc), append(k.to, js)
	}
	k.from, k.to = k.to[0], k.to[1:]
	_, err := k.from.CreateStream(ctx, jetstream.StreamConfig{
		Name: k.name, Subjects: []string{k.name + ".>"}, Storage: s.storage, Replicas: s.replicas,
		MaxConsumers: 10 * f.partitions,
	})
	if err != nil {
		k.close(ctx)
		return nil, err
	}
	return k, nil
}

// close ends who reads and deletes the stream.
func (k *stock) close(ctx context.Context) {
	for _, stop := range slices.Backward(k.stops) {
		stop()
	}
	if k.from != nil {
		_ = k.from.DeleteStream(ctx, k.name) // the user can see what is left
	}
	for _, nc := range k.conns {
		nc.Close()
	}
}

func (k *stock) subject(partition string) string { return k.name + "." + partition + ".x" }

func (k *stock) filter(partition string) string { return k.name + "." + partition + ".>" }

// publish stores n messages.
func (k *stock) publish(ctx context.Context, n int) error {
	js, err := jetstream.New(k.from.Conn(), jetstream.WithPublishAsyncMaxPending(2000))
	if err != nil {
		return err
	}
	for i := range n {
		_, err := js.PublishAsync(k.subject(strconv.Itoa(i%k.partitions)), []byte("message"), jetstream.WithStallWait(time.Minute))
		if err != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
	select {
	case <-js.PublishAsyncComplete():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// expect begins to count n messages.
func (k *stock) expect(n int) {
	k.done = make(chan struct{})
	k.left.Store(int64(n))
}

// handled counts a message.
func (k *stock) handled() {
	if k.left.Add(-1) == 0 {
		close(k.done)
	}
}

func (k *stock) await(ctx context.Context) error {
	select {
	case <-k.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stockTask reads with the stream task of a pool in each process. Before the stock
// opens all partitions are claimed, and none of them will move.
func stockTask(ctx context.Context, k *stock) error {
	var mu sync.Mutex
	held, settled := make([]int, k.workers), make(chan struct{}, 1)
	hold := func(worker, n int) {
		mu.Lock()
		defer mu.Unlock()
		held[worker] += n
		all := 0
		for _, n := range held {
			all += n
		}
		if all == k.partitions && slices.Max(held)-slices.Min(held) <= 1 {
			select {
			case settled <- struct{}{}:
			default:
			}
		}
	}
	var running sync.WaitGroup
	k.stops = append(k.stops, running.Wait, func() { k.fail(nil) })
	for i, js := range k.to {
		task := &worker.Stream{
			JS: js, Stream: k.name, Filter: k.filter("{partition}"),
			Handle: func(context.Context, worker.Partition, *worker.Message) error { k.handled(); return nil },
		}
		b, err := bucket.Open(ctx, js, k.s.opts...)
		if err != nil {
			return err
		}
		claimer, err := claim.New(ctx, js, k.name, claim.WithBucket(b), claim.WithID("w"+strconv.Itoa(i)),
			claim.WithPartitions(claim.Numbered(k.partitions)...))
		if err != nil {
			return err
		}
		pool, err := worker.NewPool([]*claim.Claimer{claimer}, worker.Func(func(ctx context.Context, p worker.Partition) error {
			hold(i, 1)
			defer hold(i, -1)
			select {
			case <-k.open:
				return task.Run(ctx, p)
			case <-p.Draining():
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}), nil)
		if err != nil {
			return err
		}
		running.Go(func() {
			if err := pool.Run(ctx); err != nil {
				k.fail(err)
			}
		})
	}
	select {
	case <-settled:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stockSame reads with a plain consumer for each partition.
func stockSame(ctx context.Context, k *stock) error {
	return k.start(k.partitions, func(i int) error {
		name := strconv.Itoa(i)
		return k.consume(ctx, k.to[i%k.workers], "c"+name, k.filter(name), 64)
	})
}

// stockShared reads with one plain consumer, which all processes share.
func stockShared(ctx context.Context, k *stock) error {
	return k.start(k.workers, func(i int) error { return k.consume(ctx, k.to[i], "shared", k.name+".>", 500) })
}

// start starts n readers when the stock opens, some at a time.
func (k *stock) start(n int, read func(i int) error) error {
	var reading sync.WaitGroup
	k.stops = append(k.stops, reading.Wait)
	const hands = 16
	for hand := range hands {
		reading.Go(func() {
			<-k.open
			for i := hand; i < n; i += hands {
				if err := read(i); err != nil {
					k.fail(err)
					return
				}
			}
		})
	}
	return nil
}

// consume acknowledges every message of a plain consumer.
func (k *stock) consume(ctx context.Context, js jetstream.JetStream, name, filter string, ahead int) error {
	consumer, err := js.CreateOrUpdateConsumer(ctx, k.name, jetstream.ConsumerConfig{
		Durable: name, FilterSubject: filter, AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: max(1000, ahead),
	})
	if err != nil {
		return err
	}
	_, err = consumer.Consume(func(m jetstream.Msg) { // until the connection closes
		if err := m.Ack(); err != nil {
			k.fail(err)
		}
		k.handled()
	}, jetstream.PullMaxMessages(ahead))
	return err
}
