package kvlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"tenure/kvlock/bucket"
)

// A Lock is one hold of a lock, from [Locker.TryLock] or [Locker.Lock] to its
// release or loss. A hold that has ended never comes back. Its methods may be
// called concurrently.
type Lock struct {
	l     *Locker
	kind  kind
	name  string
	enc   string // names the line
	part  string // the slot, or the id of a reader
	key   string
	token uint64
	since time.Time

	ctx      *holdContext
	end      context.CancelCauseFunc
	once     sync.Once     // for the first Release
	released chan struct{} // closed by it
	done     chan struct{} // closed when the key is free, or not ours, or rests
	guarded  bool          // by do, which releases it
	ticket   place         // that it was gained with, zero if with none
	pen      chan struct{} // holds one while a fenced write is under way, which owns ghost
	ghost    uint64        // the fence of a write that may still be under way, 0 for none

	// Of keep alone.
	due   time.Time   // the next renewal
	timer *time.Timer // for it, and for the end of the minimum hold
	unbar func() bool // stops what ends that early
	ahead *reading    // of the first ticket, under way or done; nil: none
	low   uint64      // no ticket stands below, by own reading; 0: not known
	start uint64      // where to begin to read the line
	fails int         // renewals that failed since the last that did not

	mu       sync.Mutex
	events   event  // that keep has not seen yet
	kept     bool   // keep runs, or has run for the last time
	revision uint64 // the newest confirmed one
	nonce    string // of the write that got it
	trust    bucket.Trust
	sent     time.Time   // when the write was sent that it is in
	began    time.Time   // for its owner, zero if it has not
	limit    time.Time   // when it is lost at the latest, zero for never
	lapse    *time.Timer // fires when trust ends
	doubts   attempts    // renewals whose outcome is unknown
	lost     *LostError  // nil until it is lost
	over     bool        // lost or released: not believed in any more
	resting  bool        // released, and barred until its minimum hold is over
	notes    notes
	ender    uint64   // revision of the entry that ended the hold, 0 for none
	decided  bool     // its release has begun: too late to be noted
	trouble  error    // why the last renewal failed, nil if it did not
	outcome  error    // of the release; set before done is closed
	pending  *pending // kindGate: the readers it waits for; nil before and after
	value    string   // of a leader
	version  uint64   // of value
	shown    uint64   // the newest version that is confirmed
}

// An attempt is one write of a record. It was sent no earlier than it says.
type attempt struct {
	nonce   string
	part    string // of the key, as a waiter's
	at      uint64 // the revision that it expects at the key, or never
	sent    time.Time
	version uint64 // of the value that it has
}

// never is a revision that no entry has.
const never = math.MaxUint64

// attempts are those whose outcome is unknown, oldest first.
type attempts []attempt

// find returns the attempt with the nonce.
func (as attempts) find(nonce string) (attempt, bool) {
	i := slices.IndexFunc(as, func(a attempt) bool { return a.nonce == nonce })
	if i < 0 {
		return attempt{}, false
	}
	return as[i], true
}

// without returns the attempts but the one with the nonce.
func (as attempts) without(nonce string) attempts {
	return slices.DeleteFunc(as, func(a attempt) bool { return a.nonce == nonce })
}

// Name returns the name of the lock. For a permit of a semaphore that is the
// semaphore's name, '#' and the number of the slot: the scope of its token.
func (k *Lock) Name() string { return k.name }

// Token returns the fencing token of the hold: the revision at which it was
// gained. It never changes, also not after the hold has ended, and every later
// hold of the same lock has a larger one. It is never 0.
func (k *Lock) Token() uint64 { return k.token }

// Revision returns the newest confirmed revision of the lock's key. It rises with
// every renewal and is never below [Lock.Token]. It may be used as the token where
// a resource shall also refuse this holder's own writes from before its last
// renewal.
func (k *Lock) Revision() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.revision
}

// Context returns a context that is done when the hold ends. Its cause is then
// [ErrReleased] or a [*LostError]. Its Err method asks the clock, so that it is
// right also before any timer has fired. It carries the values of the context that
// the lock was taken with, but not its end: that governed the taking only.
func (k *Lock) Context() context.Context { return k.ctx }

// Err returns nil while the hold is believed in, and the cause of its end
// afterwards: [ErrReleased] or a [*LostError]. It asks both clocks of the machine
// and needs no network.
func (k *Lock) Err() error {
	k.check()
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.lost != nil:
		return k.lost
	case k.over:
		return ErrReleased
	default:
		return nil
	}
}

// Remaining returns for how long the hold is still believed in if no further
// renewal is confirmed, 0 if it has ended.
func (k *Lock) Remaining() time.Duration {
	k.check()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return 0
	}
	return max(0, k.trust.Left())
}

// check ends the hold if trust in it is over. It is called by every method that
// says whether the hold lasts, and by a timer.
func (k *Lock) check() {
	k.mu.Lock()
	over, reason := !k.over && k.trust.Over(), Expired
	if !k.limit.IsZero() && !time.Now().Before(k.limit) {
		reason = Overrun
	}
	k.mu.Unlock()
	if over {
		k.lose(LostError{Reason: reason})
	}
}

// lose ends the hold. Only the first end counts.
func (k *Lock) lose(e LostError) {
	e.Name, e.Token = k.name, k.token
	k.mu.Lock()
	if k.over {
		k.mu.Unlock()
		return
	}
	if e.Err == nil && e.Reason == Expired {
		e.Err = k.trouble
	}
	k.over, k.lost = true, &e
	k.lapse.Stop()
	begun := !k.began.IsZero()
	k.mu.Unlock()
	k.end(&e)
	k.tell(eventEnd)
	k.l.log.WarnContext(k.ctx, "lock lost", slog.String("lock", k.name), slog.Uint64("token", k.token), slog.Any("err", &e))
	if f := k.l.trace.Lost; f != nil && begun {
		f(&e)
	}
}

// begin starts the hold for its owner, once it is gained and, for a writer, the readers
// are gone: the minimum and the maximum hold count from now on.
func (k *Lock) begin(w *waiter) {
	k.mu.Lock()
	k.began = time.Now()
	if k.l.maxHold > 0 {
		k.limit = k.began.Add(k.l.maxHold)
		k.trust = k.trust.Until(k.limit)
		if !k.over {
			k.lapse.Reset(max(0, k.trust.Left()))
		}
	}
	waited := k.began.Sub(w.called)
	k.mu.Unlock()
	if f := k.l.trace.Acquired; f != nil {
		f(k.name, k.token, waited)
	}
}

// confirm records that the write of a was stored at revision. It returns false, and
// ends the hold, if trust had ended by then: a hold never comes back (L1). What was
// stored is purged in either case when the hold ends (L8).
func (k *Lock) confirm(revision uint64, a attempt) (inTime bool) {
	defer k.check()
	k.mu.Lock()
	defer k.mu.Unlock()
	inTime = k.lost == nil && !k.trust.Over()
	k.revision, k.nonce, k.doubts, k.trouble, k.shown = revision, a.nonce, nil, nil, a.version
	if inTime && !k.over {
		k.trust, k.sent = k.l.lease.Trust(a.sent).Until(k.limit), a.sent
		k.lapse.Reset(max(0, k.trust.Left()))
	}
	if k.pending != nil {
		nudge(k.pending.renewed)
	}
	return inTime
}

// is reports whether this is the hold of the token, or a write of it has the nonce. k.mu
// is held.
func (k *Lock) is(token uint64, nonce string) bool {
	_, doubtful := k.doubts.find(nonce)
	return token == k.token || nonce == k.nonce || doubtful
}

// note is told that somebody stands in line for the hold that the request names. It
// says whether that is this one, whether the line will be looked at, and whose ticket
// has got a next one.
func (k *Lock) note(r request) (mine, noted bool, before place) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.is(r.Token, r.Nonce) {
		return false, false, place{}
	}
	// A hold that was revoked still has to be ended by its holder.
	if k.decided || k.over && !k.resting && (k.lost == nil || k.lost.Reason != Revoked) {
		return true, false, place{}
	}
	if k.kind == kindReader {
		k.notes = notes{any: true, tail: r.Place}
		return true, true, place{}
	}
	before = k.notes.add(r.Place)
	k.happened(eventSomeone)
	return true, true, before
}

// exclusive reports whether the line stands behind this hold alone.
func (k *Lock) exclusive() bool { return k.kind == kindLock || k.kind == kindGate }

// Release gives the lock back and tells the first in line, if there is one.
//
// It waits for a renewal in flight, at most 1 s, and until the server has
// confirmed. It does so also if ctx is done already: ctx only limits how long
// Release waits beyond 1 s. If that is over, it returns ctx's cause, and the
// release goes on in the background: call Release again to wait longer. In any
// case the hold is over, and the lock is free after one TTL at the latest, or when its
// minimum hold is over ([WithMinHold]), for which Release does not wait.
//
// If the hold was lost before, Release returns the [*LostError]: the work was not
// exclusive to the end. Any other error but ctx's cause says why the release could not be
// confirmed. Release is idempotent, and never touches a later hold of the same lock.
func (k *Lock) Release(ctx context.Context) error {
	k.once.Do(func() {
		k.check()
		k.mu.Lock()
		if !k.over {
			k.over = true
			k.lapse.Stop()
		}
		k.mu.Unlock()
		k.end(ErrReleased) // a loss came first if there was one
		close(k.released)
		k.tell(eventEnd)
	})
	k.mu.Lock()
	lost := k.lost
	k.mu.Unlock()
	if lost != nil && lost.Reason != Revoked {
		return lost
	}
	second, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second) // is enough unless the server is away
	defer cancel()
	for _, wait := range []context.Context{second, ctx} {
		select {
		case <-k.done:
			if lost != nil {
				return lost
			}
			return k.outcome
		case <-wait.Done():
		}
	}
	return fmt.Errorf("kvlock: release %q: %w", k.name, context.Cause(ctx))
}

// A holdContext is the context of a hold, or of work under it. Its end does not
// wait for a timer.
type holdContext struct {
	context.Context
	held interface{ Err() error }
	end  context.CancelCauseFunc
}

// Err ends the context first if the hold has ended.
func (c *holdContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	if err := c.held.Err(); err != nil {
		c.end(err)
	}
	return c.Context.Err()
}

// isLost reports whether err says that a hold was lost.
func isLost(err error) bool { return errors.Is(err, ErrLost) }
