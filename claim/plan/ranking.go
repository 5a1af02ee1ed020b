package plan

// A ranking is a heap of workers. Its order is total, so that the first one
// does not depend on what happened before.
type ranking struct {
	heap   []int32
	pos    []int32 // per worker: index in heap, or None
	before func(a, b *standing) bool
	all    []standing
}

// takers ranks the open workers with room that want holds for: first the one
// whose load²/weight grows least by the next partition.
func (p *planner) takers(want func(*standing) bool) *ranking {
	unit := p.unit()
	r := p.ranking(func(a, b *standing) bool {
		x, y := (2*a.load+unit)*b.weight, (2*b.load+unit)*a.weight
		return x < y || x == y && a.rank < b.rank
	})
	for w := range p.workers {
		if s := &p.workers[w]; s.open && s.count < s.capacity && want(s) {
			r.set(w, true)
		}
	}
	return r
}

// givers ranks the open workers that have partitions to give: first the one
// whose load²/weight shrinks most by giving one.
func (p *planner) givers() *ranking {
	unit := p.unit()
	r := p.ranking(func(a, b *standing) bool {
		x, y := (2*a.load-unit)*b.weight, (2*b.load-unit)*a.weight
		return x > y || x == y && a.rank < b.rank
	})
	for w := range p.workers {
		if s := &p.workers[w]; s.open && s.kinds != 0 {
			r.set(w, true)
		}
	}
	return r
}

// unit is the weight of the lightest partition.
func (p *planner) unit() int64 {
	if len(p.weights) == 0 {
		return 1
	}
	return p.weights[0]
}

func (p *planner) ranking(before func(a, b *standing) bool) *ranking {
	r := &ranking{pos: make([]int32, len(p.workers)), before: before, all: p.workers}
	for w := range r.pos {
		r.pos[w] = None
	}
	return r
}

func (r *ranking) len() int   { return len(r.heap) }
func (r *ranking) first() int { return int(r.heap[0]) }

// set adds or removes w, and puts it in its place if it is there already.
func (r *ranking) set(w int, in bool) {
	switch {
	case !in:
		r.remove(w)
	case r.pos[w] == None:
		r.heap = append(r.heap, int32(w))
		r.pos[w] = int32(len(r.heap) - 1)
		r.up(len(r.heap) - 1)
	default:
		r.fix(w)
	}
}

// fix puts w in its place after its load changed. It does nothing if w is not
// in the ranking.
func (r *ranking) fix(w int) {
	if at := int(r.pos[w]); at != None {
		r.up(at)
		r.down(int(r.pos[w]))
	}
}

// remove takes w out, if it is in.
func (r *ranking) remove(w int) {
	at, last := int(r.pos[w]), len(r.heap)-1
	if at == None {
		return
	}
	r.swap(at, last)
	r.heap = r.heap[:last]
	r.pos[w] = None
	if at < last {
		r.fix(int(r.heap[at]))
	}
}

func (r *ranking) less(i, j int) bool {
	return r.before(&r.all[r.heap[i]], &r.all[r.heap[j]])
}

func (r *ranking) swap(i, j int) {
	h := r.heap
	h[i], h[j] = h[j], h[i]
	r.pos[h[i]], r.pos[h[j]] = int32(i), int32(j)
}

func (r *ranking) up(i int) {
	for i > 0 && r.less(i, (i-1)/2) {
		r.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (r *ranking) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(r.heap); child++ {
			if r.less(child, least) {
				least = child
			}
		}
		if least == i {
			return
		}
		r.swap(i, least)
		i = least
	}
}
