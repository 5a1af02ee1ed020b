package kvlock

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

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
// blocks until the server has answered or ctx is done, at most for one TTL. The error
// matches [ErrFree] if nobody holds the lock, [ErrName], [ErrRecord], ctx's cause, or is
// of the connection.
func (l *Locker) Holder(ctx context.Context, name string) (Holder, error) {
	r, err := l.holder(ctx, name)
	if err != nil {
		return Holder{}, fmt.Errorf("kvlock: holder of %q: %w", name, err)
	}
	return r.asHolder()
}

// holder reads the record of a lock, and again while nobody answers.
func (l *Locker) holder(ctx context.Context, name string) (*record, error) {
	enc, err := bucket.EncodeName(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := l.patience(ctx)
	defer cancel()
	var r *record
	err = l.persist(ctx, func() (err error) {
		r, _, err = l.see(ctx, keyOf(enc, ""))
		return err
	})
	if err == nil && r == nil {
		err = ErrFree
	}
	return r, err
}

func (r *record) asHolder() (Holder, error) {
	parts := strings.Split(r.entry.Key, ".")
	name, err := bucket.DecodeName(parts[1])
	if parts[0] == "slot" {
		name += "#" + parts[2]
	}
	return Holder{
		Name:     name,
		Key:      r.entry.Key,
		Kind:     string(r.Kind),
		Owner:    r.Owner,
		Process:  r.Process,
		Token:    r.token(),
		Revision: r.entry.Revision,
		Since:    r.Since,
		Renewed:  r.entry.Time,
		TTL:      time.Duration(r.TTL) * time.Second,
		Note:     r.Note,
		Revoked:  r.State == stateRevoked,
		Reason:   r.Reason,
		Resting:  r.State == stateResting,
		Value:    r.Value,
	}, err
}

// Holders returns the holders of all locks in the bucket, permits of semaphores and
// readers included, in the order of their last renewals. It reads when it is ranged over,
// until ctx is done. What cannot be read comes as an error between them, which matches
// [ErrRecord] or [ErrName]; an error of the reading itself is the last.
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
			r, err := parse(e)
			var h Holder
			if err == nil {
				h, err = r.asHolder()
			}
			if err != nil {
				h, err = Holder{}, fmt.Errorf("kvlock: holders: %w", err)
			}
			if !yield(h, err) {
				return
			}
		}
	}
}

// heldError says that the record is in the way of the named lock or permit.
func (r *record) heldError(name string) *HeldError {
	held := &HeldError{Name: name, Owner: r.Owner, Token: r.token(), Since: r.Since, Note: r.Note}
	if r.State == stateResting {
		held.Until = r.entry.Time.Add(r.entry.TTL)
	}
	return held
}
