package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// attempt is how long one request may take.
	attempt = 2 * time.Second

	// glance is how long the own consumer may take to answer when its server may have
	// died, and blink how long another one may take to be made in its place. The
	// cluster may choose the dead server for that one too, and says nothing then; it
	// does so more rarely the longer that one is dead. To give up too soon costs no
	// more than to make one more.
	glance = 500 * time.Millisecond
	blink  = 250 * time.Millisecond

	// inactive is how long the server keeps the consumer of a group that is gone.
	inactive = 72 * time.Hour

	// ackWait is when a message is sent again that was delivered and never came
	// here. Everything that loses one is noticed before; this is for what is not.
	// A handler that takes longer is sent copies of what it has waiting, which
	// are passed over.
	ackWait = 2 * time.Minute

	// silentLooks is how often in a row the consumer of the hold before has to fail to
	// answer, while its stream answers, until it is given up.
	silentLooks = 2

	// lateness is how long a message that the server has sent may be on its way.
	lateness = 500 * time.Millisecond
)

// codeNotUnique is the server's refusal of a second consumer for the same
// messages of a work queue.
const codeNotUnique jetstream.ErrorCode = 10100

// A hold reads the partition's part of a stream for one hold of the partition.
// It belongs to the goroutine that runs it.
type hold struct {
	s      *Stream
	p      Partition
	log    *slog.Logger
	filter string
	prefix string // of the partition's consumers
	name   string // of the own consumer, the newest of this hold
	number int    // in its name
	spent  bool   // it was read from, or is not what it should be

	retention jetstream.RetentionPolicy
	limits    jetstream.StreamConsumerLimits
	made      int64

	floor uint64   // everything up to this sequence was handled
	gone  []string // consumers to delete

	saved     uint64 // floor of the last checkpoint
	savedAt   time.Time
	saveEvery time.Duration
	saveAfter int
	unsaved   int // messages handled since

	feed   *feed     // of the own consumer, nil without one
	seat   *seat     // in a shared one, nil without one
	next   *seat     // in the one after that, until it is ready
	lone   bool      // could not follow the others
	loneAt time.Time // since when the consumer is an own one

	doubt  bool      // the consumer is to be looked at, from doubtAt on
	after  time.Time // not before this
	seen   uint64    // consumer sequence that the server was last seen to have sent
	fails  int       // in a row, of looking at or making the consumer
	brief  bool      // do not wait long for the next one to be made
	adrift bool      // there is none to look at: the last one was given up
}

func newHold(s *Stream, p Partition) *hold {
	h := &hold{
		s: s, p: p, log: partitionLog(s.Log, p),
		filter: replacePartition(s.Filter, p.Name()),
		prefix: consumerPrefix(p.Group(), p.Name()),
	}
	h.saveEvery, h.saveAfter = s.saves()
	return h
}

func (h *hold) close() {
	if h.feed != nil {
		h.feed.close()
	}
	h.leaveNext()
	if h.seat != nil {
		h.seat.leave(false)
	}
}

// leaveNext gives up a seat that no checkpoint names.
func (h *hold) leaveNext() {
	if h.next != nil {
		h.next.leave(true)
		h.next = nil
	}
}

// run is the whole of a hold: gain, read, finish.
func (h *hold) run(ctx context.Context) error {
	// What is under way when the partition shall be handed over is requests and
	// waits, which are given up, and a handler, which is not.
	soft, stop := softly(ctx, h.p)
	defer stop()

	err := h.gain(soft)
	if err == nil {
		err = h.read(ctx, soft)
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, errDraining), err != nil && isDraining(h.p):
		h.finish(ctx)
		return nil
	}
	return err
}

var errDraining = errors.New("partition drains")

// softly returns a context that ends with ctx and when p drains.
func softly(ctx context.Context, p Partition) (context.Context, func()) {
	soft, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-p.Draining():
			cancel(errDraining)
		case <-soft.Done():
		}
	}()
	return soft, func() {
		cancel(nil)
		<-done
	}
}

// gain takes over from the hold before.
//
// It finds out how far that one got, from its checkpoint and what its consumer has
// acknowledged since, and begins there. The old holder, if it still runs without
// knowing, may acknowledge on its consumer until that is gone. It does not count
// any more, since the floor was read. Afterwards it cannot.
func (h *hold) gain(ctx context.Context) error {
	before, err := readPosition(h.p.Checkpoint())
	if err != nil {
		return err
	}
	info, err := h.s.look(ctx)
	if err != nil {
		return err
	}
	if err := h.s.fits(info, h.filter, subjectCovers); err != nil {
		return err
	}
	h.made = made(info.Created)
	h.retention = info.Config.Retention
	h.limits = info.Config.ConsumerLimits

	if before.Stream == h.s.Stream && before.Made == h.made {
		h.floor = before.Floor
		h.gone = before.Gone
		if before.Consumer != "" {
			floor, err := h.acknowledged(ctx, before.Consumer)
			if err != nil {
				return err
			}
			h.floor = max(h.floor, floor)
			h.gone = append(h.gone, before.Consumer)
		}
	} else if before.Stream != "" {
		h.log.InfoContext(ctx, "stream is another one, partition begins anew",
			slog.String("stream", h.s.Stream), slog.String("was", before.Stream))
	}
	h.clamp(ctx, info)

	h.gone = append(h.gone, h.s.strays.take(ctx, h.s.JS, h.s.Stream, h.prefix)...)
	if token, n, ok := parseConsumer(before.Consumer, h.prefix); ok && token == h.p.Token() {
		h.number = n // of an earlier run in the same hold
	}
	return h.begin(ctx)
}

// begin reads on behind the floor with a new consumer: at the start of a hold, and
// whenever it is not certain that the consumer has sent everything that it should.
//
// Each time the checkpoint is told first, so that there is never a consumer that
// the next holder would not find. The checkpoint is fenced, so that a holder which
// has been overtaken gets no further.
func (h *hold) begin(ctx context.Context) error {
	if h.feed != nil {
		h.feed.close()
	}
	if !h.lone {
		if joined, err := h.sit(ctx); joined || err != nil {
			return err
		}
	}
	if h.name == "" || h.spent {
		if h.name != "" {
			h.gone = append(h.gone, h.name)
		}
		h.number++
		h.name = consumerName(h.prefix, h.p.Token(), h.number)
		h.spent = false
	}
	h.tidy()
	if err := h.save(ctx, h.name); err != nil {
		return fmt.Errorf("worker: take over the position: %w", err)
	}
	h.standUp()

	// What is left of a work queue must go first: two consumers may not want the
	// same messages. With interest retention it must go last: what nobody wants,
	// for a moment, is deleted.
	if h.retention == jetstream.WorkQueuePolicy {
		h.sweep(ctx)
	}
	if err := h.create(ctx); err != nil {
		return fmt.Errorf("worker: read %q of stream %q: %w", h.filter, h.s.Stream, err)
	}
	feed, err := openFeed(h.s.JS, h.s.Stream, h.name, h.s.prefetch(), h.s.heartbeat())
	if err != nil {
		return err
	}
	h.feed, h.spent, h.loneAt = feed, true, time.Now()
	h.doubt, h.seen, h.adrift = false, 0, false
	if !h.brief { // the answer to a deletion is the dead server's: messages shall not wait for it
		h.sweep(ctx)
	}
	return nil
}

// sit reads on behind the floor in a consumer that other partitions share. It reports
// false if there is none to share.
func (h *hold) sit(ctx context.Context) (bool, error) {
	h.leaveNext()
	h.next = h.s.hub.join(ctx, h)
	if h.next == nil {
		return false, nil
	}
	select {
	case <-h.next.share.ready:
	case <-ctx.Done():
		h.leaveNext()
		return false, context.Cause(ctx)
	}
	if err := h.next.share.err; err != nil {
		h.leaveNext()
		return false, err
	}
	return true, h.change(ctx)
}

// change reads on in the next seat, behind the floor: the share began there, or
// before. The checkpoint is told first, as in begin. If it cannot be, it may name
// the next share all the same, and that is left as it is.
func (h *hold) change(ctx context.Context) error {
	next := h.next
	h.next = nil
	if h.name != "" && h.feed != nil {
		h.gone = append(h.gone, h.name)
		h.number++
		h.name = consumerName(h.prefix, h.p.Token(), h.number)
		h.spent = false
	}
	h.tidy()
	if err := h.save(ctx, next.share.name); err != nil {
		next.leave(false)
		return fmt.Errorf("worker: take over the position: %w", err)
	}
	h.standUp()
	h.seat = next
	if h.feed != nil {
		h.feed.close()
		h.feed = nil
	}
	h.doubt, h.adrift = false, false
	if len(h.gone) > 0 && !h.brief {
		h.sweep(ctx)
	}
	return nil
}

// standUp gives up the seat, which the checkpoint does not name any more.
func (h *hold) standUp() {
	if h.seat != nil {
		h.seat.leave(true)
		h.seat = nil
	}
}

// consumer returns the name of the consumer that is read.
func (h *hold) consumer() string {
	if h.seat != nil {
		return h.seat.share.name
	}
	return h.name
}

// tidy leaves in gone what is this partition's to delete: no shared consumer.
func (h *hold) tidy() {
	h.gone = slices.DeleteFunc(h.gone, func(name string) bool { return !h.isOlder(name) })
	slices.Sort(h.gone)
	h.gone = slices.Compact(h.gone)
}

// isOlder reports whether the consumer belongs to an earlier hold of the partition,
// or to this one and is not the newest.
func (h *hold) isOlder(name string) bool {
	token, n, ok := parseConsumer(name, h.prefix)
	return ok && (token < h.p.Token() || token == h.p.Token() && n < h.number)
}

// acknowledged returns the sequence up to which the consumer has everything
// acknowledged, 0 if it is gone.
func (h *hold) acknowledged(ctx context.Context, consumer string) (uint64, error) {
	if h.s.mode() == Offset {
		return 0, nil
	}
	for looks := 1; ; looks++ {
		info, err := h.consumerInfo(ctx, consumer, attempt)
		switch {
		case err == nil:
			return info.AckFloor.Stream, nil
		case errors.Is(err, jetstream.ErrConsumerNotFound):
			return 0, nil
		case ctx.Err() == nil && looks < silentLooks:
			continue
		case ctx.Err() == nil && h.lostWithServer(ctx):
			h.log.WarnContext(ctx, "consumer of the hold before does not answer, reading from the saved position",
				slog.String("consumer", consumer), slog.Uint64("position", h.floor), slog.Any("err", err))
			return 0, nil
		}
		return 0, fmt.Errorf("worker: read the position of consumer %q: %w", consumer, err)
	}
}

// lostWithServer reports whether a consumer that does not answer is to be given
// up: it is kept once (see config), and the stream, which is kept more often,
// answers. The server that kept it has crashed, and forgets it when it comes back.
// Nobody says so before: the consumer exists, and for minutes its server counts as
// one that will be back at once.
//
// If it was only cut off, some messages are handled again that were acknowledged.
func (h *hold) lostWithServer(ctx context.Context) bool {
	if h.retention != jetstream.LimitsPolicy {
		return false
	}
	_, err := h.s.look(ctx)
	return err == nil
}

// clamp takes back a floor above the end of the stream. The stream has lost what
// was there, and gives the same sequences to new messages.
func (h *hold) clamp(ctx context.Context, info *jetstream.StreamInfo) {
	if h.floor > info.State.LastSeq {
		h.log.WarnContext(ctx, "stream ends before the position, which is taken back",
			slog.Uint64("position", h.floor), slog.Uint64("last", info.State.LastSeq))
		h.floor = info.State.LastSeq
	}
}

// sweep deletes what earlier holds left. What is not deleted stays in the
// checkpoint, for the next one.
func (h *hold) sweep(ctx context.Context) {
	deleted := make([]bool, len(h.gone))
	var deleting sync.WaitGroup // together, since some may be with a server that does not answer
	for i, name := range h.gone {
		deleting.Go(func() {
			err := h.delete(ctx, name)
			if err != nil {
				h.log.DebugContext(ctx, "old consumer not deleted", slog.String("consumer", name), slog.Any("err", err))
			}
			deleted[i] = err == nil
		})
	}
	deleting.Wait()
	var left []string
	for i, name := range h.gone {
		if !deleted[i] {
			left = append(left, name)
		}
	}
	h.gone = left
}

// delete deletes a consumer. One that is gone already is no error.
func (h *hold) delete(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	err := h.s.JS.DeleteConsumer(ctx, h.s.Stream, name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil
	}
	return err
}

func (h *hold) consumerInfo(ctx context.Context, name string, within time.Duration) (*jetstream.ConsumerInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	consumer, err := h.s.JS.Consumer(ctx, h.s.Stream, name)
	if err != nil {
		return nil, err
	}
	return consumer.CachedInfo(), nil
}

// create makes the own consumer, which is always a new one.
func (h *hold) create(ctx context.Context) error {
	err := h.tryCreate(ctx)
	if apiError, ok := errors.AsType[*jetstream.APIError](err); !ok || apiError.ErrorCode != codeNotUnique {
		return err
	}
	// Of a work queue somebody else reads the same messages: a hold whose
	// checkpoint is gone, or one that was overtaken and has just made its consumer
	// anew. The token says who is right.
	names, listErr := consumerNames(ctx, h.s.JS, h.s.Stream, h.prefix)
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	for _, name := range names {
		if h.isOlder(name) {
			h.gone = append(h.gone, name)
		}
	}
	h.sweep(ctx)
	return h.tryCreate(ctx)
}

func (h *hold) tryCreate(ctx context.Context) error {
	within := attempt
	if h.brief {
		within = blink
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	_, err := h.s.JS.CreateConsumer(ctx, h.s.Stream, h.config())
	if _, refused := errors.AsType[*jetstream.APIError](err); err != nil && !refused || errors.Is(err, jetstream.ErrConsumerExists) {
		// It may be there: made by this attempt, perhaps on a server that is down,
		// or by one before, for another floor. The next one needs another name.
		h.spent = true
	}
	return err
}

// config describes the own consumer.
//
// It is kept in memory, and once: its loss, in the restart of a server, costs
// nothing, since the floor is known here and now and then saved; and what it
// would cost to keep it safe is paid for every message. Only where the stream
// keeps messages for its consumers' sake it has to be as safe as the stream.
func (h *hold) config() jetstream.ConsumerConfig {
	cfg := jetstream.ConsumerConfig{
		Name:              h.name,
		Description:       fmt.Sprintf("partition %s of group %s", h.p.Name(), h.p.Group()),
		FilterSubject:     h.filter,
		AckPolicy:         jetstream.AckExplicitPolicy,
		AckWait:           ackWait,
		MaxDeliver:        -1,
		MaxAckPending:     h.s.prefetch(),
		InactiveThreshold: inactive,
		MemoryStorage:     true,
	}
	if h.limits.InactiveThreshold > 0 {
		cfg.InactiveThreshold = min(cfg.InactiveThreshold, h.limits.InactiveThreshold)
	}
	if h.limits.MaxAckPending > 0 {
		cfg.MaxAckPending = min(cfg.MaxAckPending, h.limits.MaxAckPending)
	}
	if h.floor > 0 && h.retention != jetstream.WorkQueuePolicy {
		cfg.DeliverPolicy = jetstream.DeliverByStartSequencePolicy
		cfg.OptStartSeq = h.floor + 1
	}
	switch h.retention {
	case jetstream.LimitsPolicy:
		cfg.Replicas = 1
	case jetstream.InterestPolicy:
		cfg.Durable = h.name
		cfg.MemoryStorage = false
	}
	if h.s.mode() == Offset {
		cfg.AckPolicy = jetstream.AckNonePolicy
		cfg.AckWait, cfg.MaxAckPending = 0, 0
	}
	return cfg
}

// save saves the position, with the name of the consumer that may be further on.
// It may take as long as ctx lasts.
func (h *hold) save(ctx context.Context, consumer string) error {
	floor := h.floor
	data := position{Stream: h.s.Stream, Made: h.made, Floor: floor, Consumer: consumer, Gone: h.gone}.bytes()
	h.savedAt, h.unsaved = time.Now(), 0 // also if it fails: not at once again
	if err := h.p.Save(ctx, data); err != nil {
		return err
	}
	h.saved = floor
	return nil
}

// finish leaves the partition in order for the next holder: the final position,
// so that it need not ask for it, and no consumer.
func (h *hold) finish(ctx context.Context) {
	if h.feed == nil && h.seat == nil || h.p.Remaining() <= 0 {
		return // not gained, or nothing more to say
	}
	consumer := ""
	if h.seat != nil {
		// Nothing to be deleted.
	} else if h.retention == jetstream.InterestPolicy {
		consumer = h.name // it keeps the interest until the next holder has its own
	} else {
		h.gone = append(h.gone, h.name)
	}
	saving, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	if err := h.save(saving, consumer); err != nil {
		h.log.WarnContext(ctx, "final position not saved", slog.Any("err", err))
		return
	}
	h.standUp()
	if consumer == "" && h.feed != nil {
		h.feed.close()
		h.sweep(ctx)
	}
}

// acknowledge tells the server that m was handled.
func (h *hold) acknowledge(ctx context.Context, m *nats.Msg) {
	if h.s.mode() == Offset || h.p.Remaining() <= 0 {
		return
	}
	if err := m.Respond(ackBody); err != nil {
		// The floor is known here; the copy that the server will send is passed over.
		h.log.DebugContext(ctx, "message not acknowledged", slog.Any("err", err))
	}
}

var ackBody = []byte("+ACK")
