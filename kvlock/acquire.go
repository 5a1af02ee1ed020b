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
// While the lock is held it is renewed. It is held until [Lock.Release] is called or
// it is lost; the context of the [Lock] tells. ctx governs the taking only.
//
// TryLock blocks until the server has answered, at most for one TTL if ctx has no
// end. The error matches [ErrHeld] if somebody else holds the lock or stands first
// in line for it, [ErrQuarantine] if the bucket was made anew, [ErrName],
// [ErrRecord], [ErrPermission] and so on, or ctx's cause. After an error nothing is
// held: what may have been stored is removed in the background.
func (l *Locker) TryLock(ctx context.Context, name string) (*Lock, error) {
	// The hold's context has the values of ctx only, so it does not end with this.
	ctx, cancel := l.patience(ctx)
	defer cancel()
	return l.take(ctx, &waiter{name: name})
}

// Lock takes the named lock and waits for it, first come, first served, until ctx
// is done.
//
// See [Locker.TryLock] for the hold. A bucket's quarantine is waited for. When ctx
// is done the error matches its cause, and [ErrHeld] if somebody held the lock. The
// place in line is given up before Lock returns, for which it may take another
// 250 ms, or in the background if the server is away.
func (l *Locker) Lock(ctx context.Context, name string) (*Lock, error) {
	return l.take(ctx, &waiter{name: name, patient: true})
}

// Do takes the named lock as [Locker.Lock] does, calls f and releases the lock.
//
// f's context carries ctx's values. It is done when ctx is, when the hold is lost,
// and when the Locker is closed; its cause says which. The lock is renewed until f
// has returned, also when its context has ended before, and released then and not
// earlier, unless it was lost. So f should return soon when its context ends.
//
// Do returns what f returns, joined with the [*LostError] if the hold was lost
// before f returned. A panic of f goes on after the release. A release that cannot
// be confirmed is logged; the lock is free one TTL later.
func (l *Locker) Do(ctx context.Context, name string, f func(ctx context.Context, lock *Lock) error) error {
	return l.do(name, func() error {
		k, err := l.take(ctx, &waiter{name: name, patient: true, guarded: true})
		if err != nil {
			return err
		}
		return k.guard(ctx, k.Release, f)
	})
}

// do runs what takes a hold and works under it, for which Close waits.
func (l *Locker) do(name string, run func() error) error {
	if err := l.enter(); err != nil {
		return fmt.Errorf("kvlock: take %q: %w", name, err)
	}
	defer l.work.Done()
	return run()
}

// guard runs f under the hold and releases it.
func (k *Lock) guard(ctx context.Context, release func(context.Context) error, f func(context.Context, *Lock) error) error {
	return k.l.guard(ctx, k, release, func(ctx context.Context) error { return f(ctx, k) })
}

// held is one hold or several.
type held interface {
	Context() context.Context
	Err() error
}

// guard runs f under the hold and releases it.
func (l *Locker) guard(ctx context.Context, k held, release func(context.Context) error, f func(context.Context) error) (err error) {
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(ErrReleased)
	defer context.AfterFunc(k.Context(), func() { cancel(context.Cause(k.Context())) })()
	defer context.AfterFunc(l.ctx, func() { cancel(fmt.Errorf("kvlock: %w", ErrClosed)) })()
	defer func() { // also after a panic or runtime.Goexit
		released := release(context.WithoutCancel(ctx))
		switch {
		case isLost(released) && !isLost(err):
			err = errors.Join(err, released)
		case released != nil && !isLost(released):
			l.log.WarnContext(ctx, "lock left to expire", slog.Any("err", released))
		}
	}()
	return f(&holdContext{Context: work, held: k, end: cancel})
}

// take runs the waiter and cleans up after it if it fails.
func (l *Locker) take(ctx context.Context, w *waiter) (*Lock, error) {
	wrap := func(err error) error { return fmt.Errorf("kvlock: take %q: %w", w.name, err) }
	if err := w.prepare(l); err != nil {
		return nil, wrap(err)
	}
	if err := l.enter(); err != nil {
		return nil, wrap(err)
	}
	defer l.work.Done()
	if left := l.b.Quarantine(); left > 0 {
		if !w.patient {
			return nil, wrap(&QuarantineError{Bucket: l.b.Name(), Left: left})
		}
		open, cancel := context.WithCancelCause(ctx)
		stop := context.AfterFunc(l.ctx, func() { cancel(ErrClosed) })
		err := l.b.AwaitQuarantine(open)
		stop()
		cancel(nil)
		if err != nil {
			return nil, wrap(err)
		}
	}
	k, err := w.run(ctx)
	if err == nil {
		if w.kind == kindGate {
			err = k.awaitReaders(ctx, w)
		}
		if err == nil {
			err = w.ended(ctx)
		}
		if err == nil {
			return k, nil
		}
		// Nobody is given a hold that nobody waits for any more (K3).
		_ = k.Release(ctx) // it is free one TTL later at the latest
		return nil, wrap(err)
	}
	w.giveUp(ctx)
	return nil, wrap(err)
}

// prepare sets what follows from what the waiter wants.
func (w *waiter) prepare(l *Locker) error {
	if w.l != nil {
		return nil // LockAll did
	}
	enc, err := bucket.EncodeName(w.name)
	if err != nil {
		return err
	}
	w.l, w.enc, w.bar, w.wake, w.called = l, enc, "lock."+enc, make(chan struct{}, 1), time.Now()
	switch w.kind {
	case "":
		w.kind = kindLock
	case kindPermit:
		w.enc += slotLine
	case kindReader:
		w.part = bucket.Nonce()
	}
	return nil
}
