package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"

	"tenure/config"
	"tenure/embedded"
	"tenure/kvlock/bucket"
	"tenure/worker"
)

// Exit codes. A command that ends by signal n has 128+n, and a command that runs
// another one has its code.
const (
	exitDone        = 0
	exitError       = 1
	exitUsage       = 2  // wrong usage or configuration
	exitUnreachable = 69 // no NATS server could be reached in time
	exitBusy        = 75 // the lock was not free in time
	exitLost        = 76 // the lock or the session was lost while the command ran
	exitDenied      = 77 // NATS denied a subject
	exitSignal      = 128
)

// A codeError is an error with an exit code of its own. Without an err there is
// nothing to say about it.
type codeError struct {
	code int
	err  error
}

func (e *codeError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *codeError) Unwrap() error { return e.err }

// usage marks err as wrong usage of the command line.
func usage(err error) error {
	return &codeError{exitUsage, fmt.Errorf("%s; see --help", escape(err.Error()))}
}

// wrongFlag returns the error of a flag that belongs to one command and is no
// setting of the configuration.
func wrongFlag(name, have, want string) error {
	return &config.SettingError{Setting: name, Origin: "--" + name, Have: have, Want: want}
}

// A signalError says which signal ended a command. It is the cause of contexts.
type signalError struct{ signal syscall.Signal }

func (e *signalError) Error() string { return "ended by signal: " + e.signal.String() }

// exitCode returns the exit code for what a command returned.
func exitCode(err error) int {
	if err == nil {
		return exitDone
	}
	if own, ok := errors.AsType[*codeError](err); ok {
		return own.code
	}
	if ended, ok := errors.AsType[*signalError](err); ok {
		return exitSignal + int(ended.signal)
	}
	for _, known := range []struct {
		err  error
		code int
	}{
		{config.ErrInvalid, exitUsage},
		{embedded.ErrOption, exitUsage},
		{bucket.ErrName, exitUsage},
		{bucket.ErrTTL, exitUsage},
		{worker.ErrSetting, exitUsage},
		{bucket.ErrPermission, exitDenied},
	} {
		if errors.Is(err, known.err) {
			return known.code
		}
	}
	return exitError
}

// report logs why a command failed, if there is something to say, and returns its
// exit code.
func report(ctx context.Context, log *slog.Logger, err error) int {
	code := exitCode(err)
	if own, ok := errors.AsType[*codeError](err); err != nil && (!ok || own.err != nil) {
		// Errors that were joined stand on lines of their own.
		line := escape(strings.ReplaceAll(err.Error(), "\n", "; "))
		log.ErrorContext(ctx, line, slog.Int("exit", code))
	}
	return code
}

// escape keeps what was given to the program from breaking the line, or the
// terminal.
func escape(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r < ' ' || r == 0x7f {
			fmt.Fprintf(&b, `\x%02x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
