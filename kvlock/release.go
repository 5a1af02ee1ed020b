package kvlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"tenure/kvlock/bucket"
)

// finish ends what is left of the hold on the server, once it is not believed in
// any more. It reports whether all is over: a hold that rests is not.
func (k *Lock) finish(e event) (over bool) {
	k.mu.Lock()
	lost := k.lost
	k.mu.Unlock()
	switch {
	case k.resting:
		return k.restOn(e)
	case lost == nil && k.kind != kindReader && time.Until(k.restEnd()) > 0:
		return k.rest()
	case lost == nil:
		k.outcome = k.free()
		k.l.trace.released(k, k.outcome)
	case lost.Reason == Revoked:
		// It bars everybody until the work has ended (L10): the owner says so
		// by Release, or it ends by itself.
		timer := time.NewTimer(k.l.lease.TTL + time.Second)
		defer timer.Stop()
		select {
		case <-k.released:
		case <-timer.C:
		}
		_ = k.free() // the loss has been reported; what is left ends by itself
	case lost.Reason == Expired || lost.Reason == Closed || lost.Reason == Overrun:
		// A renewal may have been stored late, or still be on its way (L8).
		_ = k.free() // as above
	case lost.Reason == Removed:
		k.decide()
		k.handOn(k.ender)
	}
	return true
}

// free ends the hold on the server and hands it on (L2). The error says that it
// could not, for so long that the record has ended by itself.
func (k *Lock) free() error {
	blind := k.decide()
	ttl := blindMarkerTTL
	if !blind {
		ttl = markerTTL
		if k.ahead == nil && k.exclusive() {
			k.readAhead()
		}
	}
	asked := time.Now()
	marker, err := k.purge(ttl)
	if err != nil {
		return leftToEnd(k.name, err)
	}
	k.l.log.DebugContext(k.ctx, "lock released", slog.String("lock", k.name), slog.Uint64("token", k.token))
	if marker == 0 && !k.resting {
		return nil
	} // a tombstone may have ended by itself a moment ago, and the line knows nothing
	if k.kind != kindReader {
		k.l.remember(k.enc, k.part, marker, asked.Add(ttl), k.low)
	}
	if !blind && k.handOn(marker) == walkTold {
		k.l.trace.handedOver(k, time.Since(asked))
	}
	return nil
}

// leftToEnd is the outcome of a release that failed with err.
func leftToEnd(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("kvlock: release %q: left to end by itself: %w", name, err)
}

// decide closes the hold for notes and reports whether nobody is known to wait: who
// asks from now on is told "not mine", reads the lock again, and so meets the marker.
// Who meets the ticket that the lock was gained with is told that nobody waits with
// it, and removes it: so the release need not wait until it is gone.
func (k *Lock) decide() (blind bool) {
	k.mu.Lock()
	k.decided = true
	switch k.kind {
	case kindPermit:
		blind = false // the others wait for any permit: they stand behind none
	case kindReader:
		blind = !k.notes.any
	default:
		blind = !k.notes.any && !k.ticketed
	}
	k.mu.Unlock()
	if k.waiter != nil {
		k.waiter.dropTicket()
	}
	return blind
}

// handOn tells the first in line that the lock is free at marker.
func (k *Lock) handOn(marker uint64) walked {
	if k.kind == kindReader {
		k.tellWriter()
		return walkEnd
	}
	var first *ticket
	if k.ahead != nil {
		<-k.ahead.done
		first = k.ahead.first
	}
	if k.lower() {
		first = nil
	}
	k.mu.Lock()
	tail := k.notes.tail
	k.mu.Unlock()
	w := walk{l: k.l, enc: k.enc, part: k.part, at: marker, low: k.start, own: k.own(), tail: tail}
	return w.tell(k.ctx, first)
}

// lower lowers the place where to begin to read the line to that of the tickets that
// were told of, and reports whether it did.
func (k *Lock) lower() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.notes.lowest == 0 || k.start != 0 && k.notes.lowest >= k.start {
		return false
	}
	k.start = k.notes.lowest
	return true
}

// A reading is a read of the first ticket of a line. It is the first also later, or
// gone: newer ones stand behind it.
type reading struct {
	done  chan struct{}
	first *ticket // nil if there was none or it could not be read; set before done is closed
}

// readAhead starts to read the first ticket, so that a release need not wait for it.
func (k *Lock) readAhead() {
	lower := k.lower()
	if k.ahead != nil {
		<-k.ahead.done
		if k.ahead.first != nil && !lower {
			return
		}
	}
	r, start, leave := &reading{done: make(chan struct{})}, k.start, k.waiter != nil && !k.going
	k.ahead, k.going = r, true
	go func() {
		r.first, _ = k.l.nextTicket(k.ctx, k.enc, start, k.own()) // else it is read after the release
		close(r.done)
		if leave {
			k.leaveLine()
		}
	}()
}

// own returns the nonce of the ticket that the lock was gained with.
func (k *Lock) own() string {
	if k.waiter == nil {
		return ""
	}
	return k.waiter.ticket.Nonce
}

// leaveLine removes the ticket that the lock was gained with, and closes k.left. It
// runs once, beside keep.
func (k *Lock) leaveLine() {
	defer close(k.left)
	for fails := 1; fails <= 3; fails++ {
		if err := k.l.purgeTicket(k.ctx, k.enc, k.waiter.ticket); err == nil {
			return
		}
		pauseFor(context.WithoutCancel(k.ctx), k.l.pause(fails))
	}
	// Whoever meets it later is told that it is not waited with, and removes it.
}

// purge ends the record, whichever write of the hold is the newest, and returns the
// revision of the marker in its place; 0 means that the lock has passed to somebody
// else or has ended by itself. It tries for as long as a record can live.
func (k *Lock) purge(ttl time.Duration) (marker uint64, err error) {
	return k.replace(bucket.Write{Purge: true, TTL: ttl})
}

// replace is purge with whatever w puts in the place of the record.
func (k *Lock) replace(w bucket.Write) (revision uint64, err error) {
	k.mu.Lock()
	last := max(k.revision, k.ender)
	k.mu.Unlock()
	until := time.Now().Add(k.l.lease.TTL + time.Second)
	for fails := 1; ; fails++ {
		k.l.window <- struct{}{}
		ctx, cancel := k.l.attempt(k.ctx)
		w.Key, w.Last = k.key, last
		revision, err = k.l.b.Write(ctx, w)
		cancel()
		<-k.l.window
		if err == nil {
			return revision, nil
		}
		if !errors.Is(err, bucket.ErrBusy) {
			before := last
			var done bool
			if revision, done = k.standing(&last); done {
				return revision, nil
			}
			if last != before {
				continue
			}
		}
		if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, bucket.ErrGone) || time.Now().After(until) {
			return 0, err
		}
		pauseFor(context.WithoutCancel(k.ctx), k.l.pause(fails))
	}
}

// standing reads the key after a purge was refused or is in doubt. It is done if
// nothing of the hold stands there any more; else last is what to purge.
func (k *Lock) standing(last *uint64) (revision uint64, done bool) {
	ctx, cancel := k.l.attempt(k.ctx)
	defer cancel()
	e, err := k.l.b.Get(ctx, k.key)
	switch {
	case errors.Is(err, bucket.ErrNotFound):
		return 0, true
	case err != nil || e.Revision < *last:
		return 0, false // not known, or an old leader's view
	case e.Marker:
		return e.Revision, true
	}
	r, err := parseRecord(e)
	if err != nil {
		return 0, true
	}
	k.mu.Lock()
	mine := k.owns(r.Nonce) || r.State == stateRevoked && r.token(e.Revision) == k.token
	k.mu.Unlock()
	*last = e.Revision
	return 0, !mine
}

// forget drops the hold from what the Locker knows.
func (k *Lock) forget() {
	if k.waiter != nil {
		<-k.left
	}
	if k.ahead != nil {
		<-k.ahead.done
	}
	k.l.holds.Add(-1)
	k.l.mu.Lock()
	defer k.l.mu.Unlock()
	ln := k.l.line(k.enc)
	delete(ln.holds, k)
	if k.waiter != nil {
		delete(ln.tickets, k.waiter.ticket.Nonce)
	}
}

// pauseFor waits, unless ctx ends first.
func pauseFor(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
