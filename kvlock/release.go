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
	lost, ender := k.lost, k.ender
	k.mu.Unlock()
	switch {
	case k.resting:
		return k.restOn(e)
	case lost == nil && k.kind != kindReader && time.Until(k.restEnd()) > 0:
		return k.rest()
	case lost == nil:
		k.conclude(k.free())
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
		k.readAhead()
		k.handOn(ender)
	}
	return true
}

// conclude notes how the release went.
func (k *Lock) conclude(err error) {
	if err != nil {
		err = fmt.Errorf("kvlock: release %q: left to end by itself: %w", k.name, err)
	}
	k.outcome = err
	k.mu.Lock()
	began := k.began
	k.mu.Unlock()
	if f := k.l.trace.Released; f != nil && !began.IsZero() {
		f(k.name, k.token, time.Since(began), err)
	}
}

// free ends the hold on the server and hands it on (L2). The error says that it
// could not, for so long that the record has ended by itself.
func (k *Lock) free() error {
	blind := k.decide()
	ttl := blindMarkerTTL
	if !blind {
		ttl = markerTTL
		k.readAhead() // beside the purge
	}
	asked := time.Now()
	marker, err := k.replace(bucket.Write{Purge: true, TTL: ttl})
	if err != nil {
		return err
	}
	k.l.log.DebugContext(k.ctx, "lock released", slog.String("lock", k.name), slog.Uint64("token", k.token))
	if marker == 0 && !k.resting {
		return nil
	} // a tombstone may have ended by itself a moment ago, and the line knows nothing
	if k.kind != kindReader {
		k.l.remember(k.enc, k.part, marker, asked.Add(ttl), k.low)
	}
	if !blind && k.handOn(marker) == walkTold {
		if f := k.l.trace.HandedOver; f != nil {
			f(k.name, k.token, time.Since(asked))
		}
	}
	return nil
}

// decide closes the hold for notes and reports whether nobody is known to wait: who
// asks from now on is told "not mine", reads the lock again, and so meets the marker.
// Those who wait for a permit wait for any, and stand behind none. Who meets the ticket
// that the lock was gained with is told that nobody waits with it, and removes it: so the
// release need not wait until it is gone.
func (k *Lock) decide() (blind bool) {
	k.l.dropTicket(k.enc, k.ticket.Nonce)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.decided = true
	return k.kind != kindPermit && !k.notes.any && (k.ticket.Nonce == "" || k.kind == kindReader)
}

// handOn tells the first in line that the lock is free at marker.
func (k *Lock) handOn(marker uint64) walked {
	if k.kind == kindReader {
		k.tellWriter()
		return walkEnd
	}
	k.mu.Lock()
	tail, noted := k.notes.tail, k.notes.any
	k.mu.Unlock()
	var first *record
	if k.exclusive() {
		<-k.ahead.done
		first = k.ahead.first
		// The read came after the decision, and who stands in line since then looks for
		// itself:
		//
		//	holder                  waiter
		//	decides
		//	reads the line: none
		//	                        writes its ticket
		//	                        asks to be noted: "not mine"
		//	purges                  reads the lock, again until it meets the marker
		//
		// But who was noted before, and is not seen, was missed by a leader of the past.
		if first == nil && k.ahead.err == nil && !noted {
			return walkEnd
		}
	}
	pass := walk{l: k.l, enc: k.enc, part: k.part, at: marker, low: k.start, tail: tail}
	return pass.tell(k.ctx, first)
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
	first *record // nil if there was none; this and err are set before done is closed
	err   error
}

// known reports whether there is a first ticket for all that is known now.
func (r *reading) known() bool {
	select {
	case <-r.done:
		return r.first != nil
	default:
		return false
	}
}

// readAhead starts to read the first ticket, so that a release need not wait for it,
// unless it is known. Those who wait for a permit stand behind no hold, and are not read
// ahead, nor are those who wait for readers.
func (k *Lock) readAhead() {
	if !k.exclusive() {
		return
	}
	lower, before := k.lower(), k.ahead
	if before != nil && before.known() && !lower {
		return
	}
	r, start := &reading{done: make(chan struct{})}, k.start
	k.ahead = r
	go func() {
		defer close(r.done)
		if before != nil {
			if <-before.done; before.first != nil && !lower {
				r.first = before.first
				return
			}
		}
		r.first, r.err = k.l.nextTicket(k.ctx, k.enc, start)
	}()
}

// replace puts what w says in the place of the record, whichever write of the hold is the
// newest, and returns its revision. If there is a marker already it returns that of the
// marker, and 0 if the lock has passed to somebody else or has ended by itself. It tries
// for as long as a record can live.
func (k *Lock) replace(w bucket.Write) (revision uint64, err error) {
	k.mu.Lock()
	w.Key, w.Last = k.key, k.revision
	k.mu.Unlock()
	ctx, until := context.WithoutCancel(k.ctx), time.Now().Add(k.l.lease.TTL+time.Second)
	for fails := 1; ; fails++ {
		k.l.window <- struct{}{}
		revision, err = k.l.write(ctx, w)
		<-k.l.window
		if err == nil {
			return revision, nil
		}
		if !errors.Is(err, bucket.ErrBusy) {
			r, at, failed := k.l.see(ctx, k.key)
			switch {
			case errors.Is(failed, ErrRecord), failed == nil && at == 0:
				return 0, nil
			case failed != nil, at < w.Last: // not known, or an old leader's view
			case r == nil:
				return at, nil
			case !k.wrote(r):
				return 0, nil
			case at > w.Last:
				w.Last = at
				continue
			}
		}
		if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, bucket.ErrGone) || time.Now().After(until) {
			return 0, err
		}
		pauseFor(ctx, k.l.pause(fails))
	}
}

// wrote reports whether the record is of this hold, or revokes it.
func (k *Lock) wrote(r *record) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.is(r.token(), r.Nonce)
}

// forget drops the hold from what the Locker knows.
func (k *Lock) forget() {
	if k.ahead != nil {
		<-k.ahead.done
	}
	k.l.holds.Add(-1)
	k.l.mu.Lock()
	defer k.l.mu.Unlock()
	ln := k.l.line(k.enc)
	delete(ln.holds, k)
	delete(ln.tickets, k.ticket.Nonce)
}
