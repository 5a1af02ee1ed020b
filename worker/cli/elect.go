package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"tenure/kvlock"
	"tenure/kvlock/bucket"
)

type electCommand struct {
	holder

	Value string `name:"value" placeholder:"TEXT" help:"What all can read while this candidate leads, such as its address."`
	Show  bool   `name:"show" xor:"look" help:"Print who leads, and end with 1 if nobody does."`
	Watch bool   `name:"watch" xor:"look" help:"Print who leads, now and after every change, until a signal."`
	JSON  bool   `name:"json" help:"With --show or --watch: print one JSON object a line."`

	Name    string   `arg:"" name:"name" help:"Name of the election; a lock of that name is the same."`
	Command []string `arg:"" optional:"" name:"command" passthrough:"partial" help:"Command to run, and its arguments, after --."`
}

func (*electCommand) Help() string {
	return `Stands in an election and runs the command while this candidate leads. If the leadership is lost, the command gets
SIGTERM, and SIGKILL before another can lead; then it stands again. It ends when the command has ended by itself, with
its exit code as tenure lock does, or by SIGTERM, SIGINT or SIGQUIT.

The command finds TENURE_VALUE in its environment besides what a command of tenure lock finds. All signals go to its whole
process group.

Example:

    tenure elect scheduler --value "$(hostname):8080" -- ./scheduler
    tenure elect scheduler --show --json`
}

func (c *electCommand) Run(ctx context.Context, r *run) error {
	if c.Show || c.Watch {
		return c.look(ctx, r)
	}
	if err := c.check(); err != nil {
		return err
	}
	relay, waiting := newRelay(ctx)
	defer relay.close()
	err := c.run(waiting, r, relay)
	if ended := relay.cause(); ended != nil {
		return ended // whatever it made of err
	}
	return err
}

// check looks at what can be wrong before anything is asked of a server.
func (c *electCommand) check() error {
	if c.JSON {
		return usage(errors.New("--json is of use with --show or --watch only"))
	}
	var err error
	if c.Command, err = afterDashes(c.Command); err != nil {
		return err
	}
	if _, err := bucket.EncodeName(c.Name); err != nil {
		return err
	}
	if len(c.Value) > kvlock.MaxValue {
		return wrongFlag("value", fmt.Sprintf("%d bytes", len(c.Value)), fmt.Sprintf("at most %d", kvlock.MaxValue))
	}
	return findCommand(c.Command[0])
}

// run stands until the command has ended by itself.
func (c *electCommand) run(ctx context.Context, r *run, relay *relay) error {
	locker, end, err := c.open(ctx, r)
	if err != nil {
		return err
	}
	defer end()
	election := locker.Election(c.Name)
	for {
		lock, err := election.Campaign(ctx, c.Value)
		if err != nil {
			return err
		}
		r.log.InfoContext(ctx, "leads", slog.String("election", c.Name), slog.Uint64("token", lock.Token()))
		err = c.runUnder(ctx, r, relay, lock, c.Command, "TENURE_VALUE="+c.Value)
		r.leave(ctx, lock.Release)
		if own, ok := errors.AsType[*codeError](err); !ok || own.code != exitLost || own.err == nil {
			return err
		}
		if ended := relay.again(); ended != nil {
			return ended
		}
		r.log.WarnContext(ctx, "stands again", slog.String("election", c.Name), slog.Any("err", err))
	}
}

// A leaderStatus is what `tenure elect --show --json` prints.
type leaderStatus struct {
	Name    string     `json:"name"`
	Leader  string     `json:"leader"` // its owner, empty if nobody leads
	Token   uint64     `json:"token"`  // 0 if nobody leads
	Value   string     `json:"value"`
	Since   *time.Time `json:"since,omitempty"`
	Expires *time.Time `json:"expires,omitempty"`
}

// look prints who leads.
func (c *electCommand) look(ctx context.Context, r *run) error {
	switch {
	case len(c.Command) > 0:
		return usage(errors.New("expected either --show, --watch or a command"))
	case c.Value != "":
		return usage(errors.New("--value is of use with a command only"))
	}
	if _, err := bucket.EncodeName(c.Name); err != nil {
		return err
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	locker, end, err := r.operate(ctx)
	if err != nil {
		return err
	}
	defer end()
	election := locker.Election(c.Name)
	if c.Show {
		leader, err := election.Leader(ctx)
		if errors.Is(err, kvlock.ErrFree) {
			return fmt.Errorf("nobody leads %q", c.Name)
		}
		if err != nil {
			return err
		}
		return c.print(r.Out, leader)
	}
	for leader := range election.Observe(ctx) {
		if err := c.print(r.Out, leader); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil // a signal, the only way to end it
	}
	return fmt.Errorf("election %q can no longer be watched", c.Name) // why was logged
}

func (c *electCommand) print(w io.Writer, h kvlock.Holder) error {
	if c.JSON {
		status := leaderStatus{Name: c.Name}
		if h.Token != 0 {
			status.Leader, status.Token, status.Value = h.Owner, h.Token, h.Value
			status.Since, status.Expires = &h.Since, new(h.Expires())
		}
		return printJSON(w, status)
	}
	if h.Token == 0 {
		_, err := fmt.Fprintf(w, "nobody leads %q\n", c.Name)
		return err
	}
	_, err := fmt.Fprintf(w, "%q leads %q since %s (token %d) value %q\n",
		h.Owner, c.Name, h.Since.Local().Format(time.RFC3339), h.Token, h.Value)
	return err
}
