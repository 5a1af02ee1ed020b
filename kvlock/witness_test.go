package kvlock_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tenure/embedded/natstest"
	"tenure/kvlock/bucket"
)

// A witness sees what is stored, on a connection without faults. A restart of the
// server may hide something from it.
type witness struct {
	b    *bucket.Bucket
	stop context.CancelFunc
	done chan struct{}
	seen []sighting // the witness's own until done is closed
}

// nameOf turns a key into the name of the lock or permit.
var nameOf = strings.NewReplacer("lock.", "", "slot.", "", ".", "#")

// A sighting is a record in the place of a lock, or a marker.
type sighting struct {
	name   string
	at     time.Time // stored, which in a bubble is everybody's time
	marker bool
	token  uint64 // of a renewal, 0: something else
}

func newWitness(t *testing.T, nc *nats.Conn) *witness {
	b, err := bucket.Open(t.Context(), natstest.JetStream(t, nc), bucket.AttachOnly())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	w := &witness{b: b, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		if err := b.Watch(ctx, w.see, func() {}, "lock.*", "slot.*.*"); !errors.Is(err, context.Canceled) {
			t.Errorf("Watch = %v", err)
		}
	}()
	return w
}

func (w *witness) see(e bucket.Entry) {
	s := sighting{name: nameOf.Replace(e.Key), at: e.Time, marker: e.Marker}
	if token, revoked := tokenOf(e.Value); !e.Marker && !revoked {
		s.token = token
	}
	w.seen = append(w.seen, s)
}

// tokenOf returns the token that a record carries, 0 if it is its own revision.
func tokenOf(record []byte) (token uint64, revoked bool) {
	var r struct {
		Token uint64
		State string
	}
	_ = json.Unmarshal(record, &r) // a marker has no value
	return r.Token, r.State != ""
}

// stands reports whether the record of a hold is stored.
func (w *witness) stands(name string, token uint64) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	key := "lock." + name
	if pool, number, ok := strings.Cut(name, "#"); ok {
		key = "slot." + pool + "." + number
	}
	e, err := w.b.Get(ctx, key)
	carried, _ := tokenOf(e.Value)
	return err == nil && !e.Marker && (e.Revision == token || carried == token)
}

// check checks that nothing was released while somebody believed in it (S8), and that
// nothing was renewed that nobody had been given (K4).
func (w *witness) check(c *chaos) {
	w.stop()
	<-w.done
	known := make(map[uint64]bool)
	for _, s := range c.spans {
		known[s.token] = true
	}
	for _, seen := range w.seen {
		if seen.token != 0 && !known[seen.token] {
			c.t.Errorf("a hold of %q with token %d was renewed at %v, and nobody has it", seen.name, seen.token, clock(seen.at))
		}
		for _, s := range c.spans {
			if seen.marker && s.name == seen.name && s.from.Before(seen.at) && seen.at.Before(s.to) {
				c.t.Errorf("%q was freed at %v while %s held it (token %d, %v to %v)", s.name, clock(seen.at), s.who, s.token, clock(s.from), clock(s.to))
			}
		}
	}
}
