package main

import "fmt"

// One partition: processes, two of which share a stable id, their sessions with epochs,
// and a claim without a TTL (rules C1 to C6). A plan is evidence of nothing: any process
// may be told anything at any time.

const (
	processes = 3
	ids       = 2
	claims    = 7 // records of the partition that are followed
)

var idOf = [processes]uint8{0, 0, 1}

// What a member's key is.
const (
	noMember uint8 = iota
	session
	certificate // of its death: also the marker of a purge
)

type claimRecord struct{ id, epoch, rev uint8 }

// What a process does with the partition.
const (
	handlesNot uint8 = iota
	handles
	drained       // its handler has returned, it is not yet handed on
	handlesUnsafe // its handler runs without trust
	handsOn       // it has sent a hand-over
)

const noProcess = 0

type process struct {
	up      bool
	epoch   uint8 // of its session, 0 for none
	trusts  bool
	does    uint8
	rev     uint8 // of the claim that it runs under
	seen    uint8 // how many claims
	given   uint8 // the highest revision that it gave away or lost
	sent    claimRecord
	doubt   uint8 // the epoch of a session whose acknowledgement was lost
	missing uint8 // the revision of a claim whose owner it has read as absent
}

type member struct {
	is     uint8
	epoch  uint8
	runs   uint8 // the process +1, 0 for nobody
	last   uint8 // the last epoch ever
	before uint8 // the one before
	dead   uint8 // every epoch up to it is certified dead
}

type claimState struct {
	next    uint8
	members [ids]member
	log     [claims]claimRecord
	n       uint8
	p       [processes]process
	faults  uint8
}

// How a death is proved.
const (
	byRead      = iota // of the leader's present state
	byStaleRead        // of a leader that may have been cut off
	byCertificate
	byFence // on the member's key, inside of the take-over
)

type claimRules struct {
	death       int
	epochs      bool // a handler starts only for the present epoch
	forward     bool // and only for a revision above those given away
	anew        bool // after a doubtful hand-over it goes on only under a new revision
	noAnswer    bool // a second process with the same id ends the first's session if that does not answer
	watchesBack bool // a watch that is made again may show older claims
	maxRev      uint8
}

func (c *claimRules) inv(s claimState) string {
	running := 0
	for _, p := range s.p {
		if p.up && p.does == handles && p.trusts {
			running++
		}
	}
	if running > 1 {
		return "S4: two handlers that trust"
	}
	return ""
}

func (s *claimState) now() claimRecord {
	if s.n == 0 {
		return claimRecord{}
	}
	return s.log[s.n-1]
}

// put stores a claim.
func (s *claimState) put(id, epoch uint8) bool {
	if s.n >= claims {
		return false
	}
	s.log[s.n] = claimRecord{id, epoch, s.next}
	s.n++
	s.next++
	return true
}

// take stores a claim of a process and starts its handler.
func (s *claimState) take(i int) bool {
	p := &s.p[i]
	if !s.put(idOf[i], p.epoch) {
		return false
	}
	p.does, p.rev, p.seen = handles, s.now().rev, s.n
	return true
}

// begin makes a session of a new epoch, which proves that the ones before are dead.
func (m *member) begin(s *claimState, runs uint8) {
	epoch := s.next
	s.next++
	m.before, m.dead = m.last, max(m.dead, m.last)
	m.is, m.epoch, m.last, m.runs = session, epoch, epoch, runs
}

func (c *claimRules) step(s claimState, raw emit[claimState]) {
	emit := func(label string, cl class, t claimState) {
		if t.next <= c.maxRev {
			raw(label, cl, t, "")
		}
	}
	for i := range processes {
		if !s.p[i].up {
			t := s
			t.p[i].up = true
			emit(fmt.Sprintf("P%d starts", i), timer, t)
			continue
		}
		c.membership(s, i, emit)
		c.partition(s, i, emit)
	}
	for i, p := range s.p {
		g := p.sent
		if g.rev == 0 {
			continue
		}
		t := s
		t.p[i].sent = claimRecord{}
		if s.now().rev != g.rev {
			emit(fmt.Sprintf("the hand-over of P%d is refused", i), step, t)
		} else if t.put(g.id, g.epoch) {
			emit(fmt.Sprintf("the hand-over of P%d is stored", i), step, t)
		}
		t = s
		t.p[i].sent = claimRecord{}
		emit(fmt.Sprintf("the hand-over of P%d is lost", i), fault, t)
	}
	for id, m := range s.members {
		t := s
		if m.is != session {
			t.members[id].begin(&t, noProcess)
			emit(fmt.Sprintf("a late write makes a session of id%d that nobody runs", id), fault, t)
		} else if m.runs == noProcess || !s.p[m.runs-1].trusts || s.p[m.runs-1].epoch != m.epoch {
			t.members[id].is = noMember
			emit(fmt.Sprintf("the session of id%d expires", id), timer, t)
		}
	}
}

type claimEmit func(label string, cl class, t claimState)

// membership is what a process does for its session.
func (c *claimRules) membership(s claimState, i int, emit claimEmit) {
	p, id := s.p[i], idOf[i]
	m := s.members[id]
	me := fmt.Sprintf("P%d(id%d)", i, id)

	t := s
	t.p[i] = process{sent: p.sent}
	emit(me+" dies", fault, t)
	if p.epoch == 0 && m.is != session && p.does == handlesNot {
		t := s
		t.members[id].begin(&t, uint8(i+1))
		q := &t.p[i]
		q.epoch, q.trusts, q.doubt = t.members[id].epoch, true, 0
		emit(me+" makes its session", step, t)
		q.epoch, q.trusts, q.doubt = 0, false, q.epoch
		emit(me+" makes its session, the acknowledgement is lost", fault, t)
	}
	if p.doubt != 0 {
		t := s
		t.p[i].doubt = 0
		if m.is == session && m.epoch == p.doubt {
			t.p[i].epoch, t.p[i].trusts = p.doubt, true
			emit(me+" reads back its own session", step, t)
			t.p[i].epoch, t.p[i].trusts = 0, false
			t.members[id].runs = noProcess
		}
		emit(me+" forgets the doubtful session", step, t)
	}
	if c.noAnswer && p.epoch == 0 && m.is == session && m.runs != uint8(i+1) {
		t := s
		t.members[id].is, t.members[id].dead = certificate, m.epoch
		emit(me+" hears nothing of the other process and ends its session", fault, t)
	}
	if p.trusts {
		t := s
		q := &t.p[i]
		q.trusts, q.epoch = false, 0
		if q.does = handlesNot; p.does == handles {
			q.does = handlesUnsafe
		}
		emit(me+" loses its trust", fault, t)
	}
	if p.epoch != 0 && p.does == handlesNot && m.is == session && m.epoch == p.epoch {
		t := s
		t.members[id].is, t.members[id].dead = certificate, p.epoch
		t.p[i].epoch, t.p[i].trusts = 0, false
		emit(me+" leaves", fault, t)
	}
}

// partition is what a process does for the partition.
func (c *claimRules) partition(s claimState, i int, emit claimEmit) {
	p, id := s.p[i], idOf[i]
	me := fmt.Sprintf("P%d(id%d)", i, id)
	active := p.epoch != 0 && p.trusts
	if p.does == handlesUnsafe {
		t := s
		t.p[i].does = handlesNot
		emit(me+": its old handler returns", step, t)
	}
	for v := p.seen + 1; v <= s.n; v++ {
		t := s
		q, r := &t.p[i], s.log[v-1]
		q.seen = v
		label := fmt.Sprintf("%s sees claim@%d", me, r.rev)
		if r.id == id && active && p.does == handlesNot && (!c.epochs || r.epoch == p.epoch) && (!c.forward || r.rev > p.given) {
			q.does, q.rev = handles, r.rev
			label += ", starts its handler"
		}
		emit(label, step, t)
	}
	if c.watchesBack && p.seen > 0 {
		t := s
		t.p[i].seen--
		emit(me+": its watch is made again, on a replica that lags", fault, t)
	}
	if active && p.does == handlesNot {
		c.orphan(s, i, me, emit)
	}
	if !active {
		return
	}
	switch p.does {
	case handles:
		t := s
		t.p[i].does = drained
		emit(me+" drains: its handler returns", timer, t)
	case drained:
		if p.sent.rev != 0 {
			return
		}
		for to, m := range s.members {
			for _, epoch := range []uint8{m.last, m.before} {
				if epoch == 0 || uint8(to) == id && epoch == p.epoch {
					continue
				}
				t := s
				t.p[i].sent, t.p[i].does = claimRecord{uint8(to), epoch, p.rev}, handsOn
				emit(fmt.Sprintf("%s sends the claim to id%d, epoch %d", me, to, epoch), step, t)
			}
		}
	case handsOn: // no answer: it looks
		t := s
		switch {
		case s.now().rev != p.rev:
			t.p[i].does, t.p[i].given = handlesNot, p.rev
			emit(me+" reads that it is handed over", step, t)
		case !c.anew:
			t.p[i].does = handles
			emit(me+" reads that it is still its own: goes on", timer, t)
		case t.take(i):
			emit(me+" reads that it is still its own: claims it anew and goes on", timer, t)
		}
	}
}

// orphan is how a process takes a partition whose owner is dead, or that had none.
func (c *claimRules) orphan(s claimState, i int, me string, emit claimEmit) {
	if s.n == 0 {
		t := s
		if t.take(i) {
			emit(me+" takes the new partition", step, t)
		}
		return
	}
	now, p := s.now(), s.p[i]
	m := s.members[now.id]
	gone := m.is != session || m.epoch != now.epoch
	if (c.death == byRead && gone || c.death == byStaleRead) && p.missing != now.rev {
		t := s
		t.p[i].missing = now.rev
		if gone {
			emit(me+" reads that the owner is absent", step, t)
		} else {
			emit(me+" reads at a cut-off leader that the owner is absent", fault, t)
		}
	}
	proved := false
	switch c.death {
	case byRead, byStaleRead:
		proved = p.missing == now.rev
	case byCertificate:
		proved = now.epoch <= m.dead
	case byFence:
		proved = m.is != session || m.epoch > now.epoch
	}
	if proved {
		t := s
		if t.take(i) {
			emit(me+" takes the orphan", step, t)
			q := &t.p[i]
			q.does, q.rev, q.seen = p.does, p.rev, p.seen
			emit(me+" takes the orphan, the acknowledgement is lost", fault, t)
		}
	}
	if c.death == byCertificate && m.is == noMember && now.epoch > m.dead {
		t := s
		t.members[now.id].is, t.members[now.id].dead = certificate, m.last
		t.next++
		emit(fmt.Sprintf("%s certifies the death of id%d", me, now.id), step, t)
	}
}

// goal is that the partition runs under its newest claim, or that the bounds are reached.
func (c *claimRules) goal(s claimState) bool {
	if s.next >= c.maxRev-2 || s.n >= claims-1 {
		return true
	}
	for _, p := range s.p {
		if p.up && p.trusts && p.does == handles && p.rev == s.now().rev {
			return true
		}
	}
	return false
}

func (c *claimRules) show(s claimState) string {
	o := ""
	for i, m := range s.members {
		o += fmt.Sprintf("[id%d is %d epoch %d] ", i, m.is, m.epoch)
	}
	if s.n > 0 {
		o += fmt.Sprintf("claim@%d id%d epoch %d", s.now().rev, s.now().id, s.now().epoch)
	}
	for i, p := range s.p {
		o += fmt.Sprintf(" P%d: epoch %d does %d", i, p.epoch, p.does)
	}
	return o
}

func claimCases() []testcase {
	with := func(progress bool, change func(*claimRules)) model[claimState] {
		c := &claimRules{death: byCertificate, epochs: true, forward: true, anew: true, maxRev: 6}
		change(c)
		m := model[claimState]{
			init: claimState{next: 1}, next: c.step, inv: c.inv, live: timer, explore: fault,
			faults: 3, spent: func(s *claimState) *uint8 { return &s.faults }, show: c.show,
		}
		m.init.p[0].up, m.init.p[2].up = true, true
		if progress {
			m.goal = c.goal
		}
		return m
	}
	return []testcase{
		holds("claim/a death is a certificate", with(true, func(*claimRules) {})).inLong(),
		holds("claim/a death is a certificate, watches fall back", with(true, func(c *claimRules) { c.watchesBack = true })).inLong(),
		holds("claim/a death is a certificate, up to five revisions", with(true, func(c *claimRules) { c.maxRev = 5 })),
		holds("claim/a death is a fence inside of the take-over", with(false, func(c *claimRules) { c.death = byFence })).inLong(),
		holds("claim/a death is a read that is never stale", with(false, func(c *claimRules) { c.death = byRead })).inLong(),
		breaks("claim/a death is a read", with(false, func(c *claimRules) { c.death, c.maxRev = byStaleRead, 7 })),
		breaks("claim/the id is enough, whatever the epoch", with(false, func(c *claimRules) { c.epochs, c.maxRev = false, 7 })),
		breaks("claim/watches fall back, what was given away is forgotten", with(false, func(c *claimRules) { c.watchesBack, c.forward, c.maxRev = true, false, 7 })),
		breaks("claim/it goes on under the old revision after a doubtful hand-over", with(false, func(c *claimRules) { c.anew, c.maxRev = false, 7 })),
		breaks("claim/no answer ends the session of the same id", with(false, func(c *claimRules) { c.noAnswer, c.maxRev = true, 7 })),
	}
}
