package verify

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// A witness reads what all children say, in the order in which it happened, and notes
// down what must not happen.
type witness struct {
	mu       sync.Mutex
	events   []event
	changed  chan struct{} // closed at the next event
	err      error         // of the reading
	inside   map[string]*tenancy
	gone     map[string]string // children that were killed or stopped
	highest  map[string]uint64 // tokens by thing
	overlaps int
	wrong    []string
}

// A tenancy is who has a thing.
type tenancy struct {
	who   string
	token uint64
	since time.Time
	until time.Time // of the trust, as last said
}

func newWitness() *witness {
	return &witness{
		changed: make(chan struct{}),
		inside:  make(map[string]*tenancy), gone: make(map[string]string), highest: make(map[string]uint64),
	}
}

// read takes everything in until r ends.
func (w *witness) read(r io.Reader) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			w.fail(fmt.Errorf("a child wrote %q: %w", lines.Text(), err))
			return
		}
		w.take(e)
	}
	w.fail(lines.Err())
}

func (w *witness) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err = err; err == nil {
		w.err = io.EOF
	}
	w.tell()
}

// tell wakes those who wait. The mutex is held.
func (w *witness) tell() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// take judges one event.
func (w *witness) take(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	has := w.inside[e.Thing]
	switch e.What {
	case gained:
		w.judgeGain(e, has)
		w.highest[e.Thing] = max(e.Token, w.highest[e.Thing])
		w.inside[e.Thing] = &tenancy{who: e.Who, token: e.Token, since: e.at(), until: e.at()}
	case trusts:
		switch {
		case has == nil || has.who != e.Who:
			if has != nil && e.until().After(has.since) {
				w.overlap("%s trusts in %s for another %v after %s got it", e.Who, e.Thing, ms(e.until().Sub(has.since)), has.who)
			}
		case has.token != e.Token:
			w.note("%s has %s under token %d, and then under %d: a token must not change", e.Who, e.Thing, has.token, e.Token)
			has.token = e.Token
		default:
			has.until = e.until()
		}
	case ended:
		if has != nil && has.who == e.Who {
			delete(w.inside, e.Thing)
		}
	}
	w.events = append(w.events, e)
	w.tell()
}

func (w *witness) judgeGain(e event, has *tenancy) {
	if e.Token == 0 || e.Token <= w.highest[e.Thing] {
		w.note("%s got %s under token %d after %d: tokens must rise", e.Who, e.Thing, e.Token, w.highest[e.Thing])
	}
	if has == nil {
		return
	}
	how, gone := w.gone[has.who]
	switch {
	case !gone:
		w.overlap("%s got %s under token %d while %s has it under %d", e.Who, e.Thing, e.Token, has.who, has.token)
	case e.at().Before(has.until):
		w.overlap("%s got %s %v before the trust of %s ended, which was %s", e.Who, e.Thing, ms(has.until.Sub(e.at())), has.who, how)
	}
}

func (w *witness) overlap(format string, args ...any) {
	w.overlaps++
	w.note(format, args...)
}

// note notes a broken promise, the first few of them in words.
func (w *witness) note(format string, args ...any) {
	const most = 10
	if len(w.wrong) < most {
		w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
	} else if len(w.wrong) == most {
		w.wrong = append(w.wrong, "and more")
	}
}

// accuse notes a broken promise that a check has found.
func (w *witness) accuse(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note(format, args...)
}

// leaves notes that a child says nothing any more, and how that came.
func (w *witness) leaves(who, how string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone[who] = how
}

// returns notes that a child that was stopped goes on.
func (w *witness) returns(who string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.gone, who)
}

func (w *witness) isGone(who string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gone[who] != ""
}

// failure returns what the first child that failed has said, nil if none has.
func (w *witness) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.What == failed {
			return &ChildError{Code: e.Code, Text: e.Text}
		}
	}
	return nil
}

// has returns the things that the child has.
func (w *witness) has(who string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for thing, t := range w.inside {
		if t.who == who {
			all = append(all, thing)
		}
	}
	return all
}

// await returns the first event that fits, of those there have been and will be. If a
// child fails first, the error is what it said.
func (w *witness) await(ctx context.Context, what string, fits func(event) bool) (event, error) {
	for next := 0; ; {
		w.mu.Lock()
		fresh, changed, err := w.events[next:], w.changed, w.err
		w.mu.Unlock()
		next += len(fresh)
		for _, e := range fresh {
			if fits(e) {
				return e, nil
			}
			if e.What == failed {
				return e, &ChildError{Code: e.Code, Text: e.Text}
			}
		}
		if err != nil {
			return event{}, fmt.Errorf("the processes have ended before: %s: %w", what, err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return event{}, fmt.Errorf("waiting for: %s: %w", what, context.Cause(ctx))
		}
	}
}

// is returns a condition for await.
func is(what, who, thing string) func(event) bool {
	return func(e event) bool { return e.What == what && e.Who == who && (thing == "" || e.Thing == thing) }
}

// since returns the events that come after a time, without what is said again and again.
func (w *witness) since(t time.Time) []event {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []event
	for _, e := range w.events {
		if e.at().After(t) && e.What != trusts {
			all = append(all, e)
		}
	}
	return all
}

// A ChildError is what a child said before it gave up.
type ChildError struct {
	Code int // the exit code of the program for it
	Text string
}

func (e *ChildError) Error() string { return strings.TrimSpace(e.Text) }

func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
