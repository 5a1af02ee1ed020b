package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"tenure/kvlock"
)

type breakCommand struct {
	Reason string `name:"reason" required:"" placeholder:"TEXT" help:"Why; the holder is told."`
	Force  bool   `name:"force" help:"Free the lock at once, though its holder may still believe in it."`
	Only   uint64 `name:"only-token" placeholder:"TOKEN" help:"Break the hold with this token and no later one."`

	Name string `arg:"" name:"name" help:"Name of the lock."`
}

func (*breakCommand) Help() string {
	return `Ends the hold of a lock, whoever has it. The holder is told at once if it can be reached, and at its next renewal
else. Nobody takes the lock before its work has ended, or its lease.

--force frees the lock at once. The old holder may then still work, and only its token keeps it from harm. It is for a
holder that is known to be gone.

Example:

    tenure break nightly-report --reason "host is gone"`
}

func (c *breakCommand) Run(ctx context.Context, r *run) error {
	if c.Reason == "" {
		return wrongFlag("reason", `""`, "a text")
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	locker, end, err := r.operate(ctx)
	if err != nil {
		return err
	}
	defer end()

	holder, err := locker.Holder(ctx, c.Name)
	if errors.Is(err, kvlock.ErrFree) {
		return fmt.Errorf("%w; `tenure locks` shows the locks that are held", err)
	}
	if err != nil {
		return err
	}
	if c.Only == 0 {
		c.Only = holder.Token // the hold that is shown is the one that ends
	}
	opts := []kvlock.BreakOption{kvlock.OnlyToken(c.Only)}
	if c.Force {
		opts = append(opts, kvlock.Force())
	}
	if err := locker.Break(ctx, c.Name, c.Reason, opts...); err != nil {
		return err
	}
	if c.Force {
		r.log.WarnContext(ctx, "lock freed by force: its holder may go on until its next renewal, and only its token is stale",
			slog.String("lock", c.Name), slog.String("owner", holder.Owner), slog.Uint64("token", holder.Token))
		_, err = fmt.Fprintf(r.Out, "lock %q of %q (token %d) is free\n", c.Name, holder.Owner, holder.Token)
		return err
	}
	_, err = fmt.Fprintf(r.Out, "lock %q of %q (token %d) is revoked; it is free when its holder has stopped, or after %s\n",
		c.Name, holder.Owner, holder.Token, time.Now().Add(holder.TTL).Format(time.RFC3339))
	return err
}
