package cli

import (
	"context"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"time"
)

// readyEvery is how often a pool that is not ready yet is asked whether it is.
const readyEvery = 250 * time.Millisecond

// A notifier tells the service manager how the pool is, as sd_notify(3) does.
type notifier struct {
	conn  net.Conn
	every time.Duration // between two signs of life, 0 if none are wanted
	log   *slog.Logger
}

// newNotifier returns nil if nobody wants to be told. Commands are told nothing of it:
// they would speak for us.
func newNotifier(environ []string, log *slog.Logger) *notifier {
	path := lookup(environ, "NOTIFY_SOCKET")
	usec, err := strconv.ParseInt(lookup(environ, "WATCHDOG_USEC"), 10, 64)
	if pid := lookup(environ, "WATCHDOG_PID"); err != nil || usec <= 0 || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		usec = 0
	}
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		_ = os.Unsetenv(name) // fails for no such name
	}
	if path == "" {
		return nil
	}
	conn, err := net.Dial("unixgram", path) // one that begins with @ is abstract for Go too
	if err != nil {
		log.Warn("the service manager cannot be told anything", slog.Any("err", err))
		return nil
	}
	return &notifier{conn: conn, every: time.Duration(usec) * time.Microsecond / 2, log: log}
}

func (n *notifier) tell(state string) {
	if _, err := n.conn.Write([]byte(state)); err != nil {
		n.log.Debug("the service manager was not told", slog.String("state", state), slog.Any("err", err))
	}
}

// run tells that the pool is ready, once it is, gives signs of life, for which every
// worker is asked how it is, and tells that the pool ends when it begins to.
func (n *notifier) run(ctx, drain context.Context, d *display) {
	defer func() { _ = n.conn.Close() }()
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	life := make(<-chan time.Time)
	if n.every > 0 {
		lives := time.NewTicker(n.every)
		defer lives.Stop()
		life = lives.C
	}
	draining := drain.Done()
	for {
		select {
		case <-tick.C:
			if d.server.Ready() == nil {
				n.tell("READY=1")
				tick.Stop()
			}
		case <-life:
			d.server.Alive()
			n.tell("WATCHDOG=1")
		case <-draining:
			draining = nil
			tick.Stop()
			n.tell("STOPPING=1")
		case <-ctx.Done():
			if draining != nil { // both at once, or it ends unasked
				n.tell("STOPPING=1")
			}
			return
		}
	}
}

// notify tells the service manager how the pool is until the end.
func (d *display) notify(environ []string, stop *stop, end *undo) {
	n := newNotifier(environ, d.log)
	if n == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(stop.drain))
	var running sync.WaitGroup
	running.Go(func() { n.run(ctx, stop.drain, d) })
	end.add(func() {
		cancel()
		running.Wait()
	})
}
