package natstest

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tenure/embedded"
)

// ErrCut is the error of a connection attempt over a [Link] that is cut.
var ErrCut = errors.New("natstest: link is cut")

// A Link is a network between clients and the first server of an
// [embedded.Server], with the faults that networks have. It is made by [NewLink].
//
// It behaves as TCP does. What is sent while the link is cut, or was on its way,
// is kept and arrives in order after [Link.Mend], even if the sender has closed
// the connection meanwhile: so a server may be given a request whose client gave
// it up long ago. An end of the connection cannot be seen through a cut either;
// both sides find out by their own pings. The room for bytes on their way is
// unlimited, so that no sender ever waits.
//
// It differs from TCP in the moment of connecting, since nats.go holds a mutex
// meanwhile and that would stop the time of a bubble: a connection attempt while
// the link is cut fails at once with [ErrCut], a cut during an attempt fails it,
// and an attempt knows no delay.
//
// All methods may be called by several goroutines at once. The functions given to
// a Link must not call its methods.
type Link struct {
	t      testing.TB
	server nats.InProcessConnProvider

	mu      sync.Mutex // for memory work only
	cutUp   bool
	cutDown bool
	delay   time.Duration
	wires   map[*wire]struct{}
	faults  []*fault
	asked   map[string]string // subject of a request, by the inbox for its reply
	closed  bool
}

// NewLink returns a sound link to the first server of s. When the test ends all
// its connections are closed.
func NewLink(t testing.TB, s *embedded.Server) *Link {
	l := &Link{t: t, server: s, wires: make(map[*wire]struct{}), asked: make(map[string]string)}
	t.Cleanup(l.close)
	return l
}

// Connect connects over the link, with the options of [Connect], and closes the
// connection when the test ends.
func (l *Link) Connect(opts ...nats.Option) *nats.Conn {
	l.t.Helper()
	return connect(l.t, l, opts)
}

// InProcessConn makes a raw connection over the link, so that l may be given to
// [nats.InProcessServer].
func (l *Link) InProcessConn() (net.Conn, error) {
	l.mu.Lock()
	cut := l.cutUp || l.cutDown
	l.mu.Unlock()
	if cut {
		return nil, ErrCut
	}
	server, err := l.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	w := newWire(l, server)
	l.wires[w] = struct{}{}
	go l.forget(w)
	if l.closed || l.cutUp || l.cutDown {
		w.destroy()
	}
	return &clientConn{wire: w}, nil
}

// forget drops w from the link when its pumps have ended and its client has closed. Until
// then the end of it may be on its way, and kept by a cut.
func (l *Link) forget(w *wire) {
	w.done.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	w.pumped = true
	if w.down.dead {
		delete(l.wires, w)
	}
}

// Cut silences both ways. Nothing is closed.
func (l *Link) Cut() { l.set(true, true) }

// CutUp silences the way from the clients to the server.
func (l *Link) CutUp() { l.set(true, false) }

// CutDown silences the way from the server to the clients.
func (l *Link) CutDown() { l.set(false, true) }

// set cuts the ways that are true and leaves the others as they are.
func (l *Link) set(up, down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cutUp = l.cutUp || up
	l.cutDown = l.cutDown || down
	for w := range l.wires {
		if !w.greeted {
			w.abort()
		}
	}
}

// Mend ends every cut. What was kept flows at once.
func (l *Link) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cutUp, l.cutDown = false, false
	for w := range l.wires {
		w.up.notify()
		w.down.notify()
	}
}

// Break closes all connections at both ends, as a reset does; what is on its way
// is lost, but not what is held back by [Link.HoldRequest]. Clients come back at
// their next attempt unless the link is cut.
func (l *Link) Break() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.wires {
		w.abort()
	}
}

// Delay makes what is sent from now on take d each way. 0 ends it.
func (l *Link) Delay(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = d
}

// cargo returns c with the time at which it arrives. Nothing is delayed while the
// client connects.
func (l *Link) cargo(w *wire, c cargo) cargo {
	c.due = time.Now()
	if w.greeted {
		c.due = c.due.Add(l.delay)
	}
	return c
}

// fromClient takes bytes that a client sends.
func (l *Link) fromClient(w *wire, p []byte) error {
	frames, err := w.toServer.add(p)
	for _, f := range frames {
		if f.reply != "" {
			l.asked[f.reply] = f.subject
		}
		l.send(w, w.up, f, request(f))
	}
	return err
}

// fromServer takes bytes that the server sends.
func (l *Link) fromServer(w *wire, p []byte) error {
	frames, err := w.toClient.add(p)
	for _, f := range frames {
		l.send(w, w.down, f, l.reply(f))
		if f.verb == "PONG" {
			w.greeted = true
		}
	}
	return err
}

// send puts f on its lane, or does to it what a fault says.
func (l *Link) send(w *wire, to *lane, f frame, e envelope) {
	c := l.cargo(w, cargo{data: f.raw})
	switch fault := l.strike(e); {
	case fault == nil:
		to.push(c)
	case fault.action == drop:
	case fault.action == double:
		to.push(c)
		to.push(c)
	case fault.action == hold:
		to.held++
		fault.held = append(fault.held, heldFrame{to: to, data: f.raw})
	}
}

// close ends all connections and waits until nothing of them runs.
func (l *Link) close() {
	l.mu.Lock()
	l.closed = true
	wires := make([]*wire, 0, len(l.wires))
	for w := range l.wires {
		w.destroy()
		wires = append(wires, w)
	}
	l.mu.Unlock()
	for _, w := range wires {
		w.done.Wait()
	}
}
