package kvlock

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"

	"tenure/kvlock/bucket"
)

// window is how many renewals and releases of a Locker are under way at a time. So many
// that a slow one holds up nobody, and so few that each is answered well within its
// timeout when very many holds are due.
const window = 1024

// An event is a reason to see to a hold. Events coalesce.
type event uint8

const (
	eventDue     event = 1 << iota // it is time to renew, or something happened to the key
	eventSomeone                   // somebody stands in line, read it ahead
	eventEnd                       // the hold has ended
)

// tell says that something happened.
func (k *Lock) tell(e event) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.happened(e)
}

// happened makes keep see to e. k.mu is held.
func (k *Lock) happened(e event) {
	k.events |= e
	if !k.kept {
		k.kept = true
		go k.keep()
	}
}

// keep sees to what happened, and when the hold has ended, to what is left of it on
// the server. It alone writes the lock's key during the hold, one write at a time
// (L3): it runs once at a time, and not at all while nothing happens, since a process
// may have very many holds. Loss by time does not wait for it: see check.
func (k *Lock) keep() {
	for {
		k.mu.Lock()
		e := k.events
		k.events, k.kept = 0, e != 0
		k.mu.Unlock()
		if e == 0 {
			return
		}
		if k.ctx.Context.Err() != nil {
			k.timer.Stop()
			if !k.finish(e) {
				continue // it rests
			}
			k.forget()
			k.finished()
			k.l.work.Done()
			return // as kept: nothing is seen to any more
		}
		if e&eventSomeone != 0 {
			k.readAhead()
		}
		if e&eventDue != 0 {
			k.renewOnTime()
		}
	}
}

// renewOnTime makes one attempt to renew and sets the time of the next.
func (k *Lock) renewOnTime() {
	select {
	case k.l.window <- struct{}{}:
	case <-k.ctx.Done():
		return
	}
	sent, ok := k.renew()
	<-k.l.window
	if !ok {
		k.timer.Reset(k.l.pause(k.fails))
		return
	}
	// Absolute times: a late timer does not move the schedule (K23).
	k.due = k.due.Add(k.l.lease.Every)
	if now := time.Now(); k.due.Before(now) || k.due.Sub(now) > k.l.lease.Every {
		k.due = sent.Add(k.l.lease.Every)
	}
	k.timer.Reset(max(0, time.Until(k.due)))
}

// firstRenewal returns when a hold that was gained just now is renewed first, if the
// Locker has n others. It is somewhere within the interval, so that holds that were
// gained together are not renewed together for ever: multiples of the golden ratio
// fill it evenly, however many there are.
func (l *Locker) firstRenewal(gained time.Time, n int64) time.Time {
	_, part := math.Modf(float64(n) * math.Phi)
	return gained.Add(l.lease.Every - time.Duration(part*float64(l.lease.Every)))
}

// pause returns how long to wait after a number of failures in a row: a few
// milliseconds, since another write may have been in flight, up to 50 if nobody
// answers, and more if there are so many holds that 50 would make a storm.
func (l *Locker) pause(fails int) time.Duration {
	most := 50*time.Millisecond + time.Duration(l.holds.Load())*25*time.Microsecond
	d := min(time.Millisecond<<min(max(fails, 1), 10), most)
	return d/2 + rand.N(d/2)
}

// renew makes one attempt to renew, read-back of an earlier doubtful one included.
// It reports success and when the confirmed write was sent. Loss ends k.ctx.
func (k *Lock) renew() (sent time.Time, ok bool) {
	k.mu.Lock()
	doubtful, timeout := len(k.doubts) > 0, k.l.lease.Timeout(k.trust)
	k.mu.Unlock()
	var err error
	if doubtful {
		if err = k.readBack(timeout); err != nil || k.ctx.Context.Err() != nil {
			return k.failed(err)
		}
	}
	k.mu.Lock()
	revision, prev, version := k.revision, k.nonce, k.version
	timeout = k.l.lease.Timeout(k.trust)
	k.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.WithoutCancel(k.ctx), timeout)
	defer cancel()
	a := attempt{nonce: bucket.Nonce(), sent: time.Now(), version: version}
	// Whoever reads the new record may ask for it before the acknowledgement is here.
	k.doubt(a)
	got, err := k.l.b.Write(ctx, bucket.Write{Key: k.key, Value: k.record(a.nonce, prev).encode(), Last: revision, TTL: k.l.lease.TTL})
	if err == nil {
		if !k.confirm(got, a) {
			k.check()
			return time.Time{}, false
		}
		if k.fails > 0 {
			k.l.log.InfoContext(k.ctx, "lock renewed again", slog.String("lock", k.name), slog.Uint64("token", k.token), slog.Int("failures", k.fails))
		}
		k.fails = 0
		k.l.trace.renewed(k, time.Since(a.sent))
		return a.sent, true
	}
	if notStored(err) {
		k.undoubt(a)
	}
	if errors.Is(err, bucket.ErrConflict) {
		if back := k.readBack(timeout); back != nil {
			err = back
		}
	}
	return k.failed(err)
}

// failed counts a failure and ends the hold if the error says that there is no way
// on.
func (k *Lock) failed(err error) (time.Time, bool) {
	if err == nil || k.ctx.Context.Err() != nil {
		return time.Time{}, false
	}
	k.fails++
	k.mu.Lock()
	k.trouble = err
	k.mu.Unlock()
	if k.fails == 1 {
		k.l.log.WarnContext(k.ctx, "lock not renewed, trying again", slog.String("lock", k.name), slog.Uint64("token", k.token),
			slog.Duration("remaining", k.Remaining()), slog.Any("err", err))
	}
	k.l.trace.renewFailed(k, err)
	switch {
	case errors.Is(err, nats.ErrConnectionClosed):
		k.lose(LostError{Reason: Closed, Err: err})
	case errors.Is(err, bucket.ErrGone):
		k.lose(LostError{Reason: Gone, Err: err})
	case k.fails%4 == 0:
		// Refusals look the same while there is no leader and after the bucket
		// was deleted.
		ctx, cancel := k.l.attempt(k.ctx)
		defer cancel()
		if err := k.l.b.Check(ctx); errors.Is(err, bucket.ErrGone) {
			k.lose(LostError{Reason: Gone, Err: err})
		}
	}
	return time.Time{}, false
}

// undoubt forgets a write that is known not to have been stored.
func (k *Lock) undoubt(a attempt) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, d := range k.doubts {
		if d.nonce == a.nonce {
			k.doubts = append(k.doubts[:i], k.doubts[i+1:]...)
			return
		}
	}
}

// notStored reports whether a write that failed with err certainly was not stored.
func notStored(err error) bool {
	return errors.Is(err, bucket.ErrConflict) || errors.Is(err, bucket.ErrBusy) || errors.Is(err, bucket.ErrFull)
}

// readBack reads the key and draws the conclusions that the entry allows (B3): it
// confirms a doubtful write, or ends the hold, or neither. The error says that the
// key could not be read.
func (k *Lock) readBack(timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(k.ctx), timeout)
	defer cancel()
	e, err := k.l.b.Get(ctx, k.key)
	if errors.Is(err, bucket.ErrNotFound) {
		// No evidence, but strange enough to ask whether it is the same bucket.
		if err := k.l.b.Check(ctx); errors.Is(err, bucket.ErrGone) {
			return err
		}
		return nil
	}
	if err != nil {
		return err
	}
	if err := k.l.b.Same(ctx, e.Revision); err != nil {
		return err
	}
	k.judge(e)
	return nil
}

// judge draws the conclusions that an entry of the key allows.
func (k *Lock) judge(e bucket.Entry) {
	k.mu.Lock()
	revision := k.revision
	k.mu.Unlock()
	if e.Revision <= revision {
		return // the last confirmed one, or an old leader's view: no evidence
	}
	if e.Marker {
		k.endedBy(e.Revision)
		k.lose(LostError{Reason: Removed})
		return
	}
	r, err := parseRecord(e)
	if err != nil {
		k.lose(LostError{Reason: Taken, Err: err})
		return
	}
	if a, ok := k.find(r.Nonce); ok {
		if !k.confirm(e.Revision, a) {
			k.check()
		}
		return
	}
	if r.State == stateRevoked && r.token(e.Revision) == k.token {
		k.endedBy(e.Revision)
		k.lose(LostError{Reason: Revoked, Text: r.Reason})
		return
	}
	k.lose(LostError{Reason: Taken, By: r.Owner, Next: r.token(e.Revision)})
}

// endedBy notes the entry that is about to end the hold.
func (k *Lock) endedBy(revision uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ender = revision
}

// find returns the doubtful write with the nonce.
func (k *Lock) find(nonce string) (attempt, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, a := range k.doubts {
		if a.nonce == nonce {
			return a, true
		}
	}
	return attempt{}, false
}

// record returns the record of the hold, as the write with the nonce has it.
func (k *Lock) record(nonce, prev string) *record {
	k.mu.Lock()
	value := k.value
	k.mu.Unlock()
	return &record{
		Kind:    k.kind,
		Owner:   k.l.owner,
		Process: k.l.id,
		Nonce:   nonce,
		Prev:    prev,
		Since:   k.since,
		TTL:     int64(k.l.lease.TTL / time.Second),
		Token:   k.token,
		Note:    k.l.note,
		Value:   value,
	}
}
