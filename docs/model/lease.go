package main

import "fmt"

// The lease of one key, in ticks of time: trust, late acknowledgements, requests that
// travel without bound, read-back, a release that races a renewal, clocks that jump or
// are slow, expiry markers, a deposed leader, Break, a bucket made anew, fenced writes.

const leaseClients = 3

// Owners of the key that are no client.
const (
	nobody    = 0
	tombstone = 9 // bars everybody, belongs to nobody
)

// Kinds of requests.
const (
	acquire uint8 = 1 + iota
	renewal
	release
	fencedWrite
)

var requestNames = []string{"", "acquire", "renewal", "release", "fenced write"}

// Where a request is.
const (
	nowhere uint8 = iota
	travels
	accepted // the reply travels
	refused  // the reply travels
)

// What a client does.
const (
	leaseIdle uint8 = iota
	acquiring
	holding
	releasing
)

type leaseKey struct {
	owner   uint8 // nobody, 1 for the first client and so on, tombstone
	rev     uint8
	token   uint8
	attempt uint8 // the nonce: which attempt of its owner wrote it
	left    int8  // ticks until the server may remove it
}

type leaseRequest struct {
	at       uint8
	kind     uint8
	expected uint8 // revision, 0 for an absent key
	attempt  uint8
	age      uint8
	rev      uint8 // in a reply
	token    uint8 // that a fenced write was made under
}

type leaseClient struct {
	does     uint8
	rev      uint8
	token    uint8
	trust    int8  // ticks
	current  uint8 // the attempt whose outcome is awaited, 0 for none
	doubt    uint8 // an earlier attempt without outcome, 0 for none
	attempts uint8 // made so far
	slipped  uint8 // ticks the own clock missed since the last confirmed write was sent
	slips    uint8 // the same since the pending write was sent
	requests [2]leaseRequest
	fenced   leaseRequest
}

// forget ends whatever the client has; what travels, travels on.
func (p *leaseClient) forget() {
	*p = leaseClient{attempts: p.attempts, fenced: p.fenced, requests: p.requests}
}

type leaseState struct {
	key        leaseKey
	old        leaseKey // what a deposed leader shows
	deposed    bool
	next       uint8 // the next revision
	marker     bool  // an expiry marker is proposed
	maxToken   uint8
	jump       int8 // the server's clock is ahead by this much now
	operations uint8
	quarantine int8 // ticks left after the bucket was made anew
	clients    [leaseClients]leaseClient
}

// How an operator breaks a hold, or a bucket is made anew.
const (
	never = iota
	naive
	byRule
)

type lease struct {
	clients     int
	ttl, margin int8
	jump        int8  // how far the clock jumps at a change of leader
	slip        uint8 // ticks that a client's clock may be slow by in one lease
	attempts    uint8 // per client
	maxRev      uint8
	markers     bool // the server writes a marker for a key that ended
	lateAck     bool // an acknowledgement after the trust has ended counts for nothing
	readBack    bool // a doubtful write is read back by its nonce
	fromSend    bool // trust counts from the sending, not from the acknowledgement
	cutTTL      bool // the server stores a TTL without the fraction that the holder trusts
	breaks      int  // naive: a purge; byRule: a tombstone for the rest of the lease
	anew        int  // naive: at once; byRule: after a quarantine of one TTL
	sameRevs    bool // a bucket made anew starts with the same revisions
	deposed     bool // a deposed leader answers reads and refuses writes
	evidence    bool // neither absence nor a lower revision is evidence of a loss
	fence       bool
	fenceByName bool // the fence asks for the owner's name only
}

func (c *lease) gain(age uint8) int8 { return c.ttl - c.margin - int8(age) }

func (c *lease) inv(s leaseState) string {
	holders := 0
	for _, p := range s.clients {
		if p.does == holding && p.trust > 0 {
			holders++
		}
	}
	if holders > 1 {
		return "S1: two holders"
	}
	return ""
}

func (c *lease) step(s leaseState, emit0 emit[leaseState]) {
	emit := func(label string, cl class, t leaseState, violation string) {
		emit0(label, cl, c.normal(t), violation)
	}
	c.tick(s, emit)
	c.server(s, emit)
	for i := range c.clients {
		for j := range s.clients[i].requests {
			c.deliver(s, i, func(t *leaseState) *leaseRequest { return &t.clients[i].requests[j] }, emit)
			c.lose(s, i, j, emit)
		}
		c.deliver(s, i, func(t *leaseState) *leaseRequest { return &t.clients[i].fenced }, emit)
		c.client(s, i, emit)
	}
}

func (c *lease) tick(s leaseState, emit emit[leaseState]) {
	t := s
	for _, k := range []*leaseKey{&t.key, &t.old} {
		if k.owner != nobody && k.left > -2 {
			k.left--
		}
	}
	t.quarantine = max(0, t.quarantine-1)
	for i := range t.clients[:c.clients] {
		p := &t.clients[i]
		if p.trust > 0 {
			p.trust--
			if lost := p.trust == 0 && p.does == holding; lost && (p.current == 0 || c.lateAck) {
				doubt := p.doubt
				if p.current != 0 {
					doubt = p.current
				}
				p.forget()
				p.doubt = doubt
			}
		}
		for j := range p.requests {
			if r := &p.requests[j]; r.at != nowhere && r.age < uint8(c.ttl) {
				r.age++
			}
		}
	}
	emit("tick", step, t, "")
	for i, p := range s.clients[:c.clients] {
		if p.trust > 0 && p.slipped < c.slip && (p.current == 0 || p.slips < c.slip) {
			u := t
			u.clients[i] = p
			u.clients[i].slipped++
			if p.current != 0 {
				u.clients[i].slips++
			}
			emit(fmt.Sprintf("tick that the clock of %c misses", 'A'+i), fault, u, "")
		}
	}
}

// server is what the server, its leaders and an operator do by themselves.
func (c *lease) server(s leaseState, emit emit[leaseState]) {
	if s.key.owner != nobody && s.key.left-s.jump <= 0 {
		t := s
		switch {
		case !c.markers:
			t.key = leaseKey{}
			emit("the server removes the key that ended", timer, t, "")
		case !s.marker:
			t.marker = true
			emit("the server proposes the expiry marker", timer, t, "")
		}
	}
	if s.marker {
		t := s
		t.marker, t.key = false, leaseKey{}
		emit("the expiry marker is applied, whatever is last", timer, t, "")
	}
	if c.jump > 0 {
		t := s
		t.jump = c.jump - s.jump
		emit("the leader changes, its clock differs", fault, t, "")
	}
	if c.deposed {
		t := s
		if !s.deposed {
			t.deposed, t.old = true, s.key
			emit("the leader is cut off and keeps its view", fault, t, "")
		} else {
			t.deposed, t.old = false, leaseKey{}
			emit("the old leader steps down", timer, t, "")
			if s.old.owner != nobody && s.old.left <= 0 {
				t = s
				t.old = leaseKey{}
				emit("the old leader removes its own copy", timer, t, "")
			}
		}
	}
	if s.operations > 0 {
		return
	}
	t := s
	t.operations++
	if s.key.owner != nobody && s.key.owner != tombstone {
		switch c.breaks {
		case naive:
			u := t
			u.key = leaseKey{}
			u.next++
			emit("an operator purges the lock", fault, u, "")
		case byRule:
			if s.next < c.maxRev {
				u := t
				u.key = leaseKey{owner: tombstone, rev: t.next, left: c.ttl}
				u.next++
				emit("an operator writes a tombstone with the holder's TTL", fault, u, "")
			}
		}
	}
	if c.anew != never {
		t.key, t.marker = leaseKey{}, false
		t.next++
		if c.sameRevs {
			t.next = 1
		}
		if c.anew == byRule {
			t.quarantine = c.ttl
		}
		emit("the bucket is deleted and made anew", fault, t, "")
	}
}

// deliver is the arrival of a request at the server.
func (c *lease) deliver(s leaseState, i int, of func(*leaseState) *leaseRequest, emit emit[leaseState]) {
	r := *of(&s)
	if r.at != travels {
		return
	}
	name := fmt.Sprintf("%s of %c", requestNames[r.kind], 'A'+i)
	t := s
	reply := of(&t)
	matches := s.key.owner != nobody && s.key.rev == r.expected
	switch r.kind {
	case acquire, renewal:
		if !matches && (r.expected != 0 || s.key.owner != nobody || s.quarantine > 0) {
			reply.at, reply.rev = refused, s.key.rev
			emit(name+" refused", step, t, "")
			return
		}
		if s.next >= c.maxRev {
			return
		}
		token, violation := r.token, ""
		if r.kind == acquire {
			token = s.next
			if token <= s.maxToken {
				violation = "S2: a token that is not larger than an earlier one"
			}
			t.maxToken = token
		}
		life := c.ttl
		if c.cutTTL {
			life--
		}
		t.key = leaseKey{owner: uint8(i + 1), rev: s.next, token: token, attempt: r.attempt, left: life + s.jump}
		t.next++
		reply.at, reply.rev = accepted, s.next
		emit(name+" stored", step, t, violation)
	case release:
		if !matches {
			reply.at = refused
			emit(name+" refused", step, t, "")
			return
		}
		t.key = leaseKey{}
		reply.at = accepted
		emit(name+" stored", step, t, "")
	case fencedWrite:
		if c.fenceByName {
			matches = s.key.owner == uint8(i+1)
		}
		*reply = leaseRequest{}
		violation := ""
		if matches && (r.token < s.maxToken || s.key.token != r.token) {
			violation = "S3: a fenced write of an ended hold is accepted"
		}
		emit(fmt.Sprintf("%s: accepted %t", name, matches), step, t, violation)
	}
}

// lose is what can become of a request without its arrival.
func (c *lease) lose(s leaseState, i, j int, emit emit[leaseState]) {
	r := s.clients[i].requests[j]
	t := s
	lost := &t.clients[i].requests[j]
	if r.at >= accepted {
		*lost = leaseRequest{}
		emit(fmt.Sprintf("a reply to %c is lost", 'A'+i), fault, t, "")
		return
	}
	if r.at != travels {
		return
	}
	agrees := r.expected == 0 && s.old.owner == nobody || r.expected != 0 && s.old.rev == r.expected
	if s.deposed && !agrees { // it cannot store, but it can refuse
		lost.at, lost.rev = refused, s.old.rev
		emit(fmt.Sprintf("%s of %c refused by the deposed leader", requestNames[r.kind], 'A'+i), fault, t, "")
	}
	if r.attempt != s.clients[i].current {
		t = s
		t.clients[i].requests[j] = leaseRequest{}
		emit(fmt.Sprintf("an abandoned request of %c is lost", 'A'+i), fault, t, "")
	}
}

// send makes a client send a request, if it has room for one and attempts left.
func (c *lease) send(p *leaseClient, kind, expected, token uint8) bool {
	for j := range p.requests {
		if p.requests[j].at == nowhere && p.attempts < c.attempts {
			p.attempts++
			p.current, p.slips = p.attempts, 0
			p.requests[j] = leaseRequest{at: travels, kind: kind, expected: expected, attempt: p.attempts, token: token}
			return true
		}
	}
	return false
}

func (c *lease) client(s leaseState, i int, emit emit[leaseState]) {
	p, me := s.clients[i], string(rune('A'+i))
	trusts := p.does == holding && p.trust > 0
	if p.does == leaseIdle {
		t := s
		t.clients[i].does = acquiring
		if c.send(&t.clients[i], acquire, 0, 0) {
			emit(me+" sends an acquire", step, t, "")
		}
	}
	if trusts && p.current == 0 {
		t := s
		if c.send(&t.clients[i], renewal, p.rev, p.token) {
			emit(me+" sends a renewal", step, t, "")
		}
	}
	if trusts { // also while a renewal is in doubt
		t := s
		t.clients[i].does = releasing
		if c.send(&t.clients[i], release, p.rev, p.token) {
			emit(me+" ends its hold and sends a release", step, t, "")
		}
	}
	if trusts && c.fence && p.fenced.at == nowhere {
		t := s
		t.clients[i].fenced = leaseRequest{at: travels, kind: fencedWrite, expected: p.rev, token: p.token}
		emit(me+" looks, then sends a fenced write", step, t, "")
	}
	awaited := false
	for j, r := range p.requests {
		if r.at == nowhere {
			continue
		}
		t := s
		q := &t.clients[i]
		switch {
		case r.at >= accepted && r.attempt != p.current:
			q.requests[j] = leaseRequest{}
			emit(me+" ignores a reply to an abandoned attempt", step, t, "")
		case r.at == accepted:
			awaited = true
			q.requests[j], q.current = leaseRequest{}, 0
			c.confirmed(t, i, r, emit)
		case r.at == refused:
			awaited = true
			q.requests[j], q.current, q.doubt = leaseRequest{}, 0, r.attempt
			c.look(s, t, i, r, me, emit)
		case r.attempt == p.current:
			awaited = true
			q.current, q.doubt = 0, p.current
			c.look(s, t, i, r, me+" timed out;", emit)
		}
	}
	if p.current != 0 && !awaited { // the reply was lost
		t := s
		t.clients[i].current, t.clients[i].doubt = 0, p.current
		kind := map[uint8]uint8{acquiring: acquire, holding: renewal, releasing: release}[p.does]
		c.look(s, t, i, leaseRequest{kind: kind, attempt: p.current, age: uint8(c.ttl)}, me+" timed out;", emit)
	}
}

// confirmed is the arrival of an acknowledgement.
func (c *lease) confirmed(t leaseState, i int, r leaseRequest, emit emit[leaseState]) {
	p, me := &t.clients[i], string(rune('A'+i))
	gain := c.gain(r.age)
	if !c.fromSend {
		gain = c.gain(0)
	}
	switch {
	case r.kind == release:
		p.forget()
		emit(me+" has released", step, t, "")
	case r.kind == acquire && gain > 0:
		p.does, p.rev, p.token, p.trust, p.slipped = holding, r.rev, r.rev, gain, 0
		emit(me+" has the lock", step, t, "")
	case r.kind == acquire:
		p.forget()
		emit(me+" has the lock too late, gives it up", step, t, "")
	case p.trust <= 0 && (c.lateAck || gain <= 0):
		p.forget()
		emit(me+" has lost it: too late", step, t, "")
	default:
		p.rev = r.rev
		if gain > p.trust {
			p.trust, p.slipped = gain, p.slips
		}
		emit(me+" has renewed", step, t, "")
	}
}

// look is one atomic read of the key, at the leader or at a deposed one, and what client
// i concludes of its request r from it. s is the state before.
func (c *lease) look(s, t leaseState, i int, r leaseRequest, me string, emit emit[leaseState]) {
	c.conclude(s, t, s.key, i, r, me, step, emit)
	if s.deposed {
		c.conclude(s, t, s.old, i, r, me+" (at the deposed leader)", fault, emit)
	}
}

func (c *lease) conclude(s, t leaseState, seen leaseKey, i int, r leaseRequest, me string, cl class, emit emit[leaseState]) {
	p := &t.clients[i]
	mine := seen.owner == uint8(i+1)
	stored := s.key.owner == uint8(i+1) && s.key.attempt == r.attempt
	still := stored || s.key.owner == uint8(i+1) && p.does == holding && s.key.rev == p.rev
	gain := c.gain(r.age)
	if r.kind == release { // it never touches a newer hold
		if mine && seen.rev == r.expected && c.send(p, release, seen.rev, 0) {
			emit(me+" it is still there: sends the release again", cl, t, "")
			return
		}
		p.forget()
		emit(me+" the release is done with", cl, t, "")
		return
	}
	if mine && seen.attempt == r.attempt && c.readBack {
		switch {
		case r.kind == acquire && gain > 0 && p.does == acquiring:
			p.does, p.rev, p.token, p.trust, p.doubt, p.slipped = holding, seen.rev, seen.token, gain, 0, 0
		case r.kind == renewal && (p.trust > 0 || !c.lateAck):
			p.rev, p.doubt = seen.rev, 0
			if gain > p.trust {
				p.trust, p.slipped = gain, p.slips
			}
		default:
			p.forget()
			emit(me+" reads its own nonce, too late", cl, t, "")
			return
		}
		emit(me+" reads its own nonce and adopts it", cl, t, "")
		return
	}
	violation := ""
	if r.kind == renewal {
		switch {
		case mine && seen.rev == p.rev:
			p.doubt = 0
			emit(me+" the renewal is not stored, the key is still its own", cl, t, "")
			return
		case c.evidence && (seen.owner == nobody || seen.rev <= p.rev):
			emit(me+" no evidence, keeps its trust", cl, t, "")
			return
		case still && p.trust > 0 && c.deposed:
			violation = "S9: a loss is declared while the record is still its own"
		}
		p.forget()
		emit(me+" concludes that it is lost", cl, t, violation)
		return
	}
	if stored && !c.readBack || still && c.deposed && !c.evidence {
		violation = "S7: it says held, and its own write is stored"
	}
	p.forget()
	emit(me+" concludes that another has it, or nobody", cl, t, violation)
}

// normal drops what can matter no more, so that there are fewer states: replies to
// abandoned attempts, their ages, and expected revisions that can never come again.
func (c *lease) normal(t leaseState) leaseState {
	for i := range t.clients[:c.clients] {
		p := &t.clients[i]
		for j := range p.requests {
			r := &p.requests[j]
			if r.at >= accepted && r.attempt != p.current {
				*r = leaseRequest{}
			}
			if r.at == travels && r.attempt != p.current && r.attempt != p.doubt {
				r.age = 0
			}
			if r.at == travels && !t.deposed && !c.sameRevs && r.expected != 0 && r.expected != t.key.rev && r.expected < t.next {
				switch {
				case r.attempt != p.current:
					*r = leaseRequest{}
				case r.kind != release:
					r.expected = 250
				}
			}
		}
		if p.requests[1].at != nowhere && p.requests[0].at == nowhere {
			p.requests[0], p.requests[1] = p.requests[1], leaseRequest{}
		}
		if p.does != holding {
			p.trust, p.slipped, p.slips = 0, 0, 0
		}
	}
	return t
}

func (c *lease) show(s leaseState) string {
	o := "[absent]"
	switch s.key.owner {
	case nobody:
	case tombstone:
		o = fmt.Sprintf("[tombstone@%d left %d]", s.key.rev, s.key.left)
	default:
		o = fmt.Sprintf("[%c@%d token %d left %d]", 'A'+s.key.owner-1, s.key.rev, s.key.token, s.key.left)
	}
	for i, p := range s.clients[:c.clients] {
		if p.does == holding {
			o += fmt.Sprintf(" %c: token %d rev %d trust %d", 'A'+i, p.token, p.rev, p.trust)
		}
	}
	if s.deposed {
		o += fmt.Sprintf(" deposed: owner %d rev %d", s.old.owner, s.old.rev)
	}
	return o
}

func leaseCases() []testcase {
	with := func(change func(*lease)) model[leaseState] {
		c := &lease{
			clients: 2, ttl: 3, margin: 1, attempts: 2, maxRev: 6,
			lateAck: true, readBack: true, fromSend: true, evidence: true,
		}
		change(c)
		return model[leaseState]{init: leaseState{next: 1}, next: c.step, inv: c.inv, explore: fault, show: c.show}
	}
	return []testcase{
		holds("lease/two clients, three attempts each", with(func(c *lease) { c.attempts, c.maxRev = 3, 8 })).inLong(),
		holds("lease/three clients, two attempts each", with(func(c *lease) { c.clients, c.maxRev = 3, 8 })).inLong(),
		holds("lease/no margin, no skew", with(func(c *lease) { c.margin = 0 })),
		breaks("lease/trust from the acknowledgement instead of the sending", with(func(c *lease) { c.fromSend = false })),
		holds("lease/skew 1, margin 1", with(func(c *lease) { c.jump, c.ttl = 1, 4 })),
		breaks("lease/skew 2, margin 1", with(func(c *lease) { c.jump = 2 })),
		holds("lease/client slow by 1, margin 1", with(func(c *lease) { c.slip = 1 })),
		breaks("lease/client slow by 1 and skew 1, margin 1", with(func(c *lease) { c.slip, c.jump = 1, 1 })),
		breaks("lease/TTL cut to whole seconds by the server alone", with(func(c *lease) { c.cutTTL, c.margin = true, 0 })),
		breaks("lease/expiry markers, a late acknowledgement counts", with(func(c *lease) { c.markers, c.lateAck, c.margin = true, false, 0 })),
		holds("lease/expiry markers", with(func(c *lease) { c.markers = true })),
		breaks("lease/no read-back", with(func(c *lease) { c.readBack = false })),
		breaks("lease/Break by a purge", with(func(c *lease) { c.breaks = naive })),
		holds("lease/Break by a tombstone for the holder's TTL", with(func(c *lease) { c.breaks = byRule })),
		breaks("lease/bucket made anew, no quarantine", with(func(c *lease) { c.anew = naive })),
		holds("lease/bucket made anew, a quarantine of one TTL", with(func(c *lease) { c.anew = byRule })),
		breaks("lease/bucket made anew with the same revisions, fenced writes", with(func(c *lease) { c.anew, c.sameRevs, c.fence = byRule, true, true })),
		holds("lease/bucket made anew, fenced writes", with(func(c *lease) { c.anew, c.fence = byRule, true })),
		holds("lease/fenced writes", with(func(c *lease) { c.fence, c.maxRev = true, 7 })),
		breaks("lease/fence by the owner's name", with(func(c *lease) { c.fence, c.fenceByName = true, true })),
		breaks("lease/deposed leader, everything is evidence", with(func(c *lease) { c.deposed, c.evidence = true, false })),
		holds("lease/deposed leader", with(func(c *lease) { c.deposed = true })),
	}
}
