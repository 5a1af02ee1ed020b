package kvlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	l       *Locker
	gained  *Lock // set when it has the lock
	kind    kind
	sem     *Semaphore // kindPermit
	name    string
	enc     string // names the line
	bar     string // the key that has to be free, but for a permit; a reader writes another
	part    string // which slot it goes for, or its id as a reader
	patient bool   // stands in line; else the call fails at once
	guarded bool   // the hold belongs to Do
	value   string // of a leader
	called  time.Time

	at      uint64 // where the lock is free: the revision of a marker, or 0
	low     uint64 // no ticket stands below, by own reading; 0: not known
	guess   uint64 // the same, as told with an offer
	ticket  ticket // zero if it stands in no line
	holder  *record
	held    *HeldError        // what was last seen in the way
	left    time.Duration     // how long what was last seen has to live
	told    map[string]uint64 // slots that somebody else was told of since the last sleep, and where they are free
	doubts  []attempt         // gaining writes whose outcome is unknown
	trouble error             // the last failure of a read or write since one succeeded
	looks   int               // since the last sleep
	absent  string            // nonce of a record whose process did not answer
	fails   int
	back    <-chan struct{} // closed at the first reconnect since the last look

	wake chan struct{} // holds one: offered, or a note for a write in doubt

	// Guarded by the Locker's mutex.
	phase  phase
	offer  request // phaseOffered
	notes  notes   // from those who read a gaining write
	stands ticket  // the ticket, once it is known to be stored
	next   *ticket // the one behind it, if that has been read
}

// A step does one thing and returns what comes next, or an error that ends the
// waiting.
type step func(ctx context.Context) (step, error)

// run goes through the steps until the lock is gained.
func (w *waiter) run(ctx context.Context) (*Lock, error) {
	for next := step(w.begin); ; {
		if err := w.ended(ctx); err != nil {
			return nil, w.why(err)
		}
		if w.offered() {
			next = w.gain
		}
		var err error
		if next, err = next(ctx); err != nil {
			return nil, err
		}
		if w.gained != nil {
			return w.gained, nil
		}
	}
}

// ended returns why nobody waits any more, nil if somebody does.
func (w *waiter) ended(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	if w.l.closed && !w.guarded {
		return ErrClosed
	}
	return context.Cause(w.l.ctx)
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
func (w *waiter) begin(context.Context) (step, error) {
	var part string
	w.at, part, w.low = w.l.recall(w.enc)
	if w.kind == kindPermit {
		w.part = part
		if w.at == 0 {
			w.part = w.sem.any()
		}
	}
	if w.at != 0 {
		return w.line, nil
	}
	return w.gain, nil
}

// look is (b): it reads the lock at the leader.
func (w *waiter) look(ctx context.Context) (step, error) {
	if w.looks++; w.looks > 2 { // somebody is quicker, or a leader answers from the past
		w.pause(ctx, min(time.Millisecond<<min(w.looks-3, 8), silence))
		if w.woken(ctx) {
			return w.look, nil
		}
	}
	w.back = w.l.reconnected()
	if w.kind == kindPermit {
		return w.lookAtSlots(ctx)
	}
	if w.kind == kindReader && len(w.doubts) > 0 {
		if _, next, err := w.settle(ctx); next != nil || err != nil || w.gained != nil {
			return next, err
		}
	}
	try, cancel := w.l.attempt(ctx)
	e, err := w.l.b.Get(try, w.bar)
	cancel()
	switch {
	case errors.Is(err, bucket.ErrNotFound):
		w.succeeded()
		w.held, w.holder, w.left, w.at = nil, nil, markerTTL, 0
		if w.ticket.Nonce == "" {
			return w.gain, nil
		}
		return w.line, nil
	case err != nil:
		return w.failed(ctx, err)
	}
	w.succeeded()
	w.left = w.l.b.Left(e)
	if e.Marker {
		w.held, w.holder, w.at = nil, nil, e.Revision
		return w.line, nil
	}
	r, err := parseRecord(e)
	if err != nil {
		return nil, err
	}
	if a, ok := w.doubted(r.Nonce); ok {
		return w.adopt(ctx, a, e.Revision)
	}
	if want := w.barKind(); r.Kind != want {
		return nil, &KindError{Name: w.name, Have: string(r.Kind), Want: string(want)}
	}
	if e.TTL == 0 { // written by somebody else
		w.left = time.Duration(r.TTL) * time.Second
	}
	w.holder, w.held = r, r.heldError(w.name, e)
	if r.Process == w.l.id && !w.l.knows(w.enc, r.Nonce) && !w.l.holding(w.enc, w.held.Token) {
		w.l.endGhost(w.enc, "", r.Nonce)
		return w.look, nil
	}
	if !w.patient {
		return nil, w.held
	}
	return w.stand, nil
}

// adopt begins a hold with a write that was in doubt and is stored (L9).
func (w *waiter) adopt(ctx context.Context, a attempt, revision uint64) (step, error) {
	if err := w.l.b.Same(ctx, revision); err != nil {
		return w.failed(ctx, err)
	}
	return w.begun(w.hold(ctx, a, revision), a)
}

// settle reads the key of the last gaining write in doubt. If that was stored it
// adopts it; else it returns the entry, which is zero if there is none, and no step.
func (w *waiter) settle(ctx context.Context) (e bucket.Entry, next step, err error) {
	try, cancel := w.l.attempt(ctx)
	e, err = w.l.b.Get(try, keyOf(w.enc, w.doubts[len(w.doubts)-1].part))
	cancel()
	switch {
	case errors.Is(err, bucket.ErrNotFound):
		return bucket.Entry{}, nil, nil
	case err != nil:
		next, err = w.failed(ctx, err)
		return e, next, err
	case e.Marker:
		return e, nil, nil
	}
	r, err := parseRecord(e)
	if err != nil {
		return e, nil, err
	}
	if a, ok := w.doubted(r.Nonce); ok {
		next, err = w.adopt(ctx, a, e.Revision)
	}
	return e, next, err
}

// barKind returns the kind of record that belongs in the way of the waiter.
func (w *waiter) barKind() kind {
	if w.kind == kindReader {
		return kindGate
	}
	return w.kind
}

// slot returns the slot that the waiter goes for, nothing if it wants no permit.
func (w *waiter) slot() string {
	if w.kind != kindPermit {
		return ""
	}
	return w.part
}

// line is (c): the lock is free at a marker, or at 0 while others may stand in
// line.
func (w *waiter) line(ctx context.Context) (step, error) {
	if w.l.barging {
		return w.gain, nil // who is told in vain looks, and finds whom to tell
	}
	if w.ticket.Nonce == "" {
		first, err := w.l.nextTicket(ctx, w.enc, w.low, "")
		if err != nil {
			return w.failed(ctx, err)
		}
		w.succeeded()
		if first == nil {
			// Whoever comes to stand in line stands behind the marker.
			w.low = max(w.low, w.at)
			return w.gain, nil
		}
		w.low = max(w.low, first.revision)
		if !w.patient {
			w.hint(ctx, first)
			return nil, &HeldError{Name: w.name}
		}
		if err := w.writeTicket(ctx); err != nil {
			return w.failed(ctx, err)
		}
		return w.look, nil
	}
	pass := walk{l: w.l, enc: w.enc, part: w.slot(), at: w.at, low: w.low, me: &w.ticket}
	end := pass.tell(ctx, nil)
	w.low = max(w.low, pass.low)
	switch end {
	case walkMine:
		return w.gain, nil
	case walkTold:
		if w.kind == kindPermit {
			if w.told == nil {
				w.told = make(map[string]uint64)
			}
			w.told[w.part] = w.at
			return w.look, nil // for another one
		}
		return w.sleep, nil
	case walkMissing, walkEnd:
		if err := w.writeTicket(ctx); err != nil {
			return w.failed(ctx, err)
		}
		return w.look, nil
	default:
		return w.failed(ctx, bucket.ErrBusy)
	}
}

// hint tells the line that the lock is free, by somebody who does not stand in it.
func (w *waiter) hint(ctx context.Context, first *ticket) {
	pass := walk{l: w.l, enc: w.enc, part: w.slot(), at: w.at, low: w.low}
	pass.tell(ctx, first)
}

// stand is (d): the lock is held. The waiter stands in line and tells the holder,
// who will then look at the line when it releases.
func (w *waiter) stand(ctx context.Context) (step, error) {
	if w.ticket.Nonce == "" {
		if err := w.writeTicket(ctx); err != nil {
			return w.failed(ctx, err)
		}
		w.succeeded()
		w.l.trace.waiting(w.name)
	}
	got := w.l.ask(ctx, w.holder.Process, request{
		Op: opNote, Lock: w.enc, Nonce: w.holder.Nonce, Token: w.held.Token,
		Place: place{Process: w.l.id, Nonce: w.ticket.Nonce, Revision: w.ticket.revision},
	})
	switch {
	case got == answerNotMine:
		return w.look, nil
	case got != answerNoted && w.absent != w.holder.Nonce:
		// Its process may have released the lock, knowing of nobody in line, and ended
		// between the read and the question, which then meets nobody, or a connection
		// that is being closed: one more look shows that.
		w.absent = w.holder.Nonce
		return w.look, nil
	}
	return w.sleep, nil
}

// sleep waits to be told, until what was last seen must have ended (L7).
func (w *waiter) sleep(ctx context.Context) (step, error) {
	w.looks, w.told = 0, nil
	timer := time.NewTimer(w.left + 300*time.Millisecond + rand.N(100*time.Millisecond))
	defer timer.Stop()
	for skipped := 0; ; skipped++ {
		select {
		case <-w.wake:
			return w.look, nil
		case <-timer.C:
			if skipped < maxSkipped && w.follows() {
				timer.Reset(w.l.lease.TTL - rand.N(w.l.lease.TTL/4))
				continue
			}
		case <-w.back:
		case <-ctx.Done():
			return w.look, nil // run sees it first
		case <-w.l.ctx.Done():
			return w.look, nil // as above
		}
		return w.recheck, nil
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
	ln := l.lines[enc]
	if ln == nil {
		return nil
	}
	for _, w := range ln.tickets {
		if w.phase == phaseWaiting && w.stands.revision != 0 && (first == nil || w.stands.revision < first.stands.revision) {
			first = w
		}
	}
	return first
}

// recheck sees whether the own ticket still stands: who is away for a while may
// lose it.
func (w *waiter) recheck(ctx context.Context) (step, error) {
	try, cancel := w.l.attempt(ctx)
	e, err := w.l.b.Get(try, ticketKey(w.enc, w.ticket.Nonce))
	cancel()
	switch {
	case err == nil && !e.Marker:
		return w.look, nil
	case err != nil && !errors.Is(err, bucket.ErrNotFound):
		if next, err := w.failed(ctx, err); err != nil {
			return next, err
		}
		return w.recheck, nil
	}
	if err := w.writeTicket(ctx); err != nil {
		if next, err := w.failed(ctx, err); err != nil {
			return next, err
		}
		return w.recheck, nil
	}
	return w.look, nil
}

// failed decides what to do after a read or write failed: again, with a pause, or
// give up.
func (w *waiter) failed(ctx context.Context, err error) (step, error) {
	if !again(err) {
		return nil, err
	}
	w.trouble = err
	w.fails++
	w.pause(ctx, w.l.pause(w.fails))
	return w.look, nil
}

func (w *waiter) succeeded() { w.trouble, w.fails = nil, 0 }

// pause waits, unless there is something to do or nobody waits any more.
func (w *waiter) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.wake:
	case <-ctx.Done():
	case <-w.l.ctx.Done():
	}
}

// woken reports whether run has something better to do than the next step.
func (w *waiter) woken(ctx context.Context) bool {
	if ctx.Err() != nil || w.l.ctx.Err() != nil {
		return true
	}
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	return w.phase == phaseOffered
}

// nudge wakes whoever waits on c, which holds one.
func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// doubted returns the gaining write in doubt that has the nonce.
func (w *waiter) doubted(nonce string) (attempt, bool) {
	for _, a := range w.doubts {
		if a.nonce == nonce {
			return a, true
		}
	}
	return attempt{}, false
}
