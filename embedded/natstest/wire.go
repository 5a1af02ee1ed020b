package natstest

import (
	"net"
	"sync"
	"syscall"
	"time"
)

// A wire is one connection over a link: lanes between what the client holds, a
// [clientConn], and a connection of the server.
type wire struct {
	link   *Link
	server net.Conn
	up     *lane
	down   *lane
	done   sync.WaitGroup // the two pumps

	// Guarded by the link's mutex.
	toServer splitter
	toClient splitter
	deadline time.Time // for the client's reads
	greeted  bool      // the client has connected: the server has answered its first PING
	pumped   bool      // the pumps have ended
}

func newWire(l *Link, server net.Conn) *wire {
	w := &wire{link: l, server: server}
	w.up = newLane(w, &l.cutUp)
	w.down = newLane(w, &l.cutDown)
	w.done.Go(w.pumpUp)
	w.done.Go(w.pumpDown)
	return w
}

// pumpUp gives the server what arrives for it, until the client has closed or the
// server has.
func (w *wire) pumpUp() {
	for {
		data, err := w.up.receive(func() time.Time { return time.Time{} })
		if err == nil {
			_, err = w.server.Write(data)
		}
		if err != nil {
			break
		}
	}
	_ = w.server.Close() // a pipe has no error to report
	w.link.mu.Lock()
	defer w.link.mu.Unlock()
	w.up.kill()
}

// pumpDown sends the client what the server says, until the server has closed.
func (w *wire) pumpDown() {
	buf := make([]byte, 32<<10)
	for {
		n, err := w.server.Read(buf)
		w.link.mu.Lock()
		if err == nil {
			err = w.link.fromServer(w, buf[:n])
		}
		if err != nil {
			w.down.push(w.link.cargo(w, cargo{end: true}))
			w.link.mu.Unlock()
			_ = w.server.Close() // ends the other pump, if bytes still come up
			return
		}
		w.link.mu.Unlock()
	}
}

// abort ends the connection at both sides at once, in spite of a cut. A request
// that is held back still reaches the server when it is released, so the server's
// side ends only then.
func (w *wire) abort() {
	w.down.abort(syscall.ECONNRESET)
	w.up.queue, w.up.reset = nil, true
	w.up.push(cargo{end: true})
}

// destroy drops everything and ends both pumps.
func (w *wire) destroy() {
	w.down.abort(net.ErrClosed)
	w.up.kill()
}

// A clientConn is the client's end of a wire.
type clientConn struct {
	wire *wire
	rest []byte // received and not yet read
}

func (c *clientConn) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		data, err := c.wire.down.receive(func() time.Time { return c.wire.deadline })
		if err != nil {
			return 0, err
		}
		c.rest = data
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// Write never waits, see [lane].
func (c *clientConn) Write(p []byte) (int, error) {
	l := c.wire.link
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case c.wire.down.dead:
		return 0, net.ErrClosed
	case c.wire.down.fail != nil:
		return 0, c.wire.down.fail
	}
	if err := l.fromClient(c.wire, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close closes as TCP does: what has been written still arrives, before the end.
func (c *clientConn) Close() error {
	l := c.wire.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.wire.down.dead {
		return net.ErrClosed
	}
	c.wire.down.kill()
	if c.wire.pumped {
		delete(l.wires, c.wire)
	}
	if c.wire.down.fail == nil {
		c.wire.up.push(l.cargo(c.wire, cargo{end: true}))
	}
	return nil
}

func (c *clientConn) SetReadDeadline(t time.Time) error {
	l := c.wire.link
	l.mu.Lock()
	defer l.mu.Unlock()
	c.wire.deadline = t
	c.wire.down.notify()
	return nil
}

func (c *clientConn) SetWriteDeadline(time.Time) error { return nil }
func (c *clientConn) SetDeadline(t time.Time) error    { return c.SetReadDeadline(t) }
func (c *clientConn) LocalAddr() net.Addr              { return c.wire.server.RemoteAddr() }
func (c *clientConn) RemoteAddr() net.Addr             { return c.wire.server.LocalAddr() }
