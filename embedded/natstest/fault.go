package natstest

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// An action is what a fault does to a message.
type action int

const (
	drop action = iota
	double
	hold
)

// A fault acts on the messages of one kind that match.
type fault struct {
	kind   kind
	action action
	left   int // how many more messages; negative: all
	match  func(envelope) bool
	held   []heldFrame
}

type heldFrame struct {
	to   *lane
	data []byte
}

type kind int

const (
	other kind = iota
	isRequest
	isReply
)

// An envelope is what a fault looks at.
type envelope struct {
	kind    kind
	subject string // of the request, also of a reply
	header  []byte
	payload []byte
}

// request describes a frame on its way to the server.
func request(f frame) envelope {
	if f.subject == "" {
		return envelope{}
	}
	return envelope{kind: isRequest, subject: f.subject, header: f.header, payload: f.payload}
}

// reply describes a frame on its way to a client. It is a reply if it goes to an
// inbox that was given with a request over the same link.
func (l *Link) reply(f frame) envelope {
	subject, ok := l.asked[f.subject]
	if !ok {
		return envelope{}
	}
	return envelope{kind: isReply, subject: subject, header: f.header, payload: f.payload}
}

// strike returns the fault that acts on the message, nil if there is none.
func (l *Link) strike(e envelope) *fault {
	if e.kind == other {
		return nil
	}
	for _, f := range l.faults {
		if f.kind != e.kind || f.left == 0 || !f.match(e) {
			continue
		}
		if f.left > 0 {
			f.left--
		}
		return f
	}
	return nil
}

// DropReply loses the next n answers of JetStream on their way to the clients;
// the requests were carried out. Answers are acknowledgements of publications and
// answers of the JetStream API, and not messages of pull consumers.
//
// With match it is the next n replies of any kind for which match returns true.
// subject is that of the request, and payload that of the reply.
func (l *Link) DropReply(n int, match ...func(subject string, payload []byte) bool) {
	l.add(&fault{kind: isReply, action: drop, left: n, match: matchReply(match)})
}

// DuplicateReply makes the next n replies arrive twice. match is as for
// [Link.DropReply].
func (l *Link) DuplicateReply(n int, match ...func(subject string, payload []byte) bool) {
	l.add(&fault{kind: isReply, action: double, left: n, match: matchReply(match)})
}

// HoldReply keeps back all replies that match from now on, until release is
// called, which lets them go in order. Everything else overtakes them. match is
// as for [Link.DropReply].
func (l *Link) HoldReply(match ...func(subject string, payload []byte) bool) (release func()) {
	return l.hold(&fault{kind: isReply, action: hold, left: -1, match: matchReply(match)})
}

// DropRequest loses the next n messages that a client publishes to a subject for
// which match returns true. The client is not told.
func (l *Link) DropRequest(n int, match func(subject string) bool) {
	l.add(&fault{kind: isRequest, action: drop, left: n, match: matchRequest(match)})
}

// HoldRequest keeps back all messages that a client publishes to a subject for
// which match returns true, until release is called, which lets them go in order.
// Everything else overtakes them.
//
// They reach the server even if their client has closed the connection, or
// [Link.Break] has: this makes ghost writes. Only a restart of the server loses
// them.
func (l *Link) HoldRequest(match func(subject string) bool) (release func()) {
	return l.hold(&fault{kind: isRequest, action: hold, left: -1, match: matchRequest(match)})
}

func (l *Link) add(f *fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = slices.DeleteFunc(l.faults, func(f *fault) bool { return f.left == 0 })
	l.faults = append(l.faults, f)
}

// hold adds a fault that holds messages and returns what ends it.
func (l *Link) hold(f *fault) (release func()) {
	l.add(f)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		f.left = 0
		for _, h := range f.held {
			h.to.push(l.cargo(h.to.wire, cargo{data: h.data}))
			h.to.held--
			h.to.notify()
		}
		f.held = nil
	}
}

func matchRequest(match func(subject string) bool) func(envelope) bool {
	return func(e envelope) bool { return match(e.subject) }
}

func matchReply(match []func(subject string, payload []byte) bool) func(envelope) bool {
	if len(match) == 0 {
		return fromJetStream
	}
	return func(e envelope) bool {
		return slices.ContainsFunc(match, func(m func(string, []byte) bool) bool { return m(e.subject, e.payload) })
	}
}

// fromJetStream reports whether a reply is an answer of JetStream.
func fromJetStream(e envelope) bool {
	switch {
	case bytes.HasPrefix(e.header, []byte("NATS/1.0 503")): // no responders, says the server
		return false
	case strings.HasPrefix(e.subject, "$JS."):
		return !strings.Contains(e.subject, ".CONSUMER.MSG.NEXT.")
	}
	var ack struct {
		Stream string          `json:"stream"`
		Error  json.RawMessage `json:"error"`
	}
	return json.Unmarshal(e.payload, &ack) == nil && (ack.Stream != "" || ack.Error != nil)
}
