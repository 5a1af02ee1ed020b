package embedded

import (
	"errors"
	"fmt"
)

var (
	// ErrStoreInUse reports that another server uses the store directory.
	// The error returned is a [*StoreInUseError].
	ErrStoreInUse = errors.New("store directory is in use")

	// ErrOption reports an option that cannot be used.
	// The error returned is an [*OptionError].
	ErrOption = errors.New("bad option")

	// ErrStart reports that a server did not become ready.
	// The error returned is a [*StartError].
	ErrStart = errors.New("server did not start")

	// ErrStopped reports that the server is not running at present.
	ErrStopped = errors.New("server is stopped")
)

// A StoreInUseError says which directory is in use. It matches [ErrStoreInUse].
type StoreInUseError struct {
	Dir string // as given to [Store]
}

func (e *StoreInUseError) Error() string {
	return fmt.Sprintf("store directory %q is in use by another server", e.Dir)
}

// Unwrap returns [ErrStoreInUse].
func (e *StoreInUseError) Unwrap() error { return ErrStoreInUse }

// An OptionError says which option cannot be used. It matches [ErrOption].
type OptionError struct {
	Option string // the function that made it, such as "Listen"
	Have   string
	Want   string
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("option %s: have %s, want %s", e.Option, e.Have, e.Want)
}

// Unwrap returns [ErrOption].
func (e *OptionError) Unwrap() error { return ErrOption }

// A StartError says why a server did not become ready. It matches [ErrStart].
type StartError struct {
	Server string // its name
	Reason string // what the server said, or what was still missing
}

func (e *StartError) Error() string {
	return fmt.Sprintf("server %q did not start: %s", e.Server, e.Reason)
}

// Unwrap returns [ErrStart].
func (e *StartError) Unwrap() error { return ErrStart }
