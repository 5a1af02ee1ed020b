package kvlock

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"tenure/kvlock/bucket"
)

// gain is the waiter's own CAS, with which alone a hold begins (L4).
func (w *waiter) gain(ctx context.Context) (step, error) {
	if w.kind == kindPermit {
		if err := w.sem.known(ctx, w.part); err != nil {
			return w.failed(ctx, err)
		}
		if w.sem.beyond(w.part) {
			w.setPhase(phaseWaiting, "")
			return w.look, nil
		}
	}
	try, cancel := context.WithTimeout(ctx, w.l.lease.Attempt)
	defer cancel()
	a, write := w.attempt()
	w.setPhase(phaseTaking, a.nonce)
	revision, err := w.l.b.Write(try, write)
	if err == nil {
		return w.begun(w.hold(ctx, a, revision), a)
	}
	switch {
	case notStored(err):
		w.setPhase(phaseWaiting, "")
		w.forgetTry(a)
	default:
		w.doubts = append(w.doubts, a)
		w.setPhase(phaseWaiting, "")
	}
	if errors.Is(err, bucket.ErrConflict) {
		w.succeeded()
		return w.look, nil
	}
	return w.failed(ctx, err)
}

// attempt returns a new gaining write.
func (w *waiter) attempt() (attempt, bucket.Write) {
	a := attempt{nonce: bucket.Nonce(), part: w.part, sent: time.Now()}
	r := record{
		Kind:    w.kind,
		Owner:   w.l.owner,
		Process: w.l.id,
		Nonce:   a.nonce,
		Since:   a.sent.UTC(),
		TTL:     int64(w.l.lease.TTL / time.Second),
		Note:    w.l.note,
		Value:   w.value,
	}
	write := bucket.Write{Key: keyOf(w.enc, w.part), Value: r.encode(), Last: w.at, TTL: w.l.lease.TTL}
	if w.kind == kindReader {
		write.Fence = w.bar // in as long as the gate is open, whatever stands at the own key
	}
	return a, write
}

// setPhase notes how far the waiter is, and the nonce of a gaining write: others
// may read the record before the acknowledgement is here.
func (w *waiter) setPhase(p phase, nonce string) {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	w.phase = p
	if nonce != "" {
		w.l.line(w.enc).tries[nonce] = w
	}
}

func (w *waiter) forgetTry(a attempt) {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	delete(w.l.line(w.enc).tries, a.nonce)
}

// begun ends the waiting with the hold, or ends a gaining write that there is no
// trust left in.
func (w *waiter) begun(k *Lock, a attempt) (step, error) {
	if k == nil {
		return w.crossOff(a)
	}
	w.gained = k
	return nil, nil
}

// crossOff ends a gaining write that is too late to be believed. No later
// acknowledgement or read makes a hold of it.
func (w *waiter) crossOff(a attempt) (step, error) {
	for i, d := range w.doubts {
		if d.nonce == a.nonce {
			w.doubts = append(w.doubts[:i], w.doubts[i+1:]...)
			break
		}
	}
	w.setPhase(phaseWaiting, "")
	w.forgetTry(a)
	w.l.endGhost(w.enc, a.part, a.nonce)
	return w.look, nil
}

// hold begins a hold with the write of a, stored at revision. It returns nil if
// trust in it is over before it began.
func (w *waiter) hold(ctx context.Context, a attempt, revision uint64) *Lock {
	l := w.l
	trust := l.lease.Trust(a.sent)
	if trust.Over() {
		return nil
	}
	k := &Lock{
		l:        l,
		kind:     w.kind,
		name:     w.name,
		enc:      w.enc,
		part:     a.part,
		key:      keyOf(w.enc, a.part),
		token:    revision,
		since:    a.sent.UTC(),
		released: make(chan struct{}),
		done:     make(chan struct{}),
		kept:     true, // not before all is set
		guarded:  w.guarded,
		pen:      make(chan struct{}, 1),
		value:    w.value,
		low:      w.low,
		start:    max(w.low, w.guess),
		revision: revision,
		nonce:    a.nonce,
		trust:    trust,
		sent:     a.sent,
	}
	if w.ticket.Nonce != "" {
		k.waiter, k.ticketed, k.left = w, true, make(chan struct{})
	}
	switch w.kind {
	case kindPermit:
		k.name += "#" + a.part
	case kindReader:
		k.doubts = w.doubts // its own key does not refuse them
	}
	inner, end := context.WithCancelCause(context.WithoutCancel(ctx))
	k.ctx, k.end = &holdContext{Context: inner, held: k, end: end}, end

	l.mu.Lock()
	ln := l.line(w.enc)
	delete(ln.tries, a.nonce)
	for _, d := range w.doubts { // whatever is still under way expects what is gone
		delete(ln.tries, d.nonce)
	}
	ln.holds[k] = struct{}{}
	w.phase = phaseServed
	k.notes = w.notes
	if k.kind == kindReader && k.waiter != nil {
		l.work.Go(func() { k.letIn(w.at) })
	}
	if k.waiter != nil && k.exclusive() {
		if tail := w.offer.Place; tail.Revision > max(k.notes.tail.Revision, w.ticket.revision) {
			k.notes.tail = tail
		}
		// What stands behind the own ticket is the first in line unless an earlier
		// one was passed over.
		if w.next != nil && k.start >= w.ticket.revision {
			k.ahead = &reading{done: make(chan struct{}), first: w.next}
			close(k.ahead.done)
		}
	}
	l.work.Add(1)
	l.mu.Unlock()

	switch {
	case k.ahead != nil, k.waiter != nil && !k.exclusive():
		k.going = true
		go k.leaveLine()
	case k.waiter != nil:
		k.readAhead()
	}
	k.due = l.firstRenewal(a.sent, l.holds.Add(1)-1)
	k.mu.Lock()
	k.timer = time.AfterFunc(time.Until(k.due), func() { k.tell(eventDue) })
	k.lapse = time.AfterFunc(trust.Left(), k.check)
	k.kept = false
	if k.events != 0 {
		k.happened(k.events)
	}
	k.mu.Unlock()
	l.log.DebugContext(ctx, "lock gained", slog.String("lock", k.name), slog.Uint64("token", k.token))
	if k.kind != kindGate {
		k.begin(w)
	}
	return k
}

// writeTicket stands in line anew: at its end.
func (w *waiter) writeTicket(ctx context.Context) error {
	ttl := ticketTTLMax
	if end, ok := ctx.Deadline(); ok {
		ttl = min(ttl, (time.Until(end) + 2*time.Second).Truncate(time.Second))
	}
	t := ticket{Read: w.kind == kindReader, Process: w.l.id, Nonce: bucket.Nonce(), Owner: w.l.owner, TTL: int64(ttl / time.Second)}
	w.l.mu.Lock()
	if w.phase == phaseOffered {
		w.l.mu.Unlock()
		return nil // too late to stand elsewhere: it has been promised to take the lock
	}
	w.stands, w.next = ticket{}, nil
	ln := w.l.line(w.enc)
	delete(ln.tickets, w.ticket.Nonce)
	ln.tickets[t.Nonce] = w // it may be asked before it knows that the ticket is stored
	w.l.mu.Unlock()
	w.ticket = t

	value := t.encode()
	for fails := 1; ; fails++ {
		try, cancel := w.l.attempt(ctx)
		revision, err := w.l.b.Write(try, bucket.Write{Key: ticketKey(w.enc, t.Nonce), Value: value, TTL: ttl})
		cancel()
		if conflict, ok := errors.AsType[*bucket.ConflictError](err); ok && conflict.Last > 0 {
			revision, err = conflict.Last, nil // an earlier try was stored: nobody else has the nonce
		}
		if err == nil {
			w.ticket.revision = revision
			w.l.mu.Lock()
			w.stands = w.ticket
			w.l.mu.Unlock()
			return nil
		}
		if !again(err) && !errors.Is(err, bucket.ErrConflict) {
			w.dropTicket()
			return err
		}
		w.trouble = err
		w.pause(ctx, w.l.pause(fails))
		if ctx.Err() != nil || w.l.ctx.Err() != nil {
			return err // giveUp removes it if it was stored
		}
	}
}

// dropTicket makes whoever asks with the ticket hear that nobody waits with it.
func (w *waiter) dropTicket() {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	delete(w.l.line(w.enc).tickets, w.ticket.Nonce)
	w.phase = phaseWaiting
}

// wakeNext makes the waiter of this process that stands first now look at the lock:
// it may have left that to w.
func (w *waiter) wakeNext() {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	if next := w.l.firstHere(w.enc); next != nil {
		nudge(next.wake)
	}
}

// giveUp leaves nothing behind of a waiter that failed (L11). It waits until the
// ticket is gone, but not for long: the rest is done in the background.
func (w *waiter) giveUp(ctx context.Context) {
	w.dropTicket()
	if w.ticket.Nonce == "" && len(w.doubts) == 0 {
		return
	}
	w.wakeNext()
	done := make(chan struct{})
	w.l.work.Go(func() {
		defer close(done)
		w.leave(context.WithoutCancel(ctx))
		for _, a := range w.doubts {
			w.forgetTry(a)
		}
	})
	if w.ticket.Nonce == "" {
		return
	}
	grace := time.NewTimer(silence)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
	}
}

// leave takes the waiter out of the line, and sees to it that nobody in the line
// waits for it in vain.
func (w *waiter) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, w.l.lease.TTL)
	defer cancel()
	for fails := 1; w.ticket.Nonce != "" && fails <= 5; fails++ {
		if w.l.purgeTicket(ctx, w.enc, w.ticket) == nil {
			break // else whoever meets it is told that nobody waits, and removes it
		}
		pauseFor(ctx, w.l.pause(fails))
	}
	if w.kind == kindPermit || w.kind == kindReader {
		for _, a := range slices.Clone(w.doubts) {
			_, _ = w.crossOff(a) // its result is for those who still wait
		}
	}
	if w.kind == kindPermit {
		w.leaveSlots(ctx)
		return
	}
	if w.kind == kindReader && w.ticket.Nonce == "" {
		return
	}
	for fails := 1; ctx.Err() == nil; fails++ {
		try, done := w.l.attempt(ctx)
		e, err := w.l.b.Get(try, w.bar)
		done()
		switch {
		case errors.Is(err, bucket.ErrNotFound):
			w.at = 0
			w.hint(ctx, nil)
			return
		case err != nil && !again(err):
			return
		case err != nil:
		case e.Marker:
			w.at = e.Revision
			w.hint(ctx, nil)
			return
		default:
			r, err := parseRecord(e)
			if err != nil {
				return
			}
			if a, ok := w.doubted(r.Nonce); ok {
				_, _ = w.crossOff(a) // its result is for those who still wait
				return
			}
			if w.ticket.Nonce == "" {
				return
			}
			got := w.l.ask(ctx, r.Process, request{
				Op: opNote, Lock: w.enc, Nonce: r.Nonce, Token: r.token(e.Revision),
			})
			if got != answerNotMine {
				return
			}
		}
		pauseFor(ctx, w.l.pause(fails))
	}
}
