package kvlock

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"tenure/kvlock/bucket"
)

// A BreakOption changes what [Locker.Break] does.
type BreakOption func(*breaking)

// breaking is what the options say.
type breaking struct {
	force bool
	token uint64
}

// Force frees the lock at once. The next one may take it while the old holder
// still believes in its hold, until its next renewal fails; only its token is
// stale. Use it for a holder that is known to be gone.
func Force() BreakOption { return func(b *breaking) { b.force = true } }

// OnlyToken breaks the hold with this token and no later one.
func OnlyToken(token uint64) BreakOption { return func(b *breaking) { b.token = token } }

// Break ends the hold of the named lock, whoever has it, and returns when that is
// stored.
//
// The holder loses the lock with the reason [Revoked] and the given text: at once if
// it can be reached, else at its next renewal. Nobody takes the lock before the
// holder has released it, which says that its work has ended, or one TTL has
// passed; [Force] gives that up. To break a hold twice is no error.
//
// Break blocks until the server has answered or ctx is done, at most for one TTL, and
// 250 ms more for the holder to answer. The error matches [ErrFree] if nobody holds the
// lock, or not with the token asked for, [ErrOption] if the reason is longer than 1,000
// bytes, [ErrName], [ErrRecord], [ErrClosed], ctx's cause, or is of the connection. After
// an error the hold may have been broken all the same, and to call Break again is right.
func (l *Locker) Break(ctx context.Context, name, reason string, opts ...BreakOption) error {
	if err := l.breakHold(ctx, name, reason, opts); err != nil {
		return fmt.Errorf("kvlock: break %q: %w", name, err)
	}
	return nil
}

func (l *Locker) breakHold(ctx context.Context, name, reason string, opts []BreakOption) error {
	var b breaking
	for _, opt := range opts {
		opt(&b)
	}
	if err := checkText("reason", reason, maxText); err != nil {
		return err
	}
	enc, err := bucket.EncodeName(name)
	if err != nil {
		return err
	}
	if err := l.enter(); err != nil {
		return err
	}
	defer l.work.Done()
	ctx, cancel := l.patience(ctx)
	defer cancel()
	nonce := bucket.Nonce() // one for all attempts: they mean the same
	doubtful := false
	var r *record
	var marker uint64
	err = l.persist(ctx, func() (err error) {
		var at uint64
		r, at, err = l.see(ctx, keyOf(enc, ""))
		switch {
		case err != nil:
			return err
		case r == nil && doubtful:
			return nil // it was stored, or the hold has ended otherwise
		case r == nil:
			return ErrFree
		case b.token != 0 && b.token != r.token():
			return fmt.Errorf("%w: the hold with token %d has ended", ErrFree, b.token)
		case r.State == stateRevoked && !b.force:
			return nil
		}
		tombstone := *r
		tombstone.State, tombstone.Reason, tombstone.Nonce, tombstone.Prev, tombstone.Token = stateRevoked, reason, nonce, r.Nonce, r.token()
		w := bucket.Write{Key: r.entry.Key, Value: tombstone.encode(), Last: at, TTL: time.Duration(r.TTL) * time.Second}
		if b.force {
			w.Purge, w.Value, w.TTL = true, nil, markerTTL
		}
		if marker, err = l.write(ctx, w); err != nil {
			doubtful = doubtful || !notStored(err)
			return err
		}
		l.log.WarnContext(ctx, "lock broken", slog.String("lock", name), slog.Uint64("token", r.token()), slog.String("reason", reason), slog.Bool("force", b.force))
		return nil
	})
	if err != nil || r == nil {
		return err
	}
	l.ask(ctx, r.Process, request{Op: opLook, Lock: enc, Token: r.token()})
	if b.force {
		pass := walk{l: l, enc: enc, at: marker}
		pass.tell(ctx, nil)
	}
	return nil
}
