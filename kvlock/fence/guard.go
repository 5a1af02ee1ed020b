package fence

import (
	"context"
	"fmt"
	"sync"
)

// A Guard keeps the marks of resources in memory. Its zero value is ready to use.
// Its methods may be called concurrently.
//
// A Guard forgets everything when its process ends: after a restart it accepts the
// late write of a hold that ended long ago. So it is for resources that end with the
// process too, unless Save keeps the marks. It grows with the number of resources.
type Guard struct {
	// Save, if not nil, is called before a mark is raised and before the write; if it
	// fails, neither happens and its error is returned. Calls for one resource come
	// one after the other, with growing marks. Whoever sets it stores the mark, and
	// passes what is stored to Raise when the process starts again, before the first
	// write. It must not be changed once the Guard is in use.
	Save func(ctx context.Context, resource string, mark uint64) error

	gates gates

	mu    sync.Mutex
	marks map[string]uint64
}

// Do calls write if token is not lower than the mark of the resource, which it
// raises to token first. Writes of one resource come one after the other: Do blocks
// while another is under way, so that no write can slip in between check and write,
// or until ctx is done. Write must not call Do of the same resource.
//
// The error is a [*StaleError], an [*InputError], the cause of ctx, or what Save or
// write returns. The mark stays raised also if write fails.
func (g *Guard) Do(ctx context.Context, resource string, token uint64, write func() error) error {
	if err := checkResource(resource); err != nil {
		return err
	}
	leave, err := g.gates.enter(ctx, resource)
	if err != nil {
		return fmt.Errorf("fence: wait for %q: %w", resource, err)
	}
	defer leave()
	mark := g.Mark(resource)
	if err := stale(resource, token, mark); err != nil {
		return err
	}
	if token > mark {
		if g.Save != nil {
			if err := g.Save(ctx, resource, token); err != nil {
				return fmt.Errorf("fence: save mark of %q: %w", resource, err)
			}
		}
		g.set(resource, token)
	}
	return write()
}

// Raise raises the mark to token. From then on no lower token is accepted: call it
// when a hold begins, before its first write. It blocks and fails as [Guard.Do] does.
func (g *Guard) Raise(ctx context.Context, resource string, token uint64) error {
	return g.Do(ctx, resource, token, func() error { return nil })
}

// Mark returns the highest token that was seen for the resource, 0 if none was. It does
// not wait for a write that is under way, whose token it has already.
func (g *Guard) Mark(resource string) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.marks[resource]
}

func (g *Guard) set(resource string, mark uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.marks == nil {
		g.marks = make(map[string]uint64)
	}
	g.marks[resource] = mark
}
