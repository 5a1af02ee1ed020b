package claim

import (
	"maps"
	"slices"
	"strconv"
)

// A partition of a new layout may have to wait until others, its parents, have
// been drained that ran under an older layout (C43). A parent is drained when its
// claim has changed hands by a writer that knew the new layout: its last handler
// of the old one has returned then. No absence counts:
//
//	the resize is stored; p is an orphan, so its child starts; w, which has not
//	heard of the resize, takes p by the old plan.
//
// So where nobody owns a parent the leader itself writes that nobody does, by CAS
// and under the same proof as a take-over (rule C2); w's write is then refused.

// drained reports whether the parent has been drained since the gate's layout.
func (s *state) drained(g gate, parent string) bool { return s.claims[parent].layout >= g.Since }

// closed returns the partitions that may not run yet, each with a parent that is
// not drained. A parent that is not, and is in the present layout, is among them:
// nothing else would have it drained.
func (s *state) closed() map[string]string {
	if len(s.settings.Gates) == 0 {
		return nil
	}
	closed := make(map[string]string)
	for _, g := range s.settings.Gates {
		if g.Count > 0 {
			// A key of a numbered partition is in partition hash mod count, so it
			// may go from p to c exactly if p and c are the same modulo the
			// greatest common divisor of the two counts.
			step := gcd(g.Count, g.To)
			open := make(map[int]string)
			for p := range g.Count {
				if name := strconv.Itoa(p); !s.drained(g, name) {
					open[p%step] = name
					closed[name] = name
				}
			}
			for c := range g.To {
				if parent, ok := open[c%step]; ok {
					closed[strconv.Itoa(c)] = parent
				}
			}
		}
		for child, parents := range g.Parents {
			for _, parent := range parents {
				if !s.drained(g, parent) {
					closed[child], closed[parent] = parent, parent
				}
			}
		}
	}
	return closed
}

// parents returns all parents of the gate, sorted.
func (g gate) parents() []string {
	names := Numbered(g.Count)
	for _, child := range slices.Sorted(maps.Keys(g.Parents)) {
		names = append(names, g.Parents[child]...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// vacant returns the parents that are not drained though no live worker seems to
// own them, each with what its claim is now. That is no proof of a death yet.
func (s *state) vacant() map[string]owner {
	vacant := make(map[string]owner)
	for _, g := range s.settings.Gates {
		for _, parent := range g.parents() {
			if o := s.claims[parent]; !s.drained(g, parent) && !s.alive(o) {
				vacant[parent] = o
			}
		}
	}
	return vacant
}

// alive reports whether the owner's session is among the members.
func (s *state) alive(o owner) bool {
	m := s.members[o.worker]
	return m != nil && m.epoch == o.epoch
}

// passed reports whether all parents of the gate are drained.
func (s *state) passed(g gate) bool {
	return !slices.ContainsFunc(g.parents(), func(parent string) bool { return !s.drained(g, parent) })
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
