package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"tenure/worker/proc"
)

// Restart says when a command that has ended by itself is started again.
type Restart string

const (
	RestartAlways    Restart = "always"     // whatever its exit code
	RestartOnFailure Restart = "on-failure" // unless it ended with 0
	RestartNever     Restart = "never"
)

const (
	defaultGrace   = 10 * time.Second
	steadyRun      = 10 * time.Second // a run this long ends a row of failures
	restartWaitMin = 200 * time.Millisecond
	restartWaitMax = 30 * time.Second
)

// A Command is a [Task] that runs one command per partition. Its fields are not
// changed once it is used.
//
// The command runs in a process group of its own. In its arguments "{partition}"
// and "{token}" are replaced. Its environment is that of this process and Env,
// and TENURE_GROUP, TENURE_PARTITION, TENURE_TOKEN, TENURE_WORKER, TENURE_BUCKET
// (if set here) and TENURE_CHECKPOINT (if there is one, and it is text).
//
// On a drain the group gets SIGTERM, and SIGKILL after Grace. When the hold
// cannot be renewed it gets SIGTERM early and SIGKILL at least 100 ms before the
// hold can end. When the hold is over, or the drain has taken too long, SIGKILL
// at once. Whatever the command started ends with it.
type Command struct {
	// Args is the program and its arguments.
	Args []string

	// Restart is [RestartAlways] if empty.
	Restart Restart

	// Grace is how long the command may take to end after SIGTERM.
	// The default is 10 s.
	Grace time.Duration

	// Backoff is how long to wait before the command is started again. The
	// default is 200 ms to 30 s. A run of 10 s (or Backoff.Max, if that is
	// shorter) starts it anew.
	Backoff Backoff

	// Bucket is the value of TENURE_BUCKET.
	Bucket string

	// Env is added to this process's environment, as in [exec.Cmd].
	Env []string

	// Dir is the working directory, this process's if empty.
	Dir string

	// Stdout and Stderr take the command's output line by line, nil discards it.
	// They may be the same.
	Stdout, Stderr io.Writer

	// Prefix puts the name of the partition before each line.
	Prefix bool

	// Log takes starts and ends. The default discards them.
	Log *slog.Logger

	// output is held for each line of output.
	output sync.Mutex
}

// Validate reports, as a [*SettingError], what is wrong with the command.
func (c *Command) Validate(context.Context) error {
	setting := func(name, have, want string) error {
		return &SettingError{Of: "command", Setting: name, Have: have, Want: want}
	}
	if len(c.Args) == 0 || c.Args[0] == "" {
		return setting("program", "none", "one")
	}
	switch c.Restart {
	case "", RestartAlways, RestartOnFailure, RestartNever:
	default:
		return setting("restart", fmt.Sprintf("%q", c.Restart), "always, on-failure or never")
	}
	if c.Grace < 0 {
		return setting("grace", c.Grace.String(), "0 or more")
	}
	program := c.Args[0]
	if strings.Contains(program, "{") || c.Dir != "" && strings.Contains(program, "/") {
		return nil // not known before it is started
	}
	if _, err := exec.LookPath(program); err != nil {
		return setting("program", fmt.Sprintf("%q: %v", program, err), "a program that can be run")
	}
	return nil
}

// Run implements [Task]. It returns only when no process of the command runs
// any more.
func (c *Command) Run(ctx context.Context, p Partition) error {
	if err := c.Validate(ctx); err != nil {
		return err
	}
	log := partitionLog(c.Log, p)
	trust := &vigil{p: p, grace: c.grace()}
	wait := c.Backoff.or(restartWaitMin, restartWaitMax)
	failures := 0
	for {
		if !trust.await(ctx) {
			return context.Cause(ctx) // nil for a drain
		}
		begun := time.Now()
		end, err := c.once(ctx, trust, p.Draining(), nil, nil)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case isDraining(p):
			return nil
		case end == endDistrust:
			log.WarnContext(ctx, "command stopped, hold was not renewed in time")
			continue
		case err == nil && c.Restart == RestartOnFailure, isExit(err) && c.Restart == RestartNever:
			log.InfoContext(ctx, "command finished", slog.Any("err", err))
			return nil
		case c.Restart == RestartNever: // it did not start: that is no end
			return err
		}
		if time.Since(begun) >= min(steadyRun, wait.Max) {
			failures = 0
		}
		failures++
		again := wait.after(failures)
		log.WarnContext(ctx, "command ended", slog.Any("err", err), slog.Duration("again_in", again))
		if !pause(ctx, p, again) {
			return context.Cause(ctx)
		}
	}
}

// isExit reports whether err tells of the end of a command, as opposed to one
// that did not start.
func isExit(err error) bool {
	_, exited := errors.AsType[*exec.ExitError](err)
	return err == nil || exited
}

func (c *Command) grace() time.Duration {
	if c.Grace == 0 {
		return defaultGrace
	}
	return c.Grace
}

// An ending says why a command ended.
type ending int

const (
	endSelf     ending = iota // by itself
	endDrain                  // asked to, for a drain
	endDistrust               // asked to, since the hold was not renewed
	endOrder                  // killed, ctx was done
)

// once runs the command once, from start to end. drain, if not nil, asks it to
// end. The error is that of the command's end or start.
func (c *Command) once(ctx context.Context, trust *vigil, drain <-chan struct{}, input io.Reader, env []string) (ending, error) {
	p := trust.p
	args := make([]string, len(c.Args))
	replace := strings.NewReplacer("{partition}", p.Name(), "{token}", fmt.Sprint(p.Token()))
	for i, arg := range c.Args {
		args[i] = replace.Replace(arg)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(c.environ(p), env...)
	cmd.Dir = c.Dir
	cmd.Stdin = input
	prefix := ""
	if c.Prefix {
		prefix = p.Name() + ": "
	}
	if c.Stdout != nil {
		out := newLines(&c.output, c.Stdout, prefix)
		defer out.flush()
		cmd.Stdout = out
	}
	if c.Stderr != nil {
		out := newLines(&c.output, c.Stderr, prefix)
		defer out.flush()
		cmd.Stderr = out
	}

	group, err := proc.Start(cmd)
	if err != nil {
		return endSelf, fmt.Errorf("worker: command %q: %w", args[0], err)
	}
	end := attend(ctx, trust, drain, group)
	if err := group.Wait(); err != nil {
		return end, fmt.Errorf("worker: command %q: %w", args[0], err)
	}
	return end, nil
}

// attend watches over a running group until it has ended, and ends it when it is
// time to. It looks at once: the start may have taken longer than the trust.
func attend(ctx context.Context, trust *vigil, drain <-chan struct{}, group *proc.Group) ending {
	timer := time.NewTimer(0)
	defer timer.Stop()
	why := endSelf
	var asked time.Time // when the group was asked to end
	ask := func(reason ending) {
		if why == endSelf {
			why, asked = reason, time.Now()
			_ = group.Signal(syscall.SIGTERM) // if it cannot be told, SIGKILL follows
		}
	}
	for {
		select {
		case <-group.Done():
			return why
		case <-ctx.Done():
			_ = group.Kill()
			<-group.Done()
			return endOrder
		case <-drain:
			drain = nil
			ask(endDrain)
		case <-timer.C:
		}

		left := trust.left()
		if left <= trust.low() {
			ask(endDistrust)
		}
		next := left - trust.low()
		if why != endSelf {
			next = min(left-killMargin, trust.grace-time.Since(asked))
			if next <= 0 {
				_ = group.Kill()
				<-group.Done()
				return why
			}
		}
		timer.Reset(next)
	}
}
