package main

import (
	"slices"
	"time"
)

// A class says what a step of a model needs.
type class uint8

const (
	step  class = iota // nothing: an ordinary step of the protocol
	timer              // a timer that fires or a lease that ends, but no fault
	fault              // a crash, a lost message, a pause past the trust, an operator
)

// emit takes a state that can follow, by a step of class c. A violation, if not empty,
// says what promise the step itself breaks.
type emit[S comparable] func(label string, c class, next S, violation string)

// A model is a protocol as a graph of states that are small and comparable.
type model[S comparable] struct {
	init    S
	next    func(s S, emit emit[S])
	inv     func(s S) string // what a state breaks, "" for nothing
	goal    func(s S) bool   // what must come, nil for no check of progress
	live    class            // the steps that suffice for it
	explore class            // the steps that are taken at all
	faults  uint8            // how many faults there are in one run, if spent is given
	spent   func(s *S) *uint8
	show    func(s S) string
	limit   int // states; 0 for 12 million
}

// A result is what a check of a model has found.
type result struct {
	states, edges int
	violation     string
	trace         []string // the steps of a shortest way to it
	bounded       bool     // the limit ended the search before it was complete
	took          time.Duration
}

// check visits every state of the model breadth first, so that a counterexample is a
// shortest one. Then it looks for a state from which the goal cannot be reached by the
// steps that suffice: under strong fairness of those steps there is none exactly if the
// goal comes in the end.
func check[S comparable](m model[S]) result {
	began := time.Now()
	if m.limit == 0 {
		m.limit = 12_000_000
	}
	g := &graph[S]{index: make(map[S]int32), labels: make(map[string]uint16)}
	g.add(m.init, -1, "init")
	var r result
	var from, to []int32 // the edges that suffice for the goal
	found := func(at int32, last, violation string) {
		if r.violation == "" {
			r.violation, r.trace = violation, g.trace(at, last, m.show)
		}
	}
	for q := int32(0); int(q) < len(g.states) && r.violation == ""; q++ {
		s := g.states[q]
		if m.inv != nil {
			if v := m.inv(s); v != "" {
				found(q, "", v)
				break
			}
		}
		if len(g.states) > m.limit {
			r.bounded = true
			break
		}
		m.next(s, func(label string, c class, next S, violation string) {
			if c > m.explore || r.violation != "" {
				return
			}
			if c == fault && m.spent != nil {
				if *m.spent(&s) >= m.faults {
					return
				}
				*m.spent(&next)++
			}
			if violation != "" {
				found(q, label, violation)
				return
			}
			r.edges++
			if at := g.add(next, q, label); m.goal != nil && c <= m.live && at != q {
				from, to = append(from, q), append(to, at)
			}
		})
	}
	if m.goal != nil && r.violation == "" && !r.bounded {
		if at := g.stuck(m.goal, from, to); at >= 0 {
			found(at, "", "stuck: the goal cannot be reached from here")
		}
	}
	r.states, r.took = len(g.states), time.Since(began)
	return r
}

// A graph is the states that were found, each with the step that led to it first.
type graph[S comparable] struct {
	states []S
	index  map[S]int32
	parent []int32
	label  []uint16
	labels map[string]uint16
	names  []string
}

func (g *graph[S]) add(s S, parent int32, label string) int32 {
	if at, ok := g.index[s]; ok {
		return at
	}
	l, ok := g.labels[label]
	if !ok {
		l = uint16(len(g.names))
		g.labels[label], g.names = l, append(g.names, label)
	}
	at := int32(len(g.states))
	g.index[s] = at
	g.states, g.parent, g.label = append(g.states, s), append(g.parent, parent), append(g.label, l)
	return at
}

func (g *graph[S]) trace(at int32, last string, show func(S) string) []string {
	var t []string
	if last != "" {
		t = append(t, last)
	}
	for ; at >= 0; at = g.parent[at] {
		t = append(t, g.names[g.label[at]]+"   "+show(g.states[at]))
	}
	slices.Reverse(t)
	return t
}

// stuck returns a state from which no edge leads towards the goal, -1 if there is none.
func (g *graph[S]) stuck(goal func(S) bool, from, to []int32) int32 {
	last, before := make([]int32, len(g.states)), make([]int32, len(to)) // lists of the edges into a state
	for i := range last {
		last[i] = -1
	}
	for e, at := range to {
		before[e], last[at] = last[at], int32(e)
	}
	reaches := make([]bool, len(g.states))
	var todo []int32
	for i, s := range g.states {
		if goal(s) {
			reaches[i] = true
			todo = append(todo, int32(i))
		}
	}
	for len(todo) > 0 {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for e := last[at]; e >= 0; e = before[e] {
			if f := from[e]; !reaches[f] {
				reaches[f] = true
				todo = append(todo, f)
			}
		}
	}
	return int32(slices.Index(reaches, false))
}
