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
		parts := strings.Split(e.Key, ".")
		name, err := bucket.DecodeName(parts[1])
		if err != nil || e.Marker {
			continue
		}
		s := byName[name]
		if s == nil {
			s = &LockStatus{Name: name}
		}
		if parts[0] == "wait" {
			t, err := parseTicket(e)
			if err != nil {
				continue
			}
			s.Waiters = append(s.Waiters, Waiter{Owner: t.Owner, Process: t.Process, Since: e.Time, Read: t.Read})
		} else {
			h, err := asHolder(e)
			if err != nil {
				continue
			}
			s.Holders = append(s.Holders, h)
		}
		byName[name] = s
	}
	all := make([]LockStatus, 0, len(byName))
	for _, s := range byName {
		slices.SortFunc(s.Holders, func(a, b Holder) int { return cmp.Compare(a.Token, b.Token) })
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b LockStatus) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}
