package cli

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"tenure/kvlock"
	"tenure/kvlock/bucket"
)

type locksCommand struct {
	JSON bool `name:"json" help:"Print one JSON object."`
}

func (*locksCommand) Help() string {
	return `Prints who holds which lock, with the token of the hold and when it ends if it is not renewed.

Example:

    tenure locks --json`
}

// A lockStatus is one lock in the output of `tenure locks --json`. Name is not
// exact if it is no UTF-8; Key is.
type lockStatus struct {
	Name     string    `json:"name"`
	Key      string    `json:"key"`
	Owner    string    `json:"owner"`
	Token    uint64    `json:"token"`
	Revision uint64    `json:"revision"`
	Since    time.Time `json:"since"`
	Expires  time.Time `json:"expires"`
	TTL      string    `json:"ttl"`
	Note     string    `json:"note,omitempty"`
	Revoked  bool      `json:"revoked,omitempty"`
	Resting  bool      `json:"resting,omitempty"`
	Reason   string    `json:"reason,omitempty"`
}

func (c *locksCommand) Run(ctx context.Context, r *run) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	locker, end, err := r.operate(ctx)
	if err != nil {
		return err
	}
	defer end()

	var locks []kvlock.Holder
	for holder, err := range locker.Holders(ctx) {
		switch {
		case err == nil:
			locks = append(locks, holder)
		case errors.Is(err, kvlock.ErrRecord), errors.Is(err, kvlock.ErrName):
			r.log.WarnContext(ctx, "lock left out", slog.Any("err", err))
		default:
			return err
		}
	}
	slices.SortFunc(locks, func(a, b kvlock.Holder) int { return strings.Compare(a.Name, b.Name) })
	if c.JSON {
		list := make([]lockStatus, len(locks)) // empty, not null
		for i, l := range locks {
			list[i] = asStatus(l)
		}
		return printJSON(r.Out, map[string]any{"locks": list})
	}
	rows := [][]string{{"LOCK", "OWNER", "TOKEN", "SINCE", "EXPIRES", "NOTE"}}
	for _, l := range locks {
		note := l.Note
		if l.Revoked {
			note = "revoked: " + l.Reason
		}
		if l.Resting {
			note = "released; its minimum hold is not over"
		}
		if note != "" {
			note = shown(note)
		}
		rows = append(rows, []string{
			shown(l.Name), shown(l.Owner), strconv.FormatUint(l.Token, 10),
			l.Since.Local().Format(time.RFC3339), l.Expires().Local().Format(time.RFC3339), note,
		})
	}
	return printTable(r.Out, rows...)
}

func asStatus(l kvlock.Holder) lockStatus {
	return lockStatus{
		Name: l.Name, Key: l.Key, Owner: l.Owner, Token: l.Token, Revision: l.Revision,
		Since: l.Since, Expires: l.Expires(), TTL: l.TTL.String(), Note: l.Note, Revoked: l.Revoked, Resting: l.Resting, Reason: l.Reason,
	}
}

// operate returns a Locker that looks at the locks of others. The bucket has to
// exist. Call end at the end.
func (r *run) operate(ctx context.Context) (locker *kvlock.Locker, end func(), err error) {
	nc, js, err := r.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	b, err := r.openBucket(ctx, js, bucket.AttachOnly())
	if err == nil {
		// It takes no lock, so any TTL that the bucket allows will do.
		ttl := min(bucket.DefaultTTL, b.MaxTTL())
		locker, err = kvlock.New(ctx, js, kvlock.WithBucket(b), kvlock.WithLogger(r.log), kvlock.WithTTL(ttl))
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
