package fence

import (
	"errors"
	"fmt"
)

// ErrStale reports that a token is lower than the mark of the resource: its hold
// has ended. The error is a [*StaleError].
var ErrStale = errors.New("fencing token is stale")

// ErrFormat reports a value that was not written by this package. The error is a
// [*FormatError].
var ErrFormat = errors.New("value has no mark")

// A StaleError says which token was refused. It matches [ErrStale].
type StaleError struct {
	Resource string
	Have     uint64 // the token that was refused
	Want     uint64 // the least that is accepted
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("fence: %q: token: have %d, want at least %d", e.Resource, e.Have, e.Want)
}

// Unwrap returns [ErrStale].
func (e *StaleError) Unwrap() error { return ErrStale }

// A FormatError names a key whose value was not written by this package. It matches
// [ErrFormat].
type FormatError struct {
	Key  string
	Have string // the beginning of the value
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("fence: key %q: value: have %q, want one that begins with %q", e.Key, e.Have, magic)
}

// Unwrap returns [ErrFormat].
func (e *FormatError) Unwrap() error { return ErrFormat }

// stale returns the error for a token at a mark, nil if it is accepted.
func stale(resource string, token, mark uint64) error {
	if want := max(1, mark); token < want {
		return &StaleError{Resource: resource, Have: token, Want: want}
	}
	return nil
}
