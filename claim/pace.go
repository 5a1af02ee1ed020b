package claim

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"tenure/claim/plan"
	"tenure/kvlock/bucket"
)

// allowance returns the planner's limit for moves under way, from the budget of
// moves per minute; mu is held.
func (l *leader) allowance(in plan.Input, perMinute int) int {
	if perMinute == 0 {
		return 0
	}
	l.ordered = slices.DeleteFunc(l.ordered, func(at time.Time) bool { return time.Since(at) >= time.Minute })
	limit := perMinute - len(l.ordered)
	for _, p := range in.Partitions {
		if p.Owner >= 0 && p.Target >= 0 && p.Target != p.Owner && !in.Workers[p.Owner].Draining {
			limit++ // ordered before and not done
		}
	}
	if limit <= 0 {
		return -1
	}
	return limit
}

// count notes the moves for balance that a stored plan has ordered anew.
func (l *leader) count(in plan.Input, result plan.Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, p := range in.Partitions {
		if result.Reason[i] == plan.Balanced && result.Assign[i] != p.Target {
			l.ordered = append(l.ordered, time.Now())
		}
	}
}

// later notes whether the plan has left moves for later, and plans again when the
// budget allows more.
func (l *leader) later(more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.more = more
}

// resume returns when a plan can go on that the budget has cut short, zero for
// not at all, or when the first partition has cooled down; mu is held.
func (l *leader) resume() time.Time {
	var at time.Time
	if l.more && len(l.ordered) > 0 {
		at = l.ordered[0].Add(time.Minute)
	}
	for _, until := range l.cooling {
		if at.IsZero() || until.Before(at) {
			at = until
		}
	}
	return at
}

// cool returns the partitions that stay where they are because a move of them has
// failed a short time ago: the worker that they were to go to has ended while
// their owner has not. l.mu and c.mu are held.
func (l *leader) cool(st *state) map[string]struct{} {
	pause := st.settings.policy().CoolDown
	now := time.Now()
	if p := st.present; p != nil && pause > 0 {
		for i, name := range st.names {
			o := st.claims[name]
			if w := p.Assign[i]; w >= 0 && o.worker != "" && p.Workers[w].ID != o.worker && l.members[o.worker] != nil && l.members[p.Workers[w].ID] == nil {
				if l.cooling == nil {
					l.cooling = make(map[string]time.Time)
				}
				if _, ok := l.cooling[name]; !ok {
					l.cooling[name] = now.Add(pause)
				}
			}
		}
	}
	cooling := make(map[string]struct{}, len(l.cooling))
	for name, until := range l.cooling {
		if until.After(now) {
			cooling[name] = struct{}{}
		} else {
			delete(l.cooling, name)
		}
	}
	return cooling
}

// waits reports whether the settings have something in them that depends on who
// owns what.
func (c *Claimer) waits() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.set.Gates)+len(c.set.Moves) > 0
}

// vacate writes that nobody owns the parents of a gate that nobody does own. What
// is not stored is tried again with the next plan, which a conflict's event or the
// next look at the members brings.
func (l *leader) vacate(ctx context.Context) {
	l.mu.Lock()
	st := l.state()
	vacant := st.vacant()
	l.mu.Unlock()
	for name, o := range vacant {
		enc, err := bucket.EncodeName(name)
		if err != nil {
			continue
		}
		if o.worker != "" && !l.c.ended(ctx, o.worker, o.epoch) {
			l.mu.Lock()
			l.change(joinDebounce) // its key may be about to expire
			l.mu.Unlock()
			continue
		}
		key := claimKey(l.c.g, enc)
		try, cancel := context.WithTimeout(ctx, l.sess.timeout())
		err = l.c.vacate(try, key, o, st.settings.Layout)
		cancel()
		if err != nil {
			l.c.log.DebugContext(ctx, "claim is not vacated", slog.String("partition", name), slog.Any("err", err))
			l.mu.Lock()
			l.change(joinDebounce)
			l.mu.Unlock()
			return
		}
	}
}

// vacate replaces the claim of nobody, or of an owner that is proven dead, by one
// that says so under the given layout.
func (c *Claimer) vacate(ctx context.Context, key string, o owner, layout uint64) error {
	var old record
	e, err := c.bucket.Get(ctx, key)
	switch {
	case errors.Is(err, bucket.ErrNotFound):
	case err != nil:
		return err
	case !e.Marker:
		if old, err = parseRecord(e); err != nil {
			return err
		}
	}
	if e.Revision != o.revision && (old.Owner != o.worker || old.Epoch != o.epoch) {
		return nil // somebody was faster: it comes by the watch
	}
	next := old.successor(e.Revision, EndedDied, plan.Waiting)
	next.Version, next.Nonce, next.Prev, next.By = recordVersion, bucket.Nonce(), old.Nonce, c.id
	next.Check, next.Layout, next.Attempts = old.check(e.Revision), layout, old.Attempts
	next.Quarantined, next.Error = old.Quarantined, old.Error
	_, err = c.bucket.Write(ctx, bucket.Write{Key: key, Last: e.Revision, Value: encode(next)})
	return err
}
