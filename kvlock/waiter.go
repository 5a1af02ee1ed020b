package kvlock

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"tenure/kvlock/bucket"
)

// A phase says how far a waiter with a ticket is.
type phase int

const (
	phaseWaiting phase = iota
	phaseOffered       // it has been told that the lock is free
	phaseTaking        // its gaining write is under way
	phaseServed        // it has the lock
)

// A waiter is one call that wants a lock. Its goroutine goes through the steps of
// DESIGN-RULES' L6: begin (a), look (b), line (c), stand (d), sleep.
type waiter struct {
	want
	l      *Locker
	gained *Lock  // what it came to in the end
	err    error  // or that
	enc    string // names the line
	part   string // which slot it goes for, or its id as a reader
	called time.Time

	at      uint64     // where the lock is free: the revision of a marker, or 0
	low     uint64     // no ticket stands below, by own reading; 0: not known
	guess   uint64     // the same, as told with an offer
	ticket  place      // zero if it stands in no line; without a revision while it is being written
	holder  *record    // what was last seen in the way, nil for nothing
	held    *HeldError // says so
	left    time.Duration
	told    map[string]uint64 // slots that somebody else was told of since the last sleep, and where they are free
	doubts  attempts          // gaining writes whose outcome is unknown
	trouble error             // the last failure of a read or write since one succeeded
	looks   int               // since the last sleep
	absent  string            // nonce of a record whose process did not answer
	unsure  bool              // it has slept, and the ticket may be gone: who is away for a while may lose it
	fails   int

	wake chan struct{} // holds one: offered, a note for a write in doubt, first of the process, or reconnected

	// Guarded by the Locker's mutex.
	phase  phase
	offer  request // phaseOffered
	notes  notes   // from those who read a gaining write
	stands place   // the ticket, once it is known to be stored
	next   *record // the one behind it, if that has been read
}

// A step does one thing and returns what comes next, nil if the waiting has come to its
// end.
type step func(ctx context.Context) step

// run goes through the steps until the lock is gained.
func (w *waiter) run(ctx context.Context) (*Lock, error) {
	for next := step(w.begin); next != nil; {
		if err := w.ended(ctx); err != nil {
			return nil, w.why(err)
		}
		if w.offered() {
			next = w.gain
		}
		fails := w.fails
		if next = next(ctx); w.fails == fails && ctx.Err() == nil {
			w.trouble, w.fails = nil, 0
		}
	}
	return w.gained, w.err
}

// fail ends the waiting.
func (w *waiter) fail(err error) step {
	w.err = err
	return nil
}

// failed decides what to do after a read or write failed: to look again after a pause,
// or to give up.
func (w *waiter) failed(ctx context.Context, err error) step {
	if !again(err) {
		return w.fail(err)
	}
	w.trouble = err
	w.fails++
	w.pause(ctx, w.l.pause(w.fails))
	return w.look
}

// ended returns why nobody waits any more, nil if somebody does.
func (w *waiter) ended(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	if w.l.closed {
		return ErrClosed
	}
	return nil
}

// why adds to the end of ctx what stood in the way.
func (w *waiter) why(err error) error {
	switch {
	case w.trouble != nil:
		return fmt.Errorf("%w: %w", err, w.trouble)
	case w.held != nil:
		return fmt.Errorf("%w: %w", err, w.held)
	default:
		return err
	}
}

// offered reports whether the waiter was told that the lock is free, and notes
// where. From then on it takes it.
func (w *waiter) offered() bool {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	if w.phase != phaseOffered {
		return false
	}
	w.at, w.guess = w.offer.At, w.offer.Low
	if w.kind == kindPermit {
		w.part = w.offer.Part
	}
	return true
}

// begin is (a): without a ticket, the marker of an own release or nothing is
// expected at the key.
func (w *waiter) begin(context.Context) step {
	at, part, low := w.l.recall(w.enc)
	w.low = low
	if w.kind == kindPermit && at == 0 {
		part = strconv.Itoa(rand.IntN(w.sem.Limit()))
	}
	return w.free(part, at)
}

// free makes the waiter go for what is free.
func (w *waiter) free(part string, at uint64) step {
	w.at, w.left = at, markerTTL
	if w.kind == kindPermit {
		w.part = part
	}
	if at == 0 && w.ticket.Nonce == "" {
		return w.gain
	}
	return w.line
}

// look is (b): it reads the lock at the leader.
func (w *waiter) look(ctx context.Context) step {
	if w.looks++; w.looks > 2 { // somebody is quicker, or a leader answers from the past
		w.pause(ctx, min(time.Millisecond<<min(w.looks-3, 8), silence))
		if ctx.Err() != nil || w.offered() {
			return w.look // run has something better to do
		}
	}
	if w.unsure {
		r, _, err := w.l.see(context.WithoutCancel(ctx), ticketKey(w.enc, w.ticket.Nonce))
		switch {
		case err != nil:
			return w.failed(ctx, err)
		case r == nil:
			return w.queue(ctx, w.look)
		}
		w.unsure = false
	}
	w.held, w.holder = nil, nil
	if n := len(w.doubts); n > 0 {
		// Another try at the same slot makes sure that a late one cannot succeed.
		if next, barred := w.lookAt(ctx, w.doubts[n-1].part); !barred {
			return next
		}
	}
	next, barred := step(nil), false
	if w.kind == kindPermit {
		next, barred = w.lookAtSlots(ctx)
	} else {
		next, barred = w.lookAt(ctx, "")
	}
	switch {
	case !barred:
		return next
	case !w.patient:
		return w.fail(cmp.Or(w.held, &HeldError{Name: w.name}))
	case w.ticket.Nonce != "":
		return w.stand
	case w.kind == kindPermit:
		return w.queue(ctx, w.look) // who released meanwhile did not see the ticket
	default:
		return w.queue(ctx, w.stand)
	}
}

// lookAt reads what may be in the way: the lock, or a slot; or what a reader wrote, which
// never is. If nothing is it returns what comes next.
func (w *waiter) lookAt(ctx context.Context, part string) (next step, barred bool) {
	own, name := w.kind == kindReader && part != "", w.name
	want := w.kind
	switch {
	case w.kind == kindReader && !own:
		want = kindGate
	case w.kind == kindPermit:
		name += "#" + part
	}
	r, at, err := w.l.see(context.WithoutCancel(ctx), keyOf(w.enc, part))
	switch {
	case err != nil:
		return w.failed(ctx, err), false
	case r == nil && (own || w.skips(part, at)):
		return nil, true
	case r == nil:
		return w.free(part, at), false
	case r.Kind != want:
		return w.fail(&KindError{Name: w.name, Have: string(r.Kind), Want: string(want)}), false
	}
	if a, ok := w.doubts.find(r.Nonce); ok {
		// It was in doubt and is stored (L9).
		if err := w.l.b.Same(ctx, at); err != nil {
			return w.failed(ctx, err), false
		}
		return w.hold(ctx, a, at), false
	}
	if r.Process == w.l.id && !w.l.knows(w.enc, r.token(), r.Nonce) {
		w.l.endGhost(context.WithoutCancel(ctx), w.enc, attempt{nonce: r.Nonce, part: part, at: never})
		return w.look, false
	}
	if left := w.l.left(r); w.holder == nil || left < w.left {
		w.holder, w.held, w.left = r, r.heldError(name), left
	}
	return nil, true
}

// line is (c): the lock is free at a marker, or at 0 while others may stand in
// line.
func (w *waiter) line(ctx context.Context) step {
	if w.l.barging {
		return w.gain // who is told in vain looks, and finds whom to tell
	}
	pass := walk{l: w.l, enc: w.enc, part: w.part, at: w.at, low: w.low, me: w.ticket}
	if w.ticket.Nonce == "" {
		first, err := w.l.nextTicket(ctx, w.enc, w.low)
		switch {
		case err != nil:
			return w.failed(ctx, err)
		case first == nil:
			// Whoever comes to stand in line stands behind the marker.
			w.low = max(w.low, w.at)
			return w.gain
		case w.patient:
			w.low = max(w.low, first.entry.Revision)
			return w.queue(ctx, w.look)
		}
		if pass.tell(ctx, first) == walkEnd && !pass.passed {
			return w.gain // those who stood there were served, or are gone
		}
		return w.fail(&HeldError{Name: w.name})
	}
	end := pass.tell(ctx, nil)
	w.low = max(w.low, pass.low)
	switch {
	case end == walkMine:
		return w.gain
	case end == walkFailed:
		return w.failed(ctx, bucket.ErrBusy)
	case end != walkTold: // the ticket is gone
		return w.queue(ctx, w.look)
	case w.kind != kindPermit:
		return w.sleep
	}
	if w.told == nil {
		w.told = make(map[string]uint64)
	}
	w.told[w.part] = w.at
	return w.look // for another one
}

// queue writes a new ticket, at the end of the line.
func (w *waiter) queue(ctx context.Context, then step) step {
	first := w.ticket.Nonce == ""
	if err := w.writeTicket(ctx); err != nil {
		return w.failed(ctx, err)
	}
	w.unsure = false
	if f := w.l.trace.Waiting; f != nil && first {
		f(w.name)
	}
	return then
}

// stand is (d): the lock is held. The waiter has a ticket and tells the holder, who will
// then look at the line when it releases. The holders of a semaphore do so always.
func (w *waiter) stand(ctx context.Context) step {
	if w.kind == kindPermit {
		return w.sleep
	}
	got := w.l.ask(ctx, w.holder.Process, request{Op: opNote, Lock: w.enc, Nonce: w.holder.Nonce, Token: w.holder.token(), Place: w.ticket})
	switch {
	case got == answerNotMine:
		return w.look
	case got != answerNoted && w.absent != w.holder.Nonce:
		// Its process may have released the lock, knowing of nobody in line, and ended
		// between the read and the question, which then meets nobody, or a connection
		// that is being closed: one more look shows that.
		w.absent = w.holder.Nonce
		return w.look
	}
	return w.sleep
}

// sleep waits to be told, until what was last seen must have ended (L7).
func (w *waiter) sleep(ctx context.Context) step {
	w.looks, w.told, w.unsure = 0, nil, true
	timer := time.NewTimer(w.left + 300*time.Millisecond + rand.N(100*time.Millisecond))
	defer timer.Stop()
	for skipped := 0; ; skipped++ {
		select {
		case <-w.wake:
		case <-timer.C:
			if skipped < maxSkipped && w.follows() {
				timer.Reset(w.l.lease.TTL - rand.N(w.l.lease.TTL/4))
				continue
			}
		case <-ctx.Done(): // run sees it first
		}
		return w.look
	}
}

// maxSkipped is how often in a row a waiter leaves it to another to look at the lock.
const maxSkipped = 3

// follows reports whether another waiter of this process stands before w. That one
// looks at the lock for both: if it is free, it tells the first in line. When it is
// served, the lock has a new lease, which ends after w has looked for itself; when it
// gives up, it wakes the next (see giveUp). Permits and readers may pass at the same
// time as others, and look for themselves.
func (w *waiter) follows() bool {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	first := w.l.firstHere(w.enc)
	return w.kind == kindLock && first != nil && first != w
}

// firstHere returns the waiter of this process that stands first in the line, nil if
// none stands there. l.mu is held.
func (l *Locker) firstHere(enc string) (first *waiter) {
	for _, w := range l.peek(enc).tickets {
		if w.phase == phaseWaiting && w.stands.Revision != 0 && (first == nil || w.stands.Revision < first.stands.Revision) {
			first = w
		}
	}
	return first
}

// pause waits, unless there is something to do or nobody waits any more.
func (w *waiter) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.wake:
	case <-ctx.Done():
	}
}
