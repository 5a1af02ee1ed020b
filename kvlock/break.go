package kvlock

import (
	"context"
	"errors"
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
// The error matches [ErrFree] if nobody holds the lock, or not with the token asked
// for. Break blocks until the server has answered or ctx is done.
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
	if err := checkText("reason", reason); err != nil {
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
	for fails := 0; ; fails++ {
		e, r, err := l.read(ctx, enc)
		switch {
		case doubtful && errors.Is(err, ErrFree):
			return nil // it was stored, or the hold has ended otherwise
		case err != nil:
			return err
		}
		token := r.token(e.Revision)
		switch {
		case b.token != 0 && b.token != token:
			return fmt.Errorf("%w: the hold with token %d has ended", ErrFree, b.token)
		case r.State == stateRevoked && !b.force:
			l.tellBroken(ctx, enc, r.Process, token)
			return nil
		}
		tombstone := *r
		tombstone.State, tombstone.Reason, tombstone.Nonce, tombstone.Prev, tombstone.Token = stateRevoked, reason, nonce, r.Nonce, token
		w := bucket.Write{Key: e.Key, Value: tombstone.encode(), Last: e.Revision, TTL: time.Duration(r.TTL) * time.Second}
		if b.force {
			w.Purge, w.Value, w.TTL = true, nil, markerTTL
		}
		try, done := context.WithTimeout(ctx, l.lease.Attempt)
		revision, err := l.b.Write(try, w)
		done()
		if err == nil {
			l.log.WarnContext(ctx, "lock broken", slog.String("lock", name), slog.Uint64("token", token), slog.String("reason", reason), slog.Bool("force", b.force))
			l.tellBroken(ctx, enc, r.Process, token)
			if b.force {
				pass := walk{l: l, enc: enc, at: revision}
				pass.tell(ctx, nil)
			}
			return nil
		}
		if !again(err) && !errors.Is(err, bucket.ErrConflict) {
			return err
		}
		doubtful = doubtful || !notStored(err)
		pauseFor(ctx, l.pause(fails))
		if cause := context.Cause(ctx); cause != nil {
			return fmt.Errorf("%w: %w", cause, err)
		}
	}
}

// tellBroken makes the holder look at its key.
func (l *Locker) tellBroken(ctx context.Context, enc, process string, token uint64) {
	l.ask(ctx, process, request{Op: opLook, Lock: enc, Token: token})
}
