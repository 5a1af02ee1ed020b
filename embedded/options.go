package embedded

import (
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// An Option changes how [Start] runs the server.
type Option func(*settings) error

type settings struct {
	listen bool
	host   string
	port   int // 0: any free port
	store  string
	size   int
	sync   *time.Duration // nil: not given
	log    *slog.Logger
	tune   []func(*server.Options)
}

// Listen makes the server listen for clients at addr, which is "host:port"; port
// 0 takes a free one, see [Server.URL]. The default is not to listen at all: the
// server can be reached from this process only.
//
// In a cluster the first server gets this address, the others take free ports of
// the same host.
func Listen(addr string) Option {
	return func(s *settings) error {
		bad := &OptionError{Option: "Listen", Have: strconv.Quote(addr), Want: `"host:port" with a port from 0 to 65535`}
		host, digits, err := net.SplitHostPort(addr)
		if err != nil {
			return bad
		}
		port, err := strconv.ParseUint(digits, 10, 16)
		if err != nil {
			return bad
		}
		s.listen, s.host, s.port = true, host, int(port)
		return nil
	}
}

// Store keeps streams with file storage in dir, which is created if it is
// missing. The default is a temporary directory that [Server.Stop] removes.
//
// The directory is locked. While another server holds it [Start] fails with an
// error that matches [ErrStoreInUse].
func Store(dir string) Option {
	return func(s *settings) error {
		if dir == "" {
			return &OptionError{Option: "Store", Have: `""`, Want: "a directory"}
		}
		s.store = dir
		return nil
	}
}

// Cluster sets how many servers run in the process: 1, the default, or 3, which
// needs [Listen].
func Cluster(n int) Option {
	return func(s *settings) error {
		if n != 1 && n != 3 {
			return &OptionError{Option: "Cluster", Have: strconv.Itoa(n), Want: "1 or 3"}
		}
		s.size = n
		return nil
	}
}

// SyncEvery sets how often file storage is synced to the disk. 0, the default
// with [Store], syncs every write before it is acknowledged; with a longer time a
// power cut can lose acknowledged writes. The default without Store is the NATS
// server's own, since nothing is to survive there.
func SyncEvery(d time.Duration) Option {
	return func(s *settings) error {
		if d < 0 {
			return &OptionError{Option: "SyncEvery", Have: d.String(), Want: "0 (every write) or longer"}
		}
		s.sync = &d
		return nil
	}
}

// Logger sets where the server's log goes. The default is nowhere.
//
// The server's errors and warnings keep their level. It is talkative beyond
// them, so its notices become debug records, its debug and trace output records
// at [LevelDebug].
func Logger(l *slog.Logger) Option {
	return func(s *settings) error {
		if l == nil {
			return &OptionError{Option: "Logger", Have: "nil", Want: "a logger"}
		}
		s.log = l
		return nil
	}
}

// Tune has the last word on the NATS server's own options: users, permissions,
// limits. It is called once for each server each time it is started.
func Tune(f func(*server.Options)) Option {
	return func(s *settings) error {
		if f == nil {
			return &OptionError{Option: "Tune", Have: "nil", Want: "a function"}
		}
		s.tune = append(s.tune, f)
		return nil
	}
}

// newSettings applies the options and checks how they go together.
func newSettings(opts []Option) (*settings, error) {
	s := &settings{size: 1, log: slog.New(slog.DiscardHandler)}
	for _, opt := range opts {
		if err := opt(s); err != nil {
			return nil, err
		}
	}
	if s.size > 1 && !s.listen {
		return nil, &OptionError{Option: "Cluster", Have: strconv.Itoa(s.size) + " without Listen", Want: "an address to listen at"}
	}
	return s, nil
}
