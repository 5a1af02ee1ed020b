package plan

// match changes who gets which of the partitions that go somewhere else, among
// those of one weight: how many each worker gets stays the same. A partition
// that still runs at a worker that gets one of its weight stays there; with
// [ZonesStay], others go to their owner's zone if they can.
func (p *planner) match() {
	stay := p.in.Policy.Zones == ZonesStay
	var movers []int
	useful := false
	for _, at := range p.order {
		i := at.index
		if p.at[i] == p.base[i] || p.at[i] == None || p.why[i] != undecided {
			continue
		}
		movers = append(movers, i)
		owner := p.owner[i]
		useful = useful || owner != None && (stay || owner != p.base[i])
	}
	if !useful {
		return
	}

	slots := make([]int32, len(p.tops)) // per worker and kind: how many it gets
	slot := func(w, i int) *int32 { return &slots[w*len(p.weights)+int(p.kind[i])] }
	for _, i := range movers {
		*slot(p.at[i], i)++
	}
	// settle gives a slot to each mover for which choose knows a worker.
	settle := func(choose func(i int) int) {
		left := movers[:0]
		for _, i := range movers {
			if w := choose(i); w != None {
				p.at[i] = w
				*slot(w, i)--
				continue
			}
			left = append(left, i)
		}
		movers = left
	}
	settle(func(i int) int {
		if owner := p.owner[i]; owner != None && *slot(owner, i) > 0 {
			return owner
		}
		return None
	})
	if stay {
		free := p.cursors(func(w int) string { return p.in.Workers[w].Zone }, slot)
		settle(func(i int) int {
			if owner := p.owner[i]; owner != None {
				return free(p.in.Workers[owner].Zone, i)
			}
			return None
		})
	}
	settle(func(i int) int {
		if *slot(p.at[i], i) > 0 {
			return p.at[i]
		}
		return None
	})
	free := p.cursors(func(int) string { return "" }, slot)
	settle(func(i int) int { return free("", i) })
}

// cursors returns a function that finds the first worker, as ties are broken,
// in a zone with a slot for partition i.
func (p *planner) cursors(zone func(w int) string, slot func(w, i int) *int32) func(zone string, i int) int {
	type key struct {
		zone string
		kind uint8
	}
	workers := make(map[string][]int)
	for _, at := range p.ranked {
		z := zone(at.index)
		workers[z] = append(workers[z], at.index)
	}
	next := make(map[key]int)
	return func(zone string, i int) int {
		k := key{zone, p.kind[i]}
		list := workers[zone]
		for next[k] < len(list) && *slot(list[next[k]], i) == 0 {
			next[k]++
		}
		if next[k] == len(list) {
			return None
		}
		return list[next[k]]
	}
}

// result tells why each partition is where it is.
func (p *planner) result() Result {
	r := Result{Assign: p.at, Reason: p.why, More: p.more}
	for i := range p.why {
		owner := p.owner[i]
		if owner != None && p.at[i] != None && p.at[i] != owner {
			r.Moves++
		}
		if p.why[i] == undecided {
			p.why[i] = p.reason(i)
		}
	}
	return r
}

// reason is that of a partition that has a worker and was not fixed there.
func (p *planner) reason(i int) Reason {
	switch owner := p.owner[i]; {
	case p.pin != nil && p.pin[i] != 0:
		return p.pin[i]
	case owner == None:
		return Placed
	case p.at[i] == owner && p.in.Workers[owner].Cordoned:
		return Cordoned
	case p.at[i] == owner:
		return Kept
	case p.workers[owner].drains:
		return Drained
	case p.shut != nil && p.shut[i]:
		return Overflow
	default:
		return Balanced
	}
}
