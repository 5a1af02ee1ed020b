package kvlock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"tenure/kvlock/bucket"
)

// A Holder is what the bucket says of one hold. It is true of a moment that has
// passed.
type Holder struct {
	Name     string // of the lock; of a permit "name#number"
	Key      string
	Kind     string // "lock", "permit" of a [Semaphore], "rw" or "reader" of an [RWLock]
	Owner    string
	Process  string // of the holder: a random text, new with every [Locker]
	Token    uint64
	Revision uint64    // of the last renewal
	Since    time.Time // by the holder's clock
	Renewed  time.Time // by the server's clock
	TTL      time.Duration
	Note     string
	Revoked  bool   // by [Locker.Break]; the lock stays barred until its holder has stopped
	Reason   string // as given to Break
	Resting  bool   // released, but barred until its minimum hold is over
	Value    string // of the leader of an [Election]
}

// Expires returns when the hold ends on the server if it is not renewed, by the
// server's clock.
func (h Holder) Expires() time.Time { return h.Renewed.Add(h.TTL) }

// Holder returns who holds the named lock, as the leader of the bucket knows it. It
// blocks until the server has answered or ctx is done. The error matches [ErrFree]
// if nobody holds the lock, [ErrName], [ErrRecord], or is of the connection.
func (l *Locker) Holder(ctx context.Context, name string) (Holder, error) {
	h, err := l.holder(ctx, name)
	if err != nil {
		return Holder{}, fmt.Errorf("kvlock: holder of %q: %w", name, err)
	}
	return h, nil
}

func (l *Locker) holder(ctx context.Context, name string) (Holder, error) {
	enc, err := bucket.EncodeName(name)
	if err != nil {
		return Holder{}, err
	}
	e, _, err := l.read(ctx, enc)
	if err != nil {
		return Holder{}, err
	}
	return asHolder(e)
}

// read reads the record of a lock.
func (l *Locker) read(ctx context.Context, enc string) (bucket.Entry, *record, error) {
	e, err := l.get(ctx, "lock."+enc)
	switch {
	case errors.Is(err, bucket.ErrNotFound), err == nil && e.Marker:
		return bucket.Entry{}, nil, ErrFree
	case err != nil:
		return bucket.Entry{}, nil, err
	}
	r, err := parseRecord(e)
	return e, r, err
}

// get reads a key, and again while nobody answers.
func (l *Locker) get(ctx context.Context, key string) (bucket.Entry, error) {
	ctx, cancel := l.patience(ctx)
	defer cancel()
	for fails := 1; ; fails++ {
		try, done := context.WithTimeout(ctx, l.lease.Attempt)
		e, err := l.b.Get(try, key)
		done()
		if err == nil || !again(err) {
			return e, err
		}
		pauseFor(ctx, l.pause(fails))
		if cause := context.Cause(ctx); cause != nil {
			return bucket.Entry{}, fmt.Errorf("%w: %w", cause, err)
		}
	}
}

// patience gives a call an end if its caller did not.
func (l *Locker) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, l.lease.TTL)
}

// again reports whether what failed with err may succeed in a moment.
func again(err error) bool {
	if errors.Is(err, nats.ErrConnectionClosed) {
		return false
	}
	return errors.Is(err, bucket.ErrBusy) || errors.Is(err, bucket.ErrDoubt)
}

func asHolder(e bucket.Entry) (Holder, error) {
	parts := strings.Split(e.Key, ".")
	name, err := bucket.DecodeName(parts[1])
	if err != nil {
		return Holder{}, err
	}
	if parts[0] == "slot" {
		name += "#" + parts[2]
	}
	r, err := parseRecord(e)
	if err != nil {
		return Holder{}, err
	}
	return Holder{
		Name:     name,
		Key:      e.Key,
		Kind:     string(r.Kind),
		Owner:    r.Owner,
		Process:  r.Process,
		Token:    r.token(e.Revision),
		Revision: e.Revision,
		Since:    r.Since,
		Renewed:  e.Time,
		TTL:      time.Duration(r.TTL) * time.Second,
		Note:     r.Note,
		Revoked:  r.State == stateRevoked,
		Reason:   r.Reason,
		Resting:  r.State == stateResting,
		Value:    r.Value,
	}, nil
}

// Holders returns the holders of all locks in the bucket, permits of semaphores and
// readers included, in the order of their last renewals. What cannot be read comes as an error between them; an error of
// the reading itself is the last.
func (l *Locker) Holders(ctx context.Context) iter.Seq2[Holder, error] {
	return func(yield func(Holder, error) bool) {
		entries, err := l.b.Snapshot(ctx, "lock.*", "slot.*.*", "read.*.*")
		if err != nil {
			yield(Holder{}, fmt.Errorf("kvlock: holders: %w", err))
			return
		}
		for _, e := range entries {
			if e.Marker {
				continue
			}
			h, err := asHolder(e)
			if err != nil {
				err = fmt.Errorf("kvlock: holders: %w", err)
			}
			if !yield(h, err) {
				return
			}
		}
	}
}
