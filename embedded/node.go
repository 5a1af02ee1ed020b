package embedded

import (
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// A node is one NATS server of a [Server]. It can be started again, with a new
// *server.Server of the same name, addresses and store.
type node struct {
	name    string
	options func() *server.Options // made anew for each start, as the server keeps and changes them
	log     *relay

	mu   sync.Mutex // for memory work only: clients that reconnect wait for it
	srv  *server.Server
	up   bool
	port int // for clients; 0: any free port
}

// start starts the node. It is not ready then.
func (n *node) start() error {
	n.mu.Lock()
	up, port := n.up, n.port
	n.mu.Unlock()
	if up {
		return nil
	}
	opts := n.options()
	if port != 0 {
		opts.Port = port
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return fmt.Errorf("%w: %w", &StartError{Server: n.name, Reason: "options refused"}, err)
	}
	n.log.fatal.Store(nil)
	srv.SetLoggerV2(n.log, opts.Debug || n.log.verbose(), opts.Trace, opts.TraceVerbose)
	srv.Start()

	n.mu.Lock()
	defer n.mu.Unlock()
	n.srv, n.up = srv, true
	if addr, ok := srv.Addr().(*net.TCPAddr); ok {
		n.port = addr.Port
	}
	return nil
}

// ready waits until clients can connect and JetStream is enabled.
func (n *node) ready(timeout time.Duration) error {
	srv := n.current()
	bad := func(reason string) error { return &StartError{Server: n.name, Reason: reason} }
	if text := n.log.fatal.Load(); text != nil {
		return bad(*text)
	}
	ready := srv.ReadyForConnections(timeout)
	// A route listener fails in the background.
	if text := n.log.fatal.Load(); text != nil {
		return bad(*text)
	}
	switch {
	case !ready:
		return bad(fmt.Sprintf("not ready after %v", timeout))
	case !srv.JetStreamEnabled():
		return bad("JetStream is not enabled")
	}
	return nil
}

// stop shuts the node down and waits until it has ended.
func (n *node) stop() {
	n.mu.Lock()
	srv, up := n.srv, n.up
	n.up = false
	n.mu.Unlock()
	if !up {
		return
	}
	srv.Shutdown()
	srv.WaitForShutdown()
}

func (n *node) current() *server.Server {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.srv
}

func (n *node) dial() (net.Conn, error) {
	n.mu.Lock()
	srv, up := n.srv, n.up
	n.mu.Unlock()
	if !up {
		return nil, fmt.Errorf("embedded: connect to server %q: %w", n.name, ErrStopped)
	}
	conn, err := srv.InProcessConn()
	if err != nil {
		return nil, fmt.Errorf("embedded: connect to server %q: %w: %w", n.name, ErrStopped, err)
	}
	return conn, nil
}

// url returns the node's address for clients, empty if it does not listen.
func (n *node) url() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.port == 0 {
		return ""
	}
	return n.srv.ClientURL()
}
