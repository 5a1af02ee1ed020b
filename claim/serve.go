package claim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"tenure/kvlock/bucket"
)

// stuckEvery is how often a handler that ignores its end is reported.
const stuckEvery = 10 * time.Second

// serve runs the handler under the hold, again and again while the claim is to
// be kept, and gives the claim away when the plan says so. When it returns the
// handler has returned and the hold is over.
func (s *slot) serve(h *hold, handler Handler) {
	c := s.c
	log := c.log.With(slog.String("partition", s.name), slog.Uint64("token", h.token))
	s.holding.Store(h)
	defer s.outlive(log)
	defer func() {
		s.holding.Store(nil)
		h.busy <- struct{}{} // what the handler left running has noticed that it is over
		c.setFloor(s.name, h.rev)
		h.unlock()
	}()
	if !s.load(h) {
		return
	}
	log.InfoContext(h.ctx, "partition gained")
	c.opts.trace.gained(h)
	for {
		if s.verdict(h).do != keep && s.give(h, log) {
			return // it was gained only to be passed on
		}
		c.awaitPrepared(h.ctx, s.name)
		p, result := s.start(h, handler)
		end := s.attend(p, result, log)
		if h.failures > 0 && (p.lasted() > c.opts.maxBackoff || end.err == nil && !end.stalled && s.left == nil) {
			h.failures = 0
		}
		var backoff time.Duration // 0 means: do not run again
		switch {
		case h.over() != nil:
		case end.stalled:
			h.failures++
			backoff = s.c.opts.pauseAfter(h.failures)
			if s.verdict(h).do == keep && s.giveUp(h, ErrStalled, log) {
				return
			}
		case end.err == nil && !end.drained:
			log.InfoContext(h.ctx, "handler has finished")
		case end.drained:
			if end.err != nil {
				log.WarnContext(h.ctx, "handler failed while it drained", slog.Any("err", end.err))
			}
			backoff = time.Nanosecond
		default:
			h.failures++
			backoff = s.c.opts.pauseAfter(h.failures)
			if s.spoiled(h.failures) {
				backoff = 0
			}
			log.WarnContext(h.ctx, "handler failed", slog.Any("err", end.err), slog.Int("attempts", h.failures), slog.Duration("again_in", backoff))
			c.opts.trace.failed(h, end.err, backoff)
			if backoff == 0 && s.giveUp(h, end.err, log) {
				return
			}
			backoff = s.c.opts.pauseAfter(h.failures)
			s.count(h, end.err)
		}
		if s.wait(h, backoff, log) {
			return
		}
	}
}

// spoiled reports whether so many failures in a row mean quarantine.
func (s *slot) spoiled(failures int) bool {
	return s.c.opts.quarantine > 0 && failures >= s.c.opts.quarantine
}

// outlive waits for a handler that was overrun, when its claim is over.
func (s *slot) outlive(log *slog.Logger) {
	stuck := time.NewTicker(stuckEvery)
	defer stuck.Stop()
	for s.left != nil {
		select {
		case <-s.left:
			s.leave()
			log.Info("handler that was overrun has returned")
		case <-stuck.C:
			log.Error("handler that was overrun does not return")
		}
	}
}

// leave notes that the handler which was overrun has returned.
func (s *slot) leave() {
	s.left = nil
	s.c.setBusy(s.name, false)
}

// wait keeps the claim while no handler runs. It reports true when the hold is
// over or was given away, and false when the handler is to run again: after
// backoff, or never if that is 0.
func (s *slot) wait(h *hold, backoff time.Duration, log *slog.Logger) bool {
	end, judge := newAlarm(), newAlarm()
	defer end.Stop()
	defer judge.Stop()
	if s.left == nil {
		end.set(backoff)
	}
	silent := 0 // offers without an answer
	for {
		if err := h.over(); err != nil {
			s.lost(h, err, log)
			return true
		}
		v := s.verdict(h)
		if v.do != keep {
			if s.give(h, log) {
				return true
			}
			v.wait = offerPause(silent) // nobody there to take it
			silent++
		}
		judge.set(v.wait)
		select {
		case <-s.wake:
		case <-judge.C:
		case <-h.ctx.Done():
		case <-s.left:
			s.leave()
			end.set(backoff)
		case <-end.C:
			return false
		}
	}
}

// lost reports that the claim has ended against the will of this worker.
func (s *slot) lost(h *hold, cause error, log *slog.Logger) {
	log.WarnContext(h.ctx, "partition lost", slog.Any("err", cause))
	s.c.opts.trace.lost(h, cause)
}

// load reads the newest checkpoint. It was stored before the claim that this
// hold was gained by, and the leader that answered then has it; one that knows
// less than the claim's record says is behind and asked again.
func (s *slot) load(h *hold) bool {
	for h.over() == nil {
		e, err := s.read(h.sess, s.checkKey)
		switch {
		case h.degraded() != nil: // nothing is begun without trust
		case err == nil && e.Revision >= h.check:
			if !e.Marker {
				h.check, h.saved = e.Revision, e.Value
			}
			return true
		case errors.Is(err, bucket.ErrNotFound) && h.check == 0:
			return true
		}
		_ = pause(h.ctx, retryPause) // the loop asks the hold
	}
	return false
}

// start calls the handler in a goroutine of its own.
func (s *slot) start(h *hold, handler Handler) (*Partition, <-chan error) {
	p := &Partition{
		hold: h, draining: make(chan struct{}), done: make(chan struct{}), attempts: h.failures, began: time.Now(),
	}
	// What an earlier call staged is newer than what was saved: it will be stored
	// with the hand-over, so this call goes on from there.
	h.busy <- struct{}{} // an earlier call may have left a write under way
	checkpoint := h.saved
	if h.isStage {
		checkpoint = h.staged
	}
	h.unlock()
	if checkpoint != nil {
		p.checkpoint = append([]byte{}, checkpoint...)
	}
	p.ctx, p.end = context.WithCancelCause(h.ctx)
	s.c.setRunning(s.name, p)
	s.c.setBusy(s.name, true)
	if !h.idle.IsZero() {
		s.c.opts.trace.moved(h, max(0, time.Since(h.idle)))
		h.idle = time.Time{}
	}
	result := make(chan error, 1)
	go func() {
		err := errors.New("handler ended its goroutine") // runtime.Goexit
		defer func() {
			if v := recover(); v != nil {
				err = &PanicError{Value: v, Stack: debug.Stack()}
			}
			result <- err
		}()
		err = handler(p.ctx, p)
	}()
	return p, result
}

// An ending is how a handler came to its end.
type ending struct {
	err     error
	drained bool // it was asked to drain
	stalled bool // it was cancelled because it made no progress
}

// attend watches over the running handler until it has returned: it asks it to
// drain when the plan or the claimer's end says so, cancels it when it takes too
// long, and looks whether it makes progress. It returns early, and leaves the result
// to s.left, if the handler is to be overrun; the Partition is of no use then.
func (s *slot) attend(p *Partition, result <-chan error, log *slog.Logger) (end ending) {
	h, opts := p.hold, &s.c.opts
	cause := ErrReturned
	h.asked, h.returned = time.Time{}, time.Time{}
	defer func() {
		close(p.done)
		p.end(cause)
		s.c.setRunning(s.name, nil)
		if s.left == nil {
			s.c.setBusy(s.name, false)
		}
		if end.drained {
			h.returned = time.Now()
		}
	}()
	deadline, judge, stuck, force, stall := newAlarm(), newAlarm(), newAlarm(), newAlarm(), newAlarm()
	for _, a := range []alarm{deadline, judge, stuck, force, stall} {
		defer a.Stop()
	}
	stall.set(opts.stall)
	ended := h.ctx.Done()
	silent := 0 // offers without an answer
	for {
		if !end.drained && h.ctx.Err() == nil {
			switch v := s.verdict(h); v.do {
			case keep:
				judge.set(v.wait)
			case move:
				// Who leaves need not know yet who is next, who may prepare all the same.
				if errors.Is(v.why, ErrStopped) {
					s.c.announce(v.worker, v.epoch, s.name)
				} else if !s.c.offer(h.ctx, v.worker, v.epoch, s.name) {
					judge.set(offerPause(silent))
					silent++
					break
				}
				fallthrough
			case release:
				cause, end.drained = v.why, true
				h.asked = time.Now()
				close(p.draining)
				deadline.set(max(opts.drain, time.Nanosecond))
				stall.set(0)
				log.DebugContext(h.ctx, "partition drains", slog.String("to", v.worker))
				opts.trace.draining(h, v.why)
			}
		}
		if p.stalled.Load() && p.silent() < opts.stall && !end.stalled {
			p.stalled.Store(false)
			log.InfoContext(h.ctx, "handler makes progress again")
			go h.mark(p)
			stall.set(opts.stall - p.silent())
		}
		select {
		case end.err = <-result:
			return end
		case <-s.wake:
		case <-judge.C:
		case <-deadline.C:
			log.WarnContext(h.ctx, "handler did not drain in time, cancelling it", slog.Duration("after", opts.drain))
			p.end(ErrDrainDeadline)
			stuck.set(stuckEvery)
			force.set(opts.force)
		case <-stall.C:
			silent := p.silent()
			switch {
			case silent < opts.stall:
				stall.set(opts.stall - silent)
			default:
				log.WarnContext(h.ctx, "handler makes no progress", slog.Duration("since", silent), slog.Bool("given_up", opts.giveUp))
				p.stalled.Store(true)
				go h.mark(p)
				opts.trace.stalled(h, silent)
				if opts.giveUp {
					end.stalled = true
					p.end(ErrStalled)
					stuck.set(stuckEvery)
					force.set(opts.force)
				}
			}
		case <-force.C:
			log.ErrorContext(h.ctx, "handler is overrun: its partition is given away while it runs", slog.Any("err", context.Cause(p.ctx)))
			s.left = result
			opts.trace.overrun(h)
			return end
		case <-ended:
			ended = nil
			stuck.set(stuckEvery)
		case <-stuck.C:
			log.ErrorContext(h.ctx, "handler does not return though its context has ended", slog.Any("err", context.Cause(p.ctx)))
			opts.trace.stuck(h, context.Cause(p.ctx))
			stuck.set(stuckEvery)
		}
	}
}

// An alarm is a timer that need not be set.
type alarm struct{ *time.Timer }

func newAlarm() alarm {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return alarm{t}
}

// set sets the alarm to go off after d, or not at all if d is 0 or less.
func (a alarm) set(d time.Duration) {
	a.Stop()
	if d > 0 {
		a.Reset(d)
	}
}

// count stores how often the handler has failed, and how, for people to see.
func (s *slot) count(h *hold, err error) {
	if h.lock(h.ctx) != nil {
		return
	}
	defer h.unlock()
	rec := h.mine()
	rec.Attempts, rec.Error, rec.Stalled = h.failures, short(err), false
	_, _ = h.rewrite(h.ctx, rec, nil) // the caller asks the hold
}

// short returns the text of an error, cut to what a claim record has room for.
func short(err error) string {
	const most = 200
	text := strings.ToValidUTF8(err.Error(), "?")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// An action is what should become of a held claim.
type action int

const (
	keep action = iota
	move
	release // to nobody
)

type verdict struct {
	do     action
	why    error
	worker string // move to
	epoch  uint64
	wait   time.Duration // keep: judge again after so long, 0 for at the next wake-up
	stay   bool          // release: not to anybody, the worker comes back for it
}

// verdict says what the plan and the claimer's state ask for.
func (s *slot) verdict(h *hold) verdict {
	to, revision, known := s.c.target(s.name)
	// A claim can arrive before the plan by which it was handed over: an older
	// plan says nothing about it.
	known = known && revision >= h.plan
	mine := to.ID == s.c.id
	switch stopping, since := s.c.stopping(); {
	case s.c.removed(s.name, h.layout):
		return verdict{do: release, why: ErrRemoved}
	case stopping && s.c.opts.restart:
		return verdict{do: release, why: ErrStopped, stay: true}
	case stopping && known && to.ID != "" && !mine:
		return verdict{do: move, why: ErrStopped, worker: to.ID, epoch: to.Epoch}
	case stopping && (known && to.ID == "" || since >= pollPause):
		return verdict{do: release, why: ErrStopped}
	case stopping:
		return verdict{do: keep, wait: pollPause - since} // the leader is told; its plan will come
	case !known || mine:
		return verdict{do: keep}
	case to.ID == "":
		return verdict{do: release, why: ErrPaused}
	}
	return verdict{do: move, why: ErrMoved, worker: to.ID, epoch: to.Epoch}
}

// give hands the claim over, or gives it back, in one atomic write with the
// staged checkpoint. It reports false if the claim is to be kept after all,
// which is possible only while nothing was sent: after that the partition must
// not run under this token again (rule C4).
//
//	a sends claim → b, times out, reads "still mine" and runs on; the write
//	arrives; b runs too.
//
// So once begun it goes on until the outcome is known or the session is over.
func (s *slot) give(h *hold, log *slog.Logger) bool {
	var to record
	v := s.verdict(h)
	switch {
	case v.do == keep:
		return false
	case v.stay:
		s.putDown(h, log)
		return true
	case v.do == move && s.c.offer(h.ctx, v.worker, v.epoch, s.name):
		to = record{Owner: v.worker, Epoch: v.epoch}
	case v.do == move && !errors.Is(v.why, ErrStopped):
		return false // nobody there: run on and try again later
	}
	end := EndedMoved
	if to.Owner == "" {
		end = EndedReleased
	}
	return s.part(h, to, end, log)
}

// giveUp gives the claim back after a failure of the handler, into quarantine if it
// was one too many, and reports false if the claim is to be kept after all.
func (s *slot) giveUp(h *hold, err error, log *slog.Logger) bool {
	to := record{Avoid: s.c.id, Error: short(err)}
	if to.Quarantined = s.spoiled(h.failures); !to.Quarantined {
		return s.part(h, to, EndedFailed, log)
	}
	gone := s.part(h, to, EndedQuarantined, log)
	if gone && h.over() == nil {
		log.ErrorContext(h.ctx, "partition is in quarantine", slog.Int("attempts", h.failures), slog.Any("err", err))
		s.c.opts.trace.quarantined(s.name, h.failures, err)
	}
	return gone
}

// part makes the write that ends the hold: to says who shall own the partition and
// what the failure was, if it was one. It reports false if nothing can be sent now.
func (s *slot) part(h *hold, to record, end string, log *slog.Logger) bool {
	if h.lock(h.ctx) != nil {
		return true
	}
	defer h.unlock()
	if h.degraded() != nil {
		if stopping, _ := s.c.stopping(); stopping {
			h.lose(fmt.Errorf("%w: the store is away", ErrStopped)) // the claim ends with the session
			return true
		}
		return false
	}
	var data []byte
	if h.isStage {
		data = h.staged
	}
	why, planned, layout := s.c.followed(s.name)
	next := h.record.successor(h.rev, end, why)
	next.Owner, next.Epoch, next.Attempts, next.Plan, next.Layout = to.Owner, to.Epoch, h.failures, planned, layout
	next.Avoid, next.Error, next.Quarantined = to.Avoid, to.Error, to.Quarantined
	stands, err := h.rewrite(h.ctx, next, data)
	switch {
	case err != nil && h.over() == nil:
		// Not stored, for a reason that time does not cure (a denied subject, no
		// room). The claim ends with the session.
		log.ErrorContext(h.ctx, "partition could not be handed over", slog.Any("err", err))
		h.lose(fmt.Errorf("%w: it could not be handed over: %w", ErrStopped, err))
		s.c.opts.trace.lost(h, err)
	case err != nil:
		s.lost(h, err, log)
	case stands.Owner != "":
		s.c.tell(stands.Owner, stands.Epoch, message{Op: opYours, Partition: s.name, Revision: h.rev})
		log.InfoContext(h.ctx, "partition handed over", slog.String("to", stands.Owner), slog.Uint64("revision", h.rev))
		s.c.opts.trace.handedOver(h, stands.Owner)
	default:
		log.InfoContext(h.ctx, "partition given back", slog.Uint64("revision", h.rev))
		s.c.opts.trace.handedOver(h, "")
	}
	return true
}

// putDown leaves the claim to a later session of this worker, with what was staged.
func (s *slot) putDown(h *hold, log *slog.Logger) {
	if h.lock(h.ctx) != nil {
		return
	}
	defer h.unlock()
	if h.isStage {
		if _, err := h.rewrite(h.ctx, h.mine(), h.staged); err != nil {
			log.ErrorContext(h.ctx, "staged checkpoint could not be stored", slog.Any("err", err))
			return
		}
	}
	log.InfoContext(h.ctx, "partition put down for a restart")
}
