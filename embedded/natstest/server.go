package natstest

import (
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded"
)

// Server starts a server for the test and stops it when the test ends. By default
// it is reached in the process only, and its store is temporary. Its warnings go
// to the test's output.
func Server(t testing.TB, opts ...embedded.Option) *embedded.Server {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := embedded.Start(append([]embedded.Option{embedded.Logger(log)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		quiet(t, s)
		s.Stop()
	})
	return s
}

// quiet stops JetStream before the server. A server that is shut down with pull
// requests pending sleeps for 50 ms under JetStream's mutex; a goroutine that
// waits for it meanwhile, as one that makes a consumer does, stops the time of a
// bubble and so the sleep.
func quiet(t testing.TB, s *embedded.Server) {
	t.Helper()
	for _, srv := range s.Servers() {
		if srv.Running() && !srv.JetStreamIsClustered() {
			if err := srv.DisableJetStream(); err != nil {
				t.Error(err)
			}
		}
	}
}

// Restart stops the first server of s and starts it again on the same store.
// Streams with memory storage are gone then. Clients come back by themselves, a
// reconnect wait later. For a longer outage use [embedded.Server.StopServer] and
// [embedded.Server.StartServer].
func Restart(t testing.TB, s *embedded.Server) {
	t.Helper()
	quiet(t, s)
	s.StopServer(0)
	if err := s.StartServer(0); err != nil {
		t.Fatal(err)
	}
}

// Connect connects to the first server of s in the process, and closes the
// connection when the test ends.
//
// The options are those that a lock wants, and opts after them: no buffer while
// disconnected, a ping every 5 s of which 2 may be unanswered, and endless
// reconnects 100 ms apart, without jitter so that times in a bubble are exact.
func Connect(t testing.TB, s *embedded.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	return connect(t, s, opts)
}

func connect(t testing.TB, to nats.InProcessConnProvider, opts []nats.Option) *nats.Conn {
	t.Helper()
	all := append(connOptions(), nats.InProcessServer(to))
	nc, err := nats.Connect("", append(all, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// connOptions returns the options that a lock's connection wants.
func connOptions() []nats.Option {
	return []nats.Option{
		nats.ReconnectBufSize(-1),
		nats.PingInterval(5 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(0, 0),
		// The default writes what a fault causes to standard error.
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	}
}

// JetStream returns the JetStream context of nc.
func JetStream(t testing.TB, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}
