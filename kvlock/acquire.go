package kvlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"tenure/kvlock/bucket"
)

// TryLock takes the named lock or fails at once.
//
// While the lock is held it is renewed in the background. It is held until
// [Lock.Release] is called or it is lost; the context of the [Lock] tells. ctx governs
// the taking only.
//
// TryLock blocks until the server has answered or ctx is done, at most for one TTL if
// ctx has no deadline. The error matches
//
//   - [ErrHeld] if somebody else holds the lock or stands first in line for it,
//   - [ErrKind] if the name is in use for an [RWLock],
//   - [ErrQuarantine] if the bucket was made anew, [ErrBucket] if it is gone,
//   - [ErrName], [ErrRecord], [ErrPermission], [ErrClosed],
//   - ctx's cause, joined with why the server did not answer.
//
// After an error nothing is held: what may have been stored is removed in the
// background.
func (l *Locker) TryLock(ctx context.Context, name string) (*Lock, error) {
	return l.take(ctx, want{name: name})
}

// Lock takes the named lock and waits for it, first come, first served, until ctx
// is done.
//
// The hold is as from [Locker.TryLock], and so is the error, but a lock that is held and
// a bucket's quarantine are waited for: when ctx is done the error matches its cause, and
// [ErrHeld] if somebody held the lock. The place in line is given up before Lock returns,
// for which it may take another 250 ms, or in the background if the server is away.
func (l *Locker) Lock(ctx context.Context, name string) (*Lock, error) {
	return l.take(ctx, want{name: name, patient: true})
}

// Do takes the named lock as [Locker.Lock] does, calls f and releases the lock.
//
// f's context carries ctx's values. It is done when ctx is, when the hold is lost,
// and when the Locker is closed; its cause says which. The lock is renewed until f
// has returned, also when its context has ended before, and released then and not
// earlier, unless it was lost. So f should return soon when its context ends.
//
// If the lock cannot be taken f is not called, and the error is as from [Locker.Lock].
// Else Do returns what f returns, joined with the [*LostError] if the hold was lost
// before f returned. A panic of f goes on after the release. A release that cannot
// be confirmed is logged; the lock is free one TTL later.
func (l *Locker) Do(ctx context.Context, name string, f func(ctx context.Context, lock *Lock) error) error {
	return do(ctx, l, func() (*Lock, error) { return l.take(ctx, want{name: name, patient: true, guarded: true}) }, f)
}

// A hold is a [*Lock], a [*Reader] or [*Locks].
type hold interface {
	Context() context.Context
	Err() error
	Release(ctx context.Context) error
}

// do takes a hold, calls f under it, for which Close waits, and releases it.
func do[H hold](ctx context.Context, l *Locker, take func() (H, error), f func(context.Context, H) error) (err error) {
	if err := l.enter(); err != nil {
		return fmt.Errorf("kvlock: take: %w", err)
	}
	defer l.work.Done()
	h, err := take()
	if err != nil {
		return err
	}
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(ErrReleased)
	defer context.AfterFunc(h.Context(), func() { cancel(context.Cause(h.Context())) })()
	defer context.AfterFunc(l.ctx, func() { cancel(fmt.Errorf("kvlock: %w", ErrClosed)) })()
	defer func() { // also after a panic or runtime.Goexit
		released := h.Release(context.WithoutCancel(ctx))
		switch {
		case isLost(released) && !isLost(err):
			err = errors.Join(err, released)
		case released != nil && !isLost(released):
			l.log.WarnContext(ctx, "lock left to expire", slog.Any("err", released))
		}
	}()
	return f(&holdContext{Context: work, held: h, end: cancel}, h)
}

// A want says what a call wants.
type want struct {
	kind    kind // kindLock if empty
	name    string
	sem     *Semaphore // kindPermit
	patient bool       // stands in line; else the call fails at once
	guarded bool       // the hold is released by do
	value   string     // of a leader
}

// take gains what is wanted.
func (l *Locker) take(ctx context.Context, want want) (*Lock, error) {
	for {
		w, err := l.newWaiter(want)
		if err != nil {
			return nil, err
		}
		k, err := w.take(ctx)
		// A gate that is lost while it waits for readers is no hold that anybody
		// believed in.
		lost, ok := errors.AsType[*LostError](err)
		if ok && want.patient && ctx.Err() == nil && (lost.Reason == Expired || lost.Reason == Taken || lost.Reason == Removed) {
			continue
		}
		return k, err
	}
}

func (l *Locker) newWaiter(want want) (*waiter, error) {
	enc, err := bucket.EncodeName(want.name)
	if err != nil {
		return nil, fmt.Errorf("kvlock: take %q: %w", want.name, err)
	}
	w := &waiter{want: want, l: l, enc: enc, wake: make(chan struct{}, 1), called: time.Now()}
	switch want.kind {
	case "":
		w.kind = kindLock
	case kindPermit:
		w.enc += slotLine
	case kindReader:
		w.part = bucket.Nonce()
	}
	return w, nil
}

// take runs the waiter and cleans up after it if it fails.
func (w *waiter) take(ctx context.Context) (_ *Lock, err error) {
	l := w.l
	defer func() {
		if err != nil {
			err = fmt.Errorf("kvlock: take %q: %w", w.name, err)
		}
	}()
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.work.Done()
	wait := ctx // the hold's context has the values of ctx only, so it does not end with this
	if !w.patient {
		var cancel context.CancelFunc
		wait, cancel = l.patience(wait)
		defer cancel()
	}
	wait, end := context.WithCancelCause(wait)
	defer end(nil)
	defer context.AfterFunc(l.ctx, func() { end(ErrClosed) })()
	if left := l.b.Quarantine(); left > 0 {
		if !w.patient {
			return nil, &QuarantineError{Bucket: l.b.Name(), Left: left}
		}
		if err := l.b.AwaitQuarantine(wait); err != nil {
			return nil, err
		}
	}
	k, err := w.run(wait)
	if err != nil {
		w.giveUp(wait)
		return nil, err
	}
	if w.kind == kindGate {
		err = k.awaitReaders(wait, w)
	}
	if err == nil {
		err = w.ended(wait)
	}
	if err != nil {
		// Nobody is given a hold that nobody waits for any more (K3).
		l.hurry()
		_ = k.Release(wait) // it is free one TTL later at the latest
		return nil, err
	}
	return k, nil
}
