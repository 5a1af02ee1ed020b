package bucket

import (
	"time"

	"github.com/nats-io/nats.go"
)

// ConnOptions returns the options that a connection used for leases wants:
//
//   - no reconnect buffer, so that a write that timed out while disconnected is
//     not sent after the reconnect,
//   - a dead peer noticed within 10 to 15 seconds,
//   - reconnects for ever, soon, with some jitter.
//
// Leases are safe without them, but losses are noticed later and more outcomes
// are in doubt. Give a program's own options after these.
func ConnOptions() []nats.Option {
	return []nats.Option{
		nats.ReconnectBufSize(-1),
		nats.PingInterval(5 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 250*time.Millisecond),
	}
}
