package config

import (
	"errors"
	"fmt"
	"strings"
)

// ErrInvalid reports a configuration that cannot be used. The error is a
// [*SettingError], a [*RelationError], an [*UnknownKeyError] or one that says
// what is wrong with the file.
var ErrInvalid = errors.New("configuration cannot be used")

// A SettingError says which setting cannot be used. It matches [ErrInvalid].
type SettingError struct {
	Setting string // its name
	Origin  string // where its value stands: a flag, a variable, a place in the file; empty if not known
	Have    string
	Want    string
}

func (e *SettingError) Error() string {
	where := e.Origin
	if where == "" {
		where = e.Setting
	}
	return fmt.Sprintf("%s: have %s, want %s", where, e.Have, e.Want)
}

func (e *SettingError) Unwrap() error { return ErrInvalid }

// A RelationError says which relation between settings does not hold.
// It matches [ErrInvalid].
type RelationError struct {
	Rule     string   // the inequality, in names of settings
	Have     string   // the same in figures
	Want     string   // the limit that follows for the first setting
	Settings []string // where the values stand
}

func (e *RelationError) Error() string {
	return fmt.Sprintf("%s does not hold: have %s, want %s (%s)", e.Rule, e.Have, e.Want, strings.Join(e.Settings, ", "))
}

func (e *RelationError) Unwrap() error { return ErrInvalid }

// An UnknownKeyError names a key of the file that is no setting.
// It matches [ErrInvalid].
type UnknownKeyError struct {
	File string
	Line int
	Key  string
	Near string // the setting that may be meant, empty if none is near
}

func (e *UnknownKeyError) Error() string {
	text := fmt.Sprintf("%s:%d: unknown key %q", e.File, e.Line, short(e.Key))
	if e.Near != "" {
		text += fmt.Sprintf(", did you mean %q?", e.Near)
	}
	return text
}

func (e *UnknownKeyError) Unwrap() error { return ErrInvalid }
