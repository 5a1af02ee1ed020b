package main

import "fmt"

// Who leads: the live session with the smallest epoch (rule C7). Each worker keeps a timer
// on the one before it, and goes to the next one when that one is certified dead.

const chained = 4

type chainState struct {
	alive, key [chained]bool
	before     [chained]int8 // whom it watches; -1: it thinks that it leads
	faults     uint8
}

type chain struct {
	events  bool // it learns of an end only from an event, and an expiry sends none
	stale   bool // a list may be read from a cut-off leader that has removed its own copies
	proof   bool // an absence counts only after an own write on the absent key was stored
	recheck bool // a leader reads the list again now and then
}

func (s *chainState) below(i int) int8 {
	for j := i - 1; j >= 0; j-- {
		if s.key[j] {
			return int8(j)
		}
	}
	return -1
}

func (c *chain) step(s chainState, emit emit[chainState]) {
	for i := range chained {
		if s.alive[i] {
			t := s
			t.alive[i] = false
			emit(fmt.Sprintf("%d dies", i), fault, t, "")
			t.key[i] = false
			for j := range t.before {
				if t.alive[j] && t.before[j] == int8(i) {
					t.before[j] = t.below(j)
				}
			}
			emit(fmt.Sprintf("%d leaves, with an event", i), fault, t, "")
		} else if s.key[i] {
			t := s
			t.key[i] = false
			emit(fmt.Sprintf("the key of %d expires, without an event", i), timer, t, "")
		}
		if !s.alive[i] {
			continue
		}
		if p := s.before[i]; p >= 0 && !c.events {
			t := s
			if !s.key[p] {
				t.before[i] = t.below(i)
				emit(fmt.Sprintf("%d: %d is silent for a lease and absent, looks for the next", i, p), timer, t, "")
			} else if c.stale && !c.proof {
				t.before[i] = -1
				emit(fmt.Sprintf("%d: a cut-off leader shows all before it as absent", i), fault, t, "")
			}
		}
		if b := s.below(i); s.before[i] == -1 && c.recheck && b >= 0 {
			t := s
			t.before[i] = b
			emit(fmt.Sprintf("%d reads the list again, steps back behind %d", i, b), timer, t, "")
		}
	}
}

func (c *chain) goal(s chainState) bool {
	first, leaders, leader := -1, 0, -1
	for i := chained - 1; i >= 0; i-- {
		if s.alive[i] {
			first = i
			if s.before[i] == -1 {
				leaders, leader = leaders+1, i
			}
		}
	}
	return first < 0 || leaders == 1 && leader == first
}

func chainCases() []testcase {
	with := func(c chain) model[chainState] {
		m := model[chainState]{
			next: c.step, goal: c.goal, live: timer, explore: fault,
			faults: 3, spent: func(s *chainState) *uint8 { return &s.faults },
			show: func(s chainState) string {
				return fmt.Sprintf("alive %v key %v before %v", s.alive, s.key, s.before)
			},
		}
		for i := range chained {
			m.init.alive[i], m.init.key[i], m.init.before[i] = true, true, int8(i-1)
		}
		return m
	}
	return []testcase{
		breaks("chain/deaths are learnt from events alone", with(chain{events: true})),
		holds("chain/a timer on the one before, the next one found by reading", with(chain{})),
		breaks("chain/a stale list is believed: two leaders for ever", with(chain{stale: true})),
		holds("chain/a stale list is believed, a leader reads it again", with(chain{stale: true, recheck: true})),
		holds("chain/a stale list, an absence needs an own stored write", with(chain{stale: true, proof: true})),
	}
}
