package kvlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tenure/kvlock/bucket"
)

// A Locker takes locks. Make one per process with [New] and close it at the end.
// Its methods may be called concurrently.
type Locker struct {
	settings
	b     *bucket.Bucket
	nc    *nats.Conn
	lease bucket.Lease

	id     string // of this Locker: it is the process that records and tickets name
	sub    *nats.Subscription
	status chan nats.Status

	ctx context.Context // ends when Close is called
	end context.CancelCauseFunc

	holds  atomic.Int64  // how many there are
	window chan struct{} // has one element for each renewal or release under way

	mu      sync.Mutex
	closed  bool
	lines   map[string]*line       // by the encoded name of the lock, or that and slotLine
	sweep   int                    // number of lines at which idle ones are dropped
	leaving map[string]*time.Timer // by the nonce of a ticket: until it is removed
	work    sync.WaitGroup         // calls, holds and clean-up; Add only under mu while not closed, or while it is not zero
}

// A line is what this process knows of one lock. The Locker's mutex guards it.
type line struct {
	holds   map[*Lock]struct{} // until all of their clean-up is done
	tickets map[string]*waiter // by the nonce of the ticket: waiting, or served until the hold is over
	tries   map[string]*waiter // by the nonce of a gaining write that is under way or in doubt

	mark  uint64    // marker that a release of ours left
	part  string    // at which slot
	until time.Time // its end
	low   uint64    // no ticket stands below this revision
	used  time.Time
}

// memory is how long an idle line is remembered at least, for low.
const memory = time.Minute

// New opens the bucket, or makes it if it is missing, and returns a Locker. js should be
// of a connection made with the options that [ConnOptions] returns; it is not needed, and
// not used, with [WithBucket].
//
// New blocks until the server has answered or ctx is done, at most 15 s if ctx has no
// deadline; ctx governs New only. The error matches [ErrOption] or [ErrTTL] for a bad
// option, [ErrBucket] for a bucket with wrong settings, [ErrServer] for an old server,
// [ErrPermission] for a denied subject, or ctx's cause. [bucket.Open] says more. A bucket made anew is under quarantine:
// [Locker.TryLock] fails and [Locker.Lock] waits until that is over.
func New(ctx context.Context, js jetstream.JetStream, opts ...Option) (*Locker, error) {
	l, err := newLocker(ctx, js, opts)
	if err != nil {
		return nil, fmt.Errorf("kvlock: %w", err)
	}
	return l, nil
}

func newLocker(ctx context.Context, js jetstream.JetStream, opts []Option) (*Locker, error) {
	s, err := newSettings(opts)
	if err != nil {
		return nil, err
	}
	lease, err := bucket.NewLease(s.ttl, s.margin, s.renewals)
	if err != nil {
		return nil, err
	}
	b := s.bucket
	if b == nil {
		if js == nil {
			return nil, &OptionError{Option: "JetStream", Have: "nil", Want: "JetStream or an open bucket"}
		}
		if b, err = bucket.Open(ctx, js, append([]bucket.Option{bucket.Logger(s.log)}, s.bucketOpts...)...); err != nil {
			return nil, err
		}
	}
	if largest := b.MaxTTL(); lease.TTL > largest {
		return nil, &bucket.TTLError{Setting: "TTL", Have: lease.TTL, Want: fmt.Sprintf("at most %v, the largest TTL of bucket %q", largest, b.Name())}
	}
	l := &Locker{
		settings: s,
		b:        b,
		nc:       b.JetStream().Conn(),
		lease:    lease,
		id:       bucket.Nonce(),
		lines:    make(map[string]*line),
		leaving:  make(map[string]*time.Timer),
		sweep:    64,
		window:   make(chan struct{}, window),
	}
	// It outlives ctx, which governs New only.
	l.ctx, l.end = context.WithCancelCause(context.WithoutCancel(ctx))
	if err := l.listen(ctx); err != nil {
		return nil, err
	}
	l.status = l.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	l.work.Go(l.followConnection)
	return l, nil
}

// ConnOptions returns the options that the connection of a Locker wants; a
// program's own come after them. See [bucket.ConnOptions].
func ConnOptions() []nats.Option { return bucket.ConnOptions() }

// Bucket returns the bucket that the locks live in.
func (l *Locker) Bucket() *bucket.Bucket { return l.b }

// TTL returns the TTL of the holds of this Locker, in whole seconds.
func (l *Locker) TTL() time.Duration { return l.lease.TTL }

// followConnection wakes every waiter at a reconnect, since it may have been passed over
// meanwhile, and at the end of the connection, since nothing comes after it.
func (l *Locker) followConnection() {
	defer l.nc.RemoveStatusListener(l.status)
	for open := true; open; {
		select {
		case _, open = <-l.status:
		case <-l.ctx.Done():
			return
		}
		l.mu.Lock()
		for _, ln := range l.lines {
			for _, w := range ln.tickets {
				nudge(w.wake)
			}
		}
		l.mu.Unlock()
	}
}

// enter begins a call; leave with l.work.Done.
func (l *Locker) enter() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	l.work.Add(1)
	return nil
}

// Close releases every lock that the Locker holds and waits until that is done.
//
// Calls that wait for a lock return [ErrClosed], and so do later ones. The functions
// given to [Locker.Do] and its like have their context cancelled with it, and their locks
// are released when they have returned, not before; so Close must not be called by one of
// them. Other locks are released at once. The connection stays open, and what only reads,
// such as [Locker.Holder], still works.
//
// Close blocks until all is done and returns what went wrong with the releases, or until
// ctx is done, which the error matches then; the rest goes on in the background, and ends
// by itself at the latest when the leases do. Close is idempotent.
func (l *Locker) Close(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	var held []*Lock
	for _, ln := range l.lines {
		for k := range ln.holds {
			if !k.guarded {
				held = append(held, k)
			}
		}
	}
	l.mu.Unlock()
	l.end(ErrClosed)
	l.hurry()

	errs := make([]error, len(held))
	var all sync.WaitGroup
	for i, k := range held {
		all.Go(func() {
			// A hold that was lost has been reported to its owner.
			if err := k.Release(ctx); !errors.Is(err, ErrLost) {
				errs[i] = err
			}
		})
	}
	all.Wait()
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.work.Wait()
		_ = l.sub.Unsubscribe() // fails only if the connection is closed
	}()
	select {
	case <-done:
		return errors.Join(errs...)
	case <-ctx.Done():
		return errors.Join(append(errs, fmt.Errorf("kvlock: close: %w", context.Cause(ctx)))...)
	}
}

// peek returns what is known of a lock, given its encoded name, to be read only. l.mu is
// held.
func (l *Locker) peek(enc string) *line {
	return cmp.Or(l.lines[enc], &line{})
}

// line returns what is known of a lock, given its encoded name. l.mu is held.
func (l *Locker) line(enc string) *line {
	now := time.Now()
	if len(l.lines) >= l.sweep {
		for enc, ln := range l.lines {
			if len(ln.holds)+len(ln.tickets)+len(ln.tries) == 0 && now.After(ln.until) && now.Sub(ln.used) > memory {
				delete(l.lines, enc)
			}
		}
		l.sweep = max(64, 2*len(l.lines))
	}
	ln := l.lines[enc]
	if ln == nil {
		ln = &line{
			holds:   make(map[*Lock]struct{}),
			tickets: make(map[string]*waiter),
			tries:   make(map[string]*waiter),
		}
		l.lines[enc] = ln
	}
	ln.used = now
	return ln
}
