package kvlock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"tenure/kvlock/bucket"
)

// MaxBatch is the largest number of writes that one [Lock.PutAll] makes and of locks
// that one [Locker.LockAll] takes: what the server allows in one atomic batch.
const MaxBatch = 1000

// Put stores value under data.<key> in the lock's bucket, in which [Locker.Data] finds
// it. The key is encoded as the names of locks are, and has 1 to 200 bytes.
//
// The write is fenced: the server refuses it once the hold has ended, also if this
// process was paused meanwhile and knows nothing of it. Whatever a later holder has
// read or written stays as it is.
//
// Put blocks until the server has confirmed, through busy servers and lost answers,
// until ctx is done or the hold ends. The error then matches ctx's cause, [ErrLost] or
// [ErrReleased], and [bucket.ErrDoubt] if the write may have been stored; without that
// it was not. A value that is too large, or a store that is full, is [bucket.ErrFull].
// The fenced writes of one hold are stored in the order in which they return.
func (k *Lock) Put(ctx context.Context, key string, value []byte) error {
	own, err := bucket.DataKey(key)
	if err == nil {
		err = k.fenced(ctx, []bucket.Write{{Key: own, Value: value}})
	}
	return wrapWrite("put", key, err)
}

// PutAll stores the values under their keys, all of them or none, as [Lock.Put] does.
// More than [MaxBatch] of them is [ErrOption], none is nothing to do.
func (k *Lock) PutAll(ctx context.Context, values map[string][]byte) error {
	if len(values) > MaxBatch {
		return wrapWrite("put", "all", &OptionError{Option: "values", Have: strconv.Itoa(len(values)), Want: fmt.Sprintf("at most %d", MaxBatch)})
	}
	ws := make([]bucket.Write, 0, len(values))
	for key, value := range values {
		own, err := bucket.DataKey(key)
		if err != nil {
			return wrapWrite("put", key, err)
		}
		ws = append(ws, bucket.Write{Key: own, Value: value})
	}
	if len(ws) == 0 {
		return k.Err()
	}
	return wrapWrite("put", "all", k.fenced(ctx, ws))
}

// Delete removes what is stored under data.<key>, fenced as [Lock.Put] is. It is no
// error if there is nothing.
func (k *Lock) Delete(ctx context.Context, key string) error {
	own, err := bucket.DataKey(key)
	if err == nil {
		err = k.fenced(ctx, []bucket.Write{{Key: own, Purge: true, TTL: time.Second}})
	}
	return wrapWrite("delete", key, err)
}

// Publish stores data under a subject of the bucket's own stream, fenced as [Lock.Put]
// is. The subject begins with that of the bucket ([bucket.Bucket.Subject]) and is none
// of those that locks and claims use, which is [ErrName]. The stream keeps the last
// message of a subject only; whoever wants all of them has a consumer.
func (k *Lock) Publish(ctx context.Context, subject string, data []byte) error {
	key, err := k.l.b.OwnKey(subject)
	if err == nil {
		err = k.fenced(ctx, []bucket.Write{{Key: key, Value: data}})
	}
	return wrapWrite("publish", subject, err)
}

func wrapWrite(verb, what string, err error) error {
	if err == nil || isLost(err) || errors.Is(err, ErrReleased) {
		return err
	}
	return fmt.Errorf("kvlock: %s %q: %w", verb, what, err)
}

// fenced stores ws, all or none, if the lock's key is as the hold last wrote it.
//
// The newest revision of the key is the fence. It rises with every renewal, so a write
// that meets one is refused and tried again under the new fence (F1). A write whose
// answer was lost may still be under way through another server, and would overwrite
// the next one if it came after it with a fence that is still right (H13). So nothing
// more is written before a renewal has changed the fence; then the write is repeated
// unless it is there (F2).
func (k *Lock) fenced(ctx context.Context, ws []bucket.Write) error {
	select {
	case k.pen <- struct{}{}:
		defer func() { <-k.pen }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	var doubt error // the last of this call: it may have been stored
	var sent uint64 // the fence of it, 0 once that was looked at
	for refused := 0; ; {
		if err := k.Err(); err != nil {
			if doubt != nil {
				err = fmt.Errorf("%w: the last write: %w", err, doubt)
			}
			if f := k.l.trace.FencedRefused; f != nil {
				f(k.name, k.token, err)
			}
			return err
		}
		if cause := context.Cause(ctx); cause != nil {
			if doubt != nil {
				return fmt.Errorf("%w: %w", cause, doubt)
			}
			return cause
		}
		k.mu.Lock()
		fence, timeout := k.revision, k.l.lease.Timeout(k.trust)
		k.mu.Unlock()
		if fence == k.ghost {
			pauseFor(ctx, writePause())
			continue
		}
		if sent != 0 && k.stored(ctx, ws, sent) {
			return nil
		}
		sent = 0
		for i := range ws {
			ws[i].Fence, ws[i].Last = k.key, fence
		}
		try, cancel := context.WithTimeout(ctx, timeout)
		_, err := k.l.b.Batch(try, ws)
		cancel()
		switch {
		case err == nil:
			return nil
		case errors.Is(err, bucket.ErrConflict):
			// A renewal whose acknowledgement is not here yet; or else keep finds out.
			if refused++; refused%3 == 0 {
				k.tell(eventDue)
			}
		case errors.Is(err, bucket.ErrBusy):
		case errors.Is(err, bucket.ErrFull):
			return err
		default:
			k.ghost = fence
			k.tell(eventDue)
			if !errors.Is(err, bucket.ErrDoubt) {
				return err
			}
			doubt, sent = err, fence
		}
		pauseFor(ctx, writePause())
	}
}

// writePause is how long a fenced write waits before it is tried again: as long as
// another write of the same fence may be in flight.
func writePause() time.Duration { return time.Millisecond + rand.N(19*time.Millisecond) }

// stored reports whether a write that was sent with a fence, and cannot be stored any
// more, is there. That it is not seen proves nothing, and to write it again does no
// harm. A batch is written again without a look.
func (k *Lock) stored(ctx context.Context, ws []bucket.Write, fence uint64) bool {
	if len(ws) != 1 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, k.l.lease.Attempt)
	defer cancel()
	e, err := k.l.b.Get(ctx, ws[0].Key)
	return err == nil && e.Revision > fence && e.Marker == ws[0].Purge && bytes.Equal(e.Value, ws[0].Value)
}

// Data returns what a holder stored under data.<key> with [Lock.Put], and its revision,
// as the leader of the bucket knows it. It blocks until the server has answered or ctx
// is done, at most for one TTL. The error matches [ErrNotFound] if there is nothing,
// [ErrName], or is of the connection.
//
// What is read may change in the next moment, unless the caller holds the lock that
// the key is written under.
func (l *Locker) Data(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	own, err := bucket.DataKey(key)
	if err != nil {
		return nil, 0, wrapWrite("read", key, err)
	}
	ctx, cancel := l.patience(ctx)
	defer cancel()
	var e bucket.Entry
	err = l.persist(ctx, func() (err error) {
		try, cancel := context.WithTimeout(ctx, l.lease.Attempt)
		defer cancel()
		e, err = l.b.Get(try, own)
		return err
	})
	if err == nil && e.Marker {
		err = ErrNotFound
	}
	if err != nil {
		return nil, 0, wrapWrite("read", key, err)
	}
	return e.Value, e.Revision, nil
}
