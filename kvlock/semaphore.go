package kvlock

import (
	"context"
	"encoding/json"
	"errors"
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

// agreement is the value of the key of a semaphore, which has no TTL.
type agreement struct {
	Version int    `json:"v"`
	Kind    string `json:"kind"`
	Limit   int    `json:"limit"`
}

const kindSemaphore = "semaphore"

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
	have, err := s.open(ctx, limit)
	if err == nil && have != limit {
		err = &LimitError{Name: name, Have: have, Want: limit}
	}
	if err != nil {
		return nil, fmt.Errorf("kvlock: semaphore %q: %w", name, err)
	}
	return s, nil
}

func (s *Semaphore) open(ctx context.Context, limit int) (have int, err error) {
	if s.enc, err = bucket.EncodeName(s.name); err != nil {
		return 0, err
	}
	if err := checkLimit(limit); err != nil {
		return 0, err
	}
	if err := s.l.enter(); err != nil {
		return 0, err
	}
	defer s.l.work.Done()
	ctx, cancel := s.l.patience(ctx)
	defer cancel()
	have, _, err = s.agree(ctx, limit)
	return have, err
}

func checkLimit(limit int) error {
	if limit < 1 || limit > MaxPermits {
		return &OptionError{Option: "limit", Have: strconv.Itoa(limit), Want: fmt.Sprintf("1 to %d", MaxPermits)}
	}
	return nil
}

// Name returns the name of the semaphore.
func (s *Semaphore) Name() string { return s.name }

// Limit returns how many permits there are, as this client knows it.
func (s *Semaphore) Limit() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limit
}

// TryLock takes a permit or fails at once. It is [Locker.TryLock] otherwise. The
// error matches [ErrHeld] if all permits are held or promised to those in line.
func (s *Semaphore) TryLock(ctx context.Context) (*Lock, error) {
	ctx, cancel := s.l.patience(ctx)
	defer cancel()
	return s.take(ctx, &waiter{})
}

// Lock takes a permit and waits for one, first come, first served, until ctx is
// done. It is [Locker.Lock] otherwise.
func (s *Semaphore) Lock(ctx context.Context) (*Lock, error) {
	return s.take(ctx, &waiter{patient: true})
}

// Do takes a permit as [Semaphore.Lock] does, calls f and releases the permit. It is
// [Locker.Do] otherwise.
func (s *Semaphore) Do(ctx context.Context, f func(ctx context.Context, permit *Lock) error) error {
	return s.l.do(s.name, func() error {
		k, err := s.take(ctx, &waiter{patient: true, guarded: true})
		if err != nil {
			return err
		}
		return k.guard(ctx, k.Release, f)
	})
}

func (s *Semaphore) take(ctx context.Context, w *waiter) (*Lock, error) {
	w.kind, w.sem, w.name = kindPermit, s, s.name
	return s.l.take(ctx, w)
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
	if err := s.resize(ctx, limit); err != nil {
		return fmt.Errorf("kvlock: resize semaphore %q: %w", s.name, err)
	}
	return nil
}

func (s *Semaphore) resize(ctx context.Context, limit int) error {
	if err := checkLimit(limit); err != nil {
		return err
	}
	ctx, cancel := s.l.patience(ctx)
	defer cancel()
	before := MaxPermits
	for fails := 1; ; fails++ {
		have, revision, err := s.agree(ctx, limit)
		if err != nil {
			return err
		}
		before = min(before, have)
		if have == limit {
			break
		}
		if _, err = s.store(ctx, limit, revision); err != nil && !again(err) && !errors.Is(err, bucket.ErrConflict) {
			return err
		}
		if err != nil {
			pauseFor(ctx, s.l.pause(fails))
		}
	}
	for i := before; i < limit; i++ {
		w := walk{l: s.l, enc: s.enc + slotLine, part: strconv.Itoa(i)}
		if w.tell(ctx, nil) != walkTold {
			break
		}
	}
	return nil
}

// agree reads the limit that was agreed upon, and the revision of the agreement. If
// there is none it proposes limit.
func (s *Semaphore) agree(ctx context.Context, limit int) (have int, revision uint64, err error) {
	for fails := 1; ; fails++ {
		try, cancel := context.WithTimeout(ctx, s.l.lease.Attempt)
		asked := time.Now()
		e, err := s.l.b.Get(try, "slot."+s.enc)
		cancel()
		switch {
		case errors.Is(err, bucket.ErrNotFound), err == nil && e.Marker:
			_, err = s.store(ctx, limit, e.Revision)
		case err == nil:
			have, err = parseAgreement(e)
			if err != nil {
				return 0, 0, err
			}
			s.mu.Lock()
			s.limit, s.asked = have, asked
			s.mu.Unlock()
			return have, e.Revision, nil
		}
		switch {
		case err == nil, errors.Is(err, bucket.ErrConflict): // read what is there now
			continue
		case !again(err):
			return 0, 0, err
		}
		pauseFor(ctx, s.l.pause(fails))
		if cause := context.Cause(ctx); cause != nil {
			return 0, 0, fmt.Errorf("%w: %w", cause, err)
		}
	}
}

func (s *Semaphore) store(ctx context.Context, limit int, last uint64) (uint64, error) {
	value, err := json.Marshal(agreement{Version: recordVersion, Kind: kindSemaphore, Limit: limit})
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.l.lease.Attempt)
	defer cancel()
	return s.l.b.Write(ctx, bucket.Write{Key: "slot." + s.enc, Value: value, Last: last})
}

func parseAgreement(e bucket.Entry) (limit int, err error) {
	var a agreement
	err = json.Unmarshal(e.Value, &a)
	switch {
	case err != nil:
		return 0, &RecordError{Key: e.Key, Field: "value", Have: excerpt(e.Value), Want: "a JSON object"}
	case a.Version != recordVersion:
		return 0, &RecordError{Key: e.Key, Field: "version", Have: strconv.Itoa(a.Version), Want: strconv.Itoa(recordVersion)}
	case a.Kind != kindSemaphore:
		return 0, &RecordError{Key: e.Key, Field: "kind", Have: strconv.Quote(a.Kind), Want: strconv.Quote(kindSemaphore)}
	case checkLimit(a.Limit) != nil:
		return 0, &RecordError{Key: e.Key, Field: "limit", Have: strconv.Itoa(a.Limit), Want: fmt.Sprintf("1 to %d", MaxPermits)}
	}
	return a.Limit, nil
}

// any returns a slot to begin with.
func (s *Semaphore) any() string { return strconv.Itoa(rand.IntN(s.Limit())) }

// beyond reports whether there is no slot of that number any more.
func (s *Semaphore) beyond(slot string) bool {
	i, err := strconv.Atoi(slot)
	return err != nil || i < 0 || i >= s.Limit()
}

// known reads the limit again if it was last read long ago, or the slot is beyond it.
func (s *Semaphore) known(ctx context.Context, slot string) error {
	beyond := s.beyond(slot)
	s.mu.Lock()
	fresh, limit := time.Since(s.asked) < s.l.lease.TTL, s.limit
	s.mu.Unlock()
	if fresh && !beyond {
		return nil
	}
	ctx, cancel := s.l.attempt(ctx)
	defer cancel()
	_, _, err := s.agree(ctx, limit)
	return err
}

// lookAtSlots is (b) for a permit: it looks for a slot that is free. Where there are
// slots that nobody ever took, one list says so; else each is read until one is free.
func (w *waiter) lookAtSlots(ctx context.Context) (step, error) {
	if len(w.doubts) > 0 {
		// Another try at the same slot makes sure that a late one cannot succeed.
		e, next, err := w.settle(ctx)
		if next != nil || err != nil || w.gained != nil {
			return next, err
		}
		if part := w.doubts[len(w.doubts)-1].part; e.Key == "" || e.Marker {
			return w.free(part, e.Revision), nil
		}
	}
	if err := w.sem.known(ctx, "0"); err != nil {
		return w.failed(ctx, err)
	}
	try, cancel := w.l.attempt(ctx)
	state, err := w.l.b.State(try, "slot."+w.sem.enc+".*")
	cancel()
	if err != nil {
		return w.failed(ctx, err)
	}
	w.succeeded()
	w.held, w.left = nil, w.l.b.MaxTTL()
	n := w.sem.Limit()
	first := rand.IntN(n)
	for i := range n {
		part := strconv.Itoa((first + i) % n)
		if _, there := state.Keys[keyOf(w.enc, part)]; !there && !w.skips(part, 0) {
			return w.free(part, 0), nil
		}
	}
	for i := range n {
		part := strconv.Itoa((first + i) % n)
		if _, there := state.Keys[keyOf(w.enc, part)]; !there {
			continue
		}
		if next, err := w.lookAtSlot(ctx, part); next != nil || err != nil || w.gained != nil {
			return next, err
		}
	}
	if len(w.told) > 0 {
		w.left = min(w.left, markerTTL)
	}
	switch {
	case w.patient && w.ticket.Nonce != "":
		return w.sleep, nil
	case w.patient:
		if err := w.writeTicket(ctx); err != nil {
			return w.failed(ctx, err)
		}
		return w.look, nil // who released meanwhile did not see the ticket
	case w.held != nil:
		return nil, w.held
	default:
		return nil, &HeldError{Name: w.name}
	}
}

// lookAtSlot reads one slot. It returns a step if that is free.
func (w *waiter) lookAtSlot(ctx context.Context, part string) (step, error) {
	try, cancel := w.l.attempt(ctx)
	e, err := w.l.b.Get(try, keyOf(w.enc, part))
	cancel()
	switch {
	case errors.Is(err, bucket.ErrNotFound), err == nil && e.Marker:
		if w.skips(part, e.Revision) {
			return nil, nil
		}
		return w.free(part, e.Revision), nil
	case err != nil:
		return w.failed(ctx, err)
	}
	r, err := parseRecord(e)
	if err != nil {
		return nil, err
	}
	if a, ok := w.doubted(r.Nonce); ok {
		return w.adopt(ctx, a, e.Revision)
	}
	token := r.token(e.Revision)
	if r.Process == w.l.id && !w.l.knows(w.enc, r.Nonce) && !w.l.holding(w.enc, token) {
		w.l.endGhost(w.enc, part, r.Nonce)
		return w.look, nil
	}
	left := w.l.b.Left(e)
	if e.TTL == 0 { // written by somebody else
		left = time.Duration(r.TTL) * time.Second
	}
	if w.held == nil || left < w.left {
		w.left = left
		w.held = r.heldError(w.name+"#"+part, e)
	}
	return nil, nil
}

// skips reports whether somebody else takes the slot that is free at a revision.
func (w *waiter) skips(part string, at uint64) bool {
	told, ok := w.told[part]
	return ok && told == at
}

// free makes the waiter go for a slot that is free.
func (w *waiter) free(part string, at uint64) step {
	w.part, w.at = part, at
	if at == 0 && w.ticket.Nonce == "" {
		return w.gain
	}
	return w.line
}

// leaveSlots tells the line of the slots that somebody may think this waiter takes.
func (w *waiter) leaveSlots(ctx context.Context) {
	if w.ticket.Nonce == "" {
		return
	}
	w.l.mu.Lock()
	parts := []string{w.part}
	if w.offer.Part != "" && w.offer.Part != w.part {
		parts = append(parts, w.offer.Part)
	}
	w.l.mu.Unlock()
	for _, w.part = range parts {
		try, cancel := w.l.attempt(ctx)
		e, err := w.l.b.Get(try, keyOf(w.enc, w.part))
		cancel()
		if errors.Is(err, bucket.ErrNotFound) || err == nil && e.Marker {
			w.at = e.Revision
			w.hint(ctx, nil)
		}
	}
}
