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

// A holder is what the commands that hold something and run a command under it have
// in common.
type holder struct {
	*config.Lease

	Note     string `name:"note" placeholder:"TEXT" help:"Text that is shown with the holder."`
	Owner    string `name:"owner" placeholder:"NAME" help:"Name of the holder for people to read; host and process if not given."`
	NoCreate bool   `name:"no-create" help:"Do not make a missing bucket."`
}

// open connects and returns a Locker for what the flags say. Call end at the end.
func (h *holder) open(ctx context.Context, r *run, opts ...kvlock.Option) (locker *kvlock.Locker, end func(), err error) {
	nc, js, err := r.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	if h.Owner == "" {
		host, _ := os.Hostname() // for people only
		h.Owner = host + "/" + strconv.Itoa(os.Getpid())
	}
	var attach []bucket.Option
	if h.NoCreate {
		attach = append(attach, bucket.AttachOnly())
	}
	b, err := r.openBucket(ctx, js, attach...)
	if err == nil {
		locker, err = kvlock.New(ctx, js, append(opts,
			kvlock.WithBucket(b), kvlock.WithLogger(r.log),
			kvlock.WithTTL(h.TTL), kvlock.WithMargin(h.LeaseMargin()), kvlock.WithRenewals(h.Renewals),
			kvlock.WithOwner(h.Owner), kvlock.WithNote(h.Note))...)
	}
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return locker, func() {
		r.leave(ctx, locker.Close)
		nc.Close()
	}, nil
}

// findCommand returns an error if there is no such program.
func findCommand(name string) error {
	if _, err := exec.LookPath(name); err != nil {
		return fmt.Errorf("run %q: %w", name, errors.Unwrap(err))
	}
	return nil
}

// runUnder runs the command under the lock and returns what the program ends with.
func (h *holder) runUnder(ctx context.Context, r *run, relay *relay, lock *kvlock.Lock, command []string, env ...string) error {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r.In, r.Out, r.Err
	cmd.Env = append(append(slices.Clip(r.environ),
		"TENURE_LOCK="+lock.Name(),
		"TENURE_TOKEN="+strconv.FormatUint(lock.Token(), 10),
		"TENURE_BUCKET="+r.cfg.Bucket,
		"TENURE_OWNER="+h.Owner), env...)
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
	ended := newWatch(lock, child, h.TTL-h.LeaseMargin(), r.log).run(ctx)
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
