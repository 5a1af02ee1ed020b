package bucket

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The pace of a watch. The heartbeat says how soon a consumer that is gone is
// noticed (KV.Watch takes up to 20 s); the server removes the consumer of a
// client that is gone after idle.
const (
	watchHeartbeat = 500 * time.Millisecond
	watchExpiry    = 5 * time.Minute
	watchIdle      = 10 * time.Second
	watchCreate    = 2 * time.Second
	watchMaxPause  = 2 * time.Second
)

// Watch calls entry with the newest entry of every key that matches one of the
// filters, in the order of their revisions, then ready once, and then entry
// with every change. All calls come from the calling goroutine. After an
// interruption it goes on where it was; entries that were overwritten meanwhile
// are left out, no entry comes twice or out of order.
//
// Watch blocks until ctx is done and returns its cause, or returns [ErrGone],
// [ErrPermission] or that the connection was closed. What it shows may be late
// without limit: it is a hint, like every read.
func (b *Bucket) Watch(ctx context.Context, entry func(Entry), ready func(), filters ...string) error {
	w := watch{b: b, entry: entry, ready: ready, name: "tenure_" + Nonce()}
	for _, f := range filters {
		w.filters = append(w.filters, b.prefix+f)
	}
	pause := 50 * time.Millisecond
	for {
		began := time.Now()
		err := w.follow(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, ErrGone) || errors.Is(err, ErrPermission) || errors.Is(err, nats.ErrConnectionClosed) {
			return fmt.Errorf("watch: %w", err)
		}
		if time.Since(began) > watchMaxPause {
			pause = 50 * time.Millisecond
		}
		// Jitter: a restart of the server ends everybody's watch at once.
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause = min(2*pause, watchMaxPause)
	}
}

// watch is the state of one Watch across its consumers.
type watch struct {
	b       *Bucket
	entry   func(Entry)
	ready   func()
	isReady bool
	filters []string
	name    string
	serial  int
	last    uint64 // revision of the last entry shown
}

// follow makes a consumer, shows what it delivers and returns why it ended.
func (w *watch) follow(ctx context.Context) error {
	w.serial++
	cfg := jetstream.ConsumerConfig{
		Name:              fmt.Sprintf("%s_%d", w.name, w.serial),
		FilterSubjects:    w.filters,
		DeliverPolicy:     jetstream.DeliverLastPerSubjectPolicy,
		AckPolicy:         jetstream.AckNonePolicy,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: watchIdle,
	}
	// With history 1 what is left after last is the newest entry of every key
	// that changed since.
	if w.last > 0 {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, w.last+1
	}
	create, cancel := context.WithTimeout(ctx, watchCreate)
	consumer, err := w.b.js.CreateConsumer(create, w.b.streamName(), cfg)
	cancel()
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("bucket %q: %w", w.b.name, ErrGone)
	}
	if err != nil {
		subject := w.b.api + "CONSUMER.CREATE." + w.b.streamName() + "." + cfg.Name
		return w.b.classify(subject, "", 0, err)
	}
	defer w.remove(ctx, cfg.Name)
	if consumer.CachedInfo().NumPending == 0 {
		w.setReady()
	}
	messages, err := consumer.Messages(
		jetstream.PullHeartbeat(watchHeartbeat),
		jetstream.PullExpiry(watchExpiry),
		jetstream.WithMessagesErrOnMissingHeartbeat(true))
	if err != nil {
		return err
	}
	defer messages.Stop()
	for seq := uint64(1); ; seq++ {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			if denied := w.b.denied(w.b.api + "CONSUMER.MSG.NEXT." + w.b.streamName() + "." + cfg.Name); denied != nil {
				return denied
			}
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		if meta.Sequence.Consumer != seq {
			return fmt.Errorf("delivery %d came in place of %d", meta.Sequence.Consumer, seq)
		}
		w.last = meta.Sequence.Stream
		w.entry(w.b.entry(m.Subject(), w.last, m.Headers(), m.Data(), meta.Timestamp))
		if meta.NumPending == 0 {
			w.setReady()
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

func (w *watch) setReady() {
	if !w.isReady {
		w.isReady = true
		w.ready()
	}
}

// remove deletes the consumer, so that it does not wait for its idle time.
func (w *watch) remove(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), watchHeartbeat)
	defer cancel()
	_ = w.b.js.DeleteConsumer(ctx, w.b.streamName(), name) // else the server does after watchIdle
}
