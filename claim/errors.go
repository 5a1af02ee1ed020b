package claim

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"tenure/kvlock/bucket"
)

// Errors shared with package bucket: bad bucket, server, name, durations, or a
// denied subject.
var (
	ErrBucket     = bucket.ErrBucket
	ErrServer     = bucket.ErrServer
	ErrPermission = bucket.ErrPermission
	ErrName       = bucket.ErrName
	ErrTTL        = bucket.ErrTTL
)

// Causes with which the context of a handler ends.
var (
	// ErrMoved reports that the partition was handed to another worker.
	ErrMoved = errors.New("partition was moved to another worker")

	// ErrPaused reports that the plan gives the partition to nobody.
	ErrPaused = errors.New("partition is assigned to nobody")

	// ErrRemoved reports that a resize took the partition out of the group.
	ErrRemoved = errors.New("partition was removed from the group")

	// ErrStopped reports that the claimer stops and has given the partition back.
	ErrStopped = errors.New("claimer has stopped")

	// ErrReturned reports that the handler has returned by itself. The claim may
	// still be held.
	ErrReturned = errors.New("handler has returned")

	// ErrDrainDeadline reports that the handler did not return in time after it
	// was asked to drain. The partition stays with this worker until it does.
	ErrDrainDeadline = errors.New("drain deadline passed")

	// ErrSessionLost reports that the worker's session has ended: by time,
	// because others proved it dead, or because the bucket is gone. The error
	// is a [*SessionError].
	ErrSessionLost = errors.New("session lost")

	// ErrRevoked reports that an operator has ended the worker's session, see
	// [Admin.Kick]. It comes with [ErrSessionLost].
	ErrRevoked = errors.New("session was revoked")

	// ErrStalled reports that the handler was given up because it made no progress;
	// see [WithGiveUpStalled].
	ErrStalled = errors.New("handler makes no progress")

	// ErrFenced reports that another worker's claim on the partition was found,
	// or that a write came after the hold had ended.
	ErrFenced = errors.New("partition is claimed by another worker")
)

var (
	// ErrGroup reports that the group is set up otherwise than asked, or not at
	// all. It is a [*GroupError] where the settings differ.
	ErrGroup = errors.New("group cannot be used")

	// ErrWorkerID reports that another live process has the worker's id. The
	// error is a [*WorkerIDError].
	ErrWorkerID = errors.New("worker id is in use")

	// ErrPanic reports that a handler panicked. The error is a [*PanicError].
	ErrPanic = errors.New("handler panicked")

	// ErrDegraded reports a write while the store is away and the handler runs on all
	// the same; see [WithDegraded].
	ErrDegraded = errors.New("claim cannot be relied on now")

	// ErrRunning reports a second concurrent Run of one claimer.
	ErrRunning = errors.New("claimer is running already")
)

// What an [Admin] refuses. The errors are [*AdminError]s.
var (
	// ErrPartition reports a partition that the group does not have.
	ErrPartition = errors.New("no such partition")

	// ErrWorker reports a worker that is not there, or cannot be given anything.
	ErrWorker = errors.New("no such worker")

	// ErrCapacity reports that a worker has no room for what is asked.
	ErrCapacity = errors.New("worker has no room")

	// ErrSettings reports settings of a group that cannot be: asked for, or read
	// from the bucket. It matches [ErrGroup] too.
	ErrSettings = fmt.Errorf("%w: bad settings", ErrGroup)
)

// An AdminError says what is wrong with a request about a group. It matches Err.
type AdminError struct {
	Group string // empty if not known
	What  string
	Have  string
	Want  string
	Err   error // one of the errors above
}

func (e *AdminError) Error() string {
	group := ""
	if e.Group != "" {
		group = fmt.Sprintf("group %q: ", e.Group)
	}
	return fmt.Sprintf("%s%s: have %s, want %s: %v", group, e.What, e.Have, e.Want, e.Err)
}

func (e *AdminError) Unwrap() error { return e.Err }

// A GroupError says how a group's partitions differ from those asked for. It
// matches [ErrGroup].
type GroupError struct {
	Group string
	Have  string // as stored
	Want  string // as asked
}

func (e *GroupError) Error() string {
	return fmt.Sprintf("group %q: partitions: have %s, want %s", e.Group, e.Have, e.Want)
}

func (e *GroupError) Unwrap() error { return ErrGroup }

// A WorkerIDError says which process has a worker's id. It matches [ErrWorkerID].
type WorkerIDError struct {
	Worker string
	Host   string
	PID    int
	Epoch  uint64 // of its session
}

func (e *WorkerIDError) Error() string {
	return fmt.Sprintf("%v: worker %q is process %d on %q, epoch %d", ErrWorkerID, e.Worker, e.PID, e.Host, e.Epoch)
}

func (e *WorkerIDError) Unwrap() error { return ErrWorkerID }

// A SessionError says why a session ended. It matches [ErrSessionLost], and
// through Err what it was lost to.
type SessionError struct {
	Worker string
	Epoch  uint64
	Reason string
	Err    error // may be nil
}

func (e *SessionError) Error() string {
	return fmt.Sprintf("%v: worker %q, epoch %d: %s", ErrSessionLost, e.Worker, e.Epoch, e.Reason)
}

func (e *SessionError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrSessionLost}
	}
	return []error{ErrSessionLost, e.Err}
}

// A PanicError carries what a handler panicked with. It matches [ErrPanic].
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("%v: %v", ErrPanic, e.Value) }

func (e *PanicError) Unwrap() error { return ErrPanic }

// describe renders a list of partitions for an error.
func describe(s settings) string {
	if s.Count > 0 {
		return fmt.Sprintf("%d numbered", s.Count)
	}
	const most = 5
	if len(s.Names) <= most {
		return fmt.Sprintf("%q", s.Names)
	}
	return fmt.Sprintf("%q and %d more", strings.Join(s.Names[:most], ","), len(s.Names)-most)
}

// silent is the reason of a session that no confirmation kept alive.
func silent(since time.Duration) string {
	return fmt.Sprintf("no heartbeat was confirmed for %v", since.Round(time.Millisecond))
}
