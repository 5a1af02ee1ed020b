package kvlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"tenure/kvlock/bucket"
)

// silence is how long a process may take to answer a request. It answers from
// memory, at once.
const silence = 250 * time.Millisecond

// An op is what a request asks for. Requests are hints: nobody relies on one
// having arrived, nor on its being true.
type op string

const (
	opPing op = "ping" // are requests allowed and delivered?
	opNote op = "note" // somebody stands in line for your hold
	opFree op = "free" // the lock is free, and your ticket is the first
	opNext op = "next" // somebody stands behind your ticket; not answered
	opLook op = "look" // something happened to your hold
	opGone op = "gone" // a reader that you wait for has left
)

// An answer is the whole answer to a request.
type answer string

const (
	answerNoted    answer = "noted"    // note: the line will be looked at
	answerNotMine  answer = "not mine" // note: there is no such hold, or it is being released
	answerTaking   answer = "taking"   // free: the waiter takes it now
	answerServed   answer = "served"   // free: it has it, or is taking it
	answerDeclined answer = "declined" // free: nobody waits with this ticket
	answerOK       answer = "ok"       // others
	answerUnknown  answer = "unknown"  // not a request

	answerNobody answer = "no responders" // said by the server, not by a process
	answerNone   answer = ""              // nothing was heard
)

// A request goes from one process to another.
type request struct {
	Op    op     `json:"op"`
	Lock  string `json:"lock,omitempty"`  // the line: its name, encoded
	Part  string `json:"part,omitempty"`  // free: of a slot; note, gone: of a reader
	Nonce string `json:"nonce,omitempty"` // note: of the record; free: of the ticket
	Token uint64 `json:"token,omitempty"` // note, look: of the hold
	At    uint64 `json:"at,omitempty"`    // free: the revision of the marker, 0 for none
	Low   uint64 `json:"low,omitempty"`   // free: no ticket that counts is below
	Place place  `json:"place,omitzero"`  // note: of the asker's ticket; free: the last known in line
}

// subject returns the subject that a process listens on.
func (l *Locker) subject(process string) string {
	return "_tenure." + l.b.Name() + "." + process
}

// listen subscribes to requests and makes sure that they come through: waiting
// without them would work, slowly.
func (l *Locker) listen(ctx context.Context) (err error) {
	subject := l.subject(l.id)
	if l.sub, err = l.nc.Subscribe(subject, l.serve); err != nil {
		return fmt.Errorf("subscribe to %q: %w", subject, err)
	}
	for try := 0; ; try++ {
		one, cancel := context.WithTimeout(ctx, max(silence, l.lease.Attempt))
		_, err := l.nc.RequestWithContext(one, subject, []byte(`{"op":"ping"}`))
		cancel()
		if err == nil {
			return nil
		}
		if denied := l.denied(subject); denied != nil {
			err = denied
		} else if try < 2 && ctx.Err() == nil {
			continue // the server may not know the subscription yet, or is being restarted
		}
		_ = l.sub.Unsubscribe() // fails only if the connection is closed
		return fmt.Errorf("subject %q: %w", subject, errors.Join(err, context.Cause(ctx)))
	}
}

// denied returns a permission error if the server's last complaint was about
// subject, on either side, or about an inbox, where answers go.
func (l *Locker) denied(subject string) error {
	err := l.nc.LastError()
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return nil
	}
	_, said, _ := strings.Cut(err.Error(), `"`)
	said, _, _ = strings.Cut(said, `"`)
	if said == subject || strings.HasPrefix(said, l.nc.Opts.InboxPrefix+".") || strings.HasPrefix(said, nats.InboxPrefix) {
		return &bucket.PermissionError{Subject: said, Err: err}
	}
	return nil
}

// ask asks a process, which may be this one, and waits for its answer, but not for long.
func (l *Locker) ask(ctx context.Context, process string, r request) answer {
	if process == l.id {
		return l.answer(r)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), silence)
	defer cancel()
	m, err := l.nc.RequestWithContext(ctx, l.subject(process), r.encode())
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return answerNobody
	case err != nil:
		return answerNone
	}
	return answer(m.Data)
}

func (r request) encode() []byte {
	b, _ := json.Marshal(r) // cannot fail
	return b
}

// serve answers a request from another process. It runs in the subscription's
// goroutine and does no I/O but the answer.
func (l *Locker) serve(m *nats.Msg) {
	got := answerUnknown
	var r request
	if json.Unmarshal(m.Data, &r) == nil {
		got = l.answer(r)
	}
	if got == answerTaking {
		runtime.Gosched() // the waiter's write goes first: the one who asked has nothing to do with the answer
	}
	_ = m.Respond([]byte(got)) // fails if nobody asked or the connection is gone: a hint is lost
}

// answer answers at once, from memory.
func (l *Locker) answer(r request) answer {
	if r.Part != "" && !isID(r.Part) || r.Lock != "" && !isLine(r.Lock) {
		return answerUnknown
	}
	switch r.Op {
	case opPing:
		return answerOK
	case opNote:
		got, before := l.takeNote(r)
		l.tellNext(r.Lock, before)
		return got
	case opFree:
		return l.answerFree(r)
	case opNext:
		l.answerNext(r)
	case opLook:
		l.withHold(r, func(k *Lock) { k.tell(eventDue) })
	case opGone:
		l.withHold(r, func(k *Lock) { k.readerGone(r.Part) })
	default:
		return answerUnknown
	}
	return answerOK
}

// isLine reports whether s may name a line: other people's requests decide which key is
// read, and purged if it seems to be a late write of this process.
func isLine(s string) bool {
	_, err := bucket.DecodeName(strings.TrimSuffix(s, slotLine))
	return err == nil
}

// withHold calls f with the hold that the request names, if there is one.
func (l *Locker) withHold(r request, f func(k *Lock)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k := range l.peek(r.Lock).holds {
		if k.token == r.Token {
			f(k)
		}
	}
}

// takeNote notes that somebody stands in line for a hold of this process, and returns
// whose ticket has got a next one. A record of this process that is no hold of it any
// more, or never was, is a late write: it is ended (L8, L9).
func (l *Locker) takeNote(r request) (got answer, before place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.peek(r.Lock)
	// It may know of its success later than the one who asks.
	if w := ln.tries[r.Nonce]; w != nil {
		before = w.notes.add(r.Place)
		nudge(w.wake)
		return answerNoted, before
	}
	for k := range ln.holds {
		if mine, noted, before := k.note(r); noted {
			return answerNoted, before
		} else if mine {
			return answerNotMine, place{}
		}
	}
	if !l.closed {
		l.work.Go(func() {
			l.endGhost(context.WithoutCancel(l.ctx), r.Lock, attempt{nonce: r.Nonce, part: r.Part, at: never})
		})
	}
	return answerNotMine, place{}
}

// answerFree passes the news on to the waiter with the ticket.
func (l *Locker) answerFree(r request) answer {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.peek(r.Lock).tickets[r.Nonce]
	switch {
	case w == nil:
		return answerDeclined
	case w.phase == phaseWaiting:
		w.phase, w.offer = phaseOffered, r
		nudge(w.wake)
		return answerTaking
	case w.phase == phaseTaking && w.kind == kindReader:
		return answerTaking // it tells the next one when it is in
	default:
		return answerServed
	}
}
