package kvlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"tenure/kvlock/bucket"
)

// see makes one attempt to read a key, at the leader. It returns the record and its
// revision; or nil, and where the key is free: the revision of a marker, or 0. The
// revision of what is no record comes with the error.
func (l *Locker) see(ctx context.Context, key string) (r *record, at uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.lease.Attempt)
	defer cancel()
	e, err := l.b.Get(ctx, key)
	switch {
	case errors.Is(err, bucket.ErrNotFound):
		return nil, 0, nil
	case err != nil:
		return nil, 0, err
	case e.Marker:
		return nil, e.Revision, nil
	}
	r, err = parse(e)
	return r, e.Revision, err
}

// left returns how long a record has to live if it is not renewed.
func (l *Locker) left(r *record) time.Duration {
	if r.entry.TTL == 0 { // written by somebody else
		return time.Duration(r.TTL) * time.Second
	}
	return l.b.Left(r.entry)
}

// write makes one attempt to write.
func (l *Locker) write(ctx context.Context, w bucket.Write) (revision uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.lease.Attempt)
	defer cancel()
	return l.b.Write(ctx, w)
}

// attempt returns a context for one read or write that nobody may interrupt.
func (l *Locker) attempt(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), l.lease.Attempt)
}

// notStored reports whether a write that failed with err certainly was not stored.
func notStored(err error) bool {
	return errors.Is(err, bucket.ErrConflict) || errors.Is(err, bucket.ErrBusy) || errors.Is(err, bucket.ErrFull)
}

// again reports whether what failed with err may succeed in a moment, after another
// look in the case of a conflict.
func again(err error) bool {
	if errors.Is(err, nats.ErrConnectionClosed) {
		return false
	}
	return errors.Is(err, bucket.ErrBusy) || errors.Is(err, bucket.ErrDoubt) || errors.Is(err, bucket.ErrConflict)
}

// persist calls try until it returns nil or an error that time does not cure, or ctx is
// done, with pauses that grow.
func (l *Locker) persist(ctx context.Context, try func() error) error {
	for fails := 1; ; fails++ {
		err := try()
		if err == nil || !again(err) {
			return err
		}
		pauseFor(ctx, l.pause(fails))
		if cause := context.Cause(ctx); cause != nil {
			return fmt.Errorf("%w: %w", cause, err)
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

// pauseFor waits, unless ctx ends first.
func pauseFor(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// nudge wakes whoever waits on c, which holds one.
func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
