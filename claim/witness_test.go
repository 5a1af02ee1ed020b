package claim_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tenure/claim/plan"
	"tenure/embedded/natstest"
	"tenure/kvlock/bucket"
)

// A witness sees what is stored of the group, on a connection without faults, in
// the order of the revisions. What is overwritten at once, and what is stored while
// the server restarts, it may miss.
type witness struct {
	t      *testing.T
	stop   context.CancelFunc
	done   chan struct{}
	claims map[string]sighting // the witness's own until done is closed
	plans  []*plan.Plan
	moves  int // hand-overs from one worker to another
}

// A sighting is a claim as it is stored.
type sighting struct {
	Owner, By    string
	Epoch, Token uint64
}

func (g *group) witness() *witness {
	b, err := bucket.Open(g.t.Context(), natstest.JetStream(g.t, natstest.Connect(g.t, g.srv)), bucket.Fresh())
	if err != nil {
		g.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(g.t.Context())
	w := &witness{t: g.t, stop: stop, done: make(chan struct{}), claims: make(map[string]sighting)}
	go func() {
		defer close(w.done)
		err := b.Watch(ctx, w.see, func() {}, "claim.orders.*", "check.orders.*", "plan.orders")
		if !errors.Is(err, context.Canceled) {
			w.t.Errorf("Watch = %v", err)
		}
	}()
	return w
}

// end ends the watch; what was seen may be looked at then.
func (w *witness) end() {
	w.stop()
	<-w.done
}

func (w *witness) see(e bucket.Entry) {
	if e.Marker {
		return
	}
	kind, rest, _ := strings.Cut(e.Key, ".")
	_, name, _ := strings.Cut(rest, ".")
	switch kind {
	case "plan":
		if p, err := plan.Parse(e.Value); err == nil {
			w.plans = append(w.plans, p)
		}
	case "check":
		// A checkpoint begins with the token that it was written under: a later hold
		// refuses it.
		stamp, _, _ := strings.Cut(string(e.Value), ":")
		token, err := strconv.ParseUint(stamp, 10, 64)
		if have := w.claims[name].Token; err == nil && token < have {
			w.t.Errorf("partition %s: checkpoint of token %d was stored at %d, under the claim with token %d", name, token, e.Revision, have)
		}
	case "claim":
		w.seeClaim(name, e)
	}
}

func (w *witness) seeClaim(name string, e bucket.Entry) {
	var s sighting
	if err := json.Unmarshal(e.Value, &s); err != nil {
		w.t.Errorf("partition %s: claim at %d: %v", name, e.Revision, err)
		return
	}
	if s.Token == 0 {
		s.Token = e.Revision
	}
	before := w.claims[name]
	w.claims[name] = s
	changed := s.Owner != before.Owner || s.Epoch != before.Epoch
	switch {
	case changed && s.Token <= before.Token:
		w.t.Errorf("partition %s: token %d of %s at revision %d after %d of %s", name, s.Token, s.Owner, e.Revision, before.Token, before.Owner)
	case !changed && s.Token < before.Token:
		w.t.Errorf("partition %s: token of %s fell from %d to %d", name, s.Owner, before.Token, s.Token)
	case changed && s.Owner != "" && s.By != s.Owner:
		w.moves++
		if !w.ordered(name, s) {
			w.t.Errorf("partition %s: handed over from %s to %s, epoch %d, at %d, which no plan ordered", name, s.By, s.Owner, s.Epoch, e.Revision)
		}
	}
}

// ordered reports whether some plan gave the partition to the session.
func (w *witness) ordered(name string, s sighting) bool {
	i, err := strconv.Atoi(name)
	if err != nil {
		return false
	}
	ref := plan.WorkerRef{ID: s.Owner, Epoch: s.Epoch}
	return slices.ContainsFunc(w.plans, func(p *plan.Plan) bool {
		return i < len(p.Assign) && p.Assign[i] >= 0 && p.Workers[p.Assign[i]] == ref
	})
}
