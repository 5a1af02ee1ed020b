package kvlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"sync"
	"time"

	"tenure/kvlock/bucket"
)

// A Locks is a hold of several locks at once, from [Locker.LockAll]. It lasts as long as
// all of them do: when one is lost, all of it is. Its methods may be called
// concurrently.
type Locks struct {
	locks []*Lock // in the order of their names
	ctx   *holdContext
}

// LockAll takes the named locks, all or none, and waits for them until ctx is done. The
// order of the names, and a name that comes twice, make no difference.
//
// If all are free they are taken by one atomic batch. Else they are taken one by one, each
// in its line, in an order that is the same for everybody, so that callers do not wait for
// each other in a circle; what is held meanwhile is renewed, and bars others. Whoever
// wants several locks at once should hold none of them before.
//
// The hold of each is as from [Locker.Lock], and so is the error; it also matches
// [ErrOption] if there are no names or more than [MaxBatch]. After an error nothing is held.
func (l *Locker) LockAll(ctx context.Context, names ...string) (*Locks, error) {
	return l.takeAll(ctx, names, false)
}

// DoAll takes the named locks as [Locker.LockAll] does, calls f, and releases them when f
// has returned, not earlier, also those that are left when one was lost. Else it is as
// [Locker.Do].
func (l *Locker) DoAll(ctx context.Context, names []string, f func(ctx context.Context, locks *Locks) error) error {
	return do(ctx, l, func() (*Locks, error) { return l.takeAll(ctx, names, true) }, f)
}

// All returns the holds in the order of their names. Each has a token of its own.
func (s *Locks) All() iter.Seq[*Lock] { return slices.Values(s.locks) }

// Lock returns the hold of the named lock, nil if it is none of these.
func (s *Locks) Lock(name string) *Lock {
	i := slices.IndexFunc(s.locks, func(k *Lock) bool { return k.name == name })
	if i < 0 {
		return nil
	}
	return s.locks[i]
}

// Context is [Lock.Context]: its cause is [ErrReleased] or the [*LostError] of the lock
// that was lost.
func (s *Locks) Context() context.Context { return s.ctx }

// Err is [Lock.Err]: nil while all are held, and else why the first one was not held any
// more.
func (s *Locks) Err() error {
	if err := context.Cause(s.ctx.Context); err != nil {
		return err // what others have come to since does not change it
	}
	return firstEnd(s.locks)
}

// firstEnd returns why one of the locks is not held any more, a loss before a release.
func firstEnd(locks []*Lock) (ended error) {
	for _, k := range locks {
		if err := k.Err(); isLost(err) {
			return err
		} else if err != nil {
			ended = err
		}
	}
	return ended
}

// Remaining is [Lock.Remaining] of the lock that has the least.
func (s *Locks) Remaining() time.Duration {
	least := s.locks[0].Remaining()
	for _, k := range s.locks {
		least = min(least, k.Remaining())
	}
	return least
}

// Release gives all locks back, as [Lock.Release] does with each. If one was lost before,
// it returns that [*LostError]. Unless it is called after a loss, the others are released
// one TTL later.
func (s *Locks) Release(ctx context.Context) error { return releaseAll(ctx, s.locks) }

func releaseAll(ctx context.Context, locks []*Lock) error {
	errs := make([]error, len(locks))
	var all sync.WaitGroup
	for i, k := range locks {
		all.Go(func() { errs[i] = k.Release(ctx) })
	}
	all.Wait()
	if i := slices.IndexFunc(errs, isLost); i >= 0 {
		return errs[i]
	}
	return errors.Join(errs...)
}

func (l *Locker) takeAll(ctx context.Context, names []string, guarded bool) (*Locks, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	locks, err := l.takeNames(ctx, names, guarded)
	if err != nil {
		return nil, fmt.Errorf("kvlock: take all: %w", err)
	}
	s := &Locks{locks: locks}
	inner, end := context.WithCancelCause(context.WithoutCancel(ctx))
	s.ctx = &holdContext{Context: inner, held: s, end: end}
	for _, k := range locks {
		context.AfterFunc(k.ctx, func() { end(s.Err()) })
	}
	if !guarded {
		context.AfterFunc(inner, func() {
			if isLost(context.Cause(inner)) { // which has been reported
				time.AfterFunc(l.lease.TTL, func() { _ = s.Release(inner) })
			}
		})
	}
	return s, nil
}

// takeNames takes locks, whose names are sorted, until all are held at once (L14).
func (l *Locker) takeNames(ctx context.Context, names []string, guarded bool) ([]*Lock, error) {
	if len(names) == 0 || len(names) > MaxBatch {
		return nil, &OptionError{Option: "names", Have: strconv.Itoa(len(names)), Want: fmt.Sprintf("1 to %d", MaxBatch)}
	}
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.work.Done()
	for {
		ws := make([]*waiter, len(names))
		for i, name := range names {
			var err error
			if ws[i], err = l.newWaiter(want{name: name, patient: true, guarded: guarded}); err != nil {
				return nil, err
			}
		}
		locks := l.gainAll(ctx, ws)
		var err error
		if locks == nil {
			locks, err = l.takeEach(ctx, ws)
		}
		err = cmp.Or(err, ws[0].ended(ctx), firstEnd(locks))
		if err == nil {
			return locks, nil
		}
		_ = releaseAll(ctx, locks) // they are free one TTL later at the latest
		if ctx.Err() != nil || !isLost(err) {
			return nil, err
		}
		// One was lost while the others were waited for: all or none.
	}
}

// gainAll makes the gaining writes of all waiters in one atomic batch, if nobody is known
// to stand in the way, and returns the holds. When it returns nil the waiters go on by
// themselves, also with what is in doubt.
func (l *Locker) gainAll(ctx context.Context, ws []*waiter) []*Lock {
	if l.b.Quarantine() > 0 {
		return nil
	}
	for _, w := range ws {
		if w.at, _, w.low = l.recall(w.enc); w.at != 0 && !l.barging {
			if first, err := l.nextTicket(ctx, w.enc, w.low); err != nil || first != nil {
				return nil
			}
			w.low = max(w.low, w.at)
		}
	}
	tries, writes := make([]attempt, len(ws)), make([]bucket.Write, len(ws))
	for i, w := range ws {
		tries[i], writes[i] = w.try()
	}
	try, cancel := context.WithTimeout(ctx, l.lease.Attempt)
	last, err := l.b.Batch(try, writes)
	cancel()
	var locks []*Lock
	for i, w := range ws {
		if err != nil {
			w.missed(tries[i], err)
		} else if w.hold(ctx, tries[i], last-uint64(len(ws)-1-i)); w.gained != nil {
			locks = append(locks, w.gained)
		}
	}
	if len(locks) == len(ws) {
		return locks
	}
	_ = releaseAll(ctx, locks) // some were too late to be believed: none is given to the caller
	for _, w := range ws {
		w.gained = nil
		w.setPhase(phaseWaiting)
	}
	return nil
}

// takeEach runs the waiters one after the other. The holds are returned also after an
// error, which matches [ErrLost] if one was lost meanwhile.
func (l *Locker) takeEach(ctx context.Context, ws []*waiter) (locks []*Lock, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for i, w := range ws {
		k, err := w.take(ctx)
		if err != nil {
			for _, later := range ws[i+1:] {
				later.giveUp(ctx)
			}
			return locks, err
		}
		locks = append(locks, k)
		defer context.AfterFunc(k.ctx, func() { cancel(context.Cause(k.ctx)) })()
	}
	return locks, nil
}
