package claim

import (
	"context"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

	"tenure/claim/plan"
	"tenure/kvlock/bucket"
)

// Defaults of a [Claimer].
const (
	DefaultDrainTimeout = 30 * time.Second
	DefaultBackoff      = 200 * time.Millisecond
	DefaultMaxBackoff   = time.Minute
	// At least; it is four TTLs if that is more.
	DefaultAssignmentTimeout = time.Minute

	DefaultRejoinDelay = 10 * time.Second // of a worker with an id of its own
)

// MaxRejoinDelay is the longest time that a worker can be waited for.
const MaxRejoinDelay = 10 * time.Minute

// An Option sets how a [Claimer] works.
type Option func(*options) error

type options struct {
	bucket     *bucket.Bucket
	partitions []string
	id         string
	ttl        time.Duration
	margin     time.Duration
	renewals   int
	drain      time.Duration
	capacity   int
	weight     int
	zone       string
	build      uint64
	backoff    time.Duration
	maxBackoff time.Duration
	rejoin     time.Duration
	restart    bool
	idTimeout  time.Duration
	assignment time.Duration
	log        *slog.Logger

	prepare      func(ctx context.Context, partition string) error
	prepareLimit time.Duration
	quarantine   int
	force        time.Duration
	stall        time.Duration
	giveUp       bool
	degraded     bool
	trace        Trace
}

// WithBucket sets the bucket that the group lives in. Without it New opens the
// bucket of the default name, and makes it if it is missing.
func WithBucket(b *bucket.Bucket) Option {
	return func(o *options) error { o.bucket = b; return nil }
}

// WithPartitions sets the partitions of the group, 1 to 1,000,000 different
// names of 1 to 200 bytes; see [Numbered]. The first claimer of a group stores
// them; if they differ from those stored, New fails with a [*GroupError].
// Without this option the group must have been set up already.
func WithPartitions(names ...string) Option {
	return func(o *options) error { o.partitions = names; return nil }
}

// WithID sets the worker's id, 1 to 200 bytes. A process that comes back with
// its old id takes its own partitions back. Two live processes cannot have one
// id: the second waits until the first is gone. By default an id is made of the
// host's name and a random part.
func WithID(id string) Option {
	return func(o *options) error {
		if _, err := bucket.EncodeName(id); err != nil {
			return fmt.Errorf("worker id: %w", err)
		}
		o.id = id
		return nil
	}
}

// WithTTL sets how long the session outlives its last heartbeat, and so how
// soon partitions move after a crash: whole seconds, at least 2, at most what
// the bucket allows; fractions are rounded up. The default is 15 s, which
// survives the election of a new leader of the stream.
func WithTTL(d time.Duration) Option {
	return func(o *options) error { o.ttl = d; return nil }
}

// WithMargin sets by how much this worker stops before the server can give its
// session up. The default and the least is max(500 ms, TTL/10).
func WithMargin(d time.Duration) Option {
	return func(o *options) error { o.margin = d; return nil }
}

// WithHeartbeats sets how many heartbeats are sent within one TTL, at least 2.
// The default is 3.
func WithHeartbeats(n int) Option {
	return func(o *options) error { o.renewals = n; return nil }
}

// WithDrainTimeout sets how long a handler may take to return after it was
// asked to drain, before its context is cancelled with [ErrDrainDeadline].
// The default is 30 s; 0 cancels it at once.
func WithDrainTimeout(d time.Duration) Option {
	return func(o *options) error {
		if d < 0 {
			return fmt.Errorf("drain timeout: have %v, want 0 or more: %w", d, ErrTTL)
		}
		o.drain = d
		return nil
	}
}

// WithCapacity sets the most partitions that this worker takes. The default of
// 0 means no limit.
func WithCapacity(n int) Option {
	return func(o *options) error {
		if n < 0 {
			return fmt.Errorf("capacity: have %d, want 0 or more", n)
		}
		o.capacity = n
		return nil
	}
}

// WithWeight sets this worker's share beside others, 1 to 65,536: one of weight 2
// gets twice as many partitions as one of weight 1. The default is 1.
func WithWeight(n int) Option {
	return func(o *options) error {
		if n < 1 || n > plan.MaxWorkerWeight {
			return fmt.Errorf("weight: have %d, want 1 to %d", n, plan.MaxWorkerWeight)
		}
		o.weight = n
		return nil
	}
}

// WithZone sets the zone that this worker is in, at most 200 bytes of UTF-8. What
// that means is up to [Policy.Zones]. The default is none.
func WithZone(zone string) Option {
	return func(o *options) error {
		if len(zone) > bucket.MaxName || !utf8.ValidString(zone) {
			return fmt.Errorf("zone: have %d bytes, want at most %d of UTF-8", len(zone), bucket.MaxName)
		}
		o.zone = zone
		return nil
	}
}

// WithBuild sets the number of this worker's build, a larger one for a newer
// build; see [Policy.Rollout]. The default is 0.
func WithBuild(n uint64) Option {
	return func(o *options) error { o.build = n; return nil }
}

// WithBackoff sets the pause before a failed handler is started again: first at
// the first failure, doubled at every further one, at most longest. The
// defaults are 200 ms and one minute.
func WithBackoff(first, longest time.Duration) Option {
	return func(o *options) error {
		if first <= 0 || longest < first {
			return fmt.Errorf("backoff: have %v to %v, want 0 < first <= longest", first, longest)
		}
		o.backoff, o.maxBackoff = first, longest
		return nil
	}
}

// WithLogger sets where the claimer logs. The default discards everything.
func WithLogger(l *slog.Logger) Option {
	return func(o *options) error { o.log = l; return nil }
}

// WithRejoinDelay sets for how long the partitions of this worker wait for it to
// come back under its id, at most [MaxRejoinDelay], before others get them. It
// counts from the last heartbeat, and a dead worker is known to be dead one TTL
// after that: so a delay up to the TTL, like the default, makes no death last
// longer, and leaves a quick restart the time to take its own partitions back. 0
// means that nobody waits. The default is 0 without [WithID], and with it the TTL,
// at most 10 s; with [WithRestart] it is 10 s.
//
// A worker that stops hands everything over at once all the same, unless
// [WithRestart] says otherwise.
func WithRejoinDelay(d time.Duration) Option {
	return func(o *options) error {
		if d < 0 || d > MaxRejoinDelay {
			return fmt.Errorf("rejoin delay: have %v, want 0 to %v: %w", d, MaxRejoinDelay, ErrTTL)
		}
		o.rejoin = d
		return nil
	}
}

// WithRestart says that this worker comes back under its id whenever it stops, as
// in a rolling restart. Run then hands nothing over: its handlers drain, and the
// partitions stay with the id, run by nobody, until the worker is back or the
// rejoin delay has passed since it left. It takes [WithID] and a rejoin delay.
//
// Without it a stop costs two moves of each partition, there and back, and no gap;
// with it none, and a gap as long as the restart.
func WithRestart() Option {
	return func(o *options) error { o.restart = true; return nil }
}

// WithIDTimeout sets for how long Run waits, at each joining, for another process
// with this worker's id to end, before it returns an error that matches
// [ErrWorkerID]. The default of 0 means for ever.
func WithIDTimeout(d time.Duration) Option {
	return func(o *options) error {
		if d < 0 {
			return fmt.Errorf("id timeout: have %v, want 0 or more: %w", d, ErrTTL)
		}
		o.idTimeout = d
		return nil
	}
}

// WithAssignmentTimeout sets for how long a worker may be without a session, or
// without a partition though some are free, before [Claimer.Healthy] says so. The
// default is a minute, or four TTLs if that is more.
func WithAssignmentTimeout(d time.Duration) Option {
	return func(o *options) error {
		if d <= 0 {
			return fmt.Errorf("assignment timeout: have %v, want more than 0: %w", d, ErrTTL)
		}
		o.assignment = d
		return nil
	}
}
