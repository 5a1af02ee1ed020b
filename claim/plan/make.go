package plan

import (
	"math"
	"math/bits"
	"slices"
)

// Version is the version of the planner. It grows whenever the same input may
// give another plan; a lower version must not replace the plan of a higher one.
const Version = 1

// A Result says for every partition of the input, by index, who shall run it.
type Result struct {
	Assign []int    // index into Input.Workers, or None
	Reason []Reason // why
	Moves  int      // partitions that go from a live owner to another worker
	More   bool     // Policy.MaxMoves ended levelling before it was done
}

// Make plans. It takes time in proportion to P log P + W log W.
//
// The rules, each above the ones after it:
//
//  1. A paused, quarantined or waiting partition is unassigned.
//  2. A partition whose owner is absent stays with it, and so does a cooling one.
//  3. A pinned partition goes where it is pinned to, also if that worker is
//     cordoned. If that worker is absent, draining or full, the partition is
//     treated as if it had no pin.
//  4. A partition that its owner has given up goes to another worker.
//  5. A worker above its capacity gives up what it has too much.
//  6. What must leave its worker, then orphans, then what leaves a draining
//     worker, go to the least loaded worker that has room. If nobody has, the
//     last stay where they are and the others are unassigned.
//  7. The loads are levelled as [Policy] wants.
func Make(in Input) Result {
	p := newPlanner(&in)
	p.fix()
	p.stand()
	p.shed()
	p.place()
	p.level()
	p.match()
	return p.result()
}

// undecided marks a partition that no rule has fixed yet.
const undecided Reason = 255

// The pools of partitions without a worker, in the order of who chooses first.
const (
	overflow = iota // left a worker above its capacity
	orphans
	drained // still with their draining owner
	pools
)

// A planner is one run of Make.
//
// A partition that is fixed (rules 1 to 4) only counts as load. Each other one
// that has a worker lies on one of the worker's stacks, one stack per weight,
// so that "which of them leaves" is a pop.
type planner struct {
	in      *Input
	order   []place    // partitions, as looked at
	workers []standing // by index
	ranked  []place    // workers, as ties are broken

	owner []int    // per partition: its owner, or None
	at    []int    // per partition: where the plan puts it
	base  []int    // per partition: where it would be if nothing was done
	why   []Reason // per partition: the rule that fixed it, or undecided
	pin   []Reason // per partition: PinAbsent, PinFull or 0; nil if there are no pins
	shut  []bool   // per partition: left a worker above its capacity; nil if none did
	next  []int32  // per partition: the one under it on its stack
	kind  []uint8  // per partition: index into weights
	tops  []int32  // per worker and kind: the top of the stack
	pool  [pools][]int

	weights []int64 // the different weights of the partitions, ascending
	rollout bool    // builds differ, see Policy.Rollout
	more    bool
}

// A standing is where a worker stands while the plan is made.
type standing struct {
	load     int64
	weight   int64
	count    int    // partitions
	capacity int    // most partitions
	rank     int    // position in the order that breaks ties
	kinds    uint64 // the set of kinds of which it has a stack
	open     bool   // takes new partitions
	drains   bool
	newest   bool // of the newest build during a rollout
}

func newPlanner(in *Input) *planner {
	n := len(in.Partitions)
	p := &planner{
		in:      in,
		order:   partitionOrder(in),
		ranked:  workerOrder(in),
		workers: make([]standing, len(in.Workers)),
		owner:   make([]int, n),
		at:      make([]int, n),
		base:    make([]int, n),
		why:     make([]Reason, n),
		next:    make([]int32, n),
		kind:    make([]uint8, n),
	}
	for rank, at := range p.ranked {
		w := &in.Workers[at.index]
		capacity := w.Capacity
		if capacity <= 0 {
			capacity = math.MaxInt
		}
		p.workers[at.index] = standing{
			weight:   int64(min(max(w.Weight, 1), MaxWorkerWeight)),
			capacity: capacity,
			rank:     rank,
			open:     !w.Cordoned && !w.Draining && !w.Absent,
			drains:   w.Draining && !w.Absent,
		}
	}
	if in.Policy.Zones == ZonesSpread {
		p.spread()
	}
	if in.Policy.Rollout {
		p.markNewest()
	}

	var seen [MaxPartitionWeight + 1]bool
	for i := range in.Partitions {
		if part := &in.Partitions[i]; !part.Paused && !part.Quarantined && !part.Waiting {
			seen[weight(part)] = true
		}
	}
	var kinds [MaxPartitionWeight + 1]uint8
	for weight, ok := range seen {
		if ok {
			kinds[weight] = uint8(len(p.weights))
			p.weights = append(p.weights, int64(weight))
		}
	}
	for i := range in.Partitions {
		p.kind[i] = kinds[weight(&in.Partitions[i])]
	}
	p.tops = make([]int32, len(p.workers)*len(p.weights))
	return p
}

func weight(p *Partition) int { return min(max(p.Weight, 1), MaxPartitionWeight) }

// spread divides the weight of each worker by that of its zone: all zones then
// weigh the same.
func (p *planner) spread() {
	sums := make(map[string]int64)
	for i := range p.workers {
		if p.workers[i].open {
			sums[p.in.Workers[i].Zone] += p.workers[i].weight
		}
	}
	for i := range p.workers {
		if w := &p.workers[i]; w.open {
			w.weight = max(1, w.weight<<20/sums[p.in.Workers[i].Zone])
		}
	}
}

// fix decides what rules 1 to 4 decide, and finds out where all others are.
func (p *planner) fix() {
	pins := false
	for i := range p.in.Partitions {
		part := &p.in.Partitions[i]
		p.owner[i], p.at[i], p.base[i], p.why[i] = None, None, None, undecided
		if p.live(part.Owner) {
			p.owner[i] = part.Owner
		}
		switch {
		case part.Paused:
			p.why[i] = Paused
		case part.Quarantined:
			p.why[i] = Quarantined
		case part.Waiting:
			p.why[i] = Waiting
		case p.owner[i] != None && p.in.Workers[p.owner[i]].Absent:
			p.hold(i, p.owner[i], Awaited)
		case part.Cooling && p.owner[i] != None:
			p.hold(i, p.owner[i], Cooling)
		case p.live(part.Target) && p.workers[part.Target].open:
			p.base[i] = part.Target
		case p.stays(p.owner[i]):
			p.base[i] = p.owner[i]
		}
		pins = pins || part.Pin != ""
	}
	if pins {
		p.fixPins()
	}
	if slices.ContainsFunc(p.in.Partitions, func(part Partition) bool { return part.Avoid != "" }) {
		p.fixAvoided()
	}
}

// fixAvoided seats the partitions that were given up: where the previous plan put
// them, if that was elsewhere, or else where the load is the least.
func (p *planner) fixAvoided() {
	load, count := make([]int64, len(p.workers)), make([]int, len(p.workers))
	for w := range p.workers {
		load[w], count[w] = p.workers[w].load, p.workers[w].count
	}
	for i, w := range p.base {
		if p.why[i] == undecided && w != None {
			load[w] += p.weights[p.kind[i]]
			count[w]++
		}
	}
	for _, at := range p.order {
		i := at.index
		part := &p.in.Partitions[i]
		if part.Avoid == "" || p.why[i] != undecided || p.owner[i] != None {
			continue
		}
		before, to := p.base[i], None
		if before != None {
			load[before] -= p.weights[p.kind[i]]
			count[before]--
		}
		for _, at := range p.ranked {
			w := at.index
			s := &p.workers[w]
			switch {
			case !s.open || count[w] >= s.capacity || p.in.Workers[w].ID == part.Avoid:
			case to == before && to != None:
			case to == None || w == before || load[w]*p.workers[to].weight < load[to]*s.weight:
				to = w
			}
		}
		if to == None {
			to = before
		} else {
			p.hold(i, to, Elsewhere)
		}
		if to != None {
			load[to] += p.weights[p.kind[i]]
			count[to]++
		}
	}
}

// fixPins seats the pinned partitions, those that are there already first.
func (p *planner) fixPins() {
	byID := make(map[string]int, len(p.workers))
	for _, at := range p.ranked {
		byID[p.in.Workers[at.index].ID] = at.index
	}
	p.pin = make([]Reason, len(p.at))
	for _, here := range []bool{true, false} {
		for _, at := range p.order {
			i := at.index
			part := &p.in.Partitions[i]
			if part.Pin == "" || p.why[i] != undecided {
				continue
			}
			w, ok := byID[part.Pin]
			switch {
			case !ok || p.workers[w].drains || p.in.Workers[w].Absent:
				p.pin[i] = PinAbsent
			case here && p.owner[i] != w:
			case p.workers[w].count < p.workers[w].capacity:
				p.hold(i, w, Pinned)
			default:
				p.pin[i] = PinFull
			}
		}
	}
}

// live reports whether w is the index of a worker.
func (p *planner) live(w int) bool { return w >= 0 && w < len(p.workers) }

// stays reports whether w is a worker that is not draining.
func (p *planner) stays(w int) bool { return w != None && !p.workers[w].drains }

// hold fixes partition i at worker w.
func (p *planner) hold(i, w int, why Reason) {
	p.at[i], p.base[i], p.why[i] = w, w, why
	p.workers[w].count++
	p.workers[w].load += p.weights[p.kind[i]]
}

// stand puts every other partition on the stack of the worker where it is: the
// one that the previous plan moves it to, if that still takes partitions, else
// its owner, if that stays. The rest goes to the pool.
func (p *planner) stand() {
	p.recall()
	for _, at := range p.order {
		switch i := at.index; {
		case p.why[i] != undecided || p.base[i] != None:
		case p.owner[i] == None:
			p.pool[orphans] = append(p.pool[orphans], i)
		default:
			p.pool[drained] = append(p.pool[drained], i)
		}
	}
	// What does not run where it stands is cheapest to move: it goes on top.
	for _, running := range []bool{true, false} {
		for _, at := range slices.Backward(p.order) {
			i := at.index
			w := p.base[i]
			if p.why[i] == undecided && w != None && (p.owner[i] == w) == running {
				p.push(i, w)
			}
		}
	}
}

// recall withdraws moves under way to workers that cannot take so many any more:
// these partitions stay with their owner, if it stays.
func (p *planner) recall() {
	excess := make([]int, len(p.workers))
	for w := range p.workers {
		excess[w] = p.workers[w].count - p.workers[w].capacity
	}
	for i, w := range p.base {
		if p.why[i] == undecided && w != None {
			excess[w]++
		}
	}
	over := func(n int) bool { return n > 0 }
	for again := slices.ContainsFunc(excess, over); again; {
		again = false // an owner may have too many by what comes back
		for _, at := range p.order {
			i := at.index
			w, owner := p.base[i], p.owner[i]
			if p.why[i] == undecided && w != None && w != owner && excess[w] > 0 && p.stays(owner) {
				p.base[i] = owner
				excess[w]--
				excess[owner]++
				again = true
			}
		}
	}
}

// push puts partition i on the stack of worker w.
func (p *planner) push(i, w int) {
	k := p.kind[i]
	s := &p.workers[w]
	top := &p.tops[w*len(p.weights)+int(k)]
	if s.kinds&(1<<k) == 0 {
		*top = None
	}
	p.next[i], *top = *top, int32(i)
	p.at[i] = w
	s.kinds |= 1 << k
	s.count++
	s.load += p.weights[k]
}

// pop takes a partition of kind k from worker w, which has one.
func (p *planner) pop(w, k int) int {
	s := &p.workers[w]
	top := &p.tops[w*len(p.weights)+k]
	i := int(*top)
	*top = p.next[i]
	if *top == None {
		s.kinds &^= 1 << k
	}
	p.at[i] = None
	s.count--
	s.load -= p.weights[k]
	return i
}

// shed takes from each worker what it has above its capacity, the lightest
// first. Fixed partitions stay even so.
func (p *planner) shed() {
	for _, at := range p.ranked {
		w := at.index
		for s := &p.workers[w]; s.count > s.capacity && s.kinds != 0; {
			i := p.pop(w, bits.TrailingZeros64(s.kinds))
			p.pool[overflow] = append(p.pool[overflow], i)
			if p.shut == nil {
				p.shut = make([]bool, len(p.at))
			}
			p.shut[i] = true
		}
	}
}

// place finds workers for the pool, heavy partitions first.
func (p *planner) place() {
	takers := p.takers(func(s *standing) bool { return !s.newest })
	newest := p.takers(func(s *standing) bool { return s.newest })
	limit := p.twiceTheShare()
	for _, pool := range p.pool {
		for _, i := range p.heaviestFirst(pool) {
			from := takers
			if newest.len() > 0 && (takers.len() == 0 || limit(newest.first(), i)) {
				from = newest
			}
			if from.len() == 0 {
				p.strand(i)
				continue
			}
			w := from.first()
			p.push(i, w)
			if p.workers[w].count < p.workers[w].capacity {
				from.fix(w)
			} else {
				from.remove(w)
			}
		}
	}
}

// heaviestFirst sorts partitions by weight and leaves those of one weight in
// their order.
func (p *planner) heaviestFirst(pool []int) []int {
	if len(p.weights) < 2 {
		return pool
	}
	byKind := make([][]int, len(p.weights))
	for _, i := range pool {
		byKind[p.kind[i]] = append(byKind[p.kind[i]], i)
	}
	slices.Reverse(byKind)
	return slices.Concat(byKind...)
}

// strand leaves partition i with its draining owner, if it has one.
func (p *planner) strand(i int) {
	owner := p.owner[i]
	switch {
	case owner != None && p.workers[owner].drains:
		p.at[i], p.why[i] = owner, DrainWaits
	case slices.ContainsFunc(p.workers, func(s standing) bool { return s.open }):
		p.why[i] = NoRoom
	default:
		p.why[i] = NoWorker
	}
}
