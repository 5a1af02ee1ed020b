package claim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"tenure/kvlock/bucket"
)

// A hold is one claim of this worker on one partition, from the revision at
// which it was gained (the token) to its end. Heartbeats never touch it.
//
// Its claim record is the fence of every write made under it: a write carries
// the expectation that the record's last revision is the hold's newest. The
// server's log decides: a write before the hand-over or take-over is before it,
// one after is refused.
type hold struct {
	slot  *slot
	sess  *session
	token uint64
	plan  uint64 // revision of the plan by which the claim was handed over, 0 for none

	layout uint64 // known to whoever made the claim this hold's

	ctx  context.Context // ends with the session, or when the claim is lost
	lose context.CancelCauseFunc

	looks atomic.Bool   // somebody said to look, and that has not begun
	busy  chan struct{} // holds one while a write is under way, which owns what follows

	rev     uint64            // newest own revision of the claim record
	record  record            // as stored at rev
	tried   map[string]record // by nonce: writes of the record whose outcome is unknown
	doubt   bool              // a fenced write may still arrive under rev
	check   uint64            // revision of the newest checkpoint known
	saved   []byte            // that checkpoint
	staged  []byte            // see Stage
	isStage bool

	// The slot's goroutine alone uses these.
	failures int       // in a row
	idle     time.Time // since when nobody runs it, by the server's clock; zero if it was not handed over, or runs
	asked    time.Time // when the handler was asked to drain; zero if none was
	returned time.Time // when it returned then
}

func newHold(s *slot, sess *session, rev uint64, rec record) *hold {
	h := &hold{
		slot: s, sess: sess, token: rec.token(rev), plan: rec.Plan, layout: rec.Layout, rev: rev, record: rec, check: rec.check(rev),
		busy: make(chan struct{}, 1), tried: make(map[string]record), failures: rec.Attempts,
	}
	h.ctx, h.lose = context.WithCancelCause(sess.ctx)
	return h
}

// over returns why the hold has ended, or nil.
func (h *hold) over() error {
	if h.sess.ended() {
		return context.Cause(h.sess.ctx)
	}
	return context.Cause(h.ctx)
}

// degraded returns ErrDegraded while the hold goes on without trust, or nil.
func (h *hold) degraded() error {
	if !h.slot.c.opts.degraded || h.sess.ended() || h.sess.left() > 0 {
		return nil
	}
	return ErrDegraded
}

// lock waits until no other write of the hold is under way. The cause of ctx or
// of the hold's end is returned if that comes first.
func (h *hold) lock(ctx context.Context) error {
	select {
	case h.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-h.ctx.Done():
		return context.Cause(h.ctx)
	}
}

func (h *hold) unlock() { <-h.busy }

// mine returns the record of the running hold.
func (h *hold) mine() record {
	mine := h.record // it goes on: plan, layout and history are those of its beginning
	mine.Owner, mine.Epoch, mine.Token = h.slot.c.id, h.sess.epoch, h.token
	mine.Idle = nil
	return mine
}

// stage keeps data for the write that ends the hold.
func (h *hold) stage(p *Partition, data []byte) {
	if h.lock(h.ctx) != nil {
		return // it will never be written
	}
	defer h.unlock()
	if p.returned() == nil {
		h.staged, h.isStage = append([]byte{}, data...), true
	}
}

// save stores a checkpoint under the fence.
func (h *hold) save(ctx context.Context, p *Partition, data []byte) error {
	if err := h.lock(ctx); err != nil {
		return err
	}
	defer h.unlock()
	data = append([]byte{}, data...)
	rev, err := h.fenced(ctx, p, bucket.Write{Key: h.slot.checkKey, Value: data})
	if err == nil {
		h.check, h.saved, h.staged, h.isStage = rev, data, nil, false
	}
	return err
}

// put stores a value under the fence.
func (h *hold) put(ctx context.Context, p *Partition, key string, data []byte) error {
	if err := h.lock(ctx); err != nil {
		return err
	}
	defer h.unlock()
	_, err := h.fenced(ctx, p, bucket.Write{Key: key, Value: data})
	return err
}

// fenced makes a write under the fence. The caller has the lock.
//
// A write whose answer was lost may still be under way through another server.
// If the next one simply followed it, it could arrive after that one, with a
// fence that is still right, and set the key back. So the claim record is
// rewritten first, with the same token: its new revision makes the ghost's fence
// wrong (rule F2). Then the write is repeated, unless it is there.
func (h *hold) fenced(ctx context.Context, p *Partition, w bucket.Write) (uint64, error) {
	var doubt error // of the last try
	end := func(err error) (uint64, error) {
		if doubt != nil && !errors.Is(err, bucket.ErrDoubt) {
			err = fmt.Errorf("%w: %w", err, doubt)
		}
		return 0, err
	}
	w.Fence = h.slot.claimKey
	for {
		if err := firstErr(p.returned(), h.over(), h.degraded(), context.Cause(ctx)); err != nil {
			return end(err)
		}
		if h.doubt {
			if _, err := h.rewrite(ctx, h.mine(), nil); err != nil {
				return end(err)
			}
			if doubt != nil {
				if rev, ok := h.stored(ctx, w); ok {
					return rev, nil
				}
			}
		}
		doubt, w.Last = nil, h.rev
		try, cancel := context.WithTimeout(ctx, h.sess.timeout())
		rev, err := h.slot.c.bucket.Write(try, w)
		cancel()
		switch {
		case err == nil:
			return rev, nil
		case errors.Is(err, bucket.ErrConflict):
			if err := h.readBack(ctx); err != nil {
				return end(err)
			}
		case errors.Is(err, bucket.ErrBusy):
		case errors.Is(err, bucket.ErrDoubt):
			h.doubt, doubt = true, err
		default:
			h.doubt = h.doubt || !errors.Is(err, bucket.ErrFull)
			return 0, err
		}
		if err := h.pause(ctx); err != nil {
			return end(err)
		}
	}
}

// stored reports whether a write is there that was sent under an earlier fence and
// cannot be stored any more. That it is not seen proves nothing, and to write it
// again does no harm.
func (h *hold) stored(ctx context.Context, w bucket.Write) (uint64, bool) {
	ctx, cancel := context.WithTimeout(ctx, h.sess.timeout())
	defer cancel()
	e, err := h.slot.c.bucket.Get(ctx, w.Key)
	return e.Revision, err == nil && e.Revision > w.Last && !e.Marker && bytes.Equal(e.Value, w.Value)
}

// rewrite replaces the claim record by want and, if data is not nil, stores it as
// the checkpoint in the same atomic batch. It tries until the outcome is known,
// ctx is done or the hold has ended, and returns the record that stands: want,
// or an earlier rewrite whose answer was lost and that gave the claim away. The
// caller has the lock.
func (h *hold) rewrite(ctx context.Context, want record, data []byte) (record, error) {
	for sent := false; ; sent = true {
		if err := firstErr(h.over(), context.Cause(ctx)); err != nil {
			return record{}, err
		}
		if err := h.degraded(); err != nil {
			if want.Owner == h.slot.c.id || !sent {
				return record{}, err
			}
			if err := h.pause(ctx); err != nil { // it was sent: until the outcome is known
				return record{}, err
			}
			continue
		}
		next := want
		next.Version, next.Nonce, next.Prev, next.By = recordVersion, bucket.Nonce(), h.record.Nonce, h.slot.c.id
		next.Check, next.Batch = h.check, data != nil
		if next.Owner != h.slot.c.id && !h.returned.IsZero() {
			next.Idle = new(time.Since(h.returned).Microseconds())
		}
		writes := []bucket.Write{{Key: h.slot.claimKey, Last: h.rev, Value: encode(next)}}
		if data != nil {
			// The fence has to be read before the fencing key is written.
			writes = append([]bucket.Write{{Key: h.slot.checkKey, Value: data, Fence: h.slot.claimKey, Last: h.rev}}, writes...)
		}
		try, cancel := context.WithTimeout(ctx, h.sess.timeout())
		rev, err := h.slot.c.bucket.Batch(try, writes)
		cancel()
		if err == nil {
			h.adopt(rev, next)
			return next, nil
		}
		if errors.Is(err, bucket.ErrFull) || permanent(err) {
			return record{}, err
		}
		if !errors.Is(err, bucket.ErrBusy) {
			if !errors.Is(err, bucket.ErrConflict) {
				h.tried[next.Nonce] = next
			}
			before := h.rev
			if err := h.readBack(ctx); err != nil {
				return record{}, err
			}
			if h.rev != before && (h.record.Nonce == next.Nonce || h.record.Owner != h.slot.c.id) {
				return h.record, nil
			}
		}
		if err := h.pause(ctx); err != nil {
			return record{}, err
		}
	}
}

// adopt notes that the claim record at rev is the hold's own.
func (h *hold) adopt(rev uint64, rec record) {
	h.rev, h.record, h.doubt = rev, rec, false
	clear(h.tried) // they expected an older revision and can never be stored now
}

// readBack finds out what the claim record is after a write of it was refused or
// is in doubt. It returns an error only on proof that the claim is another's: an
// entry above the newest own revision that is not this hold's (rule B3). A
// server that is behind shows less and proves nothing.
func (h *hold) readBack(ctx context.Context) error {
	try, cancel := context.WithTimeout(ctx, h.sess.timeout())
	defer cancel()
	e, err := h.slot.c.bucket.Get(try, h.slot.claimKey)
	if err != nil || e.Revision <= h.rev {
		return nil
	}
	found, err := parseRecord(e)
	if mine, ok := h.tried[found.Nonce]; err == nil && ok {
		h.adopt(e.Revision, mine)
		return nil
	}
	for nonce, mine := range h.tried {
		if err == nil && found.Prev == nonce && mine.Owner != h.slot.c.id {
			h.adopt(e.Revision, mine) // stored, and the next owner has written since
			return nil
		}
	}
	lost := fmt.Errorf("%w: %q, epoch %d, at revision %d", ErrFenced, found.Owner, found.Epoch, e.Revision)
	h.lose(lost)
	return lost
}

// look reads the claim, over which somebody is said to have written. The hold ends if
// that is true; nobody else's write tells it, since a claim is not read while it is held.
func (h *hold) look() {
	if h.lock(h.ctx) != nil {
		return
	}
	defer h.unlock()
	h.looks.Store(false)  // what is said from now on may be newer than the read
	_ = h.readBack(h.ctx) // the slot asks the hold
}

// pause waits a moment before the next try: writes in flight on one key refuse
// each other for milliseconds.
func (h *hold) pause(ctx context.Context) error {
	timer := time.NewTimer(time.Millisecond + rand.N(19*time.Millisecond))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-h.ctx.Done():
		return context.Cause(h.ctx)
	}
}

// firstErr returns the first error that is not nil.
func firstErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
