package embedded

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// clusterName is the name of the cluster that three servers form.
const clusterName = "tenure"

func nodeName(i int) string { return "tenure-" + strconv.Itoa(i+1) }

// newNodes returns the nodes of a server, not started, one for each store
// directory.
func newNodes(set *settings, dirs []string) ([]*node, error) {
	clients, routes, err := ports(set)
	if err != nil {
		return nil, err
	}
	nodes := make([]*node, set.size)
	for i, dir := range dirs {
		name := nodeName(i)
		nodes[i] = &node{
			name: name,
			port: clients[i],
			log:  newRelay(set.log, name),
			options: func() *server.Options {
				o := &server.Options{
					ServerName:             name,
					DontListen:             !set.listen,
					Host:                   set.host,
					Port:                   server.RANDOM_PORT,
					JetStream:              true,
					StoreDir:               dir,
					NoSigs:                 true,
					DisableJetStreamBanner: true,
				}
				switch {
				case set.sync != nil && *set.sync > 0:
					o.SyncInterval = *set.sync
				case set.sync != nil, set.store != "":
					o.SyncAlways = true
				}
				if set.size > 1 {
					joinCluster(o, routes, i)
				}
				for _, tune := range set.tune {
					tune(o)
				}
				return o
			},
		}
	}
	return nodes, nil
}

// joinCluster makes o the options of server i in a cluster whose route ports are
// given.
func joinCluster(o *server.Options, routes []int, i int) {
	const loopback = "127.0.0.1"
	o.Cluster = server.ClusterOpts{Name: clusterName, Host: loopback, Port: routes[i]}
	for _, port := range routes {
		o.Routes = append(o.Routes, &url.URL{
			Scheme: "nats-route",
			Host:   net.JoinHostPort(loopback, strconv.Itoa(port)),
		})
	}
}

// ports finds the ports of all servers, and fails if a wanted one is in use. All
// are taken before any is given back, so that no two are the same.
func ports(set *settings) (clients, routes []int, err error) {
	clients = make([]int, set.size)
	if !set.listen || set.size == 1 && set.port == 0 {
		return clients, nil, nil // the server itself finds a free one
	}
	var taken []net.Listener
	defer func() {
		for _, l := range taken {
			_ = l.Close() // nothing came in
		}
	}()
	take := func(host string, port int) (int, error) {
		addr := net.JoinHostPort(host, strconv.Itoa(port))
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return 0, err
		}
		taken = append(taken, l)
		addrPort, ok := l.Addr().(*net.TCPAddr)
		if !ok {
			return 0, fmt.Errorf("listen at %s: not a TCP address", addr)
		}
		return addrPort.Port, nil
	}
	for i := range clients {
		port := 0
		if i == 0 {
			port = set.port
		}
		if clients[i], err = take(set.host, port); err != nil {
			return nil, nil, err
		}
	}
	if set.size == 1 {
		return clients, nil, nil
	}
	routes = make([]int, set.size)
	for i := range routes {
		if routes[i], err = take("127.0.0.1", 0); err != nil {
			return nil, nil, err
		}
	}
	return clients, routes, nil
}

// awaitCluster waits until the servers have a JetStream leader that hears from
// all of them, and all of them follow it.
func (s *Server) awaitCluster(deadline time.Time) error {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		missing := s.clusterMissing()
		if missing == nil {
			return nil
		}
		if now := <-ticker.C; now.After(deadline) {
			return &StartError{Server: clusterName, Reason: missing.Error()}
		}
	}
}

// clusterMissing says what the cluster lacks, nil if nothing.
func (s *Server) clusterMissing() error {
	leader := false
	for _, n := range s.nodes {
		srv := n.current()
		if text := n.log.fatal.Load(); text != nil {
			return errors.New(*text)
		}
		if !srv.JetStreamIsCurrent() {
			return fmt.Errorf("server %q does not follow the JetStream leader", n.name)
		}
		if srv.JetStreamIsLeader() {
			leader = true
			if have := len(srv.JetStreamClusterPeers()); have != len(s.nodes) {
				return fmt.Errorf("JetStream leader hears from %d servers of %d", have, len(s.nodes))
			}
		}
	}
	if !leader {
		return errors.New("no JetStream leader")
	}
	return nil
}
