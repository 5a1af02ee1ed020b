package kvlock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded/natstest"
	"tenure/kvlock"
	"tenure/kvlock/bucket"
)

// A relay stands between a process and JetStream, and may answer in its place, as a
// leader that was cut off does from the past.
type relay struct {
	nc     *nats.Conn
	answer atomic.Pointer[func(subject string, data []byte) []byte] // nil: it passes the request on
}

// relayed returns a process behind a relay. To it the bucket has three replicas, so that an
// answer from the past is no proof of another bucket.
func (s *site) relayed(owner string) (*process, *relay) {
	s.t.Helper()
	y := &relay{nc: natstest.Connect(s.t, s.srv)}
	const prefix = "RELAY.API."
	_, err := y.nc.Subscribe(prefix+">", func(m *nats.Msg) {
		subject := strings.TrimPrefix(m.Subject, prefix)
		if !strings.HasPrefix(subject, "$KV.") {
			subject = "$JS.API." + subject
		}
		if answer := y.answer.Load(); answer != nil {
			if reply := (*answer)(subject, m.Data); reply != nil {
				_ = m.Respond(reply) // the test sees that it did not come
				return
			}
		}
		if subject == infoSubject {
			_ = m.Respond(y.info(s.t, m.Data)) // as above
			return
		}
		_ = y.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: m.Reply, Header: m.Header, Data: m.Data}) // as above
	})
	if err != nil {
		s.t.Fatal(err)
	}
	link := natstest.NewLink(s.t, s.srv)
	nc := link.Connect()
	js, err := jetstream.NewWithAPIPrefix(nc, prefix)
	if err != nil {
		s.t.Fatal(err)
	}
	l, err := kvlock.New(s.t.Context(), js, kvlock.WithOwner(owner), kvlock.WithBucketOptions(bucket.AttachOnly()))
	if err != nil {
		s.t.Fatalf("New = %v", err)
	}
	s.t.Cleanup(func() { _ = l.Close(context.WithoutCancel(s.t.Context())) })
	return &process{l, link, nc}, y
}

const infoSubject = "$JS.API.STREAM.INFO.KV_tenure"

// noMessage answers a read of what is not there.
var noMessage = []byte(`{"type":"io.nats.jetstream.api.v1.stream_msg_get_response","error":{"code":404,"err_code":10037,"description":"no message found"}}`)

// info returns what the server says of the stream now.
func (y *relay) info(t testing.TB, request []byte) []byte {
	m, err := y.nc.Request(infoSubject, request, time.Second)
	if err != nil {
		t.Errorf("stream info: %v", err)
		return nil
	}
	return bytes.Replace(m.Data, []byte(`"num_replicas":1`), []byte(`"num_replicas":3`), 1)
}

// B7: a list from before the gate was closed does not have the readers who came in
// meanwhile, and a leader that was cut off still gives it.
func TestWriterReliesOnNoListFromBeforeItsGate(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a := s.process("a")
		b, relay := s.relayed("b")
		request := []byte(`{"subjects_filter":"$KV.tenure.read.cfg.*"}`)
		old := relay.info(t, request)
		r := tryRLock(t, a.RWLock("cfg"))
		lie := func(subject string, data []byte) []byte {
			if subject == infoSubject && bytes.Contains(data, []byte("read.cfg")) {
				return old
			}
			return nil
		}
		relay.answer.Store(&lie)
		writer := asking(t.Context(), b.RWLock("cfg").Lock)
		time.Sleep(200 * time.Millisecond)
		wantWaiting(t, "Lock", writer)
		relay.answer.Store(nil)
		time.Sleep(time.Second)
		wantWaiting(t, "Lock", writer)
		leave(t, r)
		release(t, (<-writer).lock)
	})
}

// B3, B7: that the entry of a reader is missing, which the list has, is no evidence that it
// has left: a leader that was cut off has let it expire.
func TestWriterTakesAMissingEntryForNoEvidence(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a := s.process("a")
		b, relay := s.relayed("b")
		r := tryRLock(t, a.RWLock("cfg"))
		lies := 0
		lie := func(subject string, data []byte) []byte {
			var get struct {
				Last string `json:"last_by_subj"`
			}
			if subject != "$JS.API.STREAM.MSG.GET.KV_tenure" || json.Unmarshal(data, &get) != nil || !strings.HasPrefix(get.Last, "$KV.tenure.read.cfg.") {
				return nil
			}
			lies++
			return noMessage
		}
		relay.answer.Store(&lie)
		writer := asking(t.Context(), b.RWLock("cfg").Lock)
		time.Sleep(200 * time.Millisecond)
		wantWaiting(t, "Lock", writer)
		relay.answer.Store(nil)
		time.Sleep(time.Second)
		wantWaiting(t, "Lock", writer)
		if lies == 0 {
			t.Error("the writer has not read the entry")
		}
		leave(t, r)
		release(t, (<-writer).lock)
	})
}
