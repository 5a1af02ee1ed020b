package main

import "fmt"

// Plans (rule C8): two who think that they lead make plans from what each has seen of the
// members; a follower acts on the plans that it sees, in the order of a watch that may
// fall back. A plan with a smaller view must never undo one with a larger.

const (
	planLeaders = 2 // the second is not the one with the smallest epoch, and learns it late
	planChanges = 3 // of the members
)

type planRecord struct {
	rev, view, by uint8
}

type planState struct {
	members  uint8 // how often they have changed
	seen     [planLeaders]uint8
	read     [planLeaders]uint8 // the revision of the plan it has read
	readView [planLeaders]uint8
	sent     [planLeaders]planRecord // a plan under way; rev is what it expects
	deposed  bool                    // the second has read the list again
	log      [8]planRecord
	plans    uint8
	followed planRecord
	faults   uint8
}

type planRules struct {
	expects  bool // a plan is written over the one that was read alone
	larger   bool // and only with a larger view
	followed bool // a follower ignores a smaller view
	rechecks bool // a leader reads the list again now and then
}

func (s *planState) last() planRecord {
	if s.plans == 0 {
		return planRecord{}
	}
	return s.log[s.plans-1]
}

func (c *planRules) step(s planState, emit emit[planState]) {
	if s.members < planChanges {
		t := s
		t.members++
		emit("the members change", step, t, "")
	}
	for i := range planLeaders {
		if i == 1 && s.deposed && s.sent[i] == (planRecord{}) {
			continue
		}
		me := string(rune('A' + i))
		for v := s.seen[i] + 1; v <= s.members; v++ {
			t := s
			t.seen[i] = v
			emit(fmt.Sprintf("%s sees change %d", me, v), step, t, "")
		}
		if now := s.last(); now.rev != s.read[i] {
			t := s
			t.read[i], t.readView[i] = now.rev, now.view
			emit(fmt.Sprintf("%s reads plan@%d", me, now.rev), step, t, "")
		}
		if s.sent[i] == (planRecord{}) && !(i == 1 && s.deposed) && (!c.larger || s.seen[i] > s.readView[i]) {
			t := s
			t.sent[i] = planRecord{rev: s.read[i], view: s.seen[i], by: uint8(i + 1)}
			emit(fmt.Sprintf("%s sends a plan of view %d over @%d", me, s.seen[i], s.read[i]), step, t, "")
		}
		if p := s.sent[i]; p.by != 0 {
			t := s
			t.sent[i] = planRecord{}
			switch now := s.last(); {
			case c.expects && now.rev != p.rev:
				emit("the plan of "+me+" is refused", step, t, "")
			case s.plans < uint8(len(s.log)):
				violation := ""
				if p.view < now.view || p.view == now.view && s.plans > 0 {
					violation = "C17: a plan with no larger view replaces another: partitions flap"
				}
				t.log[s.plans] = planRecord{rev: s.plans + 1, view: p.view, by: p.by}
				t.plans++
				emit(fmt.Sprintf("the plan of %s, view %d, is stored @%d", me, p.view, s.plans+1), step, t, violation)
			}
			t = s
			t.sent[i] = planRecord{}
			emit("the plan of "+me+" is lost", fault, t, "")
		}
	}
	if !s.deposed && c.rechecks {
		t := s
		t.deposed = true
		emit("B reads the list again, and follows", timer, t, "")
	}
	for j := range s.plans { // a watch that was made again may show an older one
		p := s.log[j]
		if p == s.followed || c.followed && p.view <= s.followed.view {
			continue
		}
		t := s
		t.followed = p
		cl, violation := step, ""
		if p.rev < s.followed.rev {
			cl, violation = fault, "C17: a follower goes back to an older plan"
		}
		emit(fmt.Sprintf("a worker follows plan@%d", p.rev), cl, t, violation)
	}
}

func (c *planRules) goal(s planState) bool {
	return s.members == planChanges && s.last().view == planChanges && s.followed == s.last() &&
		s.sent == [planLeaders]planRecord{} && (s.deposed || !c.rechecks)
}

func planCases() []testcase {
	with := func(change func(*planRules)) model[planState] {
		c := &planRules{expects: true, larger: true, followed: true, rechecks: true}
		change(c)
		return model[planState]{
			init: planState{members: 1}, next: c.step, goal: c.goal, live: timer, explore: fault,
			faults: 2, spent: func(s *planState) *uint8 { return &s.faults },
			show: func(s planState) string {
				p := s.last()
				return fmt.Sprintf("members %d plan@%d view %d by %d, followed @%d", s.members, p.rev, p.view, p.by, s.followed.rev)
			},
		}
	}
	return []testcase{
		holds("plan/two leaders", with(func(*planRules) {})),
		holds("plan/two leaders, the second never learns it", with(func(c *planRules) { c.rechecks = false })),
		breaks("plan/two leaders write over what they have not read", with(func(c *planRules) { c.expects = false })),
		breaks("plan/a plan need not have a larger view", with(func(c *planRules) { c.larger = false })),
		breaks("plan/a follower takes any plan that it is shown", with(func(c *planRules) { c.followed = false })),
	}
}
