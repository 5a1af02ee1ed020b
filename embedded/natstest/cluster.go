package natstest

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"tenure/embedded"
)

// patience is how long a cluster may take to reach a state that it must reach.
// After a crash an election takes 4 to 9 seconds.
const patience = 30 * time.Second

// ThreeNodes is a cluster of three servers with the faults that clusters have. It
// is made by [Cluster]. Servers are counted from 0.
type ThreeNodes struct {
	t      testing.TB
	server *embedded.Server
	routes *routes
	down   [3]bool // used by the test's goroutine only
}

// Cluster starts a cluster of three servers for the test and stops it when the
// test ends. It needs real time, so not a [Bubble].
//
// The methods of a cluster are for the test's goroutine. They fail the test if the
// cluster does not get into the state wanted within half a minute.
func Cluster(t testing.TB, opts ...embedded.Option) *ThreeNodes {
	t.Helper()
	r, err := newRoutes(3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	all := []embedded.Option{embedded.Listen("127.0.0.1:0"), embedded.Cluster(3), embedded.Tune(r.tune)}
	return &ThreeNodes{t: t, server: Server(t, append(all, opts...)...), routes: r}
}

// URL returns the addresses of the three servers for clients.
func (c *ThreeNodes) URL() string { return c.server.URL() }

// Embedded returns the three servers. Stop and start them with the methods of c.
func (c *ThreeNodes) Embedded() *embedded.Server { return c.server }

// Connect connects to the cluster by TCP, to any server, with the options of the
// function [Connect], and closes the connection when the test ends. Use
// [ThreeNodes.ConnectTo] where it matters to which.
func (c *ThreeNodes) Connect(opts ...nats.Option) *nats.Conn {
	c.t.Helper()
	return c.connect(c.URL(), opts)
}

// ConnectTo connects to server i alone: the connection does not turn to another
// server when that one is gone.
func (c *ThreeNodes) ConnectTo(i int, opts ...nats.Option) *nats.Conn {
	c.t.Helper()
	return c.connect(c.server.Servers()[i].ClientURL(), append([]nats.Option{nats.IgnoreDiscoveredServers()}, opts...))
}

func (c *ThreeNodes) connect(url string, opts []nats.Option) *nats.Conn {
	c.t.Helper()
	nc, err := nats.Connect(url, append(connOptions(), opts...)...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(nc.Close)
	return nc
}

// Kill ends server i as a crash does: the others see its connections close and
// hear nothing more from it, no step-down above all. Its store stays.
func (c *ThreeNodes) Kill(i int) {
	c.routes.isolate(i, false)
	c.down[i] = true
	c.server.StopServer(i)
}

// Shutdown ends server i in order: it hands its leaderships on first.
func (c *ThreeNodes) Shutdown(i int) {
	c.down[i] = true
	c.server.StopServer(i)
}

// Restart starts server i on its store, after an orderly shutdown if it runs. It
// waits until the server follows the JetStream leader, if there is another server
// to elect one with.
func (c *ThreeNodes) Restart(i int) {
	c.t.Helper()
	c.server.StopServer(i)
	c.routes.heal(i)
	if err := c.server.StartServer(i); err != nil {
		c.t.Fatal(err)
	}
	c.down[i] = false
	if c.running() < 2 {
		return
	}
	c.await("server follows the JetStream leader", c.server.Servers()[i].JetStreamIsCurrent)
}

// Isolate cuts server i off from the other two, without a sign. Its clients stay
// connected to it.
func (c *ThreeNodes) Isolate(i int) { c.routes.isolate(i, true) }

// Heal ends all isolations.
func (c *ThreeNodes) Heal() {
	for i := range c.down {
		if !c.down[i] {
			c.routes.heal(i)
		}
	}
}

// Leader returns the server that leads a stream, and waits until there is one. A
// server that is isolated does not count, though it may take itself for the leader
// for some seconds.
func (c *ThreeNodes) Leader(stream string) int {
	c.t.Helper()
	leader := -1
	c.await("stream "+stream+" has a leader", func() bool {
		leader = c.leader(stream)
		return leader >= 0
	})
	return leader
}

func (c *ThreeNodes) leader(stream string) int {
	for i, srv := range c.server.Servers() {
		if !c.down[i] && !c.routes.isIsolated(i) && srv.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, stream) {
			return i
		}
	}
	return -1
}

// StepDown makes the leader of a stream give up and returns at once. It returns
// which server that was.
func (c *ThreeNodes) StepDown(stream string) int {
	c.t.Helper()
	old := c.Leader(stream)
	if err := c.server.Servers()[old].JetStreamStepdownStream(server.DEFAULT_GLOBAL_ACCOUNT, stream); err != nil {
		c.t.Fatal(err)
	}
	return old
}

// running returns how many servers are up.
func (c *ThreeNodes) running() int {
	up := 0
	for _, down := range c.down {
		if !down {
			up++
		}
	}
	return up
}

// await fails the test if done does not become true.
func (c *ThreeNodes) await(what string, done func() bool) {
	c.t.Helper()
	deadline := time.Now().Add(patience)
	for !done() {
		if time.Now().After(deadline) {
			c.t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
