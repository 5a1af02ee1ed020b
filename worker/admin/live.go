package admin

import (
	"context"
	"errors"
	"sync"
	"time"

	"tenure/claim"
	"tenure/kvlock"
)

// How often the locks are read while somebody looks, how often a page changes at most,
// how soon the group is read again after that has failed, and how many can look.
const (
	locksEvery = 2 * time.Second
	showEvery  = 300 * time.Millisecond
	againAfter = 2 * time.Second
	maxViewers = 100
)

var errTooMany = errors.New("too many look already")

// A live reading of the bucket for all who look at one group. It goes on while there is
// somebody.
type feed struct {
	pool  *Pool
	group string
	stop  context.CancelCauseFunc
	done  chan struct{}

	viewers map[*viewer]struct{} // guarded by the mutex of live
	now     *rendered            // as above; nil before there is anything
}

// A viewer is somebody who looks.
type viewer struct {
	feed *feed
	poke chan struct{} // holds one: there is something new
	seen []section     // used by the viewer's goroutine only
}

// live has all feeds of a server.
type live struct {
	mu    sync.Mutex
	feeds map[string]*feed // by group
	count int
}

// enter begins to look at a group; call leave at the end.
func (l *live) enter(pool *Pool, group string) (*viewer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count >= maxViewers {
		return nil, errTooMany
	}
	f := l.feeds[group]
	if f == nil || f.pool != pool {
		f = &feed{pool: pool, group: group, done: make(chan struct{}), viewers: make(map[*viewer]struct{})}
		var ctx context.Context
		ctx, f.stop = context.WithCancelCause(context.Background()) // it outlives the request that began it
		if l.feeds == nil {
			l.feeds = make(map[string]*feed)
		}
		l.feeds[group] = f
		go l.run(ctx, f)
	}
	v := &viewer{feed: f, poke: make(chan struct{}, 1)}
	if f.now != nil {
		v.poke <- struct{}{}
	}
	f.viewers[v] = struct{}{}
	l.count++
	return v, nil
}

// leave ends the looking. The last to leave a feed waits until it has ended.
func (l *live) leave(v *viewer) {
	l.mu.Lock()
	f := v.feed
	delete(f.viewers, v)
	l.count--
	last := len(f.viewers) == 0
	if last && l.feeds[f.group] == f {
		delete(l.feeds, f.group)
	}
	l.mu.Unlock()
	if last {
		f.stop(errors.New("nobody looks any more"))
		<-f.done
	}
}

// news returns what has changed since it was last called.
func (l *live) news(v *viewer) []block {
	l.mu.Lock()
	now := v.feed.now
	l.mu.Unlock()
	all := changes(v.seen, now.sections)
	v.seen = now.sections
	return all
}

// show renders a view and tells the viewers.
func (l *live) show(f *feed, v *view) {
	l.mu.Lock()
	before := f.now
	l.mu.Unlock()
	now := v.sections(before)
	l.mu.Lock()
	defer l.mu.Unlock()
	f.now = now
	for v := range f.viewers {
		select {
		case v.poke <- struct{}{}:
		default: // it has not looked at the last change yet
		}
	}
}

// run reads the group and the locks until ctx is done.
func (l *live) run(ctx context.Context, f *feed) {
	var reading sync.WaitGroup
	defer close(f.done)
	defer reading.Wait()
	statuses, failures := make(chan claim.Status), make(chan error)
	reading.Go(func() { watchGroup(ctx, f, statuses, failures) })
	locks := make(chan lockReading)
	reading.Go(func() { readLocks(ctx, f, locks) })

	v := &view{pool: f.pool, group: f.group}
	known, due := false, false
	tick := time.NewTicker(showEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case v.status = <-statuses:
			v.err = nil
		case v.err = <-failures:
		case r := <-locks:
			v.locks, v.noLock = r.locks, r.err
			due = true
			continue // shown with the next tick: it is not urgent
		case <-tick.C:
			if !due || !known {
				continue
			}
		}
		known, due = true, false
		v.at = time.Now()
		l.show(f, v)
	}
}

// watchGroup passes on the status of a group, and why it cannot be read.
func watchGroup(ctx context.Context, f *feed, statuses chan<- claim.Status, failures chan<- error) {
	for {
		err := claim.WatchStatus(ctx, f.pool.Bucket, f.group, func(s claim.Status) {
			select {
			case statuses <- s:
			case <-ctx.Done():
			}
		})
		again := time.NewTimer(againAfter)
		select {
		case failures <- err:
		case <-ctx.Done():
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return
		}
	}
}

type lockReading struct {
	locks []kvlock.LockStatus
	err   error
}

// readLocks passes on the locks of the bucket. Many take longer to read: then it is
// done more seldom, so that it never takes more than a tenth of the time.
func readLocks(ctx context.Context, f *feed, out chan<- lockReading) {
	for {
		began := time.Now()
		all, err := kvlock.ReadLocks(ctx, f.pool.Bucket)
		took := time.Since(began)
		select {
		case out <- lockReading{all, err}:
		case <-ctx.Done():
		}
		again := time.NewTimer(max(locksEvery, 10*took))
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return
		}
	}
}
