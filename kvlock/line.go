package kvlock

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"tenure/kvlock/bucket"
)

// How long markers live: of a release that somebody waits for, in which time nobody
// can overtake the first in line, and of one that nobody is known to wait for.
const (
	markerTTL      = 2 * time.Second
	blindMarkerTTL = time.Second
)

// ticketTTLMax is the longest that a ticket lives: it only collects garbage (L5).
const ticketTTLMax = time.Hour

// lingering is how long the ticket of a waiter that was served stays. Its removal takes the
// server longer than a write, and would be in the way of the hand-overs that come next.
const lingering = 5 * time.Millisecond

// nextTicket returns the first ticket of the line that stands at or after revision
// from, nil if there is none. It passes over those that this process is about to remove.
func (l *Locker) nextTicket(ctx context.Context, enc string, from uint64) (*record, error) {
	for {
		try, cancel := l.attempt(ctx)
		e, err := l.b.Next(try, ticketKey(enc, "*"), from)
		cancel()
		switch {
		case errors.Is(err, bucket.ErrNotFound):
			return nil, nil
		case err != nil:
			return nil, err
		}
		from = e.Revision + 1
		if e.Marker {
			continue // of a ticket that was purged a moment ago
		}
		t, err := parse(e)
		if err != nil {
			l.log.WarnContext(ctx, "ticket skipped", slog.Any("err", err))
		} else if !l.isLeaving(t.Nonce) {
			return t, nil
		}
	}
}

// purgeTicket removes a ticket unless it is gone already. Without a revision its writing
// is in doubt.
func (l *Locker) purgeTicket(ctx context.Context, enc string, t place) error {
	key := ticketKey(enc, t.Nonce)
	if t.Revision == 0 {
		r, at, err := l.see(ctx, key)
		if err != nil || r == nil {
			return err
		}
		t.Revision = at
	}
	ctx, cancel := context.WithTimeout(ctx, l.lease.Attempt)
	defer cancel()
	return l.b.Remove(ctx, key, t.Revision)
}

// leaveLine removes the ticket of a waiter that was served, after a while. Until then, and
// if it fails, whoever meets the ticket is told that nobody waits with it, and removes it.
// l.mu is held.
func (l *Locker) leaveLine(enc string, t place, linger time.Duration) {
	l.work.Add(1)
	l.leaving[t.Nonce] = time.AfterFunc(linger, func() {
		defer l.work.Done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), 3*l.lease.Attempt)
		defer cancel()
		_ = l.persist(ctx, func() error { return l.purgeTicket(ctx, enc, t) })
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.leaving, t.Nonce)
	})
}

func (l *Locker) isLeaving(nonce string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leaving[nonce] != nil
}

// hurry makes the tickets that linger go now.
func (l *Locker) hurry() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, timer := range l.leaving {
		if timer.Stop() { // else it is under way
			timer.Reset(0)
		}
	}
}

// dropTicket makes whoever asks with the ticket hear that nobody waits with it.
func (l *Locker) dropTicket(enc, nonce string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.line(enc).tickets, nonce)
}

// How a walk ends.
type walked int

const (
	walkEnd     walked = iota // nobody is left in the line
	walkTold                  // somebody knows, and takes it or has taken it
	walkMine                  // the caller's ticket is the first
	walkMissing               // the caller's ticket is gone
	walkFailed                // the line could not be read
)

// A walk is one pass along a line by somebody who knows that the lock is free
// (L6w): a releaser, a waiter, or one who gives up waiting.
type walk struct {
	l    *Locker
	enc  string
	part string // the slot, if it is of a semaphore
	at   uint64 // where the lock is free: the revision of a marker, or 0
	low  uint64 // no ticket that counts stands below; raised by the walk
	me   place  // the ticket of the waiter who walks, zero for others
	tail place  // the last known place in the line

	passed bool // somebody who keeps its place was passed over
}

// tell tells the first in line that the lock is free. first is the first ticket if
// it has been read ahead, else nil. Who has no process any more, or does not wait,
// loses its ticket; who is silent is passed over in this walk and keeps its place.
// Who has been served, and does not keep others from being served too, is passed over
// likewise: a reader, or one who has got another slot.
func (w *walk) tell(ctx context.Context, first *record) walked {
	from := w.low
	silent := make(map[string]bool) // processes; no need to wait for one twice
	waits := w.me.Nonce != ""
	for {
		t := first
		first = nil
		if t == nil {
			var err error
			if t, err = w.l.nextTicket(ctx, w.enc, from); err != nil {
				return walkFailed
			}
		}
		switch {
		case t == nil && !waits:
			return walkEnd
		case t == nil || waits && t.entry.Revision > w.me.Revision:
			return walkMissing
		}
		from = t.entry.Revision + 1
		if !w.passed {
			w.low = t.entry.Revision
		}
		if waits && t.Nonce == w.me.Nonce {
			return walkMine
		}
		if silent[t.Process] {
			continue
		}
		switch w.l.ask(ctx, t.Process, request{Op: opFree, Lock: w.enc, Part: w.part, Nonce: t.Nonce, At: w.at, Low: w.low, Place: w.tail}) {
		case answerTaking:
			return walkTold
		case answerServed:
			if t.Kind != kindPermit && t.Kind != kindReader {
				return walkTold
			}
			w.passed = true
		case answerDeclined, answerNobody:
			_ = w.l.purgeTicket(context.WithoutCancel(ctx), w.enc, place{Nonce: t.Nonce, Revision: t.entry.Revision}) // the next one who meets it tries again
		default:
			silent[t.Process], w.passed = true, true
		}
	}
}

// remember keeps the marker of an own release, and where the line begins.
func (l *Locker) remember(enc, part string, marker uint64, until time.Time, low uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.line(enc)
	if marker > ln.mark {
		ln.mark, ln.part, ln.until = marker, part, until
	}
	ln.low = max(ln.low, low)
}

// recall returns the marker of the last own release, 0 if it has ended, its slot, and
// where the line begins as far as known.
func (l *Locker) recall(enc string) (marker uint64, part string, low uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.peek(enc)
	if time.Now().Before(ln.until) {
		marker = ln.mark
	}
	return marker, ln.part, ln.low
}

// endGhost ends a write of this process that nobody here knows of any more: one that came
// late, or whose waiter has given up (L8, L9). If it may still come, a marker at the
// revision that it expects keeps it out, for one TTL.
func (l *Locker) endGhost(ctx context.Context, enc string, a attempt) {
	ctx, cancel := context.WithTimeout(ctx, l.lease.TTL)
	defer cancel()
	key := keyOf(enc, a.part)
	_ = l.persist(ctx, func() error { // else it ends by itself
		r, at, err := l.see(ctx, key)
		ttl := markerTTL
		switch {
		case err != nil:
			return err
		case r == nil && at == a.at:
			ttl = l.lease.TTL
		case r == nil || r.Nonce != a.nonce || r.Process != l.id || l.knows(enc, r.token(), r.Nonce):
			return nil
		}
		marker, err := l.write(ctx, bucket.Write{Key: key, Last: at, Purge: true, TTL: ttl})
		if err != nil {
			return err
		}
		l.log.DebugContext(ctx, "late write ended", slog.String("key", key), slog.Uint64("revision", at))
		if r == nil || r.Kind != kindReader { // who waits for a reader sees it
			_, _, low := l.recall(enc)
			pass := walk{l: l, enc: enc, part: a.part, at: marker, low: low}
			pass.tell(ctx, nil)
		}
		return nil
	})
}

// knows reports whether this process has the hold with the token, or a waiter or hold
// whose write has the nonce.
func (l *Locker) knows(enc string, token uint64, nonce string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k := range l.peek(enc).holds {
		k.mu.Lock()
		mine := k.is(token, nonce)
		k.mu.Unlock()
		if mine {
			return true
		}
	}
	return l.peek(enc).tries[nonce] != nil
}
