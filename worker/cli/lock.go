package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tenure/config"
	"tenure/kvlock"
	"tenure/kvlock/bucket"
)

type lockCommand struct {
	*config.Lease

	Try      bool           `name:"try" xor:"wait" help:"Fail at once if the lock is not free."`
	Wait     *time.Duration `name:"wait" xor:"wait" placeholder:"DURATION" help:"How long to wait for the lock; for ever if not given."`
	MinHold  time.Duration  `name:"min-hold" default:"0s" placeholder:"DURATION" help:"Keep the lock barred for so long at least, also if the command ends before."`
	Note     string         `name:"note" placeholder:"TEXT" help:"Text that is shown with the holder."`
	Owner    string         `name:"owner" placeholder:"NAME" help:"Name of the holder for people to read; host and process if not given."`
	NoCreate bool           `name:"no-create" help:"Do not make a missing bucket."`

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
	if _, err := exec.LookPath(c.Command[0]); err != nil {
		return fmt.Errorf("run %q: %w", c.Command[0], errors.Unwrap(err))
	}
	return nil
}

func (c *lockCommand) run(ctx context.Context, r *run, relay *relay) error {
	nc, js, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	if c.Owner == "" {
		host, _ := os.Hostname() // for people only
		c.Owner = host + "/" + strconv.Itoa(os.Getpid())
	}
	var opts []bucket.Option
	if c.NoCreate {
		opts = append(opts, bucket.AttachOnly())
	}
	b, err := r.openBucket(ctx, js, opts...)
	if err != nil {
		return err
	}
	locker, err := kvlock.New(ctx, js,
		kvlock.WithBucket(b), kvlock.WithLogger(r.log),
		kvlock.WithTTL(c.TTL), kvlock.WithMargin(c.LeaseMargin()), kvlock.WithRenewals(c.Renewals),
		kvlock.WithOwner(c.Owner), kvlock.WithNote(c.Note), kvlock.WithMinHold(c.MinHold))
	if err != nil {
		return err
	}
	defer r.leave(ctx, locker.Close)

	lock, err := c.take(ctx, locker)
	if err != nil {
		return err
	}
	return c.runUnder(ctx, r, relay, lock)
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

// runUnder runs the command under the lock and returns what the program ends with.
func (c *lockCommand) runUnder(ctx context.Context, r *run, relay *relay, lock *kvlock.Lock) error {
	cmd := exec.Command(c.Command[0], c.Command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r.In, r.Out, r.Err
	cmd.Env = append(slices.Clip(r.environ),
		"TENURE_LOCK="+lock.Name(),
		"TENURE_TOKEN="+strconv.FormatUint(lock.Token(), 10),
		"TENURE_BUCKET="+r.cfg.Bucket,
		"TENURE_OWNER="+c.Owner)
	if err := lock.Err(); err != nil {
		return &codeError{exitLost, fmt.Errorf("%w; the command was not started", err)}
	}
	terminal := openTerminal(r.In)
	defer terminal.takeBack()
	child, err := relay.start(cmd)
	if err != nil {
		return err
	}
	terminal.lend(child)
	ended := newWatch(lock, child, c.TTL-c.LeaseMargin(), r.log).run(ctx)
	if !ended {
		if code := child.ExitCode(); code != exitDone {
			return &codeError{code: code}
		}
		return nil
	}
	if err := lock.Err(); err != nil {
		return &codeError{exitLost, fmt.Errorf("%w; the command has ended with exit code %d", err, child.ExitCode())}
	}
	return &codeError{exitLost, fmt.Errorf("lock %q could not be renewed in time; the command was asked to end and did so with exit code %d", lock.Name(), child.ExitCode())}
}

// openBucket opens the configured bucket.
func (r *run) openBucket(ctx context.Context, js jetstream.JetStream, opts ...bucket.Option) (*bucket.Bucket, error) {
	return bucket.Open(ctx, js, append(opts, bucket.Name(r.cfg.Bucket), bucket.Logger(r.log))...)
}

// leaveTimeout is how long the end of a command may wait for the server. What is
// not given back by then is free one TTL later.
const leaveTimeout = 3 * time.Second

// leave gives everything back at the end of a command, also after the end of ctx.
func (r *run) leave(ctx context.Context, giveBack func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err := giveBack(ctx); err != nil {
		r.log.WarnContext(ctx, "what is held is left to expire", slog.Any("err", err))
	}
}
