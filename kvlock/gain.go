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
func (w *waiter) gain(ctx context.Context) step {
	if w.kind == kindPermit {
		if there, err := w.sem.has(ctx, w.part); err != nil {
			return w.failed(ctx, err)
		} else if !there {
			w.setPhase(phaseWaiting)
			return w.look
		}
	}
	a, write := w.try()
	revision, err := w.l.write(ctx, write)
	if err == nil {
		return w.hold(ctx, a, revision)
	}
	w.missed(a, err)
	if errors.Is(err, bucket.ErrConflict) {
		return w.look
	}
	return w.failed(ctx, err)
}

// try returns a new gaining write, which is under way from now on: others may read the
// record before the acknowledgement is here.
func (w *waiter) try() (attempt, bucket.Write) {
	a := attempt{nonce: bucket.Nonce(), part: w.part, at: w.at, sent: time.Now()}
	r := w.l.newRecord(w.kind, a.nonce, a.sent, w.l.lease.TTL)
	r.Value = w.value
	write := bucket.Write{Key: keyOf(w.enc, w.part), Value: r.encode(), Last: w.at, TTL: w.l.lease.TTL}
	if w.kind == kindReader {
		write.Fence = keyOf(w.enc, "") // in as long as the gate is open, whatever stands at the own key
		a.at = never
	}
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	w.phase = phaseTaking
	w.l.line(w.enc).tries[a.nonce] = w
	return a, write
}

// missed notes that a gaining write failed.
func (w *waiter) missed(a attempt, err error) {
	if !notStored(err) {
		w.doubts = append(w.doubts, a)
	}
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	w.phase = phaseWaiting
	if notStored(err) {
		delete(w.l.line(w.enc).tries, a.nonce)
	}
}

func (w *waiter) setPhase(p phase) {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	w.phase = p
}

// crossOff ends a gaining write that is too late to be believed, or that nobody wants
// any more. No later acknowledgement or read makes a hold of it.
func (w *waiter) crossOff(ctx context.Context, a attempt) {
	w.doubts = w.doubts.without(a.nonce)
	w.l.mu.Lock()
	w.phase = phaseWaiting
	delete(w.l.line(w.enc).tries, a.nonce)
	w.l.mu.Unlock()
	w.l.endGhost(ctx, w.enc, a)
}

// hold ends the waiting with a hold that begins with the write of a, stored at revision;
// or ends that write, if trust in it is over before it began.
func (w *waiter) hold(ctx context.Context, a attempt, revision uint64) step {
	l := w.l
	trust := l.lease.Trust(a.sent)
	if trust.Over() {
		w.crossOff(context.WithoutCancel(ctx), a)
		return w.look
	}
	k := &Lock{
		l:        l,
		kind:     w.kind,
		name:     w.name,
		enc:      w.enc,
		part:     a.part,
		key:      keyOf(w.enc, a.part),
		token:    revision,
		since:    a.sent,
		released: make(chan struct{}),
		done:     make(chan struct{}),
		kept:     true, // not before all is set
		guarded:  w.guarded,
		pen:      make(chan struct{}, 1),
		value:    w.value,
		ticket:   w.ticket,
		low:      w.low,
		start:    max(w.low, w.guess),
		revision: revision,
		nonce:    a.nonce,
		trust:    trust,
		sent:     a.sent,
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
	last := false // as far as is known, nobody stands behind
	linger := time.Duration(0)
	if k.ticket.Nonce != "" && k.exclusive() {
		linger = lingering
		tail := w.offer.Place
		last = tail.Nonce == k.ticket.Nonce && !k.notes.any
		if tail.Revision > max(k.notes.tail.Revision, k.ticket.Revision) {
			k.notes.tail = tail
		}
		// What stands behind the own ticket is the first in line unless an earlier
		// one was passed over.
		if k.start >= k.ticket.Revision {
			k.start = max(k.start, k.ticket.Revision+1)
			if w.next != nil {
				k.ahead = &reading{done: make(chan struct{}), first: w.next}
				close(k.ahead.done)
			}
		}
	}
	if k.ticket.Nonce != "" {
		l.leaveLine(k.enc, k.ticket, linger)
	}
	l.work.Add(1)
	l.mu.Unlock()

	switch {
	case k.ticket.Nonce == "":
	case k.kind == kindReader:
		l.work.Go(func() { k.letIn(w.at) })
	case k.exclusive() && k.ahead == nil && !last:
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
	w.gained = k
	return nil
}

// writeTicket stands in line anew: at its end.
func (w *waiter) writeTicket(ctx context.Context) error {
	ttl := ticketTTLMax
	if end, ok := ctx.Deadline(); ok {
		ttl = min(ttl, (time.Until(end) + 2*time.Second).Truncate(time.Second))
	}
	nonce := bucket.Nonce()
	w.l.mu.Lock()
	if w.phase == phaseOffered {
		w.l.mu.Unlock()
		return nil // too late to stand elsewhere: it has been promised to take the lock
	}
	w.stands, w.next = place{}, nil
	ln := w.l.line(w.enc)
	delete(ln.tickets, w.ticket.Nonce)
	ln.tickets[nonce] = w // it may be asked before it knows that the ticket is stored
	w.l.mu.Unlock()
	w.ticket = place{Process: w.l.id, Nonce: nonce}

	r := w.l.newRecord(w.kind, nonce, w.called, ttl)
	write := bucket.Write{Key: ticketKey(w.enc, nonce), Value: r.encode(), TTL: ttl}
	var err error // the last one
	_ = w.l.persist(ctx, func() error {
		w.ticket.Revision, err = w.l.write(context.WithoutCancel(ctx), write)
		if conflict, ok := errors.AsType[*bucket.ConflictError](err); ok && conflict.Last > 0 {
			w.ticket.Revision, err = conflict.Last, nil // an earlier try was stored: nobody else has the nonce
		}
		return err
	})
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	if err == nil {
		w.stands = w.ticket
	}
	return err // giveUp removes it if it was stored
}

// giveUp leaves nothing behind of a waiter that failed (L11). It waits until the
// ticket is gone, but not for long: the rest is done in the background.
func (w *waiter) giveUp(ctx context.Context) {
	w.l.dropTicket(w.enc, w.ticket.Nonce)
	if w.ticket.Nonce == "" && len(w.doubts) == 0 {
		return
	}
	w.l.mu.Lock()
	// The waiter of this process that stands first now may have left looking to w.
	if next := w.l.firstHere(w.enc); next != nil {
		nudge(next.wake)
	}
	w.l.mu.Unlock()
	done := make(chan struct{})
	w.l.work.Go(func() {
		defer close(done)
		w.leave(context.WithoutCancel(ctx))
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

// leave takes the waiter out of the line, ends what may still be stored, and sees to it
// that nobody in the line waits for it in vain.
func (w *waiter) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, w.l.lease.TTL)
	defer cancel()
	if w.ticket.Nonce != "" {
		// If that fails, whoever meets it is told that nobody waits, and removes it.
		_ = w.l.persist(ctx, func() error { return w.l.purgeTicket(ctx, w.enc, w.ticket) })
	}
	for _, a := range slices.Clone(w.doubts) {
		w.crossOff(ctx, a)
	}
	if w.ticket.Nonce == "" {
		return
	}
	parts := []string{""}
	if w.kind == kindPermit { // those that others may think this waiter takes
		parts[0] = w.part
		w.l.mu.Lock()
		if p := w.offer.Part; p != "" && p != w.part {
			parts = append(parts, p)
		}
		w.l.mu.Unlock()
	}
	for _, part := range parts {
		_ = w.l.persist(ctx, func() error { return w.passOn(ctx, part) }) // else those in line have timers
	}
}

// passOn tells the line if a part is free, and else its holder that the line is to be
// looked at.
func (w *waiter) passOn(ctx context.Context, part string) error {
	r, at, err := w.l.see(ctx, keyOf(w.enc, part))
	switch {
	case err != nil:
		return err
	case r == nil:
		pass := walk{l: w.l, enc: w.enc, part: part, at: at, low: w.low}
		pass.tell(ctx, nil)
	case w.kind != kindPermit:
		if w.l.ask(ctx, r.Process, request{Op: opNote, Lock: w.enc, Nonce: r.Nonce, Token: r.token()}) == answerNotMine {
			return bucket.ErrBusy // it has just been released: look again
		}
	}
	return nil
}
