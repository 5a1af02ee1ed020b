package plan

import (
	"errors"
	"fmt"
)

var (
	// ErrFormat reports that a stored plan is malformed.
	// The error returned is a [*FormatError].
	ErrFormat = errors.New("plan is malformed")

	// ErrNewer reports that a plan was stored in a newer format than this
	// program knows. The error returned is a [*FormatError].
	ErrNewer = errors.New("plan has a newer format")
)

// A FormatError says what is wrong with a stored plan. It matches [ErrNewer] if
// the format is unknown, else [ErrFormat].
type FormatError struct {
	Field string // of the stored object, or empty for the whole
	Have  string
	Want  string

	kind error
}

func (e *FormatError) Error() string {
	field := e.Field
	if field != "" {
		field += ": "
	}
	return fmt.Sprintf("%v: %shave %s, want %s", e.kind, field, e.Have, e.Want)
}

func (e *FormatError) Unwrap() error { return e.kind }

func malformed(field, want, have string, args ...any) error {
	return &FormatError{Field: field, Have: fmt.Sprintf(have, args...), Want: want, kind: ErrFormat}
}
