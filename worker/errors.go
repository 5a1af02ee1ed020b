package worker

import (
	"errors"
	"fmt"
)

// ErrSetting reports a task that cannot work as it is configured.
// The error returned is a [*SettingError].
var ErrSetting = errors.New("setting does not fit")

// A SettingError says which setting does not fit, and what would.
// It matches [ErrSetting].
type SettingError struct {
	Of      string // what it belongs to: "command", `stream "ORDERS"`
	Setting string // the setting
	Have    string // what it is
	Want    string // what it should be
}

func (e *SettingError) Error() string {
	return fmt.Sprintf("worker: %s: %s: have %s, want %s", e.Of, e.Setting, e.Have, e.Want)
}

func (e *SettingError) Unwrap() error { return ErrSetting }

// ErrCheckpoint reports that the checkpoint of a partition was not written by a
// stream task, so that it says nothing about the position in the stream.
var ErrCheckpoint = errors.New("checkpoint is not a position in a stream")
