package kvlock_test

import (
	"context"
	"slices"
	"time"

	"tenure/kvlock"
)

// A thing is what a worker can take.
type thing struct {
	name string // by which the calls are in order
	take func(ctx context.Context, patient bool) (holding, error)
}

// A holding is what was taken: one lock, several, or a lock for reading.
type holding struct {
	taken
	locks []*kvlock.Lock // those with tokens
}

type taken interface {
	Context() context.Context
	Err() error
	Remaining() time.Duration
	Release(ctx context.Context) error
}

// thingsOf returns what is taken in a run: a lock, and something else.
func (c *chaos) thingsOf(p *process) []thing {
	x, y := lockThing("x", p.lockOf("x")), lockThing("y", p.lockOf("y"))
	switch c.seed % 5 {
	case 0:
		return []thing{x, y}
	case 1:
		s, err := p.Semaphore(c.t.Context(), "pool", 2)
		if err != nil {
			c.t.Fatal(err)
		}
		return []thing{x, lockThing("pool", semaphoreOf(s))}
	case 2:
		rw := p.RWLock("rw")
		return []thing{x, readThing(rw), readThing(rw), lockThing("rw", func(ctx context.Context, patient bool) (*kvlock.Lock, error) {
			if patient {
				return rw.Lock(ctx)
			}
			return rw.TryLock(ctx)
		})}
	case 3:
		return []thing{x, y, allThing(p, "y", "x")}
	default:
		return []thing{x, c.elect(p)}
	}
}

// waitsIn returns what a call holds while it waits for more: for readers to leave, or for
// the next of several locks.
func (c *chaos) waitsIn() string {
	return []string{2: "rw", 3: "x", 4: ""}[c.seed%5]
}

func (p *process) lockOf(name string) func(context.Context, bool) (*kvlock.Lock, error) {
	return func(ctx context.Context, patient bool) (*kvlock.Lock, error) {
		if patient {
			return p.Lock(ctx, name)
		}
		return p.TryLock(ctx, name)
	}
}

func lockThing(name string, take func(context.Context, bool) (*kvlock.Lock, error)) thing {
	return thing{name, func(ctx context.Context, patient bool) (holding, error) {
		k, err := take(ctx, patient)
		return holding{k, []*kvlock.Lock{k}}, err
	}}
}

func readThing(rw *kvlock.RWLock) thing {
	return thing{rw.Name(), func(ctx context.Context, patient bool) (holding, error) {
		if !patient {
			r, err := rw.TryRLock(ctx)
			return holding{taken: r}, err
		}
		r, err := rw.RLock(ctx)
		return holding{taken: r}, err
	}}
}

// allThing takes several locks at once. It always waits.
func allThing(p *process, names ...string) thing {
	return thing{"all", func(ctx context.Context, _ bool) (holding, error) {
		ks, err := p.LockAll(ctx, names...)
		if err != nil {
			return holding{}, err
		}
		return holding{ks, slices.Collect(ks.All())}, nil
	}}
}
