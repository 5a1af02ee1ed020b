package bucket

import (
	"errors"
	"fmt"
	"time"
)

// Outcomes of an operation. ErrConflict, ErrBusy and ErrFull say that nothing
// was stored.
var (
	// ErrConflict reports that the expected revision was not the last one in
	// the eyes of the leader that answered. The error is a [*ConflictError].
	ErrConflict = errors.New("wrong last revision")

	// ErrBusy reports that nothing was stored and that the same write may
	// succeed in a moment: another write of the key is in flight, the stream
	// has no leader, or the connection is down.
	ErrBusy = errors.New("not stored, try again")

	// ErrFull reports that nothing was stored because a limit of the stream,
	// the account, the server's store or the size of a message is reached.
	ErrFull = errors.New("no room left")

	// ErrDoubt reports that no answer came: the write may have been stored, or
	// may still be.
	ErrDoubt = errors.New("outcome unknown")

	// ErrNotFound reports that the key has no entry, not even a marker.
	ErrNotFound = errors.New("no entry")
)

// What can be wrong with the bucket, the server or the caller's input.
var (
	// ErrBucket reports a bucket that cannot be used: missing, or made with
	// other settings than needed. It is a [*SettingError] where one setting is
	// to blame.
	ErrBucket = errors.New("bucket cannot be used")

	// ErrGone reports that the bucket was deleted, made anew, or set back to
	// an older state while it was in use. It matches [ErrBucket] too.
	ErrGone = fmt.Errorf("%w: it is gone or was made anew", ErrBucket)

	// ErrServer reports a server that is too old.
	ErrServer = errors.New("server cannot be used")

	// ErrPermission reports that the server denied a subject. The error is a
	// [*PermissionError].
	ErrPermission = errors.New("permission denied")

	// ErrName reports a name that cannot be part of a key. The error is a
	// [*NameError].
	ErrName = errors.New("name cannot be used")

	// ErrTTL reports durations that cannot make a lease. The error is a
	// [*TTLError].
	ErrTTL = errors.New("lease durations cannot be used")
)

// A ConflictError says which revision was found instead of the expected one.
// It matches [ErrConflict].
type ConflictError struct {
	Key  string // the key that the expectation was about
	Want uint64 // the revision that was expected
	Last uint64 // the last revision as the leader saw it, 0 for none
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("key %q: %v: have %d, want %d", e.Key, ErrConflict, e.Last, e.Want)
}

func (e *ConflictError) Unwrap() error { return ErrConflict }

// A SettingError names a setting of the bucket that is not as needed.
// It matches [ErrBucket].
type SettingError struct {
	Bucket  string
	Setting string
	Have    string
	Want    string
}

func (e *SettingError) Error() string {
	return fmt.Sprintf("bucket %q: %s: have %s, want %s", e.Bucket, e.Setting, e.Have, e.Want)
}

func (e *SettingError) Unwrap() error { return ErrBucket }

// A PermissionError names the subject that the server denied.
// It matches [ErrPermission].
type PermissionError struct {
	Subject string
	Err     error // as the server said it
}

func (e *PermissionError) Error() string {
	return fmt.Sprintf("%v: subject %q", ErrPermission, e.Subject)
}

func (e *PermissionError) Unwrap() error { return ErrPermission }

// A NameError says why a name cannot be used. It matches [ErrName].
type NameError struct {
	Name string
	Have string
	Want string
}

func (e *NameError) Error() string {
	return fmt.Sprintf("name %q: have %s, want %s", e.Name, e.Have, e.Want)
}

func (e *NameError) Unwrap() error { return ErrName }

// A TTLError says which duration cannot be used. It matches [ErrTTL].
type TTLError struct {
	Setting string
	Have    time.Duration
	Want    string
}

func (e *TTLError) Error() string {
	return fmt.Sprintf("%s: have %v, want %s", e.Setting, e.Have, e.Want)
}

func (e *TTLError) Unwrap() error { return ErrTTL }
