package bucket

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// An Entry is the newest entry of a key: a value or the marker of its removal.
type Entry struct {
	Key      string
	Revision uint64
	Value    []byte
	Time     time.Time     // when it was stored, by the server's clock
	TTL      time.Duration // 0 for ever
	Marker   bool          // the key was purged, deleted or has expired
	Expired  bool          // it has expired, in a bucket that has markers for that
}

func (b *Bucket) entry(subject string, revision uint64, h nats.Header, data []byte, at time.Time) Entry {
	e := Entry{Key: strings.TrimPrefix(subject, b.prefix), Revision: revision, Value: data, Time: at}
	e.Marker = h.Get(hdrOperation) != "" || h.Get(hdrReason) != ""
	e.Expired = h.Get(hdrReason) == "MaxAge"
	e.TTL, _ = parseSeconds(h.Get(hdrTTL)) // 0 for what is no duration ("never")
	return e
}

// Left returns how long e has to live on the server from now on, 0 if that is
// over and a negative number if it lives for ever. It rests on the server's clock
// as last heard of by [Open] or [Bucket.State] and on the local monotonic clock:
// good for a timer, not for a decision.
func (b *Bucket) Left(e Entry) time.Duration {
	if e.TTL == 0 {
		return -1
	}
	r := b.clock.Load()
	now := r.server.Add(time.Since(r.heard))
	return max(0, e.Time.Add(e.TTL).Sub(now))
}

// Get returns the newest entry of key, which may be a marker, as the stream's
// leader knows it, or [ErrNotFound]. That a key is absent, or older than known
// otherwise, proves nothing: see the package documentation. Other errors are
// [ErrBusy], [ErrDoubt] (both: ask again), [ErrPermission] and [ErrGone].
func (b *Bucket) Get(ctx context.Context, key string) (Entry, error) {
	return b.read(ctx, key, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return b.stream.GetLastMsgForSubject(ctx, b.prefix+key)
	})
}

// Next returns the first entry at or after revision from whose key matches
// filter, where * stands for one token, or [ErrNotFound]. Reading far back
// costs time in proportion: start where you know that nothing older counts.
func (b *Bucket) Next(ctx context.Context, filter string, from uint64) (Entry, error) {
	return b.read(ctx, filter, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return b.stream.GetMsg(ctx, max(1, from), jetstream.WithGetMsgSubject(b.prefix+filter))
	})
}

func (b *Bucket) read(ctx context.Context, key string, get func(context.Context) (*jetstream.RawStreamMsg, error)) (Entry, error) {
	m, err := get(ctx)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return Entry{}, fmt.Errorf("key %q: %w", key, ErrNotFound)
	}
	if err != nil {
		return Entry{}, b.classify(b.api+"STREAM.MSG.GET."+b.streamName(), key, 0, err)
	}
	return b.entry(m.Subject, m.Sequence, m.Header, m.Data, m.Time), nil
}

// A State is what the stream's leader says of the bucket.
type State struct {
	LastRevision uint64            // every write up to it is taken into account
	Keys         map[string]uint64 // keys that match the filter, markers included
}

// State returns the bucket's last revision and the keys that match filter. It
// is fresh with respect to every write up to LastRevision. It is also the check
// that the bucket is still the one that was opened: [ErrGone] if not.
func (b *Bucket) State(ctx context.Context, filter string) (State, error) {
	high := b.high.Load() // before asking: other writes are acknowledged meanwhile
	info, err := b.stream.Info(ctx, jetstream.WithSubjectFilter(b.prefix+filter))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		b.gone.Store(true)
		return State{}, fmt.Errorf("bucket %q: %w", b.name, ErrGone)
	}
	if err != nil {
		return State{}, b.classify(b.api+"STREAM.INFO."+b.streamName(), filter, 0, err)
	}
	if !info.Created.Equal(b.created) {
		b.gone.Store(true)
		return State{}, fmt.Errorf("bucket %q: %w: created %v, was %v", b.name, ErrGone, info.Created, b.created)
	}
	// With one replica there is no other server that could be behind.
	if b.single && info.State.LastSeq < high {
		return State{}, fmt.Errorf("bucket %q: %w: last revision is %d, was %d", b.name, ErrGone, info.State.LastSeq, high)
	}
	b.clock.Store(&reading{info.TimeStamp, time.Now()})
	s := State{LastRevision: info.State.LastSeq, Keys: make(map[string]uint64, len(info.State.Subjects))}
	for subject, n := range info.State.Subjects {
		s.Keys[strings.TrimPrefix(subject, b.prefix)] = n
	}
	return s, nil
}

// Same returns nil if a write with this revision is certainly in the bucket that was
// opened, and [ErrGone] if that was replaced by another one. Whoever writes with
// expectation 0 has to ask before it believes in the write, since that is accepted in
// a bucket made anew too, be it under quarantine or not; [Bucket.Write] does so
// itself. It costs a request only while the bucket is a second old or less. Any other
// error says nothing.
func (b *Bucket) Same(ctx context.Context, revision uint64) error {
	// Every bucket made since the server's clock was read begins above that.
	if revision < uint64(b.clock.Load().server.Add(-maxClockLag).UnixMicro()) {
		return nil
	}
	return b.Check(ctx)
}

// Check returns [ErrGone] if the bucket is no longer the one that was opened.
// Any other error says nothing about that.
func (b *Bucket) Check(ctx context.Context) error {
	_, err := b.State(ctx, "0") // a key that nobody has
	return err
}

// Snapshot returns the newest entry of every key that matches one of the
// filters, markers included, in the order of their revisions.
func (b *Bucket) Snapshot(ctx context.Context, filters ...string) ([]Entry, error) {
	ctx, done := context.WithCancelCause(ctx)
	defer done(nil)
	var all []Entry
	complete := errors.New("complete")
	err := b.Watch(ctx, func(e Entry) { all = append(all, e) }, func() { done(complete) }, filters...)
	if errors.Is(context.Cause(ctx), complete) {
		return all, nil
	}
	return nil, err
}
