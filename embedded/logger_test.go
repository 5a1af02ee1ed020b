package embedded_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tenure/embedded"
	"tenure/embedded/natstest"
)

// logged returns what a server logs from start to stop.
func logged(t *testing.T, level slog.Level, opts ...embedded.Option) string {
	t.Helper()
	var out bytes.Buffer // slog's handlers write one after the other
	natstest.Bubble(t, func(*testing.T) {
		log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level}))
		s, err := embedded.Start(append([]embedded.Option{embedded.Logger(log)}, opts...)...)
		if err == nil {
			s.Stop()
		}
	})
	return out.String()
}

func TestServerIsQuietByDefault(t *testing.T) {
	if got := logged(t, slog.LevelInfo); got != "" {
		t.Errorf("log = %q, want none", got)
	}
}

func TestServerNoticesAreDebugRecords(t *testing.T) {
	got := logged(t, slog.LevelDebug)
	const want = `level=DEBUG msg="Server is ready" server=tenure-1`
	if !strings.Contains(got, want) {
		t.Errorf("log = %q, want %q in it", got, want)
	}
	if strings.Contains(got, "level=DEBUG-4") {
		t.Errorf("log = %q, want nothing of the server's own debug output", got)
	}
}

func TestServerDebugIsBelowDebug(t *testing.T) {
	if got, want := logged(t, embedded.LevelDebug), "level=DEBUG-4"; !strings.Contains(got, want) {
		t.Errorf("log = %q, want %q in it", got, want)
	}
}

func TestServerFailureIsAnErrorRecord(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "jetstream"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := logged(t, slog.LevelInfo, embedded.Store(dir)), "level=ERROR"; !strings.Contains(got, want) {
		t.Errorf("log = %q, want %q in it", got, want)
	}
}
