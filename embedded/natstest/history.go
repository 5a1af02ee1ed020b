package natstest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A History records who held what when, and what was written under it, and checks
// it against what a lock promises. Its zero value is empty and ready to use.
//
// It is true only as far as the test is: call [History.Begin] after the hold has
// been gained, [Hold.End] before it is given back or as soon as it is known to be
// lost, and [Hold.Write] before a write is sent. What happens at the same time,
// which is common in a bubble, counts in the order of the calls.
//
// All methods may be called by several goroutines at once.
type History struct {
	mu     sync.Mutex
	steps  int // calls so far
	holds  []*Hold
	writes []*Write
}

// A Hold is one holder's hold of one thing, from [History.Begin] to [Hold.End].
type Hold struct {
	history *History
	holder  string
	thing   string
	token   uint64
	begun   moment
	over    bool
	ended   moment // if over
}

// A Write is one attempt to write under a hold.
type Write struct {
	hold     *Hold
	sent     moment
	known    bool   // whether it was carried out
	decided  moment // if known
	accepted bool
	revision uint64 // of an accepted write, 0: not known
	err      error  // of a refused one
}

// A moment is a point of the history. The step orders moments of the same time; 0
// comes first.
type moment struct {
	step int
	time time.Time
}

func (m moment) before(other moment) bool {
	if !m.time.Equal(other.time) {
		return m.time.Before(other.time)
	}
	return m.step < other.step
}

// now returns the next moment.
func (h *History) now() moment {
	h.steps++
	return moment{step: h.steps, time: time.Now()}
}

// Begin records that holder holds thing with a token, from now on.
func (h *History) Begin(holder, thing string, token uint64) *Hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	hold := &Hold{history: h, holder: holder, thing: thing, token: token, begun: h.now()}
	h.holds = append(h.holds, hold)
	return hold
}

// End records that the holder does not believe in its hold any more. Only the
// first call counts.
func (d *Hold) End() {
	d.history.mu.Lock()
	defer d.history.mu.Unlock()
	d.end(d.history.now())
}

// EndAt is [Hold.End] for a hold that ended at a time that has passed, such as
// that at which trust in it ran out, seen only later. What else happened at that
// time counts as later.
func (d *Hold) EndAt(at time.Time) {
	d.history.mu.Lock()
	defer d.history.mu.Unlock()
	d.end(moment{time: at})
}

func (d *Hold) end(at moment) {
	if !d.over {
		d.over, d.ended = true, at
	}
}

// Write records that the holder sends a write under the hold, which may have
// ended. Report the outcome with [Write.Accepted] or [Write.Refused]; a write
// without one may or may not have been carried out.
func (d *Hold) Write() *Write {
	d.history.mu.Lock()
	defer d.history.mu.Unlock()
	w := &Write{hold: d, sent: d.history.now()}
	d.history.writes = append(d.history.writes, w)
	return w
}

// Accepted records that the write was carried out, with the revision it was
// given, or 0 if that is not known.
func (w *Write) Accepted(revision uint64) { w.decide(true, revision, nil) }

// Refused records that the write was not carried out.
func (w *Write) Refused(err error) { w.decide(false, 0, err) }

func (w *Write) decide(accepted bool, revision uint64, err error) {
	h := w.hold.history
	h.mu.Lock()
	defer h.mu.Unlock()
	w.known, w.decided = true, h.now()
	w.accepted, w.revision, w.err = accepted, revision, err
}

// Check fails the test for every violation, and logs the history if there is one.
func (h *History) Check(t testing.TB) {
	t.Helper()
	violations := h.Violations()
	for _, v := range violations {
		t.Error(v)
	}
	if len(violations) > 0 {
		t.Logf("history:\n%s", h)
	}
}

// Violations returns what the history breaks of these rules, for each thing:
//
//   - No two holds overlap. A hold that has not ended lasts for ever.
//   - Tokens grow from hold to hold, in the order of their beginnings; 0 is none.
//     A holder that begins again under its last token has resumed its hold.
//   - No write is accepted that was sent after a hold with a larger token began.
//   - Among accepted writes with a known revision, a larger revision never has a
//     smaller token.
func (h *History) Violations() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	holds := make(map[string][]*Hold)
	var things []string
	for _, d := range h.holds {
		if holds[d.thing] == nil {
			things = append(things, d.thing)
		}
		holds[d.thing] = append(holds[d.thing], d)
	}
	writes := make(map[string][]*Write)
	for _, w := range h.writes {
		if w.accepted {
			writes[w.hold.thing] = append(writes[w.hold.thing], w)
		}
	}
	var found []string
	for _, thing := range things {
		found = append(found, overlaps(holds[thing])...)
		found = append(found, fallingTokens(holds[thing])...)
		found = append(found, staleWrites(holds[thing], writes[thing])...)
		found = append(found, unorderedWrites(writes[thing])...)
	}
	return found
}

// overlaps compares every hold with that of all earlier ones that ends last; holds
// are in the order of their beginnings.
func overlaps(holds []*Hold) []string {
	var found []string
	var last *Hold
	for _, d := range holds {
		if last != nil && (!last.over || d.begun.before(last.ended)) {
			found = append(found, fmt.Sprintf("%s began while %s lasted", d.name(), last.name()))
		}
		if last == nil || last.over && (!d.over || last.ended.before(d.ended)) {
			last = d
		}
	}
	return found
}

func fallingTokens(holds []*Hold) []string {
	var found []string
	var largest *Hold
	for _, d := range holds {
		switch {
		case d.token == 0:
			found = append(found, fmt.Sprintf("%s has no token", d.name()))
		case largest != nil && d.token == largest.token && d.holder == largest.holder: // resumed
		case largest != nil && d.token <= largest.token:
			found = append(found, fmt.Sprintf("%s does not have a larger token than %s", d.name(), largest.name()))
		}
		if largest == nil || d.token > largest.token {
			largest = d
		}
	}
	return found
}

func staleWrites(holds []*Hold, accepted []*Write) []string {
	var found []string
	for _, w := range accepted {
		i := slices.IndexFunc(holds, func(d *Hold) bool { return d.token > w.hold.token && d.begun.before(w.sent) })
		if i >= 0 {
			found = append(found, fmt.Sprintf("write of %s at %s was accepted after %s had begun", w.hold.name(), clock(w.sent), holds[i].name()))
		}
	}
	return found
}

func unorderedWrites(accepted []*Write) []string {
	known := slices.DeleteFunc(slices.Clone(accepted), func(w *Write) bool { return w.revision == 0 })
	slices.SortStableFunc(known, func(a, b *Write) int { return cmp.Compare(a.revision, b.revision) })
	var found []string
	var largest *Write
	for _, w := range known {
		if largest != nil && w.hold.token < largest.hold.token {
			found = append(found, fmt.Sprintf("write of %s has revision %d, above revision %d of %s",
				w.hold.name(), w.revision, largest.revision, largest.hold.name()))
		}
		if largest == nil || w.hold.token > largest.hold.token {
			largest = w
		}
	}
	return found
}

// String returns all that was recorded, one line each, in the order of
// time.
func (h *History) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	type line struct {
		at   moment
		text string
	}
	var lines []line
	for _, d := range h.holds {
		lines = append(lines, line{d.begun, fmt.Sprintf("%s begins %q with token %d", d.holder, d.thing, d.token)})
		if d.over {
			lines = append(lines, line{d.ended, fmt.Sprintf("%s ends %q with token %d", d.holder, d.thing, d.token)})
		}
	}
	for _, w := range h.writes {
		d := w.hold
		lines = append(lines, line{w.sent, fmt.Sprintf("%s writes under %q with token %d", d.holder, d.thing, d.token)})
		switch {
		case !w.known:
		case w.accepted:
			lines = append(lines, line{w.decided, fmt.Sprintf("%s is accepted under %q with token %d at revision %d", d.holder, d.thing, d.token, w.revision)})
		default:
			lines = append(lines, line{w.decided, fmt.Sprintf("%s is refused under %q with token %d: %v", d.holder, d.thing, d.token, w.err)})
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int {
		return cmp.Or(a.at.time.Compare(b.at.time), cmp.Compare(a.at.step, b.at.step))
	})
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "%s %s\n", clock(l.at), l.text)
	}
	return b.String()
}

// name describes the hold. The caller holds the history's mutex.
func (d *Hold) name() string {
	end := "..."
	if d.over {
		end = clock(d.ended)
	}
	return fmt.Sprintf("%s's hold of %q (token %d, %s to %s)", d.holder, d.thing, d.token, clock(d.begun), end)
}

func clock(m moment) string { return m.time.UTC().Format("15:04:05.000000") }
