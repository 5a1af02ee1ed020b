package kvlock_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// A sighting is a record in the place of a lock, a marker, or what was written under a
// lock.
type sighting struct {
	kind   sighted
	name   string
	at     time.Time // stored, which in a bubble is everybody's time
	token  uint64    // 0 for a marker
	serial int       // of a written value
	value  string    // of a leader
}

type sighted int

const (
	sawMarker sighted = iota
	sawGain
	sawRenewal
	sawRevoked
	sawData
)

func newWitness(t *testing.T, nc *nats.Conn) *witness {
	b, err := bucket.Open(t.Context(), natstest.JetStream(t, nc), bucket.AttachOnly())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	w := &witness{b: b, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		if err := b.Watch(ctx, w.see, func() {}, "lock.*", "slot.*.*", "data.*"); !errors.Is(err, context.Canceled) {
			t.Errorf("Watch = %v", err)
		}
	}()
	return w
}

func (w *witness) see(e bucket.Entry) {
	s := sighting{name: nameOf.Replace(e.Key), at: e.Time}
	token, revoked, value := partsOf(e.Value)
	s.value = value
	switch {
	case e.Marker:
	case strings.HasPrefix(e.Key, "data."):
		s.kind = sawData
		_, _ = fmt.Sscan(string(e.Value), &s.name, &s.token, &s.serial) // as written by put
	case revoked:
		s.kind, s.token = sawRevoked, token
	case token != 0:
		s.kind, s.token = sawRenewal, token
	default:
		s.kind, s.token = sawGain, e.Revision
	}
	w.seen = append(w.seen, s)
}

// partsOf returns the token that a record carries, 0 if it is its own revision, whether it
// is one of a hold that has ended, and the value of a leader.
func partsOf(record []byte) (token uint64, revoked bool, value string) {
	var r struct {
		Token        uint64
		State, Value string
	}
	_ = json.Unmarshal(record, &r) // a marker has no value
	return r.Token, r.State != "", r.Value
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
	carried, _, _ := partsOf(e.Value)
	return err == nil && !e.Marker && (e.Revision == token || carried == token)
}

// check checks that nothing was released while somebody believed in it (S8), that
// nothing was renewed that nobody had been given (K4), that nothing was written under a
// hold after the next had begun (S3), and that the writes of a hold are stored in
// their order (H13).
func (w *witness) check(c *chaos) {
	w.stopped()
	known := make(map[uint64]bool)
	for _, s := range c.spans {
		known[s.token] = true
	}
	newest := make(map[string]uint64) // token, by name
	written := make(map[uint64]int)   // serial, by token
	for _, seen := range w.seen {
		if seen.kind == sawData {
			if seen.token < newest[seen.name] {
				c.t.Errorf("a write under %q with token %d was stored at %v, after token %d", seen.name, seen.token, clock(seen.at), newest[seen.name])
			}
			if seen.serial < written[seen.token] {
				c.t.Errorf("write %d under %q with token %d was stored at %v, after write %d", seen.serial, seen.name, seen.token, clock(seen.at), written[seen.token])
			}
			written[seen.token] = seen.serial
		}
		newest[seen.name] = max(newest[seen.name], seen.token)
		if seen.kind == sawRenewal && !known[seen.token] && seen.name != c.waitsIn() {
			c.t.Errorf("a hold of %q with token %d was renewed at %v, and nobody has it", seen.name, seen.token, clock(seen.at))
		}
		for _, s := range c.spans {
			if seen.kind == sawMarker && !s.shared && s.name == seen.name && s.from.Before(seen.at) && seen.at.Before(s.to) {
				c.t.Errorf("%q was freed at %v while %s held it (token %d, %v to %v)", s.name, clock(seen.at), s.who, s.token, clock(s.from), clock(s.to))
			}
		}
	}
}

// stopped ends the watching, after which what was seen may be read.
func (w *witness) stopped() {
	w.stop()
	<-w.done
}

// leader returns the token and the value that are stored for the election, 0 if nobody
// leads, or the server does not answer.
func (w *witness) leader() (token uint64, value string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	e, err := w.b.Get(ctx, "lock."+mainElection)
	if err != nil || e.Marker {
		return 0, ""
	}
	token, _, value = partsOf(e.Value)
	return cmp.Or(token, e.Revision), value
}
