package fence

import (
	"context"
	"sync"
)

// gates let through one at a time per resource. The zero value is ready to use, and
// what nobody uses takes no room.
type gates struct {
	mu    sync.Mutex
	gates map[string]*gate
}

type gate struct {
	free  chan struct{} // holds one while nobody is inside
	users int           // inside or waiting
}

// enter waits until nobody else is inside, or ctx is done.
func (g *gates) enter(ctx context.Context, resource string) (leave func(), err error) {
	g.mu.Lock()
	a := g.gates[resource]
	if a == nil {
		if g.gates == nil {
			g.gates = make(map[string]*gate)
		}
		a = &gate{free: make(chan struct{}, 1)}
		a.free <- struct{}{}
		g.gates[resource] = a
	}
	a.users++
	g.mu.Unlock()

	select {
	case <-a.free:
		return func() {
			a.free <- struct{}{}
			g.drop(resource, a)
		}, nil
	case <-ctx.Done():
		g.drop(resource, a)
		return nil, context.Cause(ctx)
	}
}

func (g *gates) drop(resource string, a *gate) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if a.users--; a.users == 0 {
		delete(g.gates, resource)
	}
}
