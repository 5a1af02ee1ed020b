package natstest

import (
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"sync"

	"github.com/nats-io/nats-server/v2/server"
)

// routes carries all traffic between the servers of a cluster, so that it can be
// stopped. Each server has a gate in front of its route port, which is the only
// address of it that the others know.
type routes struct {
	gates []*gate

	mu       sync.Mutex
	changed  *sync.Cond // isolated has changed, or a pair has ended
	isolated []bool
	pairs    map[*pair]struct{}
	closed   bool
	running  sync.WaitGroup
}

// A gate is what others take for the route port of a server.
type gate struct {
	listener net.Listener
	name     string // of the server
	target   string // its true route address
}

// A pair is one route connection: from is the server that made it, -1 as long as
// it has not said its name.
type pair struct {
	from, to int
	conns    [2]net.Conn
	ended    bool
}

func newRoutes(n int) (*routes, error) {
	r := &routes{isolated: make([]bool, n), pairs: make(map[*pair]struct{})}
	r.changed = sync.NewCond(&r.mu)
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			r.close()
			return nil, err
		}
		r.gates = append(r.gates, &gate{listener: l})
	}
	for i := range r.gates {
		r.running.Go(func() { r.accept(i) })
	}
	return r, nil
}

// tune puts the gates in place of the route addresses.
func (r *routes) tune(o *server.Options) {
	i := slices.IndexFunc(o.Routes, func(u *url.URL) bool {
		_, port, err := net.SplitHostPort(u.Host)
		return err == nil && port == strconv.Itoa(o.Cluster.Port)
	})
	r.mu.Lock()
	r.gates[i].name = o.ServerName
	r.gates[i].target = o.Routes[i].Host
	r.mu.Unlock()
	for k, g := range r.gates {
		o.Routes[k] = &url.URL{Scheme: "nats-route", Host: g.listener.Addr().String()}
	}
	o.Cluster.Advertise = r.gates[i].listener.Addr().String()
}

// isolate stops all traffic from and to server i. With hang it is silent, else
// its connections are closed at once.
func (r *routes) isolate(i int, hang bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isolated[i] = true
	for p := range r.pairs {
		if p.from == -1 || !hang && (p.from == i || p.to == i) {
			r.end(p)
		}
	}
}

func (r *routes) heal(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isolated[i] = false
	r.changed.Broadcast()
}

func (r *routes) isIsolated(i int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isolated[i]
}

// accept makes a pair of every connection to gate i.
func (r *routes) accept(i int) {
	g := r.gates[i]
	for {
		in, err := g.listener.Accept()
		if err != nil {
			return // closed
		}
		r.mu.Lock()
		refuse, target := r.isolated[i] || r.closed, g.target
		r.mu.Unlock()
		if refuse {
			_ = in.Close() // the server will try again
			continue
		}
		out, err := net.Dial("tcp", target)
		if err != nil {
			_ = in.Close() // the server is not up, the other will try again
			continue
		}
		p := &pair{from: -1, to: i, conns: [2]net.Conn{in, out}}
		r.mu.Lock()
		r.pairs[p] = struct{}{}
		if r.closed || r.isolated[i] {
			r.end(p)
		}
		r.mu.Unlock()
		r.running.Go(func() { r.pump(p, in, out, true) })
		r.running.Go(func() { r.pump(p, out, in, false) })
	}
}

// serverName finds the name in the INFO with which a server introduces itself.
var serverName = regexp.MustCompile(`"server_name":"([^"]*)"`)

// pump carries bytes from one end of p to the other, as long as neither server is
// isolated. introduced is whether they begin with an INFO that tells who made p.
func (r *routes) pump(p *pair, src, dst net.Conn, introduced bool) {
	var start []byte
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if introduced && n > 0 {
			start = append(start, buf[:n]...)
			if found := serverName.FindSubmatch(start); found != nil {
				r.name(p, string(found[1]))
				introduced, start = false, nil
			}
		}
		if !r.pass(p) {
			return
		}
		if err == nil {
			_, err = dst.Write(buf[:n])
		}
		if err != nil {
			r.mu.Lock()
			r.end(p)
			r.mu.Unlock()
			return
		}
	}
}

// name records which server made p.
func (r *routes) name(p *pair, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.from = slices.IndexFunc(r.gates, func(g *gate) bool { return g.name == name })
	if p.from == -1 || r.isolated[p.from] {
		r.end(p)
	}
}

// pass waits until p may carry bytes, and reports false if it has ended.
func (r *routes) pass(p *pair) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !p.ended && (r.isolated[p.to] || p.from >= 0 && r.isolated[p.from]) {
		r.changed.Wait()
	}
	return !p.ended
}

// end closes both ends of p. The caller holds the mutex.
func (r *routes) end(p *pair) {
	if p.ended {
		return
	}
	p.ended = true
	delete(r.pairs, p)
	for _, c := range p.conns {
		_ = c.Close() // the servers see it, which is all that is wanted
	}
	r.changed.Broadcast()
}

// close ends everything and waits for it.
func (r *routes) close() {
	r.mu.Lock()
	r.closed = true
	for p := range r.pairs {
		r.end(p)
	}
	r.mu.Unlock()
	for _, g := range r.gates {
		_ = g.listener.Close() // ends accept
	}
	r.running.Wait()
}
