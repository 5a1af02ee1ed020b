package main

import (
	"fmt"
	"slices"
)

// The line of a semaphore (rule L12): two numbered slots, one line of tickets. Nobody
// registers: each release reads the line after its purge, and who has written a ticket
// looks at every slot once.

const (
	permits   = 2
	claimants = 4
)

type claimant struct {
	does     uint8 // one of the states of a waiter of a lock
	slot     uint8 // that it takes, has, or has released
	expected uint8
	target   uint8 // whose ticket it read last, +1
	skipped  uint8 // a set: passed over in this walk
	told     uint8 // a set of slots that somebody was told of, and that are still as they were
	ticket   bool
}

type slot struct {
	kind, owner uint8
}

type slotState struct {
	slots  [permits]slot
	line   [claimants]uint8
	w      [claimants]claimant
	faults uint8
}

type slotRules struct {
	after  bool // a release reads the line after its purge
	looks  bool // who has written a ticket looks at every slot
	walks  bool // who is served already does not end the walk
	again  bool // who has told somebody of a slot looks for another one
	used   bool // a hold ends when it likes: no slot may be left free for the sake of its end
	faults uint8
}

func (s *slotState) remove(p int) {
	var rest [claimants]uint8
	n := 0
	for _, x := range s.line {
		if x != 0 && int(x) != p+1 {
			rest[n] = x
			n++
		}
	}
	s.line = rest
}

func (s *slotState) first(p int) uint8 {
	for _, x := range s.line {
		if x != 0 && s.w[p].skipped&(1<<(x-1)) == 0 {
			return x
		}
	}
	return 0
}

// put changes a slot: what is known of its revision is of the past.
func (s *slotState) put(k uint8, kind, owner uint8) {
	s.slots[k] = slot{kind, owner}
	for i := range s.w {
		if w := &s.w[i]; w.slot == k && w.expected == atNow {
			w.expected = atPast
		}
		s.w[i].told &^= 1 << k
	}
}

func (s *slotState) rest(p int) { s.w[p] = claimant{does: sleeps, ticket: true} }

func (c *slotRules) step(s slotState, emit emit[slotState]) {
	for p := range claimants {
		c.claimant(s, p, emit)
		if s.w[p].does < dead && c.faults > 0 {
			t := s
			t.w[p] = claimant{does: dead}
			emit(name(p)+" dies", fault, t, "")
		}
	}
	for k, x := range s.slots {
		if c.used {
			break // no timers but the ends of holds
		}
		if w := s.w[x.owner]; x.kind == marker || x.kind == held && (w.does != hasIt || int(w.slot) != k) {
			t := s
			t.put(uint8(k), absent, 0)
			emit(fmt.Sprintf("the TTL of slot %d ends: %s", k, keyNames[x.kind]), timer, t, "")
		}
	}
}

func (c *slotRules) claimant(s slotState, p int, emit emit[slotState]) {
	t, me := s, name(p)
	w, now := &t.w[p], s.w[p]
	switch now.does {
	case idle, looks: // at every slot
		for k, x := range s.slots {
			if x.kind == held || now.told&(1<<k) != 0 {
				continue
			}
			t := s
			w := &t.w[p]
			w.slot, w.expected, w.does = uint8(k), atZero, readsLine
			if x.kind == marker {
				w.expected = atNow
			} else if !now.ticket {
				w.does = takes
			}
			emit(fmt.Sprintf("%s looks: slot %d is free", me, k), step, t, "")
			return
		}
		if w.does = writesTicket; now.ticket {
			t.rest(p)
		}
		emit(me+" looks: no slot is free", step, t, "")
	case writesTicket:
		t.remove(p)
		for i := range t.line {
			if t.line[i] == 0 {
				t.line[i] = uint8(p + 1)
				break
			}
		}
		w.ticket = true
		if w.does = looks; !c.looks {
			t.rest(p)
		}
		emit(me+" writes its ticket", step, t, "")
	case readsLine:
		x := s.first(p)
		in := false
		for _, y := range s.line {
			in = in || int(y) == p+1
		}
		switch {
		case !now.ticket && x == 0 || int(x) == p+1:
			w.does = takes
			emit(me+" reads the line: its turn", step, t, "")
		case !in:
			w.does, w.expected, w.skipped = writesTicket, atZero, 0
			emit(me+" reads the line: it has no ticket", step, t, "")
		default: // whoever meets a free slot and is not first tells the first
			w.does, w.target = asks, x
			emit(me+" reads the line: asks "+name(int(x)-1), step, t, "")
		}
	case takes:
		x := s.slots[now.slot]
		if now.expected == atZero && x.kind == absent || now.expected == atNow && x.kind == marker {
			t.put(now.slot, held, uint8(p))
			t.w[p] = claimant{does: hasIt, slot: now.slot, ticket: now.ticket}
			emit(fmt.Sprintf("%s takes slot %d", me, now.slot), step, t, "")
			return
		}
		t.w[p] = claimant{does: looks, ticket: now.ticket}
		emit(me+" is refused", step, t, "")
	case sleeps:
		if c.used {
			return
		}
		w.does = writesTicket
		for _, x := range s.line {
			if int(x) == p+1 {
				w.does = looks
			}
		}
		emit(me+": its timer fires", timer, t, "")
	case asks, tells:
		c.ask(s, p, emit)
	case hasIt:
		u := t
		u.w[p] = claimant{does: lost, slot: now.slot}
		emit(me+" is paused past its trust", fault, u, "")
		t.remove(p)
		w.ticket = false
		if w.does = releases; !c.after {
			w.target = t.first(p)
		}
		cl := step
		if c.used {
			cl = timer
		}
		emit(me+" ends its hold", cl, t, "")
	case releases:
		if x := s.slots[now.slot]; x.kind != held || int(x.owner) != p {
			t.w[p] = claimant{does: done}
			emit(me+": the release is refused", step, t, "")
			return
		}
		t.put(now.slot, marker, uint8(p))
		w.expected, w.does = atNow, readsNext
		if !c.after {
			if w.does = tells; w.target == 0 {
				t.w[p] = claimant{does: done}
			}
		}
		emit(fmt.Sprintf("%s purges slot %d", me, now.slot), step, t, "")
	case readsNext:
		if w.target = s.first(p); w.target == 0 {
			t.w[p] = claimant{does: done}
			emit(me+" reads the line: nobody", step, t, "")
			return
		}
		w.does = tells
		emit(me+" reads the line", step, t, "")
	}
}

// ask tells the target of p that a slot is free.
func (c *slotRules) ask(s slotState, p int, emit emit[slotState]) {
	t, x := s, int(s.w[p].target)-1
	w, now := &t.w[p], s.w[p]
	label := fmt.Sprintf("%s tells %s of slot %d", name(p), name(x), now.slot)
	waits := now.does == asks
	stop := func(t *slotState) {
		switch told := now.told | 1<<now.slot; {
		case !waits:
			t.w[p] = claimant{does: done}
		case c.again:
			t.w[p] = claimant{does: looks, ticket: true, told: told}
		default:
			t.rest(p)
		}
	}
	again := func(t *slotState) {
		w := &t.w[p]
		if w.does, w.target = readsNext, 0; waits {
			w.does = readsLine
		}
	}
	switch other := s.w[x]; {
	case other.does == dead || !other.ticket:
		t.remove(x)
		again(&t)
		emit(label+": nobody waits there", step, t, "")
		return
	case other.does == takes || other.does == hasIt: // served
		if w.skipped |= 1 << x; c.walks {
			again(&t)
		} else {
			stop(&t)
		}
		emit(label+": it is served", step, t, "")
	default:
		y := &t.w[x]
		*y = claimant{does: takes, slot: now.slot, expected: now.expected, ticket: true}
		stop(&t)
		emit(label, step, t, "")
	}
	u := s
	u.w[p].skipped |= 1 << x
	again(&u)
	emit(label+": silence", fault, u, "")
}

func (c *slotRules) inv(s slotState) string {
	var holders [permits]int
	for _, w := range s.w {
		if w.does == hasIt {
			if holders[w.slot]++; holders[w.slot] > 1 {
				return "S1: two holders of a slot"
			}
		}
	}
	return ""
}

func (c *slotRules) goal(s slotState) bool {
	if c.used {
		sleep := slices.ContainsFunc(s.w[:], func(w claimant) bool { return w.does == sleeps })
		return !sleep || s.slots[0].kind == held && s.slots[1].kind == held
	}
	for _, w := range s.w {
		if w.does != done && w.does != dead && w.does != lost {
			return false
		}
	}
	return true
}

func slotCases() []testcase {
	with := func(live, explore class, change func(*slotRules)) model[slotState] {
		c := &slotRules{after: true, looks: true, walks: true, again: true}
		change(c)
		return model[slotState]{
			next: c.step, inv: c.inv, goal: c.goal, live: live, explore: explore,
			faults: c.faults, spent: func(s *slotState) *uint8 { return &s.faults },
			show: func(s slotState) string {
				o := fmt.Sprintf("%v line %v", s.slots, s.line)
				for i, w := range s.w {
					o += fmt.Sprintf(" %c:%s/%d@%d", 'A'+i, lineNames[w.does], w.slot, w.expected)
				}
				return o
			},
		}
	}
	return []testcase{
		holds("slots/no fault, no timer", with(step, step, func(*slotRules) {})),
		holds("slots/one fault", with(timer, fault, func(c *slotRules) { c.faults = 1 })).inLong(),
		breaks("slots/a release reads the line before its purge: stuck", with(step, step, func(c *slotRules) { c.after = false })),
		breaks("slots/who has written a ticket does not look: stuck", with(step, step, func(c *slotRules) { c.looks = false })),
		holds("slots/no slot stays free while somebody sleeps", with(step, timer, func(c *slotRules) { c.used = true })),
		breaks("slots/who has told somebody sleeps: a slot stays free", with(step, timer, func(c *slotRules) { c.used, c.again = true, false })),
		breaks("slots/who is served ends the walk: a slot stays free", with(step, timer, func(c *slotRules) { c.used, c.walks = true, false })),
	}
}
