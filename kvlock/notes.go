package kvlock

import "context"

// A place is where a ticket stands, and whose it is.
type place struct {
	Process  string `json:"process,omitempty"`
	Nonce    string `json:"nonce,omitempty"` // of the ticket
	Revision uint64 `json:"revision,omitempty"`
}

// notes is what a hold was told of the line behind it. Its owner's mutex guards it.
type notes struct {
	any    bool   // somebody stands in line
	lowest uint64 // smallest revision of a ticket, 0: none
	tail   place  // with the largest one
}

// add notes p and returns whose ticket has got a next one by that: the last one
// before p, or p itself if a later one is known already.
func (n *notes) add(p place) (before place) {
	n.any = true
	if p.Revision == 0 { // somebody who gave up; the line has to be read
		return place{}
	}
	if n.lowest == 0 || p.Revision < n.lowest {
		n.lowest = p.Revision
	}
	if p.Revision < n.tail.Revision {
		return p
	}
	before, n.tail = n.tail, p
	return before
}

// tellNext makes a waiter read the ticket behind its own while it has nothing else to
// do, so that it need not when it has the lock for a moment only. Without it the line
// moves too, with one read more at each hand-over.
func (l *Locker) tellNext(enc string, p place) {
	r := request{Op: opNext, Lock: enc, Nonce: p.Nonce}
	switch p.Process {
	case "":
	case l.id:
		l.answerNext(r)
	default:
		_ = l.nc.Publish(l.subject(p.Process), r.encode()) // a hint; nobody answers
	}
}

// answerNext reads the ticket behind that of a waiter of this process.
func (l *Locker) answerNext(r request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.peek(r.Lock).tickets[r.Nonce]
	if l.closed || w == nil || w.phase != phaseWaiting || w.stands.Revision == 0 || w.next != nil {
		return
	}
	mine := w.stands
	l.work.Go(func() {
		next, err := l.nextTicket(context.WithoutCancel(l.ctx), r.Lock, mine.Revision+1)
		if err != nil {
			return // it is read when the lock is gained
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if w.stands.Nonce == mine.Nonce {
			w.next = next
		}
	})
}
