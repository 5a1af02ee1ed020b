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
	gained *Lock  // set when it has the lock
	enc    string // names the line
	bar    string // the key that has to be free, but for a permit; a reader writes another
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
	fails   int
	back    <-chan struct{} // closed at the first reconnect since the last look

	wake chan struct{} // holds one: offered, or a note for a write in doubt

	// Guarded by the Locker's mutex.
	phase  phase
	offer  request // phaseOffered
	notes  notes   // from those who read a gaining write
	stands place   // the ticket, once it is known to be stored
	next   *record // the one behind it, if that has been read
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
func (w *waiter) begin(context.Context) (step, error) {
	at, part, low := w.l.recall(w.enc)
	w.low = low
	if w.kind == kindPermit && at == 0 {
		part = strconv.Itoa(rand.IntN(w.sem.Limit()))
	}
	return w.free(part, at), nil
}

// free makes the waiter go for what is free.
func (w *waiter) free(part string, at uint64) step {
	w.held, w.holder, w.left, w.at = nil, nil, markerTTL, at
	if w.kind == kindPermit {
		w.part = part
	}
	if at == 0 && w.ticket.Nonce == "" {
		return w.gain
	}
	return w.line
}

// look is (b): it reads the lock at the leader.
func (w *waiter) look(ctx context.Context) (step, error) {
	if w.looks++; w.looks > 2 { // somebody is quicker, or a leader answers from the past
		w.pause(ctx, min(time.Millisecond<<min(w.looks-3, 8), silence))
		if ctx.Err() != nil || w.offered() {
			return w.look, nil // run has something better to do
		}
	}
	w.back = w.l.reconnected()
	w.held, w.holder = nil, nil
	var next step
	var err error
	switch w.kind {
	case kindPermit:
		next, err = w.lookAtSlots(ctx)
	case kindReader:
		next, err = w.lookAtEntry(ctx)
		if next != nil || err != nil || w.gained != nil {
			return next, err
		}
		fallthrough
	default:
		next, err = w.lookAt(ctx, "")
	}
	switch {
	case next != nil || err != nil || w.gained != nil:
		return next, err
	case w.patient:
		return w.stand, nil
	default:
		return nil, cmp.Or(w.held, &HeldError{Name: w.name})
	}
}

// lookAt reads what may be in the way: a slot, or the lock. If it is, there is no step.
func (w *waiter) lookAt(ctx context.Context, slot string) (step, error) {
	key, name, want := w.bar, w.name, w.kind
	switch w.kind {
	case kindPermit:
		key, name = keyOf(w.enc, slot), name+"#"+slot
	case kindReader:
		want = kindGate
	}
	r, at, err := w.l.see(context.WithoutCancel(ctx), key)
	switch {
	case err != nil:
		return w.failed(ctx, err)
	case r == nil && w.skips(slot, at):
		return nil, nil
	case r == nil:
		w.succeeded()
		return w.free(slot, at), nil
	}
	w.succeeded()
	if a, ok := w.doubts.find(r.Nonce); ok {
		return w.adopt(ctx, a, at)
	}
	if r.Kind != want {
		return nil, &KindError{Name: w.name, Have: string(r.Kind), Want: string(want)}
	}
	if r.Process == w.l.id && !w.l.knows(w.enc, r.token(), r.Nonce) {
		w.l.endGhost(context.WithoutCancel(ctx), w.enc, attempt{nonce: r.Nonce, part: slot, at: never})
		return w.look, nil
	}
	if left := w.l.left(r); w.holder == nil || left < w.left {
		w.holder, w.held, w.left = r, r.heldError(name), left
	}
	return nil, nil
}

// lookAtEntry reads the own key of a reader if an entry is in doubt. There is a step only
// if that was stored, or could not be read.
func (w *waiter) lookAtEntry(ctx context.Context) (step, error) {
	if len(w.doubts) == 0 {
		return nil, nil
	}
	r, at, err := w.l.see(context.WithoutCancel(ctx), keyOf(w.enc, w.part))
	if err != nil {
		return w.failed(ctx, err)
	}
	if r != nil {
		if a, ok := w.doubts.find(r.Nonce); ok {
			return w.adopt(ctx, a, at)
		}
	}
	return nil, nil
}

// adopt begins a hold with a write that was in doubt and is stored (L9).
func (w *waiter) adopt(ctx context.Context, a attempt, revision uint64) (step, error) {
	if err := w.l.b.Same(ctx, revision); err != nil {
		return w.failed(ctx, err)
	}
	return w.hold(ctx, a, revision)
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
		w.low = max(w.low, first.entry.Revision)
		if !w.patient {
			w.hint(ctx, first)
			return nil, &HeldError{Name: w.name}
		}
		if err := w.writeTicket(ctx); err != nil {
			return w.failed(ctx, err)
		}
		return w.look, nil
	}
	pass := w.walk()
	pass.me = w.ticket
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

// walk returns a walk along the line with what is free.
func (w *waiter) walk() walk {
	pass := walk{l: w.l, enc: w.enc, at: w.at, low: w.low}
	if w.kind == kindPermit {
		pass.part = w.part
	}
	return pass
}

// hint tells the line that the lock is free, by somebody who does not stand in it.
func (w *waiter) hint(ctx context.Context, first *record) {
	pass := w.walk()
	pass.tell(ctx, first)
}

// stand is (d): the lock is held. The waiter stands in line and tells the holder,
// who will then look at the line when it releases. There are several holders of a
// semaphore, who do so always: with them it looks once more, since one that released
// meanwhile did not see the ticket.
func (w *waiter) stand(ctx context.Context) (step, error) {
	if w.ticket.Nonce == "" {
		if err := w.writeTicket(ctx); err != nil {
			return w.failed(ctx, err)
		}
		w.succeeded()
		if f := w.l.trace.Waiting; f != nil {
			f(w.name)
		}
		if w.kind == kindPermit {
			return w.look, nil
		}
	}
	if w.kind == kindPermit {
		return w.sleep, nil
	}
	got := w.l.ask(ctx, w.holder.Process, request{Op: opNote, Lock: w.enc, Nonce: w.holder.Nonce, Token: w.holder.token(), Place: w.ticket})
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
	ln := l.peek(enc)
	for _, w := range ln.tickets {
		if w.phase == phaseWaiting && w.stands.Revision != 0 && (first == nil || w.stands.Revision < first.stands.Revision) {
			first = w
		}
	}
	return first
}

// recheck sees whether the own ticket still stands: who is away for a while may
// lose it.
func (w *waiter) recheck(ctx context.Context) (step, error) {
	r, _, err := w.l.see(context.WithoutCancel(ctx), ticketKey(w.enc, w.ticket.Nonce))
	if err == nil && r == nil {
		err = w.writeTicket(ctx)
	}
	if err != nil {
		if _, err := w.failed(ctx, err); err != nil {
			return nil, err
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
	}
}
