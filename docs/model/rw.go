package main

import "fmt"

// Readers and a writer, and a semaphore of one, on three replicas: a proposal is checked
// against the applied state, and against proposals in flight on the same literal subject
// alone (rules L12, L13).

// Where a reader, or one who wants a permit, is.
const (
	rwIdle uint8 = iota
	rwSeen       // has read what its entry expects
	rwSent
	rwHolds
	rwLeft
	rwDead // without trust
)

// Where the writer is.
const (
	writerIdle uint8 = iota
	writerSent
	writerPending // the gate is its own
	writerHolds
)

const writer = 2

type rwState struct {
	gate     uint8 // 0 open, 1 the writer's
	version  uint8 // of the gate
	keys     [2]bool
	inFlight [3]bool
	seen     [2]uint8 // version of the gate, or sequence of the wildcard
	at       [3]uint8
	cut      bool // a leader shows the keys as they were
	old      [2]bool
	sequence uint8
	faults   uint8
}

// Shapes.
const (
	gated      = iota // readers fenced on the gate
	unfenced          // readers without a fence on the gate
	counted           // a permit is created after a count, under a wildcard
	numbered          // a permit is one of numbered slots
	rwVersions = 6    // the writes that are followed
)

type rw struct {
	shape int
	fresh bool // the writer's list comes from a state that contains its own write
}

func (c *rw) inv(s rwState) string {
	switch {
	case s.at[0] == rwHolds && s.at[1] == rwHolds && c.shape >= counted:
		return "S1: two holders of one permit"
	case s.at[writer] == writerHolds && (s.at[0] == rwHolds || s.at[1] == rwHolds):
		return "S1: a writer beside a reader"
	}
	return ""
}

func (c *rw) step(s rwState, emit emit[rwState]) {
	if s.version > rwVersions || s.sequence > rwVersions {
		return
	}
	for i := range 2 {
		c.reader(s, i, emit)
	}
	if c.shape == gated || c.shape == unfenced {
		c.writer(s, emit)
	}
}

func (c *rw) reader(s rwState, i int, emit emit[rwState]) {
	t, me := s, fmt.Sprintf("R%d", i)
	none := !s.keys[0] && !s.keys[1]
	switch s.at[i] {
	case rwIdle:
		switch {
		case c.shape <= unfenced && s.gate == 0:
			t.at[i], t.seen[i] = rwSeen, s.version
			emit(me+" reads the gate: open", step, t, "")
		case c.shape == counted && none:
			t.at[i], t.seen[i] = rwSeen, s.sequence
			emit(me+" counts the permits: none", step, t, "")
		case c.shape == numbered:
			t.at[i] = rwSeen
			emit(me+" picks slot 0", step, t, "")
		}
	case rwSeen:
		ok := true
		switch c.shape {
		case gated:
			ok = s.gate == 0 && s.version == s.seen[i]
		case counted:
			ok = s.sequence == s.seen[i]
		case numbered:
			ok = none
		}
		switch {
		case c.shape == gated && s.inFlight[writer], c.shape == numbered && s.inFlight[1-i]:
			// refused as in flight (10164): tries again
		case ok:
			t.at[i], t.inFlight[i] = rwSent, true
			emit(me+" proposes its key", step, t, "")
		default:
			t.at[i] = rwIdle
			emit(me+" is refused", step, t, "")
		}
	case rwHolds:
		t.at[i] = rwDead
		emit(me+" loses its trust", fault, t, "")
		t.at[i], t.keys[i] = rwLeft, false
		t.sequence++
		emit(me+" leaves", step, t, "")
	case rwDead:
		if s.keys[i] {
			t.keys[i] = false
			emit("the key of "+me+" expires", timer, t, "")
		}
	}
	if s.inFlight[i] {
		t := s
		t.inFlight[i], t.keys[i], t.at[i] = false, true, rwHolds
		t.sequence++
		emit("the key of "+me+" is applied: holds", step, t, "")
	}
}

func (c *rw) writer(s rwState, emit emit[rwState]) {
	t := s
	switch s.at[writer] {
	case writerIdle:
		entries := c.shape == gated && (s.inFlight[0] || s.inFlight[1]) // 10164
		if s.gate == 0 && !entries {
			t.at[writer], t.inFlight[writer] = writerSent, true
			emit("W proposes the gate", step, t, "")
		}
	case writerPending:
		t.at[writer] = writerHolds
		switch {
		case !s.keys[0] && !s.keys[1]:
			emit("W lists the readers: none, holds", step, t, "")
		case !c.fresh && s.cut && !s.old[0] && !s.old[1]:
			emit("W lists the readers of an old state: none, holds", fault, t, "")
		}
	case writerHolds:
		t.at[writer], t.gate = writerIdle, 0
		t.version++
		emit("W opens the gate", step, t, "")
	}
	if s.inFlight[writer] {
		t := s
		t.inFlight[writer], t.gate, t.at[writer] = false, 1, writerPending
		t.version++
		emit("the gate is W's, pending", step, t, "")
	}
	if !s.cut {
		t := s
		t.cut, t.old = true, s.keys
		emit("a leader is cut off and keeps its view", fault, t, "")
	}
}

func rwCases() []testcase {
	with := func(c rw) model[rwState] {
		return model[rwState]{
			next: c.step, inv: c.inv, explore: fault,
			faults: 2, spent: func(s *rwState) *uint8 { return &s.faults },
			show: func(s rwState) string {
				return fmt.Sprintf("gate %d v%d keys %v at %v in flight %v", s.gate, s.version, s.keys, s.at, s.inFlight)
			},
		}
	}
	return []testcase{
		holds("rw/readers fenced on the gate, a fresh list", with(rw{shape: gated, fresh: true})),
		breaks("rw/readers fenced on the gate, a list that may be old", with(rw{shape: gated})),
		breaks("rw/readers without a fence on the gate", with(rw{shape: unfenced, fresh: true})),
		breaks("rw/semaphore: count, then create under a wildcard", with(rw{shape: counted})),
		holds("rw/semaphore: numbered slots", with(rw{shape: numbered})),
	}
}
