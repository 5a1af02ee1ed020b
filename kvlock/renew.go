package kvlock

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"

	"tenure/kvlock/bucket"
)

// keep renews the hold until it ends, and then ends what is left of it on the
// server. It alone writes the lock's key during the hold, one write at a time (L3).
// Loss by time does not wait for it: see check.
func (k *Lock) keep(gained time.Time) {
	defer k.l.work.Done()
	defer close(k.done)
	defer k.forget()

	switch {
	case k.ahead != nil:
		k.going = true
		go k.leaveLine()
	case k.waiter != nil:
		k.readAhead()
	}
	// Absolute times: a late timer does not move the schedule (K23).
	due := gained.Add(k.l.lease.Every)
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	for {
		ahead := false
		select {
		case <-k.ctx.Done():
		case <-k.someone:
			ahead = true
		case <-k.look:
		case <-timer.C:
		}
		if k.ctx.Context.Err() != nil {
			k.finish()
			return
		}
		if ahead {
			k.readAhead()
			continue
		}
		if sent, ok := k.renew(); ok {
			due = due.Add(k.l.lease.Every)
			if now := time.Now(); due.Before(now) || due.Sub(now) > k.l.lease.Every {
				due = sent.Add(k.l.lease.Every)
			}
			timer.Reset(max(0, time.Until(due)))
		} else {
			timer.Reset(k.l.pause(k.fails))
		}
	}
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
	revision, prev := k.revision, k.nonce
	timeout = k.l.lease.Timeout(k.trust)
	k.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.WithoutCancel(k.ctx), timeout)
	defer cancel()
	a := attempt{nonce: bucket.Nonce(), sent: time.Now()}
	// Whoever reads the new record may ask for it before the acknowledgement is here.
	k.doubt(a)
	got, err := k.l.b.Write(ctx, bucket.Write{Key: k.key, Value: k.record(a.nonce, prev), Last: revision, TTL: k.l.lease.TTL})
	if err == nil {
		if !k.confirm(got, a) {
			k.check()
			return time.Time{}, false
		}
		if k.fails > 0 {
			k.l.log.InfoContext(k.ctx, "lock renewed again", slog.String("lock", k.name), slog.Uint64("token", k.token), slog.Int("failures", k.fails))
		}
		k.fails = 0
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
func (k *Lock) record(nonce, prev string) []byte {
	r := record{
		Owner:   k.l.owner,
		Process: k.l.id,
		Nonce:   nonce,
		Prev:    prev,
		Since:   k.since,
		TTL:     int64(k.l.lease.TTL / time.Second),
		Token:   k.token,
		Note:    k.l.note,
	}
	return r.encode()
}
