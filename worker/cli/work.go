package cli

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"go.uber.org/dig"
	"go.uber.org/fx"
	"go.uber.org/fx/fxevent"

	"tenure/config"
	"tenure/worker"
)

type workCommand struct {
	*config.Lease
	*config.Pool
	*config.Admin

	Prefix   bool `name:"prefix" help:"Put the name of the partition before each line of output."`
	NoCreate bool `name:"no-create" help:"Do not make a missing bucket."`

	Group   string   `arg:"" name:"group" help:"Name of the group."`
	Command []string `arg:"" optional:"" name:"command" passthrough:"partial" help:"Command to run, and its arguments, after --."`
}

func (*workCommand) Help() string {
	return `Shares the partitions of the group with all other workers of it, and runs one command per partition that it has, each
in a process group of its own. {partition} and {token} are replaced in the arguments, and the command finds
TENURE_GROUP, TENURE_PARTITION, TENURE_TOKEN, TENURE_WORKER and TENURE_BUCKET in its environment.

With --stream the command runs once per message of the partition, in order, with the payload as its input and
TENURE_SUBJECT, TENURE_SEQ, TENURE_DELIVERED and TENURE_HEADER_… besides. Exit code 0 acknowledges the message.

SIGTERM and SIGINT drain: commands get SIGTERM, partitions are handed over, and the program ends with 0. A second
signal kills the commands.

Without a server it runs one in this process. That is right for one machine and for trying it, and is no shared
service.

Example:

    tenure work orders --partitions 16 --workers 4 -- ./consume.sh {partition}`
}

func (c *workCommand) Run(ctx context.Context, r *run) error {
	var err error
	if c.Command, err = afterDashes(c.Command); err != nil {
		return err
	}
	// Before anything is asked of a server, or stored there.
	if err := (&worker.Command{Args: c.Command}).Validate(ctx); err != nil {
		return err
	}
	stop := newStop(ctx)
	defer stop.close()
	defer r.ward()()
	return stop.outcome(c.run(r, stop))
}

func (c *workCommand) run(r *run, stop *stop) error {
	var end undo
	defer end.run()
	var pool *worker.Supervisor
	app := fx.New(
		fx.WithLogger(func() fxevent.Logger {
			events := &fxevent.SlogLogger{Logger: r.log.WithGroup("fx")}
			events.UseLogLevel(slog.LevelDebug)
			events.UseErrorLevel(slog.LevelDebug) // an error is returned and reported once
			return events
		}),
		fx.Supply(c, r, r.log, stop, &end),
		fx.Provide(newDisplay, newUpstream, newBucket, newClaimers, newTask),
		worker.Module,
		fx.StopTimeout(c.stopTimeout()),
		fx.Populate(&pool),
	)
	if err := app.Err(); err != nil {
		return dig.RootCause(err)
	}
	if err := app.Start(context.WithoutCancel(stop.drain)); err != nil {
		return err
	}
	select {
	case <-stop.drain.Done():
		r.log.Info("work is drained", slog.Any("err", context.Cause(stop.drain)))
	case <-pool.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(stop.drain), app.StopTimeout())
	defer cancel()
	// Once every command is killed, what is left is to say so.
	defer context.AfterFunc(stop.now, func() { time.AfterFunc(leaveTimeout, cancel) })()
	if err := app.Stop(stopping); err != nil {
		return err
	}
	return pool.Err()
}

// stopTimeout is how long the end may take: every partition drains and its command
// is ended, and then the worker leaves, which it tries for one TTL.
func (c *workCommand) stopTimeout() time.Duration {
	return c.DrainTimeout + c.ChildGrace() + c.TTL + leaveTimeout
}

// afterDashes returns the command after --, as it came from the command line.
func afterDashes(command []string) ([]string, error) {
	if len(command) < 2 || command[0] != "--" {
		return nil, usage(errors.New("expected -- and the command to run after the name and the flags"))
	}
	return command[1:], nil
}
