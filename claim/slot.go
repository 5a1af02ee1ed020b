package claim

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"tenure/claim/plan"
	"tenure/kvlock/bucket"
)

// A slot is one partition as this process deals with it. Its goroutine alone
// takes the claim, runs the handler and gives the claim away, in this order, so
// there is never more than one handler of a partition in the process, over all
// sessions (rule C10).
//
//	       planned for us, or told so
//	idle ──────────────────────────────▶ gain ──▶ serve ──▶ give ──▶ idle
//	 ▲                                    │         │
//	 └── not planned any more ────────────┘         └── claim or session lost
type slot struct {
	c        *Claimer
	name     string
	claimKey string
	checkKey string
	wake     chan struct{} // holds one: look at the plan again
	left     <-chan error  // result of a handler that was overrun and still runs; nil if there is none

	holding atomic.Pointer[hold] // that is served, nil for none
}

// signal wakes the slot's goroutine.
func (s *slot) signal() {
	select {
	case s.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// run lives until the partition does not concern this worker any more.
func (s *slot) run(handler Handler) {
	defer s.c.slotsDone.Done()
	polled := false
	for {
		sess := s.c.session.Load()
		h, concerned := s.gain(sess, polled)
		if h != nil {
			s.serve(h, handler)
			polled = false
			continue
		}
		if !concerned && s.c.retire(s) {
			return
		}
		polled = s.rest(sess, pollPause)
	}
}

// rest waits for a wake-up or for d, and reports whether d has passed.
func (s *slot) rest(sess *session, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	var lost <-chan struct{}
	if sess != nil && sess.ctx.Err() == nil {
		lost = sess.ctx.Done()
	}
	select {
	case <-s.wake:
	case <-lost:
	case <-timer.C:
		return true
	}
	return false
}

// gain takes the claim if the plan gives the partition to this session, or
// accepts one that names it already. It returns nil if there is nothing to hold
// now, and whether there may be soon.
func (s *slot) gain(sess *session, polled bool) (h *hold, concerned bool) {
	if sess.over() {
		return nil, false
	}
	layout := s.c.layout() // of the plan below, or an older one
	want, why := s.c.wants(sess, s.name)
	hinted := s.c.takeHint(s.name)
	if !want && !hinted {
		return nil, false
	}
	// What moves comes by itself, with a hint; look after a while if not.
	if !hinted && !polled && (why == plan.Balanced || why == plan.Drained || why == plan.Overflow) {
		return nil, true
	}
	s.c.window <- struct{}{}
	defer func() { <-s.c.window }()

	e := bucket.Entry{Marker: true} // nobody ever had it: the cheapest guess
	known := why == plan.Placed && !hinted && !polled
	for !sess.over() {
		if !known {
			var err error
			if e, err = s.read(sess, s.claimKey); errors.Is(err, bucket.ErrNotFound) {
				e = bucket.Entry{Marker: true}
			} else if err != nil {
				return nil, true
			}
		}
		known = false
		rec, err := parseRecord(e)
		switch {
		case e.Marker:
			rec = record{}
		case err != nil:
			s.c.log.ErrorContext(sess.ctx, "claim key holds bytes that are no record", slog.String("partition", s.name), slog.Any("err", err))
			return nil, true
		case rec.Owner == s.c.id && rec.Epoch == sess.epoch:
			// Only this session can change such a record. One that is not above
			// what was given away here is an old copy (rule C3).
			if e.Revision <= s.c.floor(s.name) {
				return nil, true
			}
			h = s.hold(sess, e.Revision, rec)
			if rec.By != s.c.id && rec.Idle != nil {
				h.idle = e.Time.Add(-time.Duration(*rec.Idle) * time.Microsecond)
			}
			return h, true
		case !want:
			return nil, false // the hint was late
		case s.c.rescuing(s.name) != 0 && (rec.Owner == "" && (s.c.behind(rec) || rec.Quarantined) || rec.Owner != "" && !s.c.ended(sess.ctx, rec.Owner, rec.Epoch)):
			s.c.giveUp(s.name) // somebody's, or to be somebody's
			return nil, false
		case rec.Owner == "" && s.c.behind(rec):
			// It was given back by a plan or settings that this worker has not seen yet.
			return nil, true
		case rec.Quarantined:
			return nil, true // the plan will say so
		case rec.Avoid == s.c.id && time.Since(time.UnixMilli(rec.At)) < max(2*pollPause, s.c.opts.pauseAfter(rec.Attempts)):
			return nil, true // the plan will give it to another worker, if there is one
		case rec.Owner != "" && !s.c.ended(sess.ctx, rec.Owner, rec.Epoch):
			s.c.tell(rec.Owner, rec.Epoch, message{Op: opYield, Partition: s.name, Revision: e.Revision})
			return nil, true
		}
		rev, mine, ok := s.take(sess, e.Revision, rec, layout, why)
		if ok {
			return s.hold(sess, rev, mine), true
		}
		layout = s.c.layout()
		if want, why = s.c.wants(sess, s.name); !want {
			return nil, false
		}
	}
	return nil, false
}

// hold begins the hold of a claim that is this session's.
func (s *slot) hold(sess *session, rev uint64, rec record) *hold {
	h := newHold(s, sess, rev, rec)
	h.plan = max(h.plan, s.c.rescuing(s.name)) // the plan that left it alone says nothing
	return h
}

// take makes the claim by CAS on the revision seen. If the outcome is not known,
// the caller reads: a claim that names this session is its own, whichever try it
// came from.
func (s *slot) take(sess *session, expect uint64, old record, layout uint64, why plan.Reason) (rev uint64, mine record, ok bool) {
	mine = old.successor(expect, EndedDied, why)
	mine.Version, mine.Owner, mine.Epoch = recordVersion, s.c.id, sess.epoch
	mine.Nonce, mine.Prev, mine.By = bucket.Nonce(), old.Nonce, s.c.id
	mine.Check, mine.Layout, mine.Attempts = old.check(expect), layout, old.Attempts
	try, cancel := context.WithTimeout(sess.ctx, sess.timeout())
	defer cancel()
	rev, err := s.c.bucket.Write(try, bucket.Write{Key: s.claimKey, Last: expect, Value: encode(mine)})
	if err == nil {
		return rev, mine, true
	}
	if !errors.Is(err, bucket.ErrConflict) {
		s.c.log.DebugContext(sess.ctx, "take", slog.String("partition", s.name), slog.Any("err", err))
		_ = pause(sess.ctx, retryPause) // the caller asks the session
	}
	return 0, mine, false
}

// read reads a key at the leader.
func (s *slot) read(sess *session, key string) (bucket.Entry, error) {
	try, cancel := context.WithTimeout(sess.ctx, sess.timeout())
	defer cancel()
	return s.c.bucket.Get(try, key)
}
