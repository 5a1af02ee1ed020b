package worker

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Mode says how a [Stream] keeps its position.
type Mode string

const (
	// Ack acknowledges each message after it was handled.
	Ack Mode = "ack"

	// Offset reads without acknowledgements. The position is the partition's
	// checkpoint, saved now and then: less traffic, but more is handled again
	// after a crash.
	Offset Mode = "offset"
)

const (
	defaultPrefetch  = 64
	defaultHeartbeat = 500 * time.Millisecond
	retryWaitMin     = 100 * time.Millisecond
	retryWaitMax     = 30 * time.Second
)

// A Stream is a [Task] that reads the partition's part of a JetStream stream:
// one message after the other, strictly in order, by one reader. Its fields are
// not changed once it is used.
//
// A message whose handler fails is handled again after a while, and those behind
// it wait. A message is handled again, too, if the worker crashed before the
// message was acknowledged (mode [Ack], normally the one in hand), or since the
// position was last saved (mode [Offset], and in mode Ack if the server that knew
// the acknowledgements is lost at the same time). Nothing is handled again when the
// partition was handed over in a drain.
//
// Each hold of a partition reads with a consumer of its own, whose name carries
// the token. A new holder first saves a fenced checkpoint, which also says where
// it begins, then makes its own consumer and deletes the one of the hold before. So
// a holder that has lost the partition without knowing acknowledges on a consumer
// that is gone, and moves nothing. The checkpoint of the partition belongs to the
// task; a handler must not save its own.
//
// From 16 partitions on, those that one Stream runs share consumers, unless the
// stream has work-queue or interest retention. What a holder acknowledges there
// counts only as long as the checkpoint names that consumer. After a crash more than
// the message in hand may be handled again: what was handled behind the oldest one in
// hand of the partitions that share, and not yet saved.
//
// The stream may have any retention in mode Ack, and must have limits retention
// in mode Offset. A stream with interest retention keeps nothing for a partition
// that was never claimed, as it keeps nothing for a consumer that was never made.
// A stream takes 1,000 consumers unless its configuration says otherwise; each
// partition needs one, or each process, if its partitions share.
type Stream struct {
	JS     jetstream.JetStream
	Stream string // the stream's name, it must exist

	// Filter is the subject of the partition's messages. "{partition}" in it
	// stands for the partition's name.
	Filter string

	// Mode is [Ack] if empty.
	Mode Mode

	// Handle handles one message. Its context ends with the hold. It may look at
	// p.Draining to give up early; an error then leaves the message to the next
	// holder.
	Handle func(ctx context.Context, p Partition, m *Message) error

	// Prefetch is how many messages are asked for ahead of the one in hand, at
	// most. The default is 64. They are lost to nobody when the hold ends, only
	// delivered again to the next holder.
	Prefetch int

	// Retry is how long to wait before a message is handled again.
	// The default is 100 ms to 30 s.
	Retry Backoff

	// SaveEvery and SaveAfter say when the position is saved: that long after,
	// or that many messages after the last time. In mode [Ack] the acknowledgements
	// are the position, and this one only serves if they are gone: the defaults are
	// 10 s and 1,000. In mode [Offset] they are 1 s and 100.
	SaveEvery time.Duration
	SaveAfter int

	// Heartbeat is how often the server shows that it is there while there are
	// no messages. When two are missed the consumer is looked for, and when it does
	// not answer within half a second, while the stream does, another one is made.
	// The default is 500 ms, so that the death of the server that kept the consumer
	// costs less than 3 s.
	Heartbeat time.Duration

	// Log takes what goes wrong. The default discards it.
	Log *slog.Logger

	strays strays
	hub    hub
}

// Validate reports, as a [*SettingError], that the stream does not exist or that
// the task cannot read it as it is configured.
func (s *Stream) Validate(ctx context.Context) error {
	if err := s.check(); err != nil {
		return err
	}
	info, err := s.look(ctx)
	if err != nil {
		return err
	}
	return s.fits(info, strings.ReplaceAll(s.Filter, placeholder, "*"), subjectsOverlap)
}

// Run implements [Task].
func (s *Stream) Run(ctx context.Context, p Partition) error {
	if err := s.check(); err != nil {
		return err
	}
	if !isToken(p.Name()) {
		return &SettingError{
			Of: "stream " + strconv.Quote(s.Stream), Setting: "partition",
			Have: strconv.Quote(p.Name()), Want: "a name without dots, wildcards and spaces, since it is part of the filter",
		}
	}
	s.hub.enter()
	defer s.hub.leave()
	h := newHold(s, p)
	defer h.close()
	return h.run(ctx)
}

// check reports what is wrong with the settings by themselves.
func (s *Stream) check() error {
	setting := func(name, have, want string) error {
		return &SettingError{Of: "stream " + strconv.Quote(s.Stream), Setting: name, Have: have, Want: want}
	}
	switch {
	case s.JS == nil:
		return setting("JetStream context", "none", "one")
	case s.Handle == nil:
		return setting("handler", "none", "one")
	case s.Mode != "" && s.Mode != Ack && s.Mode != Offset:
		return setting("mode", strconv.Quote(string(s.Mode)), "ack or offset")
	case !strings.Contains(s.Filter, placeholder):
		return setting("filter", strconv.Quote(s.Filter), "a subject with "+placeholder+" in it")
	case !isFilter(strings.ReplaceAll(s.Filter, placeholder, "x")):
		return setting("filter", strconv.Quote(s.Filter), "a valid subject")
	case s.Prefetch < 0:
		return setting("prefetch", strconv.Itoa(s.Prefetch), "1 or more")
	case s.Heartbeat < 0 || s.Heartbeat > 0 && s.Heartbeat < minHeartbeat:
		return setting("heartbeat", s.Heartbeat.String(), minHeartbeat.String()+" or more")
	}
	return nil
}

// look asks for the stream's configuration and state.
func (s *Stream) look(ctx context.Context) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	stream, err := s.JS.Stream(ctx, s.Stream)
	if err != nil {
		return nil, fmt.Errorf("worker: stream %q: %w", s.Stream, err)
	}
	return stream.CachedInfo(), nil
}

// fits reports whether the stream can be read by filter. subject is how a subject
// of the stream has to relate to it.
func (s *Stream) fits(info *jetstream.StreamInfo, filter string, relate func(subject, filter string) bool) error {
	cfg := &info.Config
	of := "stream " + strconv.Quote(s.Stream)
	if s.mode() == Offset && cfg.Retention != jetstream.LimitsPolicy {
		return &SettingError{
			Of: of, Setting: "retention", Have: strings.ToLower(cfg.Retention.String()),
			Want: "limits for mode offset, since nothing is acknowledged",
		}
	}
	if cfg.Mirror != nil || len(cfg.Sources) > 0 || cfg.SubjectTransform != nil {
		return nil // it has subjects that its configuration does not name
	}
	for _, subject := range cfg.Subjects {
		if relate(subject, filter) {
			return nil
		}
	}
	return &SettingError{
		Of: of, Setting: "filter", Have: strconv.Quote(filter),
		Want: fmt.Sprintf("a part of the stream's subjects %q", cfg.Subjects),
	}
}

func (s *Stream) mode() Mode {
	if s.Mode == "" {
		return Ack
	}
	return s.Mode
}

func (s *Stream) logger() *slog.Logger {
	if s.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return s.Log
}

func (s *Stream) prefetch() int {
	if s.Prefetch == 0 {
		return defaultPrefetch
	}
	return s.Prefetch
}

func (s *Stream) heartbeat() time.Duration {
	if s.Heartbeat == 0 {
		return defaultHeartbeat
	}
	return s.Heartbeat
}

// saves returns when the position is saved.
func (s *Stream) saves() (every time.Duration, after int) {
	every, after = 10*time.Second, 1000
	if s.mode() == Offset {
		every, after = time.Second, 100
	}
	if s.SaveEvery > 0 {
		every = s.SaveEvery
	}
	if s.SaveAfter > 0 {
		after = s.SaveAfter
	}
	return every, after
}

// strays are the consumers that earlier holds have left on the stream, which no
// checkpoint tells of. They are listed once, when the first partition is gained.
type strays struct {
	list sync.Once

	mu    sync.Mutex
	names []string
}

// take returns the strays with the prefix, and forgets them.
func (s *strays) take(ctx context.Context, js jetstream.JetStream, stream, prefix string) []string {
	s.list.Do(func() {
		// If it fails they stay: strays are untidy, not wrong.
		names, _ := consumerNames(ctx, js, stream, consumerMark)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.names = names
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	var mine []string
	rest := s.names[:0]
	for _, name := range s.names {
		if strings.HasPrefix(name, prefix) {
			mine = append(mine, name)
		} else {
			rest = append(rest, name)
		}
	}
	s.names = rest
	return mine
}

// consumerNames lists the consumers of the stream whose name has the prefix.
func consumerNames(ctx context.Context, js jetstream.JetStream, stream, prefix string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	handle, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, err
	}
	lister := handle.ConsumerNames(ctx)
	var names []string
	for name := range lister.Name() {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names, lister.Err()
}
