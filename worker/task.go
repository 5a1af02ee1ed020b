package worker

import (
	"context"
	"log/slog"
	"time"
)

// A Partition is what a task needs to know of the partition it runs for.
// *claim.Partition is one; a [Func] that needs more of it asserts that type.
type Partition interface {
	// Group is the group of the partition, Name its own name, and Worker the id
	// of the worker that holds it.
	Group() string
	Name() string
	Worker() string

	// Token is the fencing token of the hold. It is larger than that of any hold
	// before, and never 0.
	Token() uint64

	// Checkpoint is what was last saved for the partition, by this hold or one
	// before, nil if nothing ever was.
	Checkpoint() []byte

	// Save replaces the checkpoint. It is refused once the hold has ended,
	// whether the holder knows of it or not.
	Save(ctx context.Context, data []byte) error

	// Draining is closed when the partition shall be handed over: finish what is
	// in hand and return nil.
	Draining() <-chan struct{}

	// Remaining is how long the hold can be trusted without another renewal.
	// It is 0 or less when it cannot be trusted any more.
	Remaining() time.Duration
}

// A Task is run for every claimed partition, each in its own goroutine.
//
// Run returns nil when p is drained, and when there is nothing left to do: the
// partition then stays claimed and idle. It returns early, with any error, when
// ctx is done. After another error it is run again, after a while.
type Task interface {
	Run(ctx context.Context, p Partition) error
}

// A Func is a function used as a [Task].
type Func func(ctx context.Context, p Partition) error

// Run calls f.
func (f Func) Run(ctx context.Context, p Partition) error { return f(ctx, p) }

// A Validator is a [Task] that can tell before it is run that it cannot work.
// A [Pool] asks it before it claims anything.
type Validator interface {
	Validate(ctx context.Context) error
}

// isDraining reports whether p shall be handed over.
func isDraining(p Partition) bool {
	select {
	case <-p.Draining():
		return true
	default:
		return false
	}
}

// partitionLog returns log with the attributes of p; nil is discarded.
func partitionLog(log *slog.Logger, p Partition) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log.With(slog.String("group", p.Group()), slog.String("partition", p.Name()),
		slog.String("worker", p.Worker()), slog.Uint64("token", p.Token()))
}
