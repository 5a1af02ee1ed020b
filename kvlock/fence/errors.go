package fence

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// ErrStale reports that a token is lower than the mark of the resource: its hold
// has ended. The error is a [*StaleError].
var ErrStale = errors.New("fencing token is stale")

// ErrFormat reports a value that was not written by this package. The error is a
// [*FormatError].
var ErrFormat = errors.New("value has no mark")

// ErrInput reports an argument that cannot be used. Nothing was stored. The error is
// an [*InputError].
var ErrInput = errors.New("input cannot be used")

// maxResource is the largest length of the name of a resource in bytes: two names of
// kvlock and some more, and small enough for an index of PostgreSQL.
const maxResource = 500

// A StaleError says which token was refused. It matches [ErrStale].
type StaleError struct {
	Resource string
	Have     uint64 // the token that was refused
	Want     uint64 // the least that is accepted: the highest seen, or 1
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

// An InputError says which argument cannot be used. It matches [ErrInput].
type InputError struct {
	Input string
	Have  string
	Want  string
}

func (e *InputError) Error() string {
	return fmt.Sprintf("fence: %s: have %s, want %s", e.Input, e.Have, e.Want)
}

// Unwrap returns [ErrInput].
func (e *InputError) Unwrap() error { return ErrInput }

// checkResource returns an error for a name that not every guard can store.
func checkResource(name string) error {
	if name == "" || len(name) > maxResource {
		return &InputError{Input: "resource", Have: fmt.Sprintf("%d bytes", len(name)), Want: fmt.Sprintf("1 to %d bytes", maxResource)}
	}
	if !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
		return &InputError{Input: "resource", Have: fmt.Sprintf("%q", shorten(name)), Want: "UTF-8 without a zero byte"}
	}
	return nil
}

func shorten(s string) string { return s[:min(len(s), 32)] }

// stale returns the error for a token at a mark, nil if it is accepted.
func stale(resource string, token, mark uint64) error {
	if want := max(1, mark); token < want {
		return &StaleError{Resource: resource, Have: token, Want: want}
	}
	return nil
}
