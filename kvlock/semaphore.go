package kvlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"tenure/kvlock/bucket"
)

// MaxPermits is the largest limit of a [Semaphore].
const MaxPermits = 1000

// A Semaphore is a lock that up to a limit of holders have at once. Each has a
// permit, a [*Lock] of its own: it is renewed, lost and released by itself, and the
// permits of a crashed process come back one by one when their TTLs end.
//
// Permits are numbered, and the token of one is larger than those of earlier holds
// of the same number only. So the scope of a token is [Lock.Name], "name#number":
// a resource must not compare the tokens of permits with different names.
//
// Its methods may be called concurrently.
type Semaphore struct {
	l    *Locker
	name string
	enc  string // of the name; the line is enc + slotLine

	mu    sync.Mutex
	limit int
	asked time.Time // when the limit was last read
}

// Semaphore returns the named semaphore, of which up to limit permits can be held at
// once. The first client to ask stores the limit; after that it is agreed upon, and
// another one is a [*LimitError], which matches [ErrLimit]. [Semaphore.Resize]
// changes it.
//
// The name may also be that of a lock; the two have nothing to do with each other.
// Semaphore blocks until the server has answered, at most for one TTL if ctx has no
// end. A limit outside of 1 to [MaxPermits] is [ErrOption]; other errors are
// [ErrName], [ErrRecord], ctx's cause, or of the connection.
func (l *Locker) Semaphore(ctx context.Context, name string, limit int) (*Semaphore, error) {
	s := &Semaphore{l: l, name: name}
	err := s.open(ctx, limit)
	if err != nil {
		return nil, fmt.Errorf("kvlock: semaphore %q: %w", name, err)
	}
	return s, nil
}

func (s *Semaphore) open(ctx context.Context, limit int) (err error) {
	if s.enc, err = bucket.EncodeName(s.name); err != nil {
		return err
	}
	if _, err = s.agree(ctx, limit, false); err != nil {
		return err
	}
	if have := s.Limit(); have != limit {
		return &LimitError{Name: s.name, Have: have, Want: limit}
	}
	return nil
}

func checkLimit(limit int) error {
	if limit < 1 || limit > MaxPermits {
		return &OptionError{Option: "limit", Have: strconv.Itoa(limit), Want: fmt.Sprintf("1 to %d", MaxPermits)}
	}
	return nil
}

// Name returns the name of the semaphore.
func (s *Semaphore) Name() string { return s.name }

// Limit returns how many permits there are, as this client knows it: who takes permits
// reads the limit again when it is one TTL old.
func (s *Semaphore) Limit() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limit
}

// TryLock takes a permit or fails at once. It is [Locker.TryLock] otherwise. The
// error matches [ErrHeld] if all permits are held or promised to those in line.
func (s *Semaphore) TryLock(ctx context.Context) (*Lock, error) {
	return s.l.take(ctx, want{kind: kindPermit, sem: s, name: s.name})
}

// Lock takes a permit and waits for one, first come, first served, until ctx is
// done. It is [Locker.Lock] otherwise.
func (s *Semaphore) Lock(ctx context.Context) (*Lock, error) {
	return s.l.take(ctx, want{kind: kindPermit, sem: s, name: s.name, patient: true})
}

// Do takes a permit as [Semaphore.Lock] does, calls f and releases the permit. It is
// [Locker.Do] otherwise.
func (s *Semaphore) Do(ctx context.Context, f func(ctx context.Context, permit *Lock) error) error {
	return do(ctx, s.l, func() (*Lock, error) {
		return s.l.take(ctx, want{kind: kindPermit, sem: s, name: s.name, patient: true, guarded: true})
	}, f)
}

// Resize changes the limit. Whoever opens the semaphore from then on has to ask for
// the new one.
//
// A higher limit is used at once by those who wait. After a lower one the permits
// above it run out: who holds one keeps it, and nobody takes another once it knows,
// which takes the other clients one TTL at most. Resize blocks until the limit is
// stored, at most for one TTL if ctx has no end. Errors are those of
// [Locker.Semaphore]; after one the limit may have been changed, and to call Resize
// again is always right.
func (s *Semaphore) Resize(ctx context.Context, limit int) error {
	before, err := s.agree(ctx, limit, true)
	if err != nil {
		return fmt.Errorf("kvlock: resize semaphore %q: %w", s.name, err)
	}
	for i := before; i < limit; i++ {
		pass := walk{l: s.l, enc: s.enc + slotLine, part: strconv.Itoa(i)}
		if pass.tell(ctx, nil) != walkTold {
			break
		}
	}
	return nil
}

// agree reads the limit that was agreed upon, and stores the one given if there is none
// or it is to be changed. It returns the lowest that was found.
func (s *Semaphore) agree(ctx context.Context, limit int, change bool) (before int, err error) {
	if err := checkLimit(limit); err != nil {
		return 0, err
	}
	if err := s.l.enter(); err != nil {
		return 0, err
	}
	defer s.l.work.Done()
	ctx, cancel := s.l.patience(ctx)
	defer cancel()
	before = MaxPermits
	err = s.l.persist(ctx, func() error {
		asked, have := time.Now(), limit
		r, at, err := s.l.see(ctx, "slot."+s.enc)
		switch {
		case err != nil:
			return err
		case r != nil && r.Kind != kindSemaphore:
			return &RecordError{Key: r.entry.Key, Field: "kind", Have: strconv.Quote(string(r.Kind)), Want: strconv.Quote(string(kindSemaphore))}
		case r != nil:
			have = r.Limit
			before = min(before, have)
		}
		if r == nil || change && have != limit {
			r := s.l.newRecord(kindSemaphore, bucket.Nonce(), asked, s.l.lease.TTL)
			r.Limit, have = limit, limit
			if _, err := s.l.write(ctx, bucket.Write{Key: "slot." + s.enc, Value: r.encode(), Last: at}); err != nil {
				return err
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.limit, s.asked = have, asked
		return nil
	})
	return before, err
}

// has reports whether the semaphore has a slot. It reads the limit again if that was last
// read long ago, or the slot is beyond it.
func (s *Semaphore) has(ctx context.Context, slot string) (bool, error) {
	i, err := strconv.Atoi(slot)
	if err != nil || i < 0 {
		return false, nil // somebody told of it
	}
	s.mu.Lock()
	limit, known := s.limit, i < s.limit && time.Since(s.asked) < s.l.lease.TTL
	s.mu.Unlock()
	if !known {
		_, err = s.agree(ctx, limit, false)
	}
	return i < s.Limit(), err
}

// lookAtSlots is (b) for a permit: it looks for a slot that is free. Where there are
// slots that nobody ever took, one list says so; else each is read until one is free.
func (w *waiter) lookAtSlots(ctx context.Context) (next step, barred bool) {
	if _, err := w.sem.has(ctx, "0"); err != nil {
		return w.failed(ctx, err), false
	}
	try, cancel := w.l.attempt(ctx)
	state, err := w.l.b.State(try, keyOf(w.enc, "*"))
	cancel()
	if err != nil {
		return w.failed(ctx, err), false
	}
	w.left = w.l.b.MaxTTL()
	var taken []string
	for _, i := range rand.Perm(w.sem.Limit()) {
		slot := strconv.Itoa(i)
		if _, there := state.Keys[keyOf(w.enc, slot)]; there {
			taken = append(taken, slot)
		} else if !w.skips(slot, 0) {
			return w.free(slot, 0), false
		}
	}
	for _, slot := range taken {
		if next, barred := w.lookAt(ctx, slot); !barred {
			return next, false
		}
	}
	if len(w.told) > 0 {
		w.left = min(w.left, markerTTL)
	}
	return nil, true
}

// skips reports whether somebody else takes the slot that is free at a revision.
func (w *waiter) skips(slot string, at uint64) bool {
	told, ok := w.told[slot]
	return ok && told == at
}
