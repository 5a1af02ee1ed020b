package plan

// markNewest marks the workers of the newest build, if a rollout is on and
// there are older ones.
func (p *planner) markNewest() {
	newest, differ, any := uint64(0), false, false
	for i := range p.workers {
		if !p.workers[i].open {
			continue
		}
		build := p.in.Workers[i].Build
		differ = differ || any && build != newest
		newest, any = max(newest, build), true
	}
	if !differ {
		return
	}
	p.rollout = true
	for i := range p.workers {
		p.workers[i].newest = p.workers[i].open && p.in.Workers[i].Build == newest
	}
}

// twiceTheShare returns a function that reports whether worker w has, with
// partition i, no more than twice the load that its weight is worth.
func (p *planner) twiceTheShare() func(w, i int) bool {
	var load, weight int64
	for i := range p.workers {
		if s := &p.workers[i]; s.open {
			load += s.load
			weight += s.weight
		}
	}
	for _, pool := range p.pool {
		for _, i := range pool {
			load += p.weights[p.kind[i]]
		}
	}
	return func(w, i int) bool {
		s := &p.workers[w]
		return (s.load+p.weights[p.kind[i]])*weight <= 2*load*s.weight
	}
}
