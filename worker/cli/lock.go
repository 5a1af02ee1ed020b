package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tenure/kvlock"
	"tenure/kvlock/bucket"
)

type lockCommand struct {
	holder

	Try     bool           `name:"try" xor:"wait" help:"Fail at once if the lock is not free."`
	Wait    *time.Duration `name:"wait" xor:"wait" placeholder:"DURATION" help:"How long to wait for the lock; for ever if not given."`
	MinHold time.Duration  `name:"min-hold" default:"0s" placeholder:"DURATION" help:"Keep the lock barred for so long at least, also if the command ends before."`

	Name    string   `arg:"" name:"name" help:"Name of the lock."`
	Command []string `arg:"" optional:"" name:"command" passthrough:"partial" help:"Command to run, and its arguments, after --."`
}

func (*lockCommand) Help() string {
	return `Takes the lock, runs the command and gives the lock back as soon as the command and all that it started in its
process group has ended. It ends as the command ended: with its exit code, or with 128+n if signal n ended it. It
ends with 75 if the lock was not free in time, and with 76 if the lock was lost while the command ran: the command
then got SIGTERM, and SIGKILL before others can take the lock.

The command finds TENURE_LOCK, TENURE_TOKEN, TENURE_BUCKET and TENURE_OWNER in its environment. Give the token to
whatever the command writes to, so that it can refuse a writer that was paused and does not know that it has lost the
lock. All signals go to the whole process group of the command.

With --min-hold the server keeps the lock from others until that time is over, in whole seconds rounded up, though tenure
has ended: a job of a schedule then runs once, also if its other starters are a little late. Choose it 2 s shorter than
the period at least.

Example:

    tenure lock nightly-report --wait 30s -- ./report.sh --all`
}

// errWaited ends the waiting for a lock.
var errWaited = errors.New("not free in time")

func (c *lockCommand) Run(ctx context.Context, r *run) error {
	if err := c.check(); err != nil {
		return err
	}
	relay, waiting := newRelay(ctx)
	defer relay.close()
	defer r.ward()()
	err := c.run(waiting, r, relay)
	if ended := relay.cause(); ended != nil {
		return ended // whatever it made of err
	}
	return err
}

// check looks at what can be wrong before anything is asked of a server.
func (c *lockCommand) check() error {
	var err error
	if c.Command, err = afterDashes(c.Command); err != nil {
		return err
	}
	if _, err := bucket.EncodeName(c.Name); err != nil {
		return err
	}
	if c.Wait != nil {
		if *c.Wait < 0 {
			return wrongFlag("wait", c.Wait.String(), "0s or more")
		}
		c.Try = *c.Wait == 0
	}
	if c.MinHold < 0 || c.MinHold > 24*time.Hour {
		return wrongFlag("min-hold", c.MinHold.String(), "0s to 24h")
	}
	return findCommand(c.Command[0])
}

func (c *lockCommand) run(ctx context.Context, r *run, relay *relay) error {
	locker, end, err := c.open(ctx, r, kvlock.WithMinHold(c.MinHold))
	if err != nil {
		return err
	}
	defer end()

	lock, err := c.take(ctx, locker)
	if err != nil {
		return err
	}
	return c.runUnder(ctx, r, relay, lock, c.Command)
}

// take takes the lock and waits for it as the flags say.
func (c *lockCommand) take(ctx context.Context, locker *kvlock.Locker) (*kvlock.Lock, error) {
	take := locker.Lock
	switch {
	case c.Try:
		take = locker.TryLock
	case c.Wait != nil:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, *c.Wait, errWaited)
		defer cancel()
	}
	lock, err := take(ctx, c.Name)
	switch {
	case err == nil:
		return lock, nil
	case errors.Is(err, errWaited):
		return nil, &codeError{exitBusy, fmt.Errorf("%w; `tenure locks` shows the holders", err)}
	case c.Try && (errors.Is(err, kvlock.ErrHeld) || errors.Is(err, kvlock.ErrQuarantine)):
		return nil, &codeError{exitBusy, fmt.Errorf("%w; --wait waits for it", err)}
	default:
		return nil, err
	}
}
