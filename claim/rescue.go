package claim

import (
	"context"
	"log/slog"
	"time"

	"tenure/claim/plan"
)

// The leader may live and yet not plan: its writes of the plan are refused, it runs
// a planner that is older than the last one's, it is stuck. So every worker looks,
// now and then, whether the plan leaves partitions to nobody who lives, and takes
// those that it has found so for two TTLs, as far as it has room. It changes no plan
// and moves nothing: what a live worker owns it leaves alone, and the next plan
// decides over what it has taken.
//
// Looking costs a list of the members. The worker after the leader looks every two
// TTLs, the ones behind it ever more seldom, in the square of their place: all
// together they read a fraction of what the heartbeats cost, and they do not come
// for the same partitions at the same time.

// rescue looks for such partitions until the session ends.
func (c *Claimer) rescue(sess *session) {
	found := make(map[string]time.Time) // since when a partition was left alone
	timer := newAlarm()
	defer timer.Stop()
	for {
		place := max(1, sess.place.Load())
		timer.set(2 * c.lease.TTL * time.Duration(place*place))
		select {
		case <-sess.ctx.Done():
			return
		case <-timer.C:
		}
		if stopping, _ := c.stopping(); stopping {
			return
		}
		alive, err := c.alive(sess)
		if err != nil {
			continue // the next time will tell
		}
		left := c.leftAlone(alive)
		for name := range found {
			if _, still := left[name]; !still {
				delete(found, name)
			}
		}
		var due []string
		for name, wait := range left {
			if found[name].IsZero() {
				found[name] = time.Now()
			} else if time.Since(found[name]) >= wait {
				due = append(due, name)
			}
		}
		if len(due) > 0 {
			c.takeOver(due)
		}
	}
}

// alive lists the sessions that live.
func (c *Claimer) alive(sess *session) (map[plan.WorkerRef]bool, error) {
	list, cancel := context.WithTimeout(sess.ctx, 5*time.Second)
	defer cancel()
	entries, err := c.bucket.Snapshot(list, memberKey(c.g, "*"))
	if err != nil {
		return nil, err
	}
	alive, place := make(map[plan.WorkerRef]bool, len(entries)), int64(0)
	for _, e := range entries {
		if worker, m, ok := c.observe(e); ok {
			epoch := m.epoch(e.Revision)
			alive[plan.WorkerRef{ID: worker, Epoch: epoch}] = true
			if epoch < sess.epoch {
				place++
			}
		}
	}
	sess.place.Store(place)
	return alive, nil
}

// leftAlone returns the partitions that the plan gives to nobody who lives, though
// somebody should have them, and for how long each may be: no plan of these
// settings is there, or it knows of no room or worker, or its worker has ended.
func (c *Claimer) leftAlone(alive map[plan.WorkerRef]bool) map[string]time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := make(map[string]time.Duration)
	for i, name := range c.names {
		if contains(c.set.Paused, name) {
			continue
		}
		_, why, known := c.lookup(name)
		if !known && len(c.set.Gates) > 0 {
			continue // it may have to wait for others, which only a plan says
		}
		wait := 2 * c.lease.TTL
		if known {
			w := c.plan.Assign[i]
			switch {
			case w >= 0 && alive[c.plan.Workers[w]]:
				continue
			case w >= 0 && why == plan.Awaited:
				wait += MaxRejoinDelay
			case w < 0 && why != plan.NoRoom && why != plan.NoWorker:
				continue // on purpose
			}
		}
		left[name] = wait
	}
	return left
}

// takeOver has the slots of the partitions take them, as far as there is room, if
// nobody who lives owns them.
func (c *Claimer) takeOver(names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if contains(c.set.Cordoned, c.id) || contains(c.set.Drained, c.id) {
		return
	}
	room := len(names)
	if c.opts.capacity > 0 {
		room = min(room, c.opts.capacity-len(c.slots))
	}
	for _, name := range names[:max(0, room)] {
		c.log.Warn("no plan cares for this partition, taking it if it is free", slog.String("partition", name))
		c.rescues[name] = c.planRev
		c.ensure(name)
		if s := c.slots[name]; s != nil {
			s.signal()
		}
	}
}

// rescued reports whether the partition is to be taken without a plan, and the
// newest plan then; mu is held.
func (c *Claimer) rescued(name string) (revision uint64, ok bool) {
	revision, ok = c.rescues[name]
	return revision, ok && revision == c.planRev
}

// rescuing returns the revision that a plan has to have to say something about a
// partition that is rescued, 0 if it is not.
func (c *Claimer) rescuing(name string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if revision, ok := c.rescued(name); ok {
		return revision + 1
	}
	return 0
}

// giveUp ends the rescue of a partition that turned out to be somebody's.
func (c *Claimer) giveUp(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.rescues, name)
}
