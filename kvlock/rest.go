package kvlock

import (
	"context"
	"time"

	"tenure/kvlock/bucket"
)

// restEnd returns when the minimum hold is over.
func (k *Lock) restEnd() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.began.Add(k.l.minHold)
}

// rest gives the lock back but keeps it barred for what is left of its minimum hold
// (L15): the record becomes a tombstone whose TTL is that, rounded up. It is no marker,
// so nobody takes the lock by its revision; whoever comes stands in line and tells this
// process, which ends it on time as it ends a hold. It reports whether all is over.
func (k *Lock) rest() (over bool) {
	ttl := (time.Until(k.restEnd()) + time.Second - 1).Truncate(time.Second)
	nonce := bucket.Nonce()
	k.mu.Lock()
	k.resting = true // it takes notes, though it is over
	k.doubts = append(k.doubts, attempt{nonce: nonce})
	r := k.record(nonce)
	k.mu.Unlock()
	r.State, r.TTL = stateResting, int64(ttl/time.Second)
	revision, err := k.replace(bucket.Write{Value: r.encode(), TTL: ttl})
	k.mu.Lock()
	k.revision, k.nonce = max(k.revision, revision), nonce
	k.mu.Unlock()
	k.conclude(err)
	close(k.done)
	if revision == 0 {
		return true // it has ended by itself, or nobody answers
	}
	k.timer.Reset(max(0, time.Until(k.restEnd())))
	k.unbar = context.AfterFunc(k.l.ctx, func() { k.tell(eventEnd) })
	return false
}

// restOn sees to an event of a hold that rests: it is time, somebody broke the
// tombstone, somebody stands in line, or the Locker is closed.
func (k *Lock) restOn(e event) (over bool) {
	if k.l.ctx.Err() != nil {
		return true // it ends by its TTL
	}
	if left := time.Until(k.restEnd()); left > 0 && (e&eventDue == 0 || !k.replaced()) {
		if e&eventSomeone != 0 {
			k.readAhead()
		}
		k.timer.Reset(left)
		return false
	}
	k.unbar()
	_ = k.free() // if it cannot, the tombstone ends by its TTL
	return true
}

// replaced reports whether something newer than the tombstone is seen at the key.
func (k *Lock) replaced() bool {
	_, at, _ := k.l.see(context.WithoutCancel(k.ctx), k.key)
	return at > k.Revision()
}
