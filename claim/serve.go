package claim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
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
	defer func() {
		h.busy <- struct{}{} // what the handler left running has noticed that it is over
		c.setFloor(s.name, h.rev)
		h.unlock()
	}()
	if !s.load(h) {
		return
	}
	log.InfoContext(h.ctx, "partition gained")
	failures := 0
	for {
		if s.verdict(h).do != keep && s.give(h, log) {
			return // it was gained only to be passed on
		}
		began := time.Now()
		p, result := s.start(h, handler, failures)
		err, drained := s.attend(p, result, log)
		var backoff time.Duration // 0 means: do not run again
		switch {
		case h.over() != nil:
		case err == nil && !drained:
			log.InfoContext(h.ctx, "handler has finished")
		case drained:
			if err != nil {
				log.WarnContext(h.ctx, "handler failed while it drained", slog.Any("err", err))
			}
			backoff = time.Nanosecond
		default:
			if time.Since(began) > s.c.opts.maxBackoff {
				failures = 0
			}
			failures++
			backoff = s.c.opts.pauseAfter(failures)
			log.WarnContext(h.ctx, "handler failed", slog.Any("err", err), slog.Int("attempts", failures), slog.Duration("again_in", backoff))
			s.count(h, failures)
		}
		if s.wait(h, backoff, log) {
			return
		}
	}
}

// wait keeps the claim while no handler runs. It reports true when the hold is
// over or was given away, and false when the handler is to run again: after
// backoff, or never if that is 0.
func (s *slot) wait(h *hold, backoff time.Duration, log *slog.Logger) bool {
	end, judge := newAlarm(), newAlarm()
	defer end.Stop()
	defer judge.Stop()
	end.set(backoff)
	silent := 0 // offers without an answer
	for {
		if err := h.over(); err != nil {
			log.WarnContext(h.ctx, "partition lost", slog.Any("err", err))
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
		case <-end.C:
			return false
		}
	}
}

// load reads the newest checkpoint. It was stored before the claim that this
// hold was gained by, and the leader that answered then has it; one that knows
// less than the claim's record says is behind and asked again.
func (s *slot) load(h *hold) bool {
	for h.over() == nil {
		e, err := s.read(h.sess, s.checkKey)
		switch {
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
func (s *slot) start(h *hold, handler Handler, failures int) (*Partition, <-chan error) {
	p := &Partition{
		hold: h, draining: make(chan struct{}), done: make(chan struct{}), attempts: failures,
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

// attend watches over the running handler until it has returned: it asks it to
// drain when the plan or the claimer's end says so, and cancels it when it takes
// too long. It returns the handler's error and whether it was asked to drain.
func (s *slot) attend(p *Partition, result <-chan error, log *slog.Logger) (err error, drained bool) {
	h := p.hold
	cause := ErrReturned
	defer func() {
		close(p.done)
		p.end(cause)
		s.c.setRunning(s.name, nil)
	}()
	deadline, judge, stuck := newAlarm(), newAlarm(), newAlarm()
	defer deadline.Stop()
	defer judge.Stop()
	defer stuck.Stop()
	ended := h.ctx.Done()
	silent := 0 // offers without an answer
	for {
		if !drained && h.ctx.Err() == nil {
			switch v := s.verdict(h); v.do {
			case keep:
				judge.set(v.wait)
			case move:
				// Who leaves need not know yet who is next.
				if !errors.Is(v.why, ErrStopped) && !s.c.offer(h.ctx, v.worker, v.epoch, s.name) {
					judge.set(offerPause(silent))
					silent++
					break
				}
				fallthrough
			case release:
				cause, drained = v.why, true
				close(p.draining)
				deadline.set(max(s.c.opts.drain, time.Nanosecond))
				log.DebugContext(h.ctx, "partition drains", slog.String("to", v.worker))
			}
		}
		select {
		case err = <-result:
			return err, drained
		case <-s.wake:
		case <-judge.C:
		case <-deadline.C:
			log.WarnContext(h.ctx, "handler did not drain in time, cancelling it", slog.Duration("after", s.c.opts.drain))
			p.end(ErrDrainDeadline)
			stuck.set(stuckEvery)
		case <-ended:
			ended = nil
			stuck.set(stuckEvery)
		case <-stuck.C:
			log.ErrorContext(h.ctx, "handler does not return though its context has ended", slog.Any("err", context.Cause(p.ctx)))
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

// count stores how often the handler has failed, for people to see.
func (s *slot) count(h *hold, failures int) {
	if h.lock(h.ctx) != nil {
		return
	}
	defer h.unlock()
	rec := h.mine()
	rec.Attempts = failures
	_, _ = h.rewrite(h.ctx, rec, nil) // the caller asks the hold
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
	if h.lock(h.ctx) != nil {
		return true
	}
	defer h.unlock()
	var data []byte
	if h.isStage {
		data = h.staged
	}
	end := EndedMoved
	if to.Owner == "" {
		end = EndedReleased
	}
	why, planned, layout := s.c.followed(s.name)
	next := h.record.successor(h.rev, end, why)
	next.Owner, next.Epoch, next.Attempts, next.Plan, next.Layout = to.Owner, to.Epoch, h.record.Attempts, planned, layout
	stands, err := h.rewrite(h.ctx, next, data)
	switch {
	case err != nil && h.over() == nil:
		// Not stored, for a reason that time does not cure (a denied subject, no
		// room). The claim ends with the session.
		log.ErrorContext(h.ctx, "partition could not be handed over", slog.Any("err", err))
		h.lose(fmt.Errorf("%w: it could not be handed over: %w", ErrStopped, err))
	case err != nil:
		log.WarnContext(h.ctx, "partition lost", slog.Any("err", err))
	case stands.Owner != "":
		s.c.tell(stands.Owner, stands.Epoch, message{Op: opYours, Partition: s.name, Revision: h.rev})
		log.InfoContext(h.ctx, "partition handed over", slog.String("to", stands.Owner), slog.Uint64("revision", h.rev))
	default:
		log.InfoContext(h.ctx, "partition given back", slog.Uint64("revision", h.rev))
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
