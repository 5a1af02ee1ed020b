package claim

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"tenure/kvlock/bucket"
)

// A Handler does the work of one partition for as long as the claimer owns it.
//
// It is called in a goroutine of its own and should return nil soon after
// [Partition.Draining] is closed, with everything that it has begun finished.
// Its ctx ends only when it has to stop at once, and then says why; the values
// of Run's ctx are in it. A handler that returns nil without having been asked
// has finished: the partition stays claimed and idle until it moves. One that
// returns an error or panics is started again after a pause that doubles each
// time; other partitions do not notice.
type Handler func(ctx context.Context, p *Partition) error

// A Partition is what one call of a [Handler] owns. Its methods may be called
// concurrently. When the handler has returned, or the claim is lost, every
// write through it fails.
type Partition struct {
	hold       *hold
	ctx        context.Context // as the handler has it
	end        context.CancelCauseFunc
	draining   chan struct{}
	done       chan struct{} // closed when the handler has returned
	checkpoint []byte
	attempts   int
	began      time.Time
	beat       atomic.Int64 // since then
	stalled    atomic.Bool
}

// Group returns the name of the group.
func (p *Partition) Group() string { return p.hold.slot.c.group }

// Name returns the name of the partition.
func (p *Partition) Name() string { return p.hold.slot.name }

// Worker returns the id of the worker that owns it.
func (p *Partition) Worker() string { return p.hold.slot.c.id }

// Token returns the fencing token: the revision at which the claim was gained.
// It does not change while the claim is held, and every later claim of the
// partition has a larger one. It is never 0.
func (p *Partition) Token() uint64 { return p.hold.token }

// Checkpoint returns what was last saved for the partition when the handler was
// called, by this worker or another, or what an earlier call of the handler
// staged under the same claim; nil if there is nothing. The caller may keep and
// change it.
func (p *Partition) Checkpoint() []byte { return p.checkpoint }

// Attempts returns how many times in a row the handler has failed before this
// call of it.
func (p *Partition) Attempts() int { return p.attempts }

// Draining is closed when the handler should finish what it has begun and
// return nil. It then has the drain timeout to do so.
func (p *Partition) Draining() <-chan struct{} { return p.draining }

// Remaining returns how long the claim may be relied on without a further
// heartbeat. It is 0 when the claim has ended, whether or not ctx has been
// cancelled yet. What must not happen after the claim's end has to be over
// within this time.
func (p *Partition) Remaining() time.Duration {
	if p.returned() != nil || p.hold.ctx.Err() != nil {
		return 0
	}
	return max(0, p.hold.sess.left())
}

// returned returns the cause of the handler's ctx once the handler has returned.
func (p *Partition) returned() error {
	select {
	case <-p.done:
		return context.Cause(p.ctx)
	default:
		return nil
	}
}

// Save stores data as the partition's checkpoint, fenced: it is refused once
// the claim has ended, also when this process does not know that yet.
//
// It blocks until the write is confirmed, ctx is done, or the claim has ended;
// writes of one partition are stored one after the other. A write whose answer
// was lost is first made ineffective, then repeated, so a failed Save never
// comes to light later over a newer one. The error is ctx's cause, or matches
// [ErrFenced], [ErrSessionLost], [ErrDegraded] or the cause of the handler's ctx. After an
// error the checkpoint is the one saved before, or data. Data may have up to
// the server's max_payload less about 1 KiB, 1 MiB by default.
func (p *Partition) Save(ctx context.Context, data []byte) error {
	if err := p.hold.save(ctx, p, data); err != nil {
		return fmt.Errorf("claim: save checkpoint of %q: %w", p.Name(), err)
	}
	return nil
}

// Put stores value under data.<key> in the bucket, fenced as [Partition.Save] is.
// The key is encoded as names are and has 1 to 200 bytes; other holds and locks may
// write the same key, each under its own fence, so choose keys of this partition.
//
// It blocks, and fails, as Save does. The error also matches [bucket.ErrDoubt] if
// the write may have been stored; without that it was not. The fenced writes of one
// claim are stored in the order in which they return.
func (p *Partition) Put(ctx context.Context, key string, value []byte) error {
	enc, err := bucket.DataKey(key)
	if err == nil {
		err = p.hold.put(ctx, p, enc, value)
	}
	if err != nil {
		return fmt.Errorf("claim: put %q of %q: %w", key, p.Name(), err)
	}
	return nil
}

// Publish stores data under a subject of the bucket's own stream, fenced as
// [Partition.Put] is. The subject begins with that of the bucket
// ([bucket.Bucket.Subject]) and is none of those that locks and claims use, which is
// [ErrName]. The stream keeps the last message of a subject only; whoever wants all
// of them has a consumer.
func (p *Partition) Publish(ctx context.Context, subject string, data []byte) error {
	key, err := p.hold.slot.c.bucket.OwnKey(subject)
	if err == nil {
		err = p.hold.put(ctx, p, key, data)
	}
	if err != nil {
		return fmt.Errorf("claim: publish to %q from %q: %w", subject, p.Name(), err)
	}
	return nil
}

// Stage sets data as the checkpoint to be stored when the partition is handed
// over or given back, in the same atomic write: nobody can own the partition
// without it. It does no I/O; if the claim is lost before, data is lost too. A
// later Save replaces it.
func (p *Partition) Stage(data []byte) { p.hold.stage(p, data) }
