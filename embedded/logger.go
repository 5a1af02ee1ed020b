package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
)

// LevelDebug is the level of the NATS server's own debug and trace output. Its
// notices are at [slog.LevelDebug], one step above.
const LevelDebug = slog.LevelDebug - 4

// relay passes a server's log on to slog. It remembers the first fatal message:
// the server believes that it ends the process, so it returns from its start as
// if nothing had happened and even reports JetStream as enabled.
type relay struct {
	log   *slog.Logger
	fatal atomic.Pointer[string]
}

func newRelay(log *slog.Logger, name string) *relay {
	return &relay{log: log.With(slog.String("server", name))}
}

func (r *relay) Noticef(format string, v ...any) { r.relay(slog.LevelDebug, format, v) }
func (r *relay) Warnf(format string, v ...any)   { r.relay(slog.LevelWarn, format, v) }
func (r *relay) Errorf(format string, v ...any)  { r.relay(slog.LevelError, format, v) }
func (r *relay) Debugf(format string, v ...any)  { r.relay(LevelDebug, format, v) }
func (r *relay) Tracef(format string, v ...any)  { r.relay(LevelDebug, format, v) }

func (r *relay) Fatalf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	r.fatal.CompareAndSwap(nil, &text)
	r.relay(slog.LevelError, "%s", []any{text})
}

func (r *relay) relay(level slog.Level, format string, v []any) {
	// The server's log calls carry no context.
	ctx := context.Background()
	if !r.log.Enabled(ctx, level) {
		return
	}
	r.log.Log(ctx, level, fmt.Sprintf(format, v...))
}

// verbose reports whether the server's debug output is wanted at all.
func (r *relay) verbose() bool {
	return r.log.Enabled(context.Background(), LevelDebug)
}
