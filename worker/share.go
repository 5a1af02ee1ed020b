package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// shareFrom is how many partitions a task has to run before they share consumers.
	// To find the next message for a consumer the server looks at all those between,
	// which are as many as there are partitions, and it does so for each consumer. Few
	// consumers with many filters each cost less than many with one filter.
	shareFrom = 16

	// gather is how long a share waits for more partitions before it begins.
	gather = 20 * time.Millisecond

	// calm is how long no partition has to come or go until shares are made one.
	calm = time.Second

	// apart is how many messages the partitions of two shares may be apart for
	// these to be made one: all of them are sent to it again from the hindmost on.
	apart = 20_000

	// loneWait is how long a partition that has caught up keeps a consumer of its own
	// before it joins the others.
	loneWait = 5 * time.Second

	// quietEvery is how often partitions without messages learn how far the stream is.
	quietEvery = 500 * time.Millisecond

	// abandoned is how long the server keeps the consumer of a process that is gone.
	abandoned = time.Hour
)

// A hub has the partitions that a task runs, and the consumers that they share.
//
// Each share is one consumer with the filters of several partitions, which begins at
// the hindmost of them. It is never changed. Partitions that are gained form a new
// one; when nothing has come or gone for a while, all of them form a single one, and
// read the old ones until it is there.
type hub struct {
	mu      sync.Mutex
	running int
	forming *share
	shares  map[*share]bool // those that have seats
	again   *time.Timer     // until they are made one
	failed  time.Time       // when one was last given up
}

func (b *hub) enter() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running++
}

func (b *hub) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running--; b.running == 0 && b.again != nil {
		b.again.Stop()
	}
}

// join gives h a seat in the share that forms, nil if h shall have a consumer of its
// own. The seat is of use when it is ready.
func (b *hub) join(ctx context.Context, h *hold) *seat {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.fits(h) {
		return nil
	}
	st := &seat{filter: h.filter, msgs: make(chan letter, h.s.prefetch()), full: make(chan struct{})}
	st.at.Store(h.floor)
	for b.forming == nil || !b.forming.add(h.p.Name(), st) {
		b.forming = b.form(context.WithoutCancel(ctx), h)
	}
	b.later(calm)
	return st
}

// form begins a share that takes partitions. b.mu is held.
func (b *hub) form(ctx context.Context, h *hold) *share {
	sh := &share{
		hub: b, s: h.s, log: h.s.logger(), group: h.p.Group(), limits: h.limits,
		partition: partitionOf(h.s.Filter), seats: make(map[string]*seat),
		wake: make(chan struct{}, 1), ready: make(chan struct{}), moving: make(chan struct{}),
		ended: make(chan struct{}), empty: make(chan struct{}), done: make(chan struct{}),
	}
	if b.shares == nil {
		b.shares = make(map[*share]bool)
	}
	b.shares[sh] = true
	go sh.run(ctx)
	return sh
}

// wants reports whether h should be in a share.
func (b *hub) wants(h *hold) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fits(h)
}

func (b *hub) fits(h *hold) bool {
	return b.running >= shareFrom && h.retention == jetstream.LimitsPolicy
}

// later has the shares looked at after a while. b.mu is held.
func (b *hub) later(wait time.Duration) {
	if b.again == nil {
		b.again = time.AfterFunc(wait, b.unite)
		return
	}
	b.again.Reset(wait)
}

// unite asks all partitions to form one share, unless they have one that is as it
// should be, or are too far apart.
func (b *hub) unite() {
	b.mu.Lock()
	defer b.mu.Unlock()
	low, high, worn, busy := ^uint64(0), uint64(0), false, b.forming != nil
	for sh := range b.shares {
		l, h, w, m := sh.span()
		low, high, worn, busy = min(low, l), max(high, h), worn || w, busy || m
	}
	if len(b.shares) < 2 && !worn || b.running == 0 {
		return
	}
	if busy || high > low+apart {
		b.later(calm)
		return
	}
	for sh := range b.shares {
		sh.move()
	}
}

// drop forgets a share without seats.
func (b *hub) drop(sh *share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.shares, sh)
}

// A share is a consumer that several partitions of a process read. Its goroutine
// gives each message to the partition that it belongs to.
type share struct {
	hub       *hub
	s         *Stream
	log       *slog.Logger
	group     string
	limits    jetstream.StreamConsumerLimits
	partition func(subject string) string

	wake   chan struct{} // holds one: a seat has room again
	ready  chan struct{} // closed when name is set, or err
	moving chan struct{} // closed when its partitions shall look for another one
	ended  chan struct{} // closed when it gives no messages any more
	empty  chan struct{} // closed when nobody has a seat
	done   chan struct{} // closed when its goroutine has ended

	name string // of the consumer
	err  error  // why there is none
	feed *feed  // of its goroutine

	queued atomic.Int64 // letters that wait in seats

	mu    sync.Mutex
	seats map[string]*seat // by partition
	taken int              // seats that nobody has left
	worn  bool             // somebody has left
	kept  bool             // its acknowledgements may be needed: it is not deleted
	moved bool
}

// A seat is a partition's place in a share. The goroutine of the partition owns it.
type seat struct {
	share  *share
	filter string
	msgs   chan letter
	full   chan struct{} // closed when the partition could not follow: what came then is lost to it
	at     atomic.Uint64 // position of the partition

	// Guarded by share.mu.
	stuck bool // full is closed
	gone  bool // left: what comes is acknowledged, or dropped
	clean bool // left for another consumer, which the checkpoint names
}

// A letter is a message for a partition; or, without one, the news that there are
// none up to a sequence of the stream that it was not sent.
type letter struct {
	m     *nats.Msg
	meta  *nats.MsgMetadata
	quiet uint64
}

// add gives the partition the seat. It reports false if all who had one have left
// already: the share ends.
func (sh *share) add(partition string, st *seat) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.taken == 0 && len(sh.seats) > 0 {
		return false
	}
	st.share = sh
	sh.seats[partition] = st
	sh.taken++
	return true
}

// span returns the positions of the hindmost and the foremost partition, whether the
// share should be replaced in any case, and whether it is being replaced.
func (sh *share) span() (low, high uint64, worn, moved bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	low = ^uint64(0)
	for _, st := range sh.seats {
		if !st.gone {
			low, high = min(low, st.at.Load()), max(high, st.at.Load())
		}
	}
	return low, high, sh.worn, sh.moved
}

func (sh *share) move() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.moved {
		sh.moved = true
		close(sh.moving)
	}
}

// took is called for each letter taken from msgs.
func (st *seat) took() {
	if st.share.queued.Add(-1)%16 == 0 {
		st.share.nudge()
	}
}

func (sh *share) nudge() {
	select {
	case sh.wake <- struct{}{}:
	default:
	}
}

// leave gives the seat up. If it is clean, the checkpoint of the partition no longer
// names this consumer, or never has, and the partition's messages are acknowledged,
// or they would hold up the others'. Otherwise who holds the partition next may ask
// this consumer how far it was handled: its messages stay as they are, and so does
// the consumer. Leaving again is nothing.
func (st *seat) leave(clean bool) {
	if st.share.lose(st, clean) {
		st.share.hub.soon()
	}
}

// lose takes the seat back. It reports whether others are left.
func (sh *share) lose(st *seat, clean bool) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if st.gone {
		return false
	}
	st.gone, st.clean = true, clean
	sh.worn, sh.kept = true, sh.kept || !clean
	for len(st.msgs) > 0 {
		l := <-st.msgs
		sh.queued.Add(-1)
		if clean && l.m != nil {
			sh.acknowledge(l.m)
		}
	}
	sh.nudge()
	if sh.taken--; sh.taken == 0 {
		close(sh.empty)
		return false
	}
	return true
}

// soon has the shares looked at, when all is calm.
func (b *hub) soon() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running > 0 {
		b.later(calm)
	}
}

func (sh *share) acknowledge(m *nats.Msg) {
	if sh.s.mode() == Ack {
		_ = m.Respond(ackBody) // it is sent again if this is lost
	}
}

// run is the whole life of a share.
func (sh *share) run(ctx context.Context) {
	defer close(sh.done)
	defer sh.hub.drop(sh)
	timer := time.NewTimer(gather)
	defer timer.Stop()
	<-timer.C

	sh.hub.mu.Lock()
	if sh.hub.forming == sh {
		sh.hub.forming = nil
	}
	urgent := time.Since(sh.hub.failed) < 10*time.Second
	sh.hub.mu.Unlock()

	sh.err = sh.begin(ctx, urgent)
	close(sh.ready)
	if sh.err == nil {
		sh.log.DebugContext(ctx, "consumer is shared", slog.String("consumer", sh.name), slog.Int("partitions", len(sh.seats)))
		err := sh.read(ctx)
		sh.feed.close()
		if err != nil {
			sh.log.WarnContext(ctx, "shared consumer given up, its partitions read again from their positions",
				slog.String("consumer", sh.name), slog.Any("err", err))
			sh.hub.mu.Lock()
			sh.hub.failed = time.Now()
			sh.hub.mu.Unlock()
		}
	}
	close(sh.ended)
	<-sh.empty
	sh.mu.Lock()
	kept := sh.kept
	sh.mu.Unlock()
	if sh.err == nil && !kept {
		deleting, cancel := context.WithTimeout(ctx, attempt)
		defer cancel()
		_ = sh.s.JS.DeleteConsumer(deleting, sh.s.Stream, sh.name) // the server does so after a while
	}
}

// begin makes the consumer. If one was just given up, a server may be dead, and
// chosen for this one: see blink.
func (sh *share) begin(ctx context.Context, urgent bool) error {
	sh.mu.Lock()
	low := ^uint64(0)
	var filters []string
	for _, st := range sh.seats {
		if !st.gone {
			filters = append(filters, st.filter)
			low = min(low, st.at.Load())
		}
	}
	sh.mu.Unlock()
	if len(filters) == 0 {
		return errors.New("nobody left")
	}
	prefix := consumerMark + plain(sh.group) + "_shared_" + strings.ToLower(rand.Text()[:12]) + "-"
	var err error
	for try := range 6 {
		within := attempt
		if urgent {
			within = blink
		} else if try > 1 {
			break
		}
		sh.name = prefix + strconv.Itoa(try)
		making, cancel := context.WithTimeout(ctx, within)
		_, err = sh.s.JS.CreateConsumer(making, sh.s.Stream, sh.config(filters, low))
		cancel()
		if err == nil {
			batch := min(max(8*len(filters), 64), 512)
			sh.feed, err = openFeed(sh.s.JS, sh.s.Stream, sh.name, batch, sh.s.heartbeat())
			return err
		}
		if _, refused := errors.AsType[*jetstream.APIError](err); refused {
			break
		}
	}
	return fmt.Errorf("worker: make a consumer for %d partitions of stream %q: %w", len(filters), sh.s.Stream, err)
}

func (sh *share) config(filters []string, floor uint64) jetstream.ConsumerConfig {
	cfg := jetstream.ConsumerConfig{
		Name:              sh.name,
		Description:       fmt.Sprintf("%d partitions of group %s", len(filters), sh.group),
		FilterSubjects:    filters,
		AckPolicy:         jetstream.AckExplicitPolicy,
		AckWait:           ackWait,
		MaxDeliver:        -1,
		MaxAckPending:     -1, // as many as seats take
		InactiveThreshold: abandoned,
		MemoryStorage:     true,
		Replicas:          1,
	}
	if len(filters) == 1 {
		cfg.FilterSubject, cfg.FilterSubjects = filters[0], nil
	}
	if floor > 0 {
		cfg.DeliverPolicy = jetstream.DeliverByStartSequencePolicy
		cfg.OptStartSeq = floor + 1
	}
	if sh.limits.InactiveThreshold > 0 {
		cfg.InactiveThreshold = min(cfg.InactiveThreshold, sh.limits.InactiveThreshold)
	}
	if sh.limits.MaxAckPending > 0 {
		cfg.MaxAckPending = sh.limits.MaxAckPending
	}
	if sh.s.mode() == Offset {
		cfg.AckPolicy, cfg.AckWait, cfg.MaxAckPending = jetstream.AckNonePolicy, 0, 0
	}
	return cfg
}

// read gives messages to seats until nobody has one. It returns an error when it is not
// certain that the consumer has sent, and will send, everything that it should.
func (sh *share) read(ctx context.Context) error {
	nc := sh.s.JS.Conn()
	connected := nc.StatusChanged(nats.CONNECTED)
	defer nc.RemoveStatusListener(connected)
	timer := time.NewTimer(0)
	defer timer.Stop()
	quiet, doubt := time.Now(), false
	for {
		if doubt && len(sh.feed.msgs) == 0 {
			if err := sh.examine(ctx); err != nil {
				return err
			}
			doubt = false
		}
		sh.feed.queued = int(sh.queued.Load())
		if !doubt {
			if err := sh.feed.ask(); err != nil {
				sh.log.DebugContext(ctx, "cannot ask for messages", slog.Any("err", err)) // the reconnect tells
			}
		}
		next := time.Hour
		if at, ok := sh.feed.silentUntil(); ok {
			next = time.Until(at)
		}
		timer.Reset(max(next, 0))
		select {
		case <-sh.empty:
			return nil
		case <-sh.wake:
		case <-timer.C:
			doubt = doubt || sh.feed.silent()
		case <-connected: // what was on its way is lost
			doubt = true
		case m := <-sh.feed.msgs:
			what, meta, err := sh.feed.take(m)
			switch what {
			case eventNothing:
			case eventMessage:
				sh.pass(m, meta)
				if meta.NumPending == 0 && time.Since(quiet) > quietEvery {
					quiet = time.Now()
					sh.passQuiet(meta.Sequence.Stream)
				}
			case eventGap:
				return errors.New("message lost on the way")
			case eventGone:
				return errors.New("consumer is gone")
			case eventDoubt:
				doubt = true
			case eventPause:
				sh.log.DebugContext(ctx, "server sends no messages", slog.Any("err", err))
				wait := time.NewTimer(time.Second)
				select {
				case <-wait.C:
				case <-sh.empty:
					wait.Stop()
				}
			}
		}
	}
}

// examine returns an error unless the consumer is there and has sent nothing that did
// not come here.
func (sh *share) examine(ctx context.Context) error {
	looking, cancel := context.WithTimeout(ctx, glance)
	defer cancel()
	consumer, err := sh.s.JS.Consumer(looking, sh.s.Stream, sh.name)
	switch {
	case err != nil:
		return fmt.Errorf("consumer does not answer: %w", err)
	case consumer.CachedInfo().Delivered.Consumer != sh.feed.last:
		return errors.New("messages lost on the way")
	}
	sh.feed.forget()
	return nil
}

// pass gives a message to the partition that it belongs to.
func (sh *share) pass(m *nats.Msg, meta *nats.MsgMetadata) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	st := sh.seats[sh.partition(m.Subject)]
	switch {
	case st == nil, st.gone && st.clean:
		sh.acknowledge(m)
	case st.gone, st.stuck:
	default:
		select {
		case st.msgs <- letter{m: m, meta: meta}:
			sh.queued.Add(1)
		default:
			st.stuck = true
			close(st.full)
		}
	}
}

// passQuiet tells those that wait for nothing that everything up to the sequence was
// sent.
func (sh *share) passQuiet(sequence uint64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, st := range sh.seats {
		if !st.gone && !st.stuck && len(st.msgs) == 0 {
			select {
			case st.msgs <- letter{quiet: sequence}:
				sh.queued.Add(1)
			default:
			}
		}
	}
}

// partitionOf returns a function that finds the partition in a subject that matches
// the filter.
func partitionOf(filter string) func(subject string) string {
	tokens := strings.Split(filter, ".")
	at := 0
	for !strings.Contains(tokens[at], placeholder) {
		at++
	}
	before, after, _ := strings.Cut(tokens[at], placeholder)
	return func(subject string) string {
		for range at {
			_, subject, _ = strings.Cut(subject, ".")
		}
		token, _, _ := strings.Cut(subject, ".")
		return strings.TrimSuffix(strings.TrimPrefix(token, before), after)
	}
}
