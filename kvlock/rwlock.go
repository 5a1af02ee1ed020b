package kvlock

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

// An RWLock is a lock that one writer holds, or any number of readers.
//
// Readers and writers stand in one line: a writer waits for those before it, and
// everybody who comes after it waits for the writer. So neither starves. A crashed
// reader holds up a writer for its TTL, as a crashed writer does everybody.
//
// Readers have no fencing token, since several of them at once would have several: a
// resource can refuse a stale writer, but not a writer that believes in its hold
// while a paused reader still reads.
//
// Make one per name and process with [Locker.RWLock]: the readers of an RWLock share
// one key of the bucket. Its methods may be called concurrently.
type RWLock struct {
	l    *Locker
	name string

	mu     sync.Mutex
	shares map[bool]*share // that readers can join, true for those of RDo
}

// A share is one hold of this process, with its readers.
type share struct {
	k       *Lock
	readers int
}

// RWLock returns the named lock for readers and writers. A name in use for a plain
// lock is a [*KindError] when it is taken, which matches [ErrKind], and the other way
// round.
func (l *Locker) RWLock(name string) *RWLock {
	return &RWLock{l: l, name: name, shares: make(map[bool]*share)}
}

// Name returns the name of the lock.
func (rw *RWLock) Name() string { return rw.name }

// TryLock takes the lock for writing or fails at once. It is [Locker.TryLock]
// otherwise. The error matches [ErrHeld] also if readers hold the lock.
func (rw *RWLock) TryLock(ctx context.Context) (*Lock, error) {
	return rw.l.take(ctx, want{kind: kindGate, name: rw.name})
}

// Lock takes the lock for writing and waits until those before it have left, or ctx
// is done. It is [Locker.Lock] otherwise. The margin has to be longer than two round
// trips to the server.
func (rw *RWLock) Lock(ctx context.Context) (*Lock, error) {
	return rw.l.take(ctx, want{kind: kindGate, name: rw.name, patient: true})
}

// Do takes the lock for writing as [RWLock.Lock] does, calls f and releases the lock.
// It is [Locker.Do] otherwise.
func (rw *RWLock) Do(ctx context.Context, f func(ctx context.Context, lock *Lock) error) error {
	return do(ctx, rw.l, func() (*Lock, error) {
		return rw.l.take(ctx, want{kind: kindGate, name: rw.name, patient: true, guarded: true})
	}, f)
}

// TryRLock takes the lock for reading or fails at once. The error matches [ErrHeld] if
// a writer holds it, waits for readers to leave, or stands first in line. It is
// [Locker.TryLock] otherwise.
func (rw *RWLock) TryRLock(ctx context.Context) (*Reader, error) {
	return rw.read(ctx, false, false)
}

// RLock takes the lock for reading and waits until the writers before it have left, or
// ctx is done. It is [Locker.Lock] otherwise. While another reader of this RWLock has
// the lock, and no writer is known to wait, it asks nobody.
//
// To take the lock for reading again while one has it is no error, but waits for ever
// if a writer has come in between.
func (rw *RWLock) RLock(ctx context.Context) (*Reader, error) { return rw.read(ctx, true, false) }

// RDo takes the lock for reading as [RWLock.RLock] does, calls f and gives the lock
// back. It is [Locker.Do] otherwise.
func (rw *RWLock) RDo(ctx context.Context, f func(ctx context.Context) error) error {
	return do(ctx, rw.l, func() (*Reader, error) { return rw.read(ctx, true, true) },
		func(ctx context.Context, _ *Reader) error { return f(ctx) })
}

func (rw *RWLock) read(ctx context.Context, patient, guarded bool) (*Reader, error) {
	if r := rw.join(ctx, guarded); r != nil {
		return r, nil
	}
	k, err := rw.l.take(ctx, want{kind: kindReader, name: rw.name, patient: patient, guarded: guarded})
	if err != nil {
		return nil, err
	}
	s := &share{k: k, readers: 1}
	rw.mu.Lock()
	defer rw.mu.Unlock()
	if old := rw.shares[guarded]; old == nil || !old.k.joinable() {
		rw.shares[guarded] = s
	}
	return rw.reader(ctx, s), nil
}

// join makes one more reader of a hold that this process has already, nil if there is
// none, or a writer waits for its end.
func (rw *RWLock) join(ctx context.Context, guarded bool) *Reader {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	s := rw.shares[guarded]
	if s == nil || ctx.Err() != nil || !s.k.joinable() {
		return nil
	}
	s.readers++
	return rw.reader(ctx, s)
}

// joinable reports whether further readers may share the hold.
func (k *Lock) joinable() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.over && !k.trust.Over() && !k.notes.any && k.l.maxHold == 0 // one hold must not outlast it by many readers
}

func (rw *RWLock) reader(ctx context.Context, s *share) *Reader {
	inner, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(s.k.ctx.Context, func() { end(context.Cause(s.k.ctx)) })
	return &Reader{rw: rw, share: s, ctx: &holdContext{Context: inner, held: s.k, end: end}, stop: stop}
}

// A Reader is one hold of an [RWLock] for reading, from [RWLock.TryRLock] or
// [RWLock.RLock] to its release or loss. A hold that has ended never comes back. Its
// methods may be called concurrently.
type Reader struct {
	rw    *RWLock
	share *share
	ctx   *holdContext
	stop  func() bool // what ends the context with the hold
	once  sync.Once
	last  bool // it releases the key; set by once
}

// Name returns the name of the lock.
func (r *Reader) Name() string { return r.rw.name }

// Context is as [Lock.Context].
func (r *Reader) Context() context.Context { return r.ctx }

// Err is as [Lock.Err].
func (r *Reader) Err() error {
	if r.ctx.Err() == nil {
		return nil
	}
	return context.Cause(r.ctx.Context)
}

// Remaining is as [Lock.Remaining].
func (r *Reader) Remaining() time.Duration {
	if r.Err() != nil {
		return 0
	}
	return r.share.k.Remaining()
}

// Release gives the lock back. The last reader of an RWLock to do so waits for the
// server as [Lock.Release] does, and tells the writer that waits for it. Release is
// idempotent. If the hold was lost before, it returns the [*LostError].
func (r *Reader) Release(ctx context.Context) error {
	r.once.Do(func() {
		if r.Err() == nil {
			r.ctx.end(ErrReleased)
		}
		r.stop()
		r.rw.mu.Lock()
		defer r.rw.mu.Unlock()
		r.share.readers--
		if r.last = r.share.readers == 0; !r.last {
			return
		}
		for guarded, s := range r.rw.shares {
			if s == r.share {
				delete(r.rw.shares, guarded)
			}
		}
	})
	if r.last {
		return r.share.k.Release(ctx)
	}
	if err := r.Err(); isLost(err) {
		return err
	}
	return nil
}

// A pending is what a writer that has the gate knows of the readers before it. The
// mutex of its hold guards the readers.
type pending struct {
	readers map[string]time.Time // by their ids: when to look at them again
	gone    chan struct{}        // holds one: the last of them has left
	renewed chan struct{}        // holds one: a renewal was confirmed
}

// awaitReaders waits until the readers that came before the gate was closed are gone.
// The hold is not believed in before.
func (k *Lock) awaitReaders(ctx context.Context, w *waiter) error {
	p := &pending{readers: make(map[string]time.Time), gone: make(chan struct{}, 1), renewed: make(chan struct{}, 1)}
	k.setPending(p)
	defer k.setPending(nil)
	defer context.AfterFunc(k.ctx, func() { nudge(p.gone); nudge(p.renewed) })()
	w.held = nil
	for {
		none, err := k.lookAtReaders(ctx, w, p)
		switch {
		case err == nil && none:
			k.begin(w)
			return k.Err()
		case err == nil && !w.patient && w.held != nil:
			return w.held
		case err == nil:
			w.trouble, w.fails = nil, 0
			k.awaitNews(ctx, p)
		case w.failed(ctx, err) == nil:
			return err
		}
		k.renewBefore(ctx, p)
		if err := w.ended(ctx); err != nil {
			return w.why(err)
		}
		if err := k.Err(); err != nil {
			return err
		}
	}
}

func (k *Lock) setPending(p *pending) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pending = p
}

// lookAtReaders lists the readers, and asks each that is new to tell when it leaves.
// It returns true if there is none, and the list says so of this moment (B7).
//
// A list that contains the last renewal of the gate contains every reader that came
// in, since none came later, and every renewal of a reader that was confirmed before
// that one was sent. But servers expire a key each by its own copy: a leader that is
// cut off misses a reader's next renewals and says that the reader is gone when the
// TTL of the last one that it knows ends. By then the reader trusts in that one no
// more, since a margin ago. And if the list is less than a margin younger than the
// gate's renewal, there is no time in which the reader could have had confirmed the
// next one: before the gate's, it would be known; after that, it is too late.
func (k *Lock) lookAtReaders(ctx context.Context, w *waiter, p *pending) (none bool, err error) {
	k.mu.Lock()
	revision, sent := k.revision, k.sent
	k.mu.Unlock()
	try, cancel := k.l.attempt(ctx)
	state, err := k.l.b.State(try, keyOf(k.enc, "*"))
	cancel()
	if err != nil {
		return false, err
	}
	none = state.LastRevision >= revision && age(sent) <= k.l.lease.Margin
	now := time.Now()
	var look []string // at those that are new, told that they leave, or must have ended
	k.mu.Lock()
	known := p.readers
	p.readers = make(map[string]time.Time, len(state.Keys))
	for key := range state.Keys {
		id := key[strings.LastIndexByte(key, '.')+1:]
		if until := known[id]; until.After(now) {
			p.readers[id], none = until, false
		} else {
			look = append(look, id)
		}
	}
	k.mu.Unlock()

	var asking sync.WaitGroup
	defer asking.Wait()
	for _, id := range look {
		r, at, err := k.l.see(context.WithoutCancel(ctx), keyOf(k.enc, id))
		switch {
		case err != nil:
			return false, err
		case r == nil && at != 0: // it has left
			continue
		}
		none = false // that one of them says it leaves is no evidence
		if r == nil {
			// Nor is that it has gone since, without a trace: the next list tells.
			k.expect(p, id, time.Millisecond)
			continue
		}
		w.held = r.heldError(k.name)
		// Before it is asked, since it may tell at once.
		k.expect(p, id, k.l.left(r)+300*time.Millisecond+rand.N(100*time.Millisecond))
		asking.Go(func() {
			got := k.l.ask(ctx, r.Process, request{
				Op: opNote, Lock: k.enc, Part: id, Nonce: r.Nonce, Token: r.token(),
				Place: place{Process: k.l.id, Revision: k.token},
			})
			if got == answerNotMine { // it is leaving, or leaves nothing but a late write, which is ended
				k.expect(p, id, 5*time.Millisecond)
			}
		})
	}
	return none, nil
}

// expect notes when to look at a reader again.
func (k *Lock) expect(p *pending, id string, in time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p.readers[id] = time.Now().Add(in)
}

// age returns how long ago t was, by the clock that says more.
func age(t time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(t), now.Round(0).Sub(t.Round(0)))
}

// awaitNews waits until all known readers have left, or it is time to look at one.
func (k *Lock) awaitNews(ctx context.Context, p *pending) {
	k.mu.Lock()
	next := time.Now().Add(k.l.lease.TTL)
	for _, at := range p.readers {
		if at.Before(next) {
			next = at
		}
	}
	if len(p.readers) == 0 { // what is missing is a list to rely on
		next = time.Time{}
	}
	k.mu.Unlock()
	timer := time.NewTimer(max(time.Millisecond, time.Until(next)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.gone:
	case <-ctx.Done():
	}
}

// renewBefore renews the gate before the next list, unless it was just now, and waits
// until that is confirmed.
func (k *Lock) renewBefore(ctx context.Context, p *pending) {
	for ctx.Err() == nil && k.ctx.Context.Err() == nil {
		k.mu.Lock()
		sent := k.sent
		k.mu.Unlock()
		if age(sent) <= k.l.lease.Margin/2 {
			return
		}
		k.tell(eventDue)
		select {
		case <-p.renewed:
		case <-ctx.Done():
		}
	}
}

// readerGone is told that a reader has left.
func (k *Lock) readerGone(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pending == nil {
		return
	}
	delete(k.pending.readers, id)
	if len(k.pending.readers) == 0 {
		nudge(k.pending.gone)
	}
}

// tellWriter tells the writer that asked for it that this reader has left.
func (k *Lock) tellWriter() {
	k.mu.Lock()
	writer := k.notes.tail
	k.mu.Unlock()
	if writer.Process != "" {
		k.l.ask(k.ctx, writer.Process, request{Op: opGone, Lock: k.enc, Part: k.part, Token: writer.Revision})
	}
}

// letIn tells the next in line that the gate is open, by a reader that came in with a
// ticket itself: so readers come in one after another up to the next writer.
func (k *Lock) letIn(at uint64) {
	w := walk{l: k.l, enc: k.enc, at: at, low: k.start}
	w.tell(k.ctx, nil)
}
