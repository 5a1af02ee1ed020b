package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"tenure/claim"
)

// A Pool runs one task for every partition that any of its claimers owns.
type Pool struct {
	claimers []*claim.Claimer
	task     Task
	log      *slog.Logger
}

// NewPool makes a pool of at least one claimer. Two claimers of a group must not
// have the same id. A nil log is discarded.
//
// The error matches [ErrSetting].
func NewPool(claimers []*claim.Claimer, task Task, log *slog.Logger) (*Pool, error) {
	if len(claimers) == 0 {
		return nil, &SettingError{Of: "pool", Setting: "claimers", Have: "none", Want: "at least one"}
	}
	if task == nil {
		return nil, &SettingError{Of: "pool", Setting: "task", Have: "none", Want: "one"}
	}
	type member struct{ group, id string }
	seen := make(map[member]bool, len(claimers))
	for _, c := range claimers {
		m := member{c.Group(), c.ID()}
		if seen[m] {
			return nil, &SettingError{
				Of: "pool", Setting: "worker ids of group " + m.group,
				Have: "two of " + m.id, Want: "different ones",
			}
		}
		seen[m] = true
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Pool{claimers: claimers, task: task, log: log}, nil
}

// Run claims partitions and runs the task for them until ctx is done. Then it
// drains them, hands them over, and returns nil when all claimers have left.
//
// A claimer that loses its session joins again. One that cannot go on stops the
// pool: the others drain, and Run returns its error. A task that is a [Validator]
// and does not fit is an error before anything is claimed.
func (p *Pool) Run(ctx context.Context) error {
	if v, ok := p.task.(Validator); ok {
		if err := v.Validate(ctx); err != nil {
			p.log.ErrorContext(ctx, "task does not fit, pool stops", slog.Any("err", err))
			return err
		}
	}
	all, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	errs := make([]error, len(p.claimers))
	var running sync.WaitGroup
	for i, c := range p.claimers {
		running.Go(func() {
			err := c.Run(all, func(ctx context.Context, held *claim.Partition) error { return p.task.Run(ctx, held) })
			if err != nil {
				errs[i] = fmt.Errorf("worker: %s of group %q: %w", c.ID(), c.Group(), err)
				p.log.ErrorContext(all, "worker cannot go on, pool stops",
					slog.String("group", c.Group()), slog.String("worker", c.ID()), slog.Any("err", err))
				stop(errs[i])
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}
