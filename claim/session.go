package claim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"tenure/kvlock/bucket"
)

// retryPause is how soon a heartbeat that was not confirmed is tried again; a
// server that elects a leader answers nothing for seconds.
const retryPause = 50 * time.Millisecond

// A session is one life of a worker in a group: a key with a TTL that heartbeats
// re-arm. Its epoch is the revision of its first record and never comes back.
//
// Trust in it ends TTL − margin after the last confirmed heartbeat was sent, by
// the clocks of this process alone; every use of a partition asks for it.
type session struct {
	c     *Claimer
	key   string
	epoch uint64

	ctx context.Context // ends when the session has ended; its cause says why
	end context.CancelCauseFunc

	stop    chan struct{} // closed: send no more heartbeats
	stopped chan struct{} // closed: none is in flight any more
	changed chan struct{} // holds one: heartbeat now, the record has changed

	leads atomic.Bool  // it plans for the group
	place atomic.Int64 // how many live sessions have a smaller epoch, as last listed

	mu     sync.Mutex
	record member
	trust  bucket.Trust
	sentAt time.Time // of the heartbeat that the trust comes from
	back   time.Time // when heartbeats were confirmed again after an outage
	last   uint64    // newest own revision known to be stored
	blind  bool      // trust has ended and the session goes on; see WithDegraded
}

// join begins a session: it waits until the bucket is open for use and nobody
// else has the worker's id. It returns when the first heartbeat is confirmed, so
// that the session is ready, or with the cause of ctx, a permanent error or a
// [*WorkerIDError]. Again says that the last session of this Run was lost: the
// store may have been away for everybody.
func (c *Claimer) join(ctx context.Context, again bool) (*session, error) {
	if err := c.bucket.AwaitQuarantine(ctx); err != nil {
		return nil, err
	}
	key, err := c.memberKey(c.id)
	if err != nil {
		return nil, err
	}
	s := &session{
		c: c, key: key,
		stop: make(chan struct{}), stopped: make(chan struct{}), changed: make(chan struct{}, 1),
		record: c.member(joining),
	}
	var expect uint64
	var told time.Time
	began := time.Now()
	for s.epoch == 0 {
		sent := time.Now()
		try, cancel := context.WithTimeout(ctx, c.lease.Attempt)
		revision, err := c.bucket.Write(try, bucket.Write{Key: key, Last: expect, TTL: c.lease.TTL, Value: encode(s.record)})
		cancel()
		if err == nil {
			s.begin(revision, sent)
			break
		}
		if permanent(err) {
			return nil, err
		}
		// Read back also after a refusal: this may be a try of ours whose
		// answer was lost.
		if errors.Is(err, bucket.ErrConflict) || errors.Is(err, bucket.ErrDoubt) {
			revision, held, free := s.look(ctx)
			switch {
			case s.epoch != 0 || free:
				expect = revision
				continue
			case held == nil:
			case c.opts.idTimeout > 0 && time.Since(began) >= c.opts.idTimeout:
				return nil, held
			case time.Since(told) > c.lease.TTL:
				told = time.Now()
				c.mu.Lock()
				c.joinErr = held
				c.mu.Unlock()
				c.log.WarnContext(ctx, "waiting for the worker that has this id to end", slog.Any("err", held))
			}
		}
		if err := pause(ctx, 4*retryPause); err != nil {
			return nil, err
		}
	}

	if again {
		s.back = time.Now()
	}
	s.ctx, s.end = context.WithCancelCause(context.WithoutCancel(ctx))
	s.record.State = ready
	for began = time.Now(); !s.beat(); { // the first heartbeat makes the session ready
		if time.Since(began) > c.lease.TTL {
			s.lose("it did not become ready", nil)
		}
		if s.ctx.Err() != nil {
			return nil, context.Cause(s.ctx)
		}
		if err := pause(ctx, retryPause); err != nil {
			s.lose("it stopped before it was ready", err)
			return nil, err
		}
	}
	go s.keep()
	c.log.InfoContext(ctx, "worker joined", slog.Uint64("epoch", s.epoch))
	return s, nil
}

// look reads the member key. Either the record is this attempt's, and the
// session begins; or the id is free and the write may expect the revision
// returned; or held says who has the id.
func (s *session) look(ctx context.Context) (expect uint64, held *WorkerIDError, free bool) {
	try, cancel := context.WithTimeout(ctx, s.c.lease.Attempt)
	defer cancel()
	e, err := s.c.bucket.Get(try, s.key)
	if err != nil {
		return 0, nil, errors.Is(err, bucket.ErrNotFound)
	}
	s.c.deaths.observe(s.c.id, e)
	m, err := parseMember(e)
	switch {
	case e.Marker:
		return e.Revision, nil, true
	case err != nil:
		s.c.log.WarnContext(ctx, "member key holds bytes that are no record, replacing them", slog.String("key", s.key))
		return e.Revision, nil, true
	case m.Nonce == s.record.Nonce:
		// Stored by a try of unknown time: trust begins with the heartbeat.
		s.begin(e.Revision, time.Time{})
		return 0, nil, false
	case m.State == dead, s.c.past[m.Nonce]:
		// A certificate; or a heartbeat of a former session of this process
		// that was stored late. Trust in that is over: replace it now rather
		// than wait for its TTL.
		return e.Revision, nil, true
	case gone(m):
		s.c.log.InfoContext(ctx, "the process that had this id is gone, going on as its successor", slog.Int("pid", m.PID))
		return e.Revision, nil, true
	}
	return 0, &WorkerIDError{Worker: s.c.id, Host: m.Host, PID: m.PID, Epoch: m.epoch(e.Revision)}, false
}

// begin notes that the session's first record is stored. A zero sent means that
// the record is known from a read: it is trusted only after a heartbeat.
func (s *session) begin(revision uint64, sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch, s.last = revision, revision
	s.record.Epoch = revision
	if !sent.IsZero() {
		s.trust, s.sentAt = s.c.lease.Trust(sent), sent
	}
	s.c.past[s.record.Nonce] = true
}

// set changes what the next heartbeat says, and sends it now.
func (s *session) set(state memberState) {
	s.mu.Lock()
	s.record.State = state
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default: // it is already asked for
	}
}

// left returns how much trust in the session is left.
func (s *session) left() time.Duration {
	if s == nil || s.ctx.Err() != nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trust.Left()
}

// sent returns when the last confirmed heartbeat was sent.
func (s *session) sent() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sentAt
}

// timeout returns how long the next write under the session may take.
func (s *session) timeout() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.c.lease.Timeout(s.trust)
}

// over reports that the session must not be relied on now, and ends it if that was
// not noticed yet: no timer has to have fired. One that may go on without trust is
// not ended.
func (s *session) over() bool {
	if s == nil || s.ctx.Err() != nil {
		return true
	}
	if s.left() > 0 {
		return false
	}
	if s.c.opts.degraded {
		s.mu.Lock()
		first := !s.blind && !s.fresh()
		s.blind = s.blind || first
		s.mu.Unlock()
		if first {
			s.c.log.WarnContext(s.ctx, "store is away, going on without trust")
			s.c.opts.trace.degraded(true)
		}
		return true
	}
	s.lose(silent(s.c.lease.TTL-s.c.lease.Margin), nil)
	return true
}

// ended reports whether the session has ended, and notices it if trust has.
func (s *session) ended() bool {
	s.over()
	return s == nil || s.ctx.Err() != nil
}

func (s *session) lose(reason string, err error) {
	s.end(&SessionError{Worker: s.c.id, Epoch: s.epoch, Reason: reason, Err: err})
}

// keep sends the heartbeats until the session ends or is told to stop. It is the
// only goroutine that writes the member key, one write at a time, and depends on
// nothing that a handler could block.
func (s *session) keep() {
	defer close(s.stopped)
	next := time.NewTimer(s.c.lease.Every)
	defer next.Stop()
	expiry := time.NewTimer(s.left())
	defer expiry.Stop()
	due := time.Now().Add(s.c.lease.Every)
	for {
		select {
		case <-s.stop:
			return
		case <-s.ctx.Done():
			return
		case <-expiry.C:
			if s.ended() {
				return
			}
			if left := s.left(); left > 0 {
				expiry.Reset(left)
			}
			continue
		case <-next.C:
		case <-s.changed:
		}
		if s.ended() {
			return
		}
		began := time.Now()
		if s.beat() {
			// From absolute times, so that late ticks do not add up; and never later than
			// one interval after this heartbeat, which a change may have brought early.
			due = due.Add(s.c.lease.Every)
			if latest := began.Add(s.c.lease.Every); due.Before(began) || due.After(latest) {
				due = latest
			}
		} else {
			due = time.Now().Add(retryPause)
		}
		next.Reset(time.Until(due))
		if left := s.left(); left > 0 {
			expiry.Reset(left)
		}
	}
}

// beat makes one heartbeat and reports whether it was confirmed: by its
// acknowledgement or by reading it back, and before the previous trust ended.
func (s *session) beat() (confirmed bool) {
	s.mu.Lock()
	s.record.Beat++
	m, last, before := s.record, s.last, s.trust
	s.mu.Unlock()
	limit := s.c.lease.Attempt
	if !before.Over() { // only a session known from a read begins without trust
		limit = s.c.lease.Timeout(before)
	}

	sent := time.Now()
	defer func() { s.c.opts.trace.renewed(s, sent, confirmed) }()
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	revision, err := s.c.bucket.Write(ctx, bucket.Write{Key: s.key, Last: last, TTL: s.c.lease.TTL, Value: encode(m)})
	cancel()
	switch {
	case err == nil:
		return s.confirm(revision, sent, before)
	case errors.Is(err, bucket.ErrGone):
		s.lose("the bucket is gone or was made anew", err)
		return false
	case errors.Is(err, bucket.ErrBusy), errors.Is(err, bucket.ErrFull):
		return false
	}
	// Refused or in doubt. A refusal may come from a server that is behind, and
	// in both cases this or an earlier heartbeat may be stored: read back.
	ctx, cancel = context.WithTimeout(s.ctx, limit)
	defer cancel()
	e, err := s.c.bucket.Get(ctx, s.key)
	if errors.Is(err, bucket.ErrNotFound) && s.isBlind() {
		s.lose("its key has expired while the store was away", nil)
		return false
	}
	if err != nil || e.Revision <= last {
		// Absent or older than what was confirmed: no evidence. But that is also
		// what a bucket made anew looks like.
		if err := s.c.bucket.Check(ctx); errors.Is(err, bucket.ErrGone) {
			s.lose("the bucket is gone or was made anew", err)
		}
		return false
	}
	found, err := parseMember(e)
	switch {
	case err == nil && found.Nonce == m.Nonce && found.session():
		if found.Beat == m.Beat {
			return s.confirm(e.Revision, sent, before)
		}
		s.mu.Lock()
		s.last = e.Revision // an earlier heartbeat that was stored late
		s.mu.Unlock()
	case err == nil && found.State == revoked:
		s.lose("it was revoked by "+found.By, ErrRevoked)
	case err == nil && found.State == dead:
		s.lose(fmt.Sprintf("worker %q proved it dead", found.By), nil)
	default:
		s.lose(fmt.Sprintf("its key was overwritten at revision %d", e.Revision), nil)
	}
	return false
}

// confirm extends the trust to a heartbeat that is known to be stored. One that
// becomes known only after the trust has ended does not count: others may have
// seen the key gone in between.
func (s *session) confirm(revision uint64, sent time.Time, before bucket.Trust) bool {
	s.mu.Lock()
	s.last = revision
	blind := s.blind
	// A session that goes on without trust has proof here that its key was there all
	// the time, and no certificate: the heartbeat expected its own last one.
	if before.Left() <= 0 && !s.fresh() && !blind {
		s.mu.Unlock()
		return false
	}
	s.blind = false
	if s.late(sent) {
		s.back = time.Now()
	}
	s.trust, s.sentAt = s.c.lease.Trust(sent), sent
	s.mu.Unlock()
	if blind {
		s.c.log.InfoContext(s.ctx, "store is back, session is trusted again")
		s.c.opts.trace.degraded(false)
		s.c.wakeAll()
	}
	return true
}

// late reports whether at the given time a heartbeat is overdue, by more than one
// that fails once would be; mu is held.
func (s *session) late(at time.Time) bool {
	return !s.sentAt.IsZero() && at.Sub(s.sentAt) > s.c.lease.Every+s.c.lease.Attempt
}

// outage returns until when the store was away the last time, as far as this
// process can tell, or now while it is. Zero means never.
func (s *session) outage() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.late(now) {
		return now
	}
	return s.back
}

func (s *session) isBlind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blind
}

// fresh reports whether no heartbeat was trusted yet; mu is held.
func (s *session) fresh() bool { return s.trust == bucket.Trust{} }

// leave ends the session on purpose, after everything was given away, or put down
// for a restart: it stops the heartbeats and removes the member key, or replaces
// it by a certificate that asks to wait for the worker. Others learn of it at once
// if that is stored, else when the key expires.
func (s *session) leave(ctx context.Context) {
	close(s.stop)
	<-s.stopped
	end := bucket.Write{Key: s.key, Purge: true, TTL: s.c.lease.TTL}
	if s.c.opts.restart {
		end = bucket.Write{Key: s.key, TTL: certificateTTL(s.c.lease.TTL), Value: encode(member{
			Version: recordVersion, State: dead, Nonce: bucket.Nonce(), By: s.c.id, Rejoin: s.c.opts.rejoin.Milliseconds(),
		})}
	}
	for !s.over() {
		s.mu.Lock()
		end.Last = s.last
		s.mu.Unlock()
		try, cancel := context.WithTimeout(ctx, s.c.lease.Attempt)
		_, err := s.c.bucket.Write(try, end)
		if errors.Is(err, bucket.ErrConflict) || errors.Is(err, bucket.ErrDoubt) {
			e, readErr := s.c.bucket.Get(try, s.key)
			if m, parseErr := parseMember(e); readErr == nil && parseErr == nil && m.Nonce == s.record.Nonce {
				s.mu.Lock()
				s.last = e.Revision
				s.mu.Unlock()
			} else if readErr == nil || errors.Is(readErr, bucket.ErrNotFound) {
				err = nil // a marker, somebody else's, or nothing: it is gone
			}
		}
		cancel()
		if err == nil || ctx.Err() != nil || permanent(err) {
			break
		}
		if pause(ctx, retryPause) != nil {
			break
		}
	}
	s.end(ErrStopped)
}

// permanent reports whether trying again is of no use.
func permanent(err error) bool {
	return errors.Is(err, bucket.ErrPermission) || errors.Is(err, bucket.ErrBucket) || errors.Is(err, nats.ErrConnectionClosed)
}

// pause waits for d, or returns the cause of ctx.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
