package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// startTimeout is how long a start may take until it is given up. One server is
// ready in milliseconds, a cluster in less than a second, both more slowly with
// much data.
const startTimeout = time.Minute

// A Server is one NATS server in this process, or a cluster of three. It is made
// by [Start].
type Server struct {
	nodes []*node
	fresh bool
	log   *slog.Logger
	temp  string   // the store directory if it is to be removed, else empty
	lock  *os.File // holds the store directory, nil if temp is set

	life   chan struct{} // holds one: who starts or stops servers puts it in
	closed bool          // by Stop; guarded by life
}

// Start starts a server and returns when it is ready: clients can connect and
// JetStream answers. A cluster then has a leader that knows all three servers.
//
// The error matches [ErrOption] if an option cannot be used, [ErrStoreInUse] if
// another server holds the store directory, and [ErrStart] if a server did not
// become ready. Nothing is left running after an error.
func Start(opts ...Option) (*Server, error) {
	set, err := newSettings(opts)
	if err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	s := &Server{log: set.log, life: make(chan struct{}, 1)}
	if err := s.open(set); err != nil {
		s.Stop()
		return nil, fmt.Errorf("embedded: start: %w", err)
	}
	return s, nil
}

// open takes the store directory and starts the nodes. What it made before an
// error is for Stop to take down.
func (s *Server) open(set *settings) error {
	dir := set.store
	if dir == "" {
		temp, err := os.MkdirTemp("", "tenure-")
		if err != nil {
			return fmt.Errorf("make store directory: %w", err)
		}
		s.temp, dir = temp, temp
	} else {
		lock, err := lockStore(dir)
		if err != nil {
			return err
		}
		s.lock = lock
	}
	dirs, err := storeDirs(dir, set.size)
	if err != nil {
		return err
	}
	s.fresh = isFresh(dirs)
	if s.nodes, err = newNodes(set, dirs); err != nil {
		return err
	}
	for _, n := range s.nodes {
		if err := n.start(); err != nil {
			return err
		}
	}
	deadline := time.Now().Add(startTimeout)
	for _, n := range s.nodes {
		if err := n.ready(time.Until(deadline)); err != nil {
			return err
		}
	}
	if len(s.nodes) > 1 {
		return s.awaitCluster(deadline)
	}
	return nil
}

// URL returns the addresses for clients, separated by commas, or an empty string
// without [Listen].
func (s *Server) URL() string {
	var urls []string
	for _, n := range s.nodes {
		if u := n.url(); u != "" {
			urls = append(urls, u)
		}
	}
	return strings.Join(urls, ",")
}

// Connect connects to the first server from inside the process, without network.
// The connection finds the server again after [Server.StartServer].
//
// Where [Tune] asks for a login, a refused one may be seen as a closed pipe: the
// server closes the pipe before its reason has been read.
func (s *Server) Connect(opts ...nats.Option) (*nats.Conn, error) {
	nc, err := nats.Connect("", append([]nats.Option{nats.InProcessServer(s)}, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("embedded: connect: %w", err)
	}
	return nc, nil
}

// InProcessConn makes a raw connection to the first server as it runs now, so
// that s may be given to [nats.InProcessServer]. The error matches [ErrStopped]
// if it does not run.
func (s *Server) InProcessConn() (net.Conn, error) {
	return s.nodes[0].dial()
}

// Server returns the first NATS server, for what this package does not cover.
// After [Server.StartServer] it is another one.
func (s *Server) Server() *server.Server { return s.nodes[0].current() }

// Servers returns all NATS servers; see [Server.Server].
func (s *Server) Servers() []*server.Server {
	all := make([]*server.Server, len(s.nodes))
	for i, n := range s.nodes {
		all[i] = n.current()
	}
	return all
}

// Fresh reports whether the store was new when s started, so that nobody can have
// held anything in it.
func (s *Server) Fresh() bool { return s.fresh }

// StopServer shuts server i down, counted from 0, and waits until it has ended.
// It does nothing if the server does not run. Leadership in a cluster is handed
// on first, as in any orderly shutdown.
func (s *Server) StopServer(i int) {
	s.life <- struct{}{}
	defer func() { <-s.life }()
	s.nodes[i].stop()
}

// StartServer starts server i again after [Server.StopServer], with the same
// name, addresses and store, and returns when clients can connect to it. It does
// nothing if the server runs. The error matches [ErrStart], or [ErrStopped] after
// [Server.Stop].
func (s *Server) StartServer(i int) error {
	s.life <- struct{}{}
	defer func() { <-s.life }()
	n := s.nodes[i]
	if s.closed {
		return fmt.Errorf("embedded: start server %q: %w", n.name, ErrStopped)
	}
	err := n.start()
	if err == nil {
		err = n.ready(startTimeout)
	}
	if err != nil {
		n.stop()
		return fmt.Errorf("embedded: %w", err)
	}
	return nil
}

// Stop shuts all servers down, waits until they have ended, and frees the store
// directory. It is idempotent.
func (s *Server) Stop() {
	s.life <- struct{}{}
	defer func() { <-s.life }()
	if s.closed {
		return
	}
	s.closed = true
	var wg sync.WaitGroup
	for _, n := range s.nodes {
		wg.Go(n.stop)
	}
	wg.Wait()
	if s.lock != nil {
		_ = s.lock.Close() // nothing was written
	}
	if s.temp != "" {
		if err := os.RemoveAll(s.temp); err != nil {
			s.log.Warn("store directory left behind", slog.String("dir", s.temp), slog.Any("err", err))
		}
	}
}

// jetStreamDir is where a NATS server keeps its data below its store directory.
const jetStreamDir = "jetstream"

// storeDirs returns the directories of n servers in the store directory dir. Data
// of a different number of servers would be passed over in silence, so it is an
// error.
func storeDirs(dir string, n int) ([]string, error) {
	single := []string{dir}
	cluster := make([]string, 3)
	for i := range cluster {
		cluster[i] = filepath.Join(dir, nodeName(i))
	}
	if n == 1 {
		if !isFresh(cluster) {
			return nil, &OptionError{Option: "Cluster", Have: "1", Want: fmt.Sprintf("3, as the data in %q", dir)}
		}
		return single, nil
	}
	if !isFresh(single) {
		return nil, &OptionError{Option: "Cluster", Have: "3", Want: fmt.Sprintf("1, as the data in %q", dir)}
	}
	return cluster, nil
}

// isFresh reports whether no server has used any of the directories.
func isFresh(dirs []string) bool {
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, jetStreamDir)); !errors.Is(err, os.ErrNotExist) {
			return false
		}
	}
	return true
}
