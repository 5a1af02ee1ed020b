package claim

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"tenure/kvlock/bucket"
)

// How often a status that is watched may change, and how long after the end of its
// lease a worker that says nothing counts as gone: an expiry sends no event.
const (
	statusEvery = 200 * time.Millisecond
	statusGrace = time.Second
)

// WatchStatus calls changed with the status of a group, without being a worker of
// it: once it was read, and then whenever it has changed, at most every 200 ms. The
// calls come one after another; the caller may keep the status. It costs the server
// one consumer, which is also sent every heartbeat of the group.
//
// It blocks until ctx is done and returns its cause, and goes on by itself after an
// outage. A group that does not exist when it begins is [ErrGroup]; it also returns
// when the bucket is gone, a subject is denied, or the connection was closed.
func WatchStatus(ctx context.Context, b *bucket.Bucket, group string, changed func(Status)) error {
	g, err := bucket.EncodeName(group)
	if err != nil {
		return fmt.Errorf("claim: group %w", err)
	}
	watch, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	entries, ready, watched := make(chan bucket.Entry), make(chan struct{}), make(chan error, 1)
	go func() {
		watched <- b.Watch(watch, func(e bucket.Entry) {
			select {
			case entries <- e:
			case <-watch.Done():
			}
		}, func() { close(ready) }, filters(g)...)
	}()
	err = showChanges(group, changed, entries, ready, watched)
	stop(err)
	if err == nil {
		return fmt.Errorf("claim: status of %q: %w", group, <-watched)
	}
	<-watched
	return fmt.Errorf("claim: %w", err)
}

// showChanges takes entries in and shows what changes, until the watch has ended,
// whose error it leaves. It returns an error if there is no such group.
func showChanges(group string, changed func(Status), entries <-chan bucket.Entry, ready <-chan struct{}, watched chan error) error {
	r := newReader(group)
	isReady, dirty := false, false
	var last Status
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-watched:
			watched <- err
			return nil
		case <-ready:
			ready, isReady, dirty = nil, true, true
			if r.bad != nil {
				return fmt.Errorf("group %q: %w", group, r.bad)
			}
			if len(r.names) == 0 {
				return fmt.Errorf("group %q: %w: it does not exist", group, ErrGroup)
			}
		case e := <-entries:
			r.take(e)
			dirty = true
			continue
		case <-tick.C:
			for worker, m := range r.members {
				if time.Since(m.beat) > time.Duration(m.TTL)*time.Second+statusGrace {
					delete(r.members, worker)
					dirty = true
				}
			}
		}
		if !isReady || !dirty {
			continue
		}
		dirty = false
		if s := r.status(); !reflect.DeepEqual(s, last) {
			last = s
			changed(s)
		}
	}
}
