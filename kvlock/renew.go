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
			if !k.resting {
				close(k.done)
			}
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
	doubtful := len(k.doubts) > 0
	k.mu.Unlock()
	if doubtful {
		if err := k.readBack(); err != nil || k.ctx.Context.Err() != nil {
			return k.failed(err)
		}
	}
	a := attempt{nonce: bucket.Nonce(), sent: time.Now()}
	k.mu.Lock()
	timeout := k.l.lease.Timeout(k.trust)
	a.version = k.version
	r := k.record(a.nonce)
	write := bucket.Write{Key: k.key, Value: r.encode(), Last: k.revision, TTL: k.l.lease.TTL}
	// Whoever reads the new record may ask for it before the acknowledgement is here.
	k.doubts = append(k.doubts, a)
	k.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.WithoutCancel(k.ctx), timeout)
	defer cancel()
	revision, err := k.l.b.Write(ctx, write)
	if err == nil {
		if !k.confirm(revision, a) {
			return time.Time{}, false
		}
		if k.fails > 0 {
			k.l.log.InfoContext(k.ctx, "lock renewed again", slog.String("lock", k.name), slog.Uint64("token", k.token), slog.Int("failures", k.fails))
		}
		k.fails = 0
		if f := k.l.trace.Renewed; f != nil {
			f(k.name, k.token, time.Since(a.sent))
		}
		return a.sent, true
	}
	if notStored(err) {
		k.mu.Lock()
		k.doubts = k.doubts.without(a.nonce)
		k.mu.Unlock()
	}
	if errors.Is(err, bucket.ErrConflict) {
		if back := k.readBack(); back != nil {
			err = back
		}
	}
	return k.failed(err)
}

// record returns the record of the hold, as the write with the nonce has it. k.mu is held.
func (k *Lock) record(nonce string) record {
	r := k.l.newRecord(k.kind, nonce, k.since, k.l.lease.TTL)
	r.Prev, r.Token, r.Value = k.nonce, k.token, k.value
	return r
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
	if f := k.l.trace.RenewFailed; f != nil {
		f(k.name, k.token, k.Remaining(), err)
	}
	if k.fails%4 == 0 && !errors.Is(err, bucket.ErrGone) {
		// Refusals look the same while there is no leader and after the bucket
		// was deleted.
		ctx, cancel := k.l.attempt(k.ctx)
		defer cancel()
		if gone := k.l.b.Check(ctx); errors.Is(gone, bucket.ErrGone) {
			err = gone
		}
	}
	switch {
	case errors.Is(err, nats.ErrConnectionClosed):
		k.lose(LostError{Reason: Closed, Err: err})
	case errors.Is(err, bucket.ErrGone):
		k.lose(LostError{Reason: Gone, Err: err})
	}
	return time.Time{}, false
}

// readBack reads the key and draws the conclusions that the entry allows (B3): it
// confirms a doubtful write, or ends the hold, or neither. The error says that the
// key could not be read.
func (k *Lock) readBack() error {
	k.mu.Lock()
	timeout := k.l.lease.Timeout(k.trust)
	k.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(k.ctx), timeout)
	defer cancel()
	r, at, err := k.l.see(ctx, k.key)
	bad := errors.Is(err, ErrRecord)
	if err != nil && !bad {
		return err
	}
	if at == 0 {
		// No evidence, but strange enough to ask whether it is the same bucket.
		if gone := k.l.b.Check(ctx); errors.Is(gone, bucket.ErrGone) {
			return gone
		}
		return nil
	}
	if err := k.l.b.Same(ctx, at); err != nil {
		return err
	}
	k.mu.Lock()
	old := at <= k.revision
	var a attempt
	var mine, revoked bool
	if r != nil {
		a, mine = k.doubts.find(r.Nonce)
		revoked = r.State == stateRevoked && r.token() == k.token
	}
	if !old && !mine {
		k.ender = at
	}
	k.mu.Unlock()
	switch {
	case old: // the last confirmed one, or an old leader's view: no evidence
	case bad:
		k.lose(LostError{Reason: Taken, Err: err})
	case r == nil:
		k.lose(LostError{Reason: Removed})
	case mine:
		k.confirm(at, a)
	case revoked:
		k.lose(LostError{Reason: Revoked, Text: r.Reason})
	default:
		k.lose(LostError{Reason: Taken, By: r.Owner, Next: r.token()})
	}
	return nil
}
