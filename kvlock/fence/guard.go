package fence

import "sync"

// A Guard keeps the marks of resources in memory. Its zero value is ready to use.
// Its methods may be called concurrently.
//
// A Guard forgets everything when its process ends, so it is for resources that end
// with the process too. It grows with the number of resources.
type Guard struct {
	mu    sync.Mutex
	marks map[string]*mark
}

type mark struct {
	mu      sync.Mutex // held while a write of the resource is under way
	highest uint64
}

// Do calls write if token is not lower than the mark of the resource, which it
// raises to token first. Writes of one resource come one after the other: Do blocks
// while another is under way, so that no write can slip in between check and write.
//
// The error is a [*StaleError], or what write returns. The mark stays raised also if
// write fails.
func (g *Guard) Do(resource string, token uint64, write func() error) error {
	m := g.mark(resource)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := stale(resource, token, m.highest); err != nil {
		return err
	}
	m.highest = token
	return write()
}

// Raise raises the mark to token. From then on no lower token is accepted: call it
// when a hold begins, before its first write. It blocks while a write is under way.
// The error is a [*StaleError].
func (g *Guard) Raise(resource string, token uint64) error {
	return g.Do(resource, token, func() error { return nil })
}

// Mark returns the highest token that was seen for the resource, 0 if none was.
func (g *Guard) Mark(resource string) uint64 {
	m := g.mark(resource)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.highest
}

func (g *Guard) mark(resource string) *mark {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.marks[resource]
	if m == nil {
		if g.marks == nil {
			g.marks = make(map[string]*mark)
		}
		m = new(mark)
		g.marks[resource] = m
	}
	return m
}
