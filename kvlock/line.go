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

func ticketKey(enc, nonce string) string { return "wait." + enc + "." + nonce }

// nextTicket returns the first ticket of the line that stands at or after revision
// from, nil if there is none. It passes over the ticket with the nonce own.
func (l *Locker) nextTicket(ctx context.Context, enc string, from uint64, own string) (*ticket, error) {
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
		t, err := parseTicket(e)
		if err != nil {
			l.log.WarnContext(ctx, "ticket skipped", slog.Any("err", err))
			continue
		}
		if t.Nonce == own {
			continue
		}
		return &t, nil
	}
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
	part string  // the slot, for a semaphore
	at   uint64  // where the lock is free: the revision of a marker, or 0
	low  uint64  // no ticket that counts stands below; raised by the walk
	me   *ticket // of the waiter who walks, nil for others
	own  string  // nonce of the ticket that a releaser gained the lock with
	tail place   // the last known place in the line
}

// tell tells the first in line that the lock is free. first is the first ticket if
// it has been read ahead, else nil. Who has no process any more, or does not wait,
// loses its ticket; who is silent is passed over in this walk and keeps its place.
// Who has been served, and does not keep others from being served too, is passed over
// likewise: a reader, or one who has got another slot.
func (w *walk) tell(ctx context.Context, first *ticket) walked {
	from := w.low
	var silent map[string]bool // processes; no need to wait for one twice
	passed := false            // somebody who keeps its place
	for {
		t := first
		first = nil
		if t == nil {
			var err error
			if t, err = w.l.nextTicket(ctx, w.enc, from, w.own); err != nil {
				return walkFailed
			}
		}
		switch {
		case t == nil && w.me != nil:
			return walkMissing
		case t == nil:
			return walkEnd
		}
		if !passed {
			w.low = t.revision
		}
		if w.me != nil && t.Nonce == w.me.Nonce {
			return walkMine
		}
		if w.me != nil && t.revision > w.me.revision {
			return walkMissing
		}
		from = t.revision + 1
		if silent[t.Process] {
			continue
		}
		switch w.l.ask(ctx, t.Process, request{Op: opFree, Lock: w.enc, Part: w.part, Nonce: t.Nonce, At: w.at, Low: w.low, Place: w.tail}) {
		case answerTaking:
			return walkTold
		case answerServed:
			if w.part == "" && !t.Read {
				return walkTold
			}
			passed = true
		case answerDeclined, answerNobody:
			_ = w.l.purgeTicket(ctx, w.enc, *t) // the next one who meets it tries again
		default:
			if silent == nil {
				silent = make(map[string]bool)
			}
			silent[t.Process], passed = true, true
		}
	}
}

// purgeTicket removes a ticket unless it is gone already.
func (l *Locker) purgeTicket(ctx context.Context, enc string, t ticket) error {
	ctx, cancel := l.attempt(ctx)
	defer cancel()
	if t.revision == 0 { // its writing is in doubt
		e, err := l.b.Get(ctx, ticketKey(enc, t.Nonce))
		if errors.Is(err, bucket.ErrNotFound) || err == nil && e.Marker {
			return nil
		} else if err != nil {
			return err
		}
		t.revision = e.Revision
	}
	return l.b.Remove(ctx, ticketKey(enc, t.Nonce), t.revision)
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
	ln := l.lines[enc]
	if ln == nil {
		return 0, "", 0
	}
	if time.Now().Before(ln.until) {
		marker = ln.mark
	}
	return marker, ln.part, ln.low
}

// endGhost ends a record of this process that nobody here knows of: a write that
// came late, or whose waiter had given up (L8, L9).
func (l *Locker) endGhost(enc, part, nonce string) {
	key := keyOf(enc, part)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), l.lease.TTL)
	defer cancel()
	for fails := 1; ctx.Err() == nil; fails++ {
		try, done := l.attempt(ctx)
		e, err := l.b.Get(try, key)
		done()
		if err == nil {
			r, bad := parseRecord(e)
			if e.Marker || bad != nil || r.Nonce != nonce || r.Process != l.id || l.knows(enc, nonce) {
				return
			}
			try, done = l.attempt(ctx)
			var m uint64
			m, err = l.b.Write(try, bucket.Write{Key: key, Last: e.Revision, Purge: true, TTL: markerTTL})
			done()
			if err == nil {
				l.log.DebugContext(ctx, "late write ended", slog.String("key", key), slog.Uint64("revision", e.Revision))
				if r.Kind == kindReader {
					return // who waits for it sees it
				}
				_, _, low := l.recall(enc)
				w := walk{l: l, enc: enc, part: part, at: m, low: low}
				w.tell(ctx, nil)
				l.remember(enc, part, m, time.Now().Add(blindMarkerTTL), w.low)
				return
			}
		}
		if errors.Is(err, bucket.ErrNotFound) {
			return
		}
		pauseFor(ctx, l.pause(fails))
	}
}

// holding reports whether this process has a hold with the token.
func (l *Locker) holding(enc string, token uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.lines[enc]
	if ln == nil {
		return false
	}
	for k := range ln.holds {
		if k.token == token {
			return true
		}
	}
	return false
}

// knows reports whether a hold or a waiter of this process has the nonce.
func (l *Locker) knows(enc, nonce string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.lines[enc]
	if ln == nil {
		return false
	}
	if ln.tries[nonce] != nil {
		return true
	}
	for k := range ln.holds {
		k.mu.Lock()
		mine := k.owns(nonce)
		k.mu.Unlock()
		if mine {
			return true
		}
	}
	return false
}
