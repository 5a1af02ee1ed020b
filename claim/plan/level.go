package plan

import "math/bits"

// level moves partitions from the most to the least loaded worker while that
// strictly lowers the sum of load²/weight (rule 7).
//
// If all partitions weigh the same this ends at the least possible sum, since
// the sum is convex in each load, and with the fewest moves: each one takes
// away a partition that is one too many at its worker, or gives one to a worker
// that has one too few, or both.
func (p *planner) level() {
	if p.rollout {
		return
	}
	takers := p.takers(func(*standing) bool { return true })
	limit := p.in.Policy.MaxMoves
	moving := 0
	if limit != 0 {
		for i := range p.at {
			moving += p.moving(i)
		}
	}

	tolerant := p.in.Policy.Hysteresis > 0
	for moved := true; moved; {
		moved = false
		// A giver that has nothing to give is out, until the next round: what
		// others gave meanwhile may have changed that. The last round moves
		// nothing, as the next plan would.
		givers := p.givers()
		for givers.len() > 0 && takers.len() > 0 {
			from, to := givers.first(), takers.first()
			if tolerant && p.tolerable(from, to) {
				return
			}
			tolerant = false // what is not tolerated is levelled out
			k := p.best(from, to)
			if k == None {
				givers.remove(from)
				continue
			}
			if limit != 0 && moving >= limit {
				p.more = true
				return
			}
			moved = true
			// One load changes at a time: a ranking can mend one wrong place, not two.
			i := int(p.tops[from*len(p.weights)+k])
			moving -= p.moving(i)
			p.pop(from, k)
			takers.set(from, true)
			givers.set(from, p.workers[from].kinds != 0)
			p.push(i, to)
			takers.set(to, p.workers[to].count < p.workers[to].capacity)
			givers.fix(to)
			moving += p.moving(i)
		}
	}
}

// gap is twice the load that would have to go from one worker to another to
// make both equally loaded, times the sum of their weights. Between two workers
// of weight 1 it is twice the difference of their loads.
func (p *planner) gap(from, to int) int64 {
	f, t := &p.workers[from], &p.workers[to]
	return 2 * (f.load*t.weight - t.load*f.weight)
}

// tolerable reports whether two workers differ by no more than
// Policy.Hysteresis.
func (p *planner) tolerable(from, to int) bool {
	sum := p.workers[from].weight + p.workers[to].weight
	return p.gap(from, to) <= int64(p.in.Policy.Hysteresis)*sum
}

// best returns the kind of partition that lowers the sum most when it goes from
// one worker to another, or None.
//
// Moving weight x lowers load²/weight of the two by x × (gap − x × sum of the
// weights), but for a factor.
func (p *planner) best(from, to int) int {
	gap := p.gap(from, to)
	sum := p.workers[from].weight + p.workers[to].weight
	kind, most := None, int64(0)
	for kinds := p.workers[from].kinds; kinds != 0; kinds &= kinds - 1 {
		k := bits.TrailingZeros64(kinds)
		x := p.weights[k]
		if gain := x * (gap - x*sum); gain > most {
			kind, most = k, gain
		}
	}
	return kind
}

// moving is 1 if the plan takes partition i from a live owner that stays.
func (p *planner) moving(i int) int {
	owner := p.owner[i]
	if p.stays(owner) && p.at[i] != None && p.at[i] != owner {
		return 1
	}
	return 0
}
