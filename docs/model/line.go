package main

import "fmt"

// The line of a lock: tickets, markers, walks, registrations, giving up, minimum hold and
// Break (rules L2, L4 to L11, L15), with a monitor of the order. There is no clock: a step
// of class timer means that a TTL ended or a timer fired, and it may happen at any time,
// so that every wait, pause and late marker is covered. Each operation of the server is
// atomic, everything else interleaves.

const waiters = 3

// What a waiter does.
const (
	idle uint8 = iota
	tries
	writesTicket
	looks // at the lock
	readsLine
	asks // the first in line to take it
	registers
	sleeps
	takes
	readsBack
	hasIt
	readsAhead // the first ticket, before the release
	releases
	checksRelease
	readsNext
	tells
	bars // keeps its tombstone for a minimum hold
	givesUp
	gaveUp // and looks at the lock
	dead
	done
	lost
)

var lineNames = []string{
	"idle", "tries", "ticket", "looks", "line", "asks", "registers", "sleeps", "takes", "back", "HOLDS",
	"ahead", "releases", "checks", "next", "tells", "bars", "gives up", "gave up", "dead", "done", "lost",
}

// What the lock's key is.
const (
	absent uint8 = iota
	held
	marker // of a release
	barred // a tombstone: of a minimum hold, or of a hold that was broken
)

var keyNames = []string{"absent", "held", "marker", "barred"}

// What a waiter knows of the revision that its next write expects, or a request names.
// A revision never comes back.
const (
	atZero uint8 = iota // none
	atNow               // the present one
	atPast
)

type waiter struct {
	does      uint8
	expected  uint8
	late      uint8 // a request that will reach it late: atZero for none, atNow, atPast, free for "free at zero"
	target    uint8 // whose ticket it read first, +1
	seen      uint8 // whom it will register with
	skipped   uint8 // a set: passed over in this walk
	rounds    uint8 // how often it still wants the lock again
	overtaken uint8
	ghost     uint8 // a gaining write under way that it gave up: 1 expects zero, 2 the present revision
	knows     bool  // that the present revision is its own
	noted     bool  // that somebody waits
	ticket    bool
	silent    bool // it did not answer, or could not be reached, in this hand-over
	fired     bool // its timer
	replaced  bool // the ticket meant by target has been replaced by a newer one of the same waiter
}

const free = 3 // in late: "free at zero"

type lineState struct {
	kind, owner uint8
	line        [waiters]uint8 // tickets in order: waiter +1
	w           [waiters]waiter
	lapsed      bool // a record or marker ended by its TTL
	cut         bool // a leader was cut off, and shows the line as it was
	old         [waiters]uint8
	broken      bool // an operator has broken a hold
	faults      uint8
}

// How waiters may give up.
const (
	patient   = iota
	giveUp    // and nothing else goes wrong: no fault, no timer
	giveUpToo // as one of the faults
)

type lineRules struct {
	firstOnly  bool // the lock is taken by the first in line alone
	early      bool // who is refused by a marker reads the line, and if it is empty takes the marker without a ticket
	ownMarker  bool // the releaser takes its own marker without reading the line
	asksTimer  bool // who meets a free lock at its timer and is not first tells the first
	asksAtOnce bool // and not only at the timer
	cancelled  bool // who gives up looks at the lock
	inherits   bool // who gained with a ticket looks at the line when it releases
	together   bool // the last two are waiters of one process
	minHold    bool // every release is a tombstone first
	breaks     bool // an operator breaks a hold
	cut        bool // a leader is cut off and shows an old line
	staleAll   bool // its line counts also as proof for a waiter with a ticket that is not in it

	impatience int
	faults     uint8
	rounds     [waiters]uint8

	overtaking uint8 // how often a ticket may be overtaken by a write without ticket
	lapses     bool  // whether it may be after a TTL ended
	silence    bool  // or by who could not reach it
	noOrder    bool  // no look at the order at all
}

func (s *lineState) remove(p int) {
	var rest [waiters]uint8
	n := 0
	for _, x := range s.line {
		if x != 0 && int(x) != p+1 {
			rest[n] = x
			n++
		}
	}
	s.line = rest
}

func contains(line [waiters]uint8, p int) bool {
	for _, x := range line {
		if int(x) == p+1 {
			return true
		}
	}
	return false
}

// wrote notes a write to the lock by p, -1 for the server: every other knowledge of its
// revision is of the past.
func (s *lineState) wrote(p int) {
	for i := range s.w {
		w := &s.w[i]
		w.knows = i == p
		if w.expected == atNow {
			w.expected = atPast
		}
		if w.late == atNow {
			w.late = atPast
		}
		if w.ghost == 2 {
			w.ghost = 0
		}
	}
}

func (w *waiter) waits() bool { return w.does >= tries && w.does <= readsBack }

// gain stores the write that p gets the lock with, and tells whom it overtook.
func (c *lineRules) gain(s *lineState, p int, unread bool) string {
	unread = unread || c.early && !s.w[p].ticket && s.kind == marker
	violation := ""
	for _, x := range s.line {
		if x == 0 || int(x) == p+1 {
			break
		}
		w := &s.w[x-1]
		if !w.waits() || !w.ticket || c.noOrder || w.silent && c.silence || s.lapsed && c.lapses {
			continue
		}
		if unread {
			if w.overtaken++; w.overtaken <= c.overtaking {
				continue
			}
		}
		if s.w[p].ticket && !contains(s.line, p) && c.silence {
			continue // it came before, and its ticket was purged
		}
		violation = "K3: a ticket is overtaken"
	}
	for i := range s.w {
		s.w[i].silent = false
	}
	s.lapsed = false
	s.kind, s.owner = held, uint8(p)
	s.wrote(p)
	return violation
}

func (c *lineRules) hold(w *waiter) {
	w.does, w.knows = hasIt, true
	w.expected, w.skipped, w.fired, w.seen, w.overtaken = atZero, 0, false, 0, 0
	w.noted = w.noted || w.ticket && c.inherits
}

// end ends what p did with the lock; it may want it again.
func (c *lineRules) end(s *lineState, p int) {
	w := &s.w[p]
	w.ticket, w.noted, w.skipped, w.target, w.seen, w.fired, w.expected = false, false, 0, 0, 0, false, atZero
	if (c.ownMarker || c.early) && w.knows && s.kind == marker {
		w.expected = atNow
	}
	if w.rounds > 0 {
		w.rounds--
		w.does = idle
	} else {
		w.does, w.expected, w.knows = done, atZero, false
	}
}

func (c *lineRules) inv(s lineState) string {
	holders := 0
	for _, w := range s.w {
		if w.does == hasIt {
			holders++
		}
	}
	if holders > 1 {
		return "S1: two holders"
	}
	return ""
}

func (c *lineRules) goal(s lineState) bool {
	for _, w := range s.w {
		if w.does != done && w.does != dead && w.does != lost {
			return false
		}
	}
	return true
}

// first returns the first ticket that p has not passed over in this walk, +1.
func (s *lineState) first(p int) uint8 {
	for _, x := range s.line {
		if x != 0 && s.w[p].skipped&(1<<(x-1)) == 0 {
			return x
		}
	}
	return 0
}

func name(p int) string { return string(rune('A' + p)) }

func (c *lineRules) step(s lineState, raw emit[lineState]) {
	tidy := func(label string, cl class, t lineState, violation string) {
		for i := range t.w {
			w := &t.w[i]
			if w.target == 0 {
				w.replaced = false
			}
			if w.does == dead {
				*w = waiter{does: dead, ghost: w.ghost, replaced: w.replaced && w.target != 0}
			}
		}
		raw(label, cl, t, violation)
	}
	emit := func(label string, cl class, t lineState, violation string) {
		if c.impatience == giveUp && cl != step {
			return
		}
		tidy(label, cl, t, violation)
	}
	for p := range waiters {
		c.waiter(s, p, emit)
		w, me := s.w[p], name(p)
		if c.impatience != patient && w.does >= looks && w.does <= sleeps && w.ticket {
			t := s
			x := &t.w[p]
			x.replaced, x.does, x.expected, x.target, x.skipped, x.fired, x.seen, x.rounds = false, givesUp, atZero, 0, 0, false, 0, 0
			tidy(me+" gives up waiting", fault, t, "")
		}
		if w.does < dead && c.faults > 0 {
			t := s
			t.w[p].does = dead
			if c.together && p > 0 {
				t.w[waiters-p].does = dead // 1 and 2
			}
			emit(me+" dies", fault, t, "")
		}
		if w.late != 0 {
			t := s
			x := &t.w[p]
			x.late = 0
			if w.does >= tries && w.does <= sleeps && w.ticket {
				x.does, x.expected, x.fired, x.skipped, x.target, x.seen = takes, w.late%free, false, 0, 0, 0
			}
			emit("the late request reaches "+me, timer, t, "")
		}
		if w.ghost != 0 {
			t := s
			t.w[p].ghost = 0
			emit("the late write of "+me+" is lost", timer, t, "")
			if w.ghost == 1 && s.kind == absent || w.ghost == 2 && s.kind == marker {
				violation := c.gain(&t, p, true)
				t.w[p].knows = false
				emit("the late write of "+me+" is stored", timer, t, violation)
			}
		}
	}
	if s.kind != absent && (s.kind == marker || s.w[s.owner].does != hasIt) {
		t := s
		t.kind, t.owner, t.lapsed = absent, 0, true
		t.wrote(-1)
		emit("the TTL ends: "+keyNames[s.kind], timer, t, "")
	}
	if c.breaks && s.kind == held && !s.broken {
		t := s
		t.kind, t.broken = barred, true
		t.wrote(-1)
		emit("an operator breaks the hold of "+name(int(s.owner)), fault, t, "")
	}
	if c.cut {
		t := s
		t.cut = !s.cut
		if t.old = [waiters]uint8{}; t.cut {
			t.old = s.line
			emit("a leader is cut off and keeps its view", fault, t, "")
		} else {
			emit("the old leader steps down", timer, t, "")
		}
	}
}

// try is a gaining write of p. refused is what p does next if it is refused.
func (c *lineRules) try(s lineState, p int, unread bool, refused func(*waiter), emit emit[lineState]) {
	t, w, me := s, s.w[p], name(p)
	if w.expected == atZero && s.kind == absent || w.expected == atNow && s.kind == marker {
		violation := c.gain(&t, p, unread)
		u := t
		c.hold(&t.w[p])
		emit(me+" takes it", step, t, violation)
		u.w[p].does = readsBack
		emit(me+" takes it, the acknowledgement is lost", fault, u, violation)
	} else {
		refused(&t.w[p])
		emit(me+" is refused", step, t, "")
	}
	if w.expected < atPast && w.ghost == 0 {
		u := s
		u.w[p].ghost, u.w[p].does = 1+w.expected, readsBack
		emit(me+" tries to take it: no answer, still under way", fault, u, "")
	}
}

// ask tells x, on behalf of p, that the lock is free at revision at. told is what p does
// if x knows, again if x is out of the way.
func (c *lineRules) ask(s lineState, p, x int, at uint8, told, again func(*lineState), emit emit[lineState]) {
	label := name(p) + " tells " + name(x)
	t := s
	t.w[p].replaced = false
	does := s.w[x].does
	reached := true
	switch {
	case s.w[p].replaced && does != dead:
		again(&t)
		emit(label+": declined, not its ticket any more", step, t, "")
		return
	case does == dead:
		t.remove(x)
		again(&t)
		emit(label+": nobody there", step, t, "")
		return
	case does >= tries && does <= sleeps && s.w[x].ticket:
		w := &t.w[x]
		w.does, w.expected, w.fired, w.skipped = takes, at, false, 0
		told(&t)
		emit(label, step, t, "")
	case does == takes || does == readsBack || does >= hasIt && does <= bars:
		told(&t)
		emit(label+": it knows already", step, t, "")
	default:
		reached = false
	}
	if !reached {
		t.remove(x)
		again(&t)
		emit(label+": declined", step, t, "")
		return
	}
	u := s
	u.w[p].replaced = false
	u.w[x].silent = true
	v := u
	v.remove(x)
	again(&v)
	emit(label+": nobody there although it lives", fault, v, "")
	u.w[p].skipped |= 1 << x
	again(&u)
	emit(label+": lost, silence", fault, u, "")
	if s.w[x].late == 0 {
		u.w[x].late = at
		if at == atZero {
			u.w[x].late = free
		}
		emit(label+": silence, it arrives late", fault, u, "")
	}
}

func (c *lineRules) waiter(s lineState, p int, emit emit[lineState]) {
	t, me := s, name(p)
	w, now := &t.w[p], s.w[p]
	switch now.does {
	case idle:
		w.does = tries
		if c.early && now.expected == atNow {
			w.does = readsLine
		}
		emit(me+" wants it", step, t, "")
	case tries:
		c.try(s, p, now.expected == atNow, func(w *waiter) {
			switch {
			case w.expected != atZero:
				w.expected = atZero
			case w.ticket || c.early:
				w.does = looks
			default:
				w.does = writesTicket
			}
		}, emit)
	case writesTicket:
		t.remove(p)
		for i := range t.line {
			if t.line[i] == 0 {
				t.line[i] = uint8(p + 1)
				break
			}
		}
		for i := range t.w {
			if int(t.w[i].target) == p+1 {
				t.w[i].replaced = true
			}
		}
		w.ticket, w.silent, w.overtaken = true, false, 0
		w.late = 0 // a late request names the old ticket
		w.does = looks
		if c.early && now.seen != 0 {
			w.does, w.seen = registers, now.seen-1
		}
		emit(me+" writes its ticket", step, t, "")
	case looks:
		c.look(s, p, emit)
	case readsLine:
		c.readLine(s, p, s.line, step, emit)
		if s.cut && s.old != s.line {
			c.readLine(s, p, s.old, fault, emit)
		}
	case asks:
		c.ask(s, p, int(now.target)-1, now.expected, func(t *lineState) {
			w := &t.w[p]
			w.does, w.expected, w.fired, w.skipped, w.target = sleeps, atZero, false, 0, 0
		}, func(t *lineState) { t.w[p].does, t.w[p].target = readsLine, 0 }, emit)
	case registers:
		c.register(s, p, emit)
	case sleeps:
		w.fired, w.does = true, looks
		if !contains(s.line, p) {
			w.does = writesTicket
		}
		emit(me+": its timer fires", timer, t, "")
	case takes:
		c.try(s, p, c.early && !now.ticket && now.expected == atNow, func(w *waiter) {
			w.does, w.expected, w.skipped = looks, atZero, 0
		}, emit)
	case readsBack:
		w.expected, w.skipped = atZero, 0
		if s.kind != held || int(s.owner) != p {
			w.does = looks
			if !now.ticket {
				w.does = tries
			}
			emit(me+" reads back: not its own", step, t, "")
			return
		}
		u := t
		c.hold(w)
		emit(me+" reads its own nonce and holds", step, t, "")
		u.kind = marker
		u.wrote(p)
		u.w[p].does = looks
		if !now.ticket {
			u.w[p].does = tries
		}
		emit(me+" reads its own nonce too late and purges it", timer, u, "")
	case givesUp:
		t.remove(p)
		w.late = 0
		if w.does = gaveUp; !c.cancelled {
			w.rounds = 0
			c.end(&t, p)
		}
		emit(me+" removes its ticket", step, t, "")
	case gaveUp:
		c.leave(s, p, emit)
	default:
		c.holder(s, p, emit)
	}
}

// look is a read of the lock by a waiter.
func (c *lineRules) look(s lineState, p int, emit emit[lineState]) {
	t, me := s, name(p)
	w := &t.w[p]
	switch {
	case s.kind == held && int(s.owner) == p:
		c.hold(w)
		emit(me+" looks: its own nonce, adopts it", step, t, "")
	case c.early && !w.ticket && s.kind == absent:
		w.expected, w.does = atZero, tries
		emit(me+" looks: absent", step, t, "")
	case c.early && !w.ticket && s.kind != marker:
		w.seen, w.does = s.owner+1, writesTicket // remembers whom to register with
		emit(me+" looks: "+keyNames[s.kind], step, t, "")
	case s.kind == absent || s.kind == marker:
		w.expected = atZero
		if s.kind == marker {
			w.expected = atNow
		}
		w.does = takes
		if c.firstOnly {
			w.does = readsLine
		}
		emit(me+" looks: free", step, t, "")
	default:
		w.seen, w.does = s.owner, registers
		emit(me+" looks: "+keyNames[s.kind]+" by "+name(int(s.owner)), step, t, "")
	}
}

// readLine is a read of the line by a waiter, who knows that the lock is free.
func (c *lineRules) readLine(s lineState, p int, line [waiters]uint8, cl class, emit emit[lineState]) {
	t, me := s, name(p)+" reads the line"
	if cl == fault {
		me += " at the deposed leader"
	}
	w, now := &t.w[p], s.w[p]
	s.line = line // of t only what is changed counts
	x := s.first(p)
	switch {
	case c.early && !now.ticket && line[0] == 0:
		w.does = takes
		emit(me+": empty", cl, t, "")
	case c.early && !now.ticket:
		w.does, w.expected, w.seen = writesTicket, atZero, 0
		emit(me+": not empty", cl, t, "")
	case !contains(line, p) && (cl == step || !c.staleAll):
		w.does = writesTicket
		emit(me+": its own ticket is gone", cl, t, "")
	case int(x) == p+1 || x == 0:
		w.does = takes
		emit(me+": its own ticket is the first", cl, t, "")
	case c.asksTimer && (now.fired || c.asksAtOnce):
		w.does, w.target = asks, x
		emit(me+": asks "+name(int(x)-1), cl, t, "")
	default:
		w.does, w.expected, w.fired, w.skipped = sleeps, atZero, false, 0
		emit(me+": "+name(int(x)-1)+" is first, sleeps", cl, t, "")
	}
}

// register asks the process of the record that was seen to remember that somebody waits.
func (c *lineRules) register(s lineState, p int, emit emit[lineState]) {
	t, h := s, int(s.w[p].seen)
	w, holder := &t.w[p], &t.w[h]
	w.fired, w.seen, w.does = false, 0, sleeps
	label := name(p) + " registers with " + name(h)
	does := s.w[h].does
	mine := (s.kind == held || s.kind == barred) && int(s.owner) == h
	u := s
	u.w[p].does, u.w[p].fired, u.w[p].seen = sleeps, false, 0
	switch {
	case does == dead:
		emit(label+": nobody there", step, t, "")
	case does == hasIt || does == bars && mine || does == readsBack && mine:
		holder.noted = true
		emit(label+": noted", step, t, "")
	case mine && s.kind == held && does >= tries && does <= sleeps: // a late write of the holder's
		c.hold(holder)
		holder.noted = true
		emit(label+", which adopts its late write", step, t, "")
	case mine && (does == idle || does == done || does == lost || does == givesUp || does == gaveUp):
		t.kind, t.owner = marker, uint8(h)
		t.wrote(-1)
		w.does = looks
		emit(label+", which purges its late write", step, t, "")
	default:
		w.does = looks
		emit(label+": not mine", step, t, "")
	}
	emit(label+": lost", fault, u, "")
}

// leave is the look at the lock of one who gives up, whose ticket is gone.
func (c *lineRules) leave(s lineState, p int, emit emit[lineState]) {
	t, me := s, name(p)+" gave up"
	w := &t.w[p]
	w.rounds = 0
	w.skipped |= 1 << p
	h := int(s.owner)
	does := s.w[h].does
	switch {
	case s.kind == marker || s.kind == absent:
		w.knows = s.kind == marker
		w.does = readsNext
		emit(me+", finds it free, hands on", step, t, "")
	case s.kind == held && h == p:
		w.knows, w.noted = true, true
		w.does = readsAhead
		emit(me+", finds its own late write, releases it", step, t, "")
	case does >= readsAhead && does <= tells: // not its own any more
		emit(me+", the holder decides: again", step, s, "")
	default:
		if does == hasIt || does == readsBack || does == bars {
			t.w[h].noted = true
		}
		c.end(&t, p)
		emit(me+", notes the line with the holder", step, t, "")
	}
}

// holder is what one does who holds the lock, until it has handed it on.
func (c *lineRules) holder(s lineState, p int, emit emit[lineState]) {
	t, me := s, name(p)
	w, now := &t.w[p], s.w[p]
	toRelease := func() {
		w.does, w.target = releases, 0
		if now.noted {
			w.does = readsAhead
		}
	}
	switch now.does {
	case hasIt:
		if s.kind == barred { // the renewal was refused, and the record says why
			w.knows = true
		}
		t.remove(p)
		toRelease()
		if c.minHold && s.kind == held && now.knows {
			t.kind = barred
			t.wrote(p)
			w.does, w.target = bars, 0
		}
		emit(me+" ends its hold", step, t, "")
		u := s
		x := &u.w[p]
		x.does, x.expected, x.noted, x.ticket, x.rounds = lost, atZero, false, false, 0
		emit(me+" is paused past its trust", fault, u, "")
	case bars:
		toRelease()
		emit(me+": its minimum hold is over", step, t, "")
	case readsAhead:
		w.target, w.does = s.first(p), releases
		emit(me+" reads the first ticket", step, t, "")
	case releases:
		if !now.knows {
			c.end(&t, p)
			emit(me+": the release is refused, not its record any more", step, t, "")
			return
		}
		t.kind, t.owner = marker, uint8(p)
		t.wrote(p)
		u := t
		if w.does = tells; now.target == 0 {
			c.end(&t, p)
		}
		emit(me+" purges the lock", step, t, "")
		u.w[p].does, u.w[p].knows = checksRelease, false
		emit(me+" purges the lock, the acknowledgement is lost", fault, u, "")
	case checksRelease:
		if s.kind == marker && now.target != 0 {
			w.knows, w.does = true, tells
			emit(me+" reads back: free", step, t, "")
			return
		}
		c.end(&t, p)
		emit(me+" reads back: not its own, done", step, t, "")
	case readsNext:
		if x := s.first(p); x != 0 && int(x) != p+1 {
			w.target, w.does = x, tells
			emit(me+" reads the next ticket", step, t, "")
			return
		}
		c.end(&t, p)
		emit(me+": no further ticket", step, t, "")
	case tells:
		at := atPast
		switch {
		case now.knows:
			at = atNow
		case s.kind == absent:
			at = atZero
		}
		c.ask(s, p, int(now.target)-1, at, func(t *lineState) { c.end(t, p) },
			func(t *lineState) { t.w[p].does, t.w[p].target = readsNext, 0 }, emit)
	}
}

func (c *lineRules) show(s lineState) string {
	o := fmt.Sprintf("[%s %c] line %v", keyNames[s.kind], 'A'+s.owner, s.line)
	for i, w := range s.w {
		o += fmt.Sprintf(" %c:%s/%d", 'A'+i, lineNames[w.does], w.expected)
	}
	return o
}

func lineCases() []testcase {
	// with makes a model with the rules, and progress by steps of class live.
	with := func(live, explore class, change func(*lineRules)) model[lineState] {
		c := &lineRules{firstOnly: true, early: true, asksTimer: true, cancelled: true, inherits: true, overtaking: 1}
		change(c)
		m := model[lineState]{
			next: c.step, inv: c.inv, goal: c.goal, live: live, explore: explore, show: c.show,
			faults: c.faults, spent: func(s *lineState) *uint8 { return &s.faults }, limit: 22_000_000,
		}
		for i := range m.init.w {
			m.init.w[i].rounds = c.rounds[i]
		}
		return m
	}
	calm := func(change func(*lineRules)) model[lineState] { // no fault, no timer
		return with(step, step, func(c *lineRules) { c.rounds = [waiters]uint8{1, 1}; change(c) })
	}
	again := func(change func(*lineRules)) model[lineState] { // A wants it five times
		return with(step, step, func(c *lineRules) { c.rounds = [waiters]uint8{4}; change(c) })
	}
	leaving := func(change func(*lineRules)) model[lineState] { // up to three give up, nothing else
		return with(step, fault, func(c *lineRules) {
			c.rounds, c.impatience, c.faults = [waiters]uint8{1}, giveUp, 3
			change(c)
		})
	}
	faulty := func(change func(*lineRules)) model[lineState] { // one fault, and timers
		return with(timer, fault, func(c *lineRules) {
			c.rounds, c.impatience, c.faults, c.silence, c.lapses = [waiters]uint8{1}, giveUpToo, 1, true, true
			change(c)
		})
	}
	none := func(*lineRules) {}
	return []testcase{
		holds("line/no fault, no timer", calm(none)),
		holds("line/some give up, no timer", leaving(none)),
		holds("line/A wants it five times: a ticket is overtaken at most once", again(none)),
		breaks("line/a ticket is never overtaken", calm(func(c *lineRules) { c.overtaking = 0 })),
		holds("line/nobody takes a marker without a ticket: never overtaken", calm(func(c *lineRules) { c.early, c.overtaking = false, 0 })),
		breaks("line/A takes its own marker unread: overtaken more than three times", again(func(c *lineRules) {
			c.early, c.ownMarker, c.overtaking = false, true, 3
		})),
		holds("line/timers, no fault: overtaken only after a TTL ended", with(timer, timer, func(c *lineRules) {
			c.rounds, c.early, c.lapses, c.overtaking = [waiters]uint8{1}, false, true, 0
		})).inLong(),
		breaks("line/timers, no fault: overtaken after a TTL ended", with(timer, timer, func(c *lineRules) {
			c.rounds, c.early, c.overtaking = [waiters]uint8{1}, false, 0
		})),
		breaks("line/who gained with a ticket does not look at the line", with(step, step, func(c *lineRules) { c.inherits, c.noOrder = false, true })),
		breaks("line/a newcomer takes a marker without reading the line", calm(func(c *lineRules) { c.firstOnly, c.overtaking = false, 2 })),
		breaks("line/who gives up does not look at the lock", leaving(func(c *lineRules) { c.cancelled, c.noOrder = false, true })),
		holds("line/one fault", faulty(none)).inLong(),
		holds("line/two faults", faulty(func(c *lineRules) { c.faults, c.rounds = 2, [waiters]uint8{} })).inLong(),
		breaks("line/one fault: overtaken by who could not reach it", faulty(func(c *lineRules) {
			c.silence, c.impatience, c.rounds = false, patient, [waiters]uint8{}
		})),
		breaks("line/one fault, no timers: stuck", with(step, fault, func(c *lineRules) { c.faults, c.noOrder = 1, true })),
		breaks("line/one fault, nobody asks the first at a timer: stuck", with(timer, fault, func(c *lineRules) {
			c.asksTimer, c.faults, c.noOrder = false, 1, true
		})),
		holds("line/everyone asks at once: no fault, no timer", calm(func(c *lineRules) { c.asksAtOnce = true })),
		holds("line/everyone asks at once: some give up", leaving(func(c *lineRules) { c.asksAtOnce = true })),
		holds("line/everyone asks at once: one fault", faulty(func(c *lineRules) { c.asksAtOnce = true })).inLong(),

		holds("line/minimum hold: no fault, no timer", calm(func(c *lineRules) { c.minHold = true })),
		holds("line/minimum hold: some give up", leaving(func(c *lineRules) { c.minHold = true })),
		holds("line/minimum hold: one fault", faulty(func(c *lineRules) { c.minHold, c.rounds = true, [waiters]uint8{} })).inLong(),
		holds("line/a hold is broken: and one fault more", faulty(func(c *lineRules) { c.breaks, c.faults, c.rounds = true, 2, [waiters]uint8{} })).inLong(),
		holds("line/two waiters of one process: one fault", faulty(func(c *lineRules) { c.together = true })).inLong(),
		holds("line/a line read from a cut-off leader: overtaken after it", faulty(func(c *lineRules) {
			c.cut, c.faults, c.rounds, c.overtaking, c.impatience = true, 2, [waiters]uint8{}, 2, patient
		})).inLong(),
		breaks("line/an old line that lacks the own ticket proves that nobody is before it", faulty(func(c *lineRules) {
			c.cut, c.staleAll, c.faults, c.rounds, c.overtaking, c.impatience = true, true, 2, [waiters]uint8{}, 2, patient
		})),
	}
}
