package kvlock

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"tenure/kvlock/bucket"
)

// MaxValue is the largest length of a leader's value in bytes.
const MaxValue = 4096

// resignPause is how long a candidate that has resigned does not stand again, so that it
// does not win at once when nobody else stands in line.
const resignPause = time.Second

// An Election is a lock whose holder, the leader, has a value that all can read, such as an
// address. Whoever campaigns stands in its line; see [Locker.Lock]. Make one with
// [Locker.Election]. Its methods may be called concurrently.
type Election struct {
	l    *Locker
	name string

	mu    sync.Mutex
	seers int    // calls of Observe
	sight *sight // what they share, nil if there are none
}

// Election returns the election of the name, which is that of a lock, too. A name that
// cannot be used is reported by the methods.
func (l *Locker) Election(name string) *Election {
	return &Election{l: l, name: name}
}

// Campaign waits until the caller leads, as [Locker.Lock] does. The value stands in the
// record of the lock while it leads. To resign, release the lock.
//
// The error is as from [Locker.Lock], or matches [ErrOption] if the value is longer than
// [MaxValue].
func (e *Election) Campaign(ctx context.Context, value string) (*Lock, error) {
	if err := checkText("value", value, MaxValue); err != nil {
		return nil, fmt.Errorf("kvlock: campaign for %q: %w", e.name, err)
	}
	return e.l.take(ctx, want{name: e.name, patient: true, value: value})
}

// Run campaigns and calls lead while the caller leads, again and again until ctx is done.
//
// lead is called as the function of [Locker.Do] is: its context ends with the leadership,
// which is renewed until lead has returned and given up then and not before. So no two
// calls of one Run overlap, and nothing of lead runs when Run has returned. If the
// leadership was lost, Run campaigns again, whatever lead has returned. If lead returns nil
// it has resigned: Run stands at the end of the line, after a pause of 1 s. If it returns an
// error, Run resigns and returns that.
//
// Else Run ends with an error that matches ctx's cause when ctx is done, [ErrClosed] when
// the Locker is closed, [ErrOption] if the value is longer than [MaxValue], or one that
// waiting does not cure, as from [Locker.Lock].
func (e *Election) Run(ctx context.Context, value string, lead func(ctx context.Context, lock *Lock) error) error {
	if err := checkText("value", value, MaxValue); err != nil {
		return fmt.Errorf("kvlock: campaign for %q: %w", e.name, err)
	}
	for {
		var lock *Lock
		err := do(ctx, e.l, func() (_ *Lock, err error) {
			lock, err = e.l.take(ctx, want{name: e.name, patient: true, guarded: true, value: value})
			return lock, err
		}, lead)
		switch {
		case lock == nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case isLost(lock.Err()):
			e.l.log.WarnContext(ctx, "leadership lost, campaigning again", slog.String("lock", e.name), slog.Any("err", err))
		case err != nil:
			return err
		default:
			pauseFor(ctx, resignPause)
		}
	}
}

// Proclaim changes the value that stands in the record of the lock, of an [Election] or any
// other. Of several calls the last one counts.
//
// It blocks until a renewal that has the value, or a later one, is confirmed, ctx is done,
// or the hold ends. The error matches ctx's cause, [ErrLost] or [ErrReleased] then, and the
// value may be stored by a later renewal all the same; or [ErrOption] if the value is longer
// than [MaxValue].
func (k *Lock) Proclaim(ctx context.Context, value string) error {
	if err := checkText("value", value, MaxValue); err != nil {
		return fmt.Errorf("kvlock: proclaim: %w", err)
	}
	k.mu.Lock()
	k.value, k.version = value, k.version+1
	version := k.version
	k.mu.Unlock()
	for k.tell(eventDue); ; pauseFor(ctx, writePause()) {
		k.mu.Lock()
		shown := k.shown
		k.mu.Unlock()
		if shown >= version {
			return nil
		}
		if err := k.Err(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("kvlock: proclaim: %w", context.Cause(ctx))
		}
	}
}

// Leader returns who leads, and its value, as the leader of the bucket knows it. It blocks
// and fails as [Locker.Holder] does: the error matches [ErrFree] if nobody leads.
func (e *Election) Leader(ctx context.Context) (Holder, error) {
	h, err := e.l.Holder(ctx, e.name)
	if err == nil && h.Resting {
		return Holder{}, fmt.Errorf("kvlock: holder of %q: %w", e.name, ErrFree)
	}
	return h, err
}

// Observe returns who leads, now and after every change of the leader or its value, until
// ctx is done or the loop is left. A Holder without a token says that nobody leads. The
// sequence also ends when the Locker or the connection is closed, or the bucket is gone,
// which is logged, and has nothing if the name cannot be used.
//
// What comes is late by the time of a message, and by up to 0.6 s where a leader vanished;
// if the changes come faster than the loop turns, some are left out, but not the last one.
// It is for display and routing: a leader that is seen here may have lost the lock
// meanwhile. All loops over one Election share one consumer on the server, which exists
// while there are any.
func (e *Election) Observe(ctx context.Context) iter.Seq[Holder] {
	return func(yield func(Holder) bool) {
		enc, err := bucket.EncodeName(e.name)
		if err != nil || e.l.enter() != nil {
			return
		}
		defer e.l.work.Done()
		s := e.join(ctx, enc)
		defer e.leave(s)
		for last, first := (Holder{}), true; ; {
			now, known, changed := s.look()
			if known && (first || differ(last, now)) {
				last, first = now, false
				if !yield(now) {
					return
				}
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			case <-s.ctx.Done():
				return
			}
		}
	}
}

func differ(a, b Holder) bool {
	return a.Token != b.Token || a.Value != b.Value || a.Revoked != b.Revoked
}

// join begins to watch, unless somebody does.
func (e *Election) join(ctx context.Context, enc string) *sight {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.seers++; e.seers > 1 {
		return e.sight
	}
	s := &sight{l: e.l, key: keyOf(enc, ""), changed: make(chan struct{}), done: make(chan struct{})}
	s.ctx, s.end = context.WithCancel(context.WithoutCancel(ctx))
	s.timer = time.AfterFunc(time.Hour, s.check)
	e.sight = s
	go s.follow()
	return s
}

// leave ends the watch after the last loop, and waits for it.
func (e *Election) leave(s *sight) {
	e.mu.Lock()
	e.seers--
	last := e.seers == 0
	e.mu.Unlock()
	if last {
		s.end()
		<-s.done
	}
}

// A sight is one watch of the record of an election.
type sight struct {
	l     *Locker
	key   string
	ctx   context.Context
	end   context.CancelFunc
	done  chan struct{} // closed when follow has ended
	timer *time.Timer   // at the end of the lease that was last seen: calls check

	mu      sync.Mutex
	now     Holder        // the leader, zero for none
	at      uint64        // the newest revision that was seen
	known   bool          // now says something
	changed chan struct{} // closed when it changes
}

// follow watches the key until the sight ends or the Locker is closed.
func (s *sight) follow() {
	defer close(s.done)
	defer s.end()
	defer s.timer.Stop()
	defer context.AfterFunc(s.l.ctx, s.end)()
	err := s.l.b.Watch(s.ctx, s.saw, func() { s.show(Holder{}, 0) }, s.key)
	if s.ctx.Err() == nil {
		s.l.log.WarnContext(s.ctx, "election not observed", slog.String("key", s.key), slog.Any("err", err))
	}
}

// check reads the key when a lease must be over: an expiry sends no event.
func (s *sight) check() {
	s.mu.Lock()
	before := s.at
	s.mu.Unlock()
	r, at, err := s.l.see(s.ctx, s.key)
	switch {
	case r != nil:
		s.saw(r.entry)
	case err != nil && s.ctx.Err() == nil:
		s.timer.Reset(time.Second)
	case err == nil:
		s.show(Holder{}, max(at, before))
	}
}

// look returns what is seen and what is closed when that changes.
func (s *sight) look() (now Holder, known bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now, s.known, s.changed
}

// saw takes an entry of the key into account.
func (s *sight) saw(e bucket.Entry) {
	var leader Holder
	if r, err := parse(e); err == nil && !e.Marker && r.State != stateResting {
		leader, _ = r.asHolder() // its name was encoded by join
		s.timer.Reset(max(0, s.l.left(r)) + 300*time.Millisecond)
	}
	s.show(leader, e.Revision)
}

// show tells the loops, unless something newer was seen.
func (s *sight) show(h Holder, at uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at < s.at {
		return
	}
	s.now, s.at, s.known = h, at, true
	close(s.changed)
	s.changed = make(chan struct{})
}
