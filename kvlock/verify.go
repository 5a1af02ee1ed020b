package kvlock

import (
	"context"
	"fmt"
)

// Verify returns nil if the named lock is held under the token, as the leader of the
// bucket knows it. It is for third parties who are shown a token and do not keep the
// highest one that they have seen.
//
// The answer is true of a moment that has passed when it arrives, and a leader that
// was cut off answers from the past for up to 20 s. So it bounds the harm that a stale
// holder does and does not exclude it; a guard at the resource does (package fence), and
// a fenced write ([Lock.Put]) if the resource is the bucket.
//
// Verify blocks until the server has answered or ctx is done, at most for one TTL. The
// error is a [*HeldError] if the lock is held under another token, a [*LostError] if the
// hold was revoked, matches [ErrFree] if nobody holds the lock, or if the hold has been
// released and lasts for its minimum only, [ErrOption] if the token is 0, and else says
// why there is no answer: [ErrName], [ErrRecord], ctx's cause, or of the connection.
func (l *Locker) Verify(ctx context.Context, name string, token uint64) error {
	if err := l.verify(ctx, name, token); err != nil {
		return fmt.Errorf("kvlock: verify %q, token %d: %w", name, token, err)
	}
	return nil
}

func (l *Locker) verify(ctx context.Context, name string, token uint64) error {
	if token == 0 {
		return &OptionError{Option: "token", Have: "0", Want: "that of a hold"}
	}
	r, err := l.holder(ctx, name)
	switch {
	case err != nil:
		return err
	case r.token() != token:
		return r.heldError(name)
	case r.State == stateRevoked:
		return &LostError{Name: name, Token: token, Reason: Revoked, Text: r.Reason}
	case r.State == stateResting:
		return fmt.Errorf("%w: it has been released", ErrFree)
	default:
		return nil
	}
}
