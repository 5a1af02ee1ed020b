package natstest

import (
	"io"
	"net"
	"os"
	"time"
)

// A lane is one direction of a wire: frames that have been sent and have not
// arrived. It never refuses bytes, so that no sender waits: nats.go sends under
// its connection's mutex, and a goroutine that waits for a mutex would stop the
// fake time of a bubble.
//
// All fields but wake are guarded by the link's mutex.
type lane struct {
	wire  *wire
	cut   *bool // the link's state of this direction
	queue []cargo
	held  int           // frames that a hold keeps back; they go before the end
	reset bool          // the end is seen in spite of a cut
	fail  error         // reported at once, before anything in the queue
	dead  bool          // nobody receives any more; what is sent is dropped
	wake  chan struct{} // holds one: the state has changed
}

// cargo is something on its way.
type cargo struct {
	due  time.Time
	data []byte
	end  bool // the sender has closed
}

func newLane(w *wire, cut *bool) *lane {
	return &lane{wire: w, cut: cut, wake: make(chan struct{}, 1)}
}

// notify lets the receiver look at the lane again.
func (l *lane) notify() {
	select {
	case l.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// push sends c, not before what was sent earlier.
func (l *lane) push(c cargo) {
	if l.dead || l.fail != nil {
		return
	}
	at := len(l.queue)
	if at > 0 && l.queue[at-1].end {
		at-- // released after the sender closed
	}
	if at > 0 && c.due.Before(l.queue[at-1].due) {
		c.due = l.queue[at-1].due
	}
	l.queue = append(l.queue, cargo{})
	copy(l.queue[at+1:], l.queue[at:])
	l.queue[at] = c
	l.notify()
}

// kill drops what is on its way and all that is sent later.
func (l *lane) kill() {
	l.dead, l.queue = true, nil
	l.notify()
}

// abort makes the receiver see err at once.
func (l *lane) abort(err error) {
	if l.fail == nil {
		l.fail, l.queue = err, nil
	}
	l.notify()
}

// receive returns the next bytes that arrive, or an error: io.EOF after the
// sender closed, os.ErrDeadlineExceeded, or why the lane ended. Only one
// goroutine receives. deadline may change meanwhile; the lane is notified then.
func (l *lane) receive(deadline func() time.Time) ([]byte, error) {
	var timer *time.Timer
	for {
		mu := &l.wire.link.mu
		mu.Lock()
		data, until, err := l.arrive(time.Now(), deadline())
		mu.Unlock()
		if data != nil || err != nil {
			return data, err
		}
		var due <-chan time.Time
		switch {
		case until.IsZero():
		case timer == nil:
			timer = time.NewTimer(time.Until(until))
			defer timer.Stop()
			due = timer.C
		default:
			timer.Reset(time.Until(until))
			due = timer.C
		}
		select {
		case <-l.wake:
		case <-due:
		}
	}
}

// arrive returns what has arrived by now or, if nothing has, the time at which to
// look again, zero if only an event can change that.
func (l *lane) arrive(now, deadline time.Time) (data []byte, until time.Time, err error) {
	switch {
	case l.fail != nil:
		return nil, time.Time{}, l.fail
	case l.dead:
		return nil, time.Time{}, net.ErrClosed
	case !deadline.IsZero() && !now.Before(deadline):
		return nil, time.Time{}, os.ErrDeadlineExceeded
	}
	until = deadline
	if len(l.queue) == 0 {
		return nil, until, nil
	}
	first := l.queue[0]
	switch {
	case *l.cut && !(first.end && l.reset):
		return nil, until, nil
	case now.Before(first.due):
		if until.IsZero() || first.due.Before(until) {
			until = first.due
		}
		return nil, until, nil
	case first.end && l.held > 0:
		return nil, until, nil // what is held back goes first
	case first.end:
		return nil, time.Time{}, io.EOF
	}
	l.queue = l.queue[1:]
	return first.data, time.Time{}, nil
}
