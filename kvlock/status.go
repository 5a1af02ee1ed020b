package kvlock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"tenure/kvlock/bucket"
)

// A LockStatus is what the bucket says of one lock, semaphore or lock for readers and
// writers. It is true of a moment that has passed.
type LockStatus struct {
	Name    string
	Holders []Holder // in the order of their tokens
	Waiters []Waiter // the first in line first
}

// A Waiter stands in the line of a lock, or did so when its process ended.
type Waiter struct {
	Owner   string
	Process string    // see [Holder]
	Since   time.Time // by the server's clock
	Read    bool      // it wants to read only
}

// ReadLocks returns the status of every lock in the bucket that is held or waited
// for, in the order of their names. It needs no [Locker]. Records that cannot be read
// are left out. It blocks until everything was read or ctx is done, at most 5 s.
func ReadLocks(ctx context.Context, b *bucket.Bucket) ([]LockStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	entries, err := b.Snapshot(ctx, "lock.*", "slot.*.*", "read.*.*", "wait.*.*", "wait.*.*.*")
	if err != nil {
		return nil, fmt.Errorf("kvlock: locks: %w", err)
	}
	byName := make(map[string]*LockStatus)
	for _, e := range entries { // in the order of their revisions, which is that of the line
		if e.Marker {
			continue
		}
		parts := strings.Split(e.Key, ".")
		name, wrong := bucket.DecodeName(parts[1])
		r, err := parse(e)
		if err != nil || wrong != nil {
			continue
		}
		s := byName[name]
		if s == nil {
			s = &LockStatus{Name: name}
			byName[name] = s
		}
		if parts[0] == "wait" {
			s.Waiters = append(s.Waiters, Waiter{Owner: r.Owner, Process: r.Process, Since: e.Time, Read: r.Kind == kindReader})
		} else {
			h, _ := r.asHolder() // its name can be read
			s.Holders = append(s.Holders, h)
		}
	}
	all := make([]LockStatus, 0, len(byName))
	for _, s := range byName {
		slices.SortFunc(s.Holders, func(a, b Holder) int { return cmp.Compare(a.Token, b.Token) })
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b LockStatus) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}
