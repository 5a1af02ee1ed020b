package claim

import (
	"log/slog"
	"slices"
	"time"

	"tenure/claim/plan"
)

// An absent worker has ended and may come back under its id: the plan keeps its
// partitions for it until then. There are three reasons to wait.
//
//   - Its rejoin delay: a restart takes a moment, and moving everything away and
//     back costs more than that. It counts from the last heartbeat, or from when
//     the worker left for a restart.
//   - Many workers seem to have died at once, or one has right after the store was
//     away. Then it is the store that was ill, until proven otherwise: the workers
//     come back one after the other and take their own, untouched claims back.
//   - It is joining under a new epoch: alive, and ready in a moment.
//
// Waiting is a matter of moves, not of safety. A claim of an epoch that has ended
// is free for whoever proves that; the plan only names nobody else.

// mass is how many sessions at least, and what part of all, have to be dead or
// silent for that to be taken for an illness of the store.
const (
	massSessions = 4 // more than 3
	massPart     = 4 // more than a quarter
)

// absence is a worker that is waited for.
type absence struct {
	until time.Time

	// What its certificate said before the leader knew how old that was.
	stored time.Time // by the server's clock, zero if there was none
	rejoin time.Duration
	died   bool // somebody else wrote it
}

// gone takes a worker out of the view that has ended; died says that it did so
// without a word. mu is held.
func (l *leader) gone(worker string, m *seen, died bool) {
	delete(l.members, worker)
	l.change(leaveDebounce)
	if !died {
		return // it has given away what it had, or says itself how long to wait
	}
	now, ttl := time.Now(), l.c.lease.TTL
	var until time.Time
	if m.State != draining {
		until = m.beat.Add(m.rejoin())
	}
	l.died = append(l.died, now)
	if now.Sub(l.sess.outage()) < ttl || l.mass(now) {
		l.c.log.Warn("sessions end as if the store had been away, waiting for them to come back",
			slog.String("dead", worker), slog.Duration("for", ttl))
		until = later(until, now.Add(ttl))
	}
	l.await(worker, until)
}

// await has the partitions of a worker wait for it until then; mu is held.
func (l *leader) await(worker string, until time.Time) {
	if until.After(time.Now()) {
		a := l.absent[worker]
		a.until = later(until, a.until)
		l.absent[worker] = a
	}
}

// mass reports whether so many sessions have died within one TTL, or are about to,
// that it looks like the end of the store rather than theirs; mu is held. Those
// about to are counted because the sessions that an outage ends do so one by one,
// within a heartbeat interval.
func (l *leader) mass(now time.Time) bool {
	for len(l.died) > 0 && now.Sub(l.died[0]) >= l.c.lease.TTL {
		l.died = l.died[1:]
	}
	dead, all := len(l.died), len(l.died)+len(l.members)
	for worker, m := range l.members {
		// Healthy workers are silent for half a TTL at most, and the time that
		// two tries take.
		if ttl := time.Duration(m.TTL) * time.Second; worker != l.c.id && now.Sub(m.beat) > ttl*6/10 {
			dead++
		}
	}
	return dead >= massSessions && dead*massPart > all
}

// returned forgets who is not waited for any longer, and returns when the next
// one is due, zero for never; mu is held.
func (l *leader) returned() (next time.Time) {
	if !l.isReady {
		return next
	}
	now := time.Now()
	for worker, a := range l.absent {
		switch {
		case !a.until.After(now):
			delete(l.absent, worker)
			l.change(leaveDebounce)
		case next.IsZero() || a.until.Before(next):
			next = a.until
		}
	}
	return next
}

// settle turns what certificates say into times, now that the own heartbeat tells
// how old they are, and waits for owners that an outage may have ended before this
// worker began to lead; mu is held.
func (l *leader) settle(own *seen) {
	if own == nil {
		return
	}
	now, ttl := time.Now(), l.c.lease.TTL
	written := func(a absence) time.Time { return l.sess.sent().Add(a.stored.Sub(own.at)) }
	for worker, a := range l.absent {
		at := written(a)
		a.until = later(a.until, at.Add(a.rejoin))
		l.absent[worker] = a
		if a.died && now.Sub(at) < ttl {
			l.died = append(l.died, at)
		}
	}
	slices.SortFunc(l.died, time.Time.Compare)
	// A plan that this session is in was made a short time ago: who is in it too and
	// has vanished without a trace died together with the last leader.
	var vanished []string
	if p := l.c.following(); p != nil && slices.Contains(p.Workers, plan.WorkerRef{ID: l.c.id, Epoch: l.sess.epoch}) {
		for _, w := range p.Workers {
			if l.members[w.ID] == nil && !l.c.deaths.proven(w.ID, w.Epoch) {
				vanished, l.died = append(vanished, w.ID), append(l.died, now)
			}
		}
	}
	if l.mass(now) {
		for worker, a := range l.absent {
			if a.died {
				l.await(worker, written(a).Add(ttl))
			}
		}
		for _, worker := range vanished {
			l.await(worker, now.Add(ttl))
		}
	}
	if until := l.sess.outage().Add(l.c.lease.TTL); until.After(time.Now()) {
		for _, o := range l.claims {
			if o.worker != "" && l.members[o.worker] == nil {
				l.await(o.worker, until)
			}
		}
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
