// Package natstest is a kit for tests of what runs on NATS JetStream: the real
// server in fake time, a network that fails on demand, a cluster that loses its
// leader, and a record of who held what.
//
// # What it does not do
//
// There is no mock, so a test is as true as the server in it. But one process is
// one process: no disk fails, all clocks are one clock, and a server that is
// stopped has always written what it had to write.
//
// In a [Bubble] there is one server, since a cluster needs real sockets, and what
// runs at the same fake time runs in any order. Elections, catch-up of replicas
// and quorums are tested in real time with [Cluster].
//
// # Fake time
//
// Time in a [Bubble] moves only when every goroutine waits for it or for another
// goroutine of the bubble. So a lease of 15 s ends after 15 s and not a nanosecond
// later, and the test takes milliseconds:
//
//	natstest.Bubble(t, func(t *testing.T) {
//		srv := natstest.Server(t)
//		link := natstest.NewLink(t, srv)
//		holder := newLocker(t, link.Connect())
//		...
//		link.Cut()
//		<-lock.Context().Done() // at the exact time
//	})
//
// What a test must know:
//
//   - Make everything inside the bubble: server, connections, contexts, channels.
//     What [Server], [Connect] and [NewLink] make ends by itself with the test.
//     Anything else that runs must have ended by then.
//   - No test that uses Bubble is parallel, see there.
//   - A goroutine that waits for a mutex, for a socket or for a file is not
//     waiting in this sense: time stands still. So do not sleep, nor wait for an
//     answer, with a mutex held that another goroutine wants.
//   - After the time of an event has come, [synctest.Wait] lets what is due at
//     that time happen before the test looks.
//   - Real work takes no time. A request and its answer come at one and the same
//     time unless [Link.Delay] says otherwise.
//   - [Restart] and the other methods that stop a server end its connections.
//     Clients are back 100 ms later, so a write right after fails.
//   - Streams with memory storage do not outlive a restart. For others use
//     [embedded.Store], or nothing: also the temporary store outlives it.
//
// # Faults
//
// A [Link] lies between clients and the server. It understands the NATS protocol
// well enough to lose an answer and not the request. A client on the same server
// with its own link, or with none, is the witness of what really happened.
//
// A [ThreeNodes] cluster loses servers with [ThreeNodes.Kill] and connections
// between them with [ThreeNodes.Isolate].
//
// A [History] knows whether holds overlapped, tokens fell, or a write got through
// that should not have.
package natstest
