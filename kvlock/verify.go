package kvlock

import (
	"context"
	"fmt"
	"strconv"

	"tenure/kvlock/bucket"
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
// released and lasts for its minimum only, and else says why there is no answer.
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
	enc, err := bucket.EncodeName(name)
	if err != nil {
		return err
	}
	e, r, err := l.read(ctx, enc)
	if err != nil {
		return err
	}
	switch held := r.token(e.Revision); {
	case held != token:
		return r.heldError(name, e)
	case r.State == stateRevoked:
		return &LostError{Name: name, Token: token, Reason: Revoked, Text: r.Reason}
	case r.State == stateResting:
		return fmt.Errorf("%w: the hold of token %s has been released", ErrFree, strconv.FormatUint(token, 10))
	default:
		return nil
	}
}

// heldError says that the record of e is in the way.
func (r *record) heldError(name string, e bucket.Entry) *HeldError {
	held := &HeldError{Name: name, Owner: r.Owner, Token: r.token(e.Revision), Since: r.Since, Note: r.Note}
	if r.State == stateResting {
		held.Until = e.Time.Add(e.TTL)
	}
	return held
}
