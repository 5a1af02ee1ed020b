package kvlock

import (
	"errors"
	"fmt"
	"time"

	"tenure/kvlock/bucket"
)

// Outcomes.
var (
	// ErrHeld reports that another hold stands in the way. The error is a
	// [*HeldError].
	ErrHeld = errors.New("lock is held")

	// ErrLost reports that a hold ended before it was released. The error is a
	// [*LostError].
	ErrLost = errors.New("lock is lost")

	// ErrReleased reports that a hold was given back, or a function under it has
	// returned. It is the cause of the context of a released [Lock].
	ErrReleased = errors.New("kvlock: lock is released")

	// ErrClosed reports that the [Locker] is closed.
	ErrClosed = errors.New("locker is closed")

	// ErrFree reports that nobody holds the lock that was asked about.
	ErrFree = errors.New("lock is free")

	// ErrKind reports that a name is in use for another kind of lock. The error is
	// a [*KindError].
	ErrKind = errors.New("name is in use for another kind of lock")

	// ErrLimit reports that a semaphore has another limit than asked for. The
	// error is a [*LimitError].
	ErrLimit = errors.New("semaphore has another limit")

	// ErrNotFound reports that nothing is stored under a key.
	ErrNotFound = bucket.ErrNotFound

	// ErrQuarantine reports that the bucket was made anew and nobody may hold
	// anything in it yet. The error is a [*QuarantineError].
	ErrQuarantine = errors.New("bucket is under quarantine")
)

// What can be wrong with the input, the bucket and the server. Those that package
// bucket has are the same values there.
var (
	// ErrOption reports an option or an argument that cannot be used. The error is an
	// [*OptionError].
	ErrOption = errors.New("option cannot be used")

	// ErrRecord reports that what stands under the key of a lock is not a
	// record of this package, or of a newer version. The error is a
	// [*RecordError].
	ErrRecord = errors.New("record cannot be read")

	// ErrName reports a name that cannot be used.
	ErrName = bucket.ErrName

	// ErrTTL reports durations that cannot make a lease.
	ErrTTL = bucket.ErrTTL

	// ErrBucket reports a bucket that is missing, has other settings than
	// needed, or is gone.
	ErrBucket = bucket.ErrBucket

	// ErrServer reports a server that is too old.
	ErrServer = bucket.ErrServer

	// ErrPermission reports that the server denied a subject; the message names
	// it.
	ErrPermission = bucket.ErrPermission
)

// A HeldError says who holds a lock. It matches [ErrHeld].
type HeldError struct {
	Name  string
	Owner string    // as set by [WithOwner]; empty if the lock is between two holds and promised to the first in line
	Token uint64    // of the hold, 0 if there is none
	Since time.Time // by the holder's clock
	Note  string
	Until time.Time // by the server's clock: end of the minimum hold of a released lock, zero for others
}

func (e *HeldError) Error() string {
	if e.Token == 0 {
		return "held for the first in line"
	}
	s := fmt.Sprintf("held by %q since %s (token %d)", e.Owner, e.Since.Format(time.RFC3339), e.Token)
	if !e.Until.IsZero() {
		s += ", which has ended, but not its minimum until " + e.Until.Format(time.RFC3339)
	}
	return s
}

// Unwrap returns [ErrHeld].
func (e *HeldError) Unwrap() error { return ErrHeld }

// A Reason says why a hold was lost.
type Reason string

// The reasons of a [LostError].
const (
	Expired Reason = "no renewal was confirmed in time"
	Taken   Reason = "another holds it"
	Revoked Reason = "it was revoked"
	Removed Reason = "its key was removed"
	Gone    Reason = "the bucket is gone or was made anew"
	Closed  Reason = "the connection was closed"
	Overrun Reason = "its maximum hold is over"
)

// A LostError says why a hold was lost. It matches [ErrLost], and the error that
// stood behind it if there is one.
type LostError struct {
	Name   string
	Token  uint64 // of the hold that was lost
	Reason Reason
	By     string // Taken: the owner of the hold that followed
	Next   uint64 // Taken: its token
	Text   string // Revoked: as given to [Locker.Break]
	Err    error  // the last error of a renewal, nil if there was none
}

func (e *LostError) Error() string {
	s := fmt.Sprintf("kvlock: lost %q (token %d): %s", e.Name, e.Token, e.Reason)
	switch {
	case e.Reason == Taken:
		s += fmt.Sprintf(": %q (token %d)", e.By, e.Next)
	case e.Reason == Revoked && e.Text != "":
		s += fmt.Sprintf(": %q", e.Text)
	case e.Err != nil:
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns [ErrLost] and Err.
func (e *LostError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrLost}
	}
	return []error{ErrLost, e.Err}
}

// A KindError says what else a name is in use for: one name cannot be both a plain
// lock and an [RWLock]. It matches [ErrKind].
type KindError struct {
	Name string
	Have string // the kind of the record that stands there: "lock" or "rw"
	Want string
}

func (e *KindError) Error() string {
	return fmt.Sprintf("in use as %q, want %q", e.Have, e.Want)
}

// Unwrap returns [ErrKind].
func (e *KindError) Unwrap() error { return ErrKind }

// A LimitError says which limit the clients of a semaphore have agreed on. It
// matches [ErrLimit].
type LimitError struct {
	Name string
	Have int // the limit agreed on
	Want int // as asked for
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("limit: have %d, want %d", e.Have, e.Want)
}

// Unwrap returns [ErrLimit].
func (e *LimitError) Unwrap() error { return ErrLimit }

// A QuarantineError says how long nobody may hold anything in the bucket yet. It
// matches [ErrQuarantine].
type QuarantineError struct {
	Bucket string
	Left   time.Duration // from when the error was made
}

func (e *QuarantineError) Error() string {
	return fmt.Sprintf("bucket %q was made anew and is under quarantine for another %v", e.Bucket, e.Left.Round(time.Millisecond))
}

// Unwrap returns [ErrQuarantine].
func (e *QuarantineError) Unwrap() error { return ErrQuarantine }

// An OptionError says which option or argument cannot be used. It matches [ErrOption].
type OptionError struct {
	Option string
	Have   string
	Want   string
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("%s: have %s, want %s", e.Option, e.Have, e.Want)
}

// Unwrap returns [ErrOption].
func (e *OptionError) Unwrap() error { return ErrOption }

// A RecordError says what is wrong with the value of a key. It matches
// [ErrRecord].
type RecordError struct {
	Key   string
	Field string
	Have  string
	Want  string
}

func (e *RecordError) Error() string {
	return fmt.Sprintf("key %q: %s: have %s, want %s", e.Key, e.Field, e.Have, e.Want)
}

// Unwrap returns [ErrRecord].
func (e *RecordError) Unwrap() error { return ErrRecord }
