package config_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tenure/config"
)

func TestLogIsOneJSONObjectALineElsewhere(t *testing.T) {
	t.Parallel()
	c := load(t, "")
	var out bytes.Buffer
	log := c.Logger(&out)
	log.Debug("hidden")
	log.Warn("lock lost\nor so", slog.String("lock", "a\nb"), slog.Any("err", errors.New("x")), slog.Duration("wait", 1500*time.Millisecond))
	log.Error("second")
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 2 {
		t.Fatalf("lines = %q, want 2", lines)
	}
	var got struct{ Level, Msg, Lock, Err, Wait string }
	if err := json.Unmarshal([]byte(lines[0]), &got); err != nil {
		t.Fatalf("line %s = %v, want JSON", lines[0], err)
	}
	if got.Level != "WARN" || got.Msg != "lock lost\nor so" || got.Lock != "a\nb" || got.Err != "x" || got.Wait != "1.5s" {
		t.Errorf("line = %+v, want level, message and attributes", got)
	}
}

func TestLogOfTextFormatHasNoColourOffTheTerminal(t *testing.T) {
	t.Parallel()
	c := load(t, "log-format: text\nlog-level: warn")
	var out bytes.Buffer
	log := c.Logger(&out)
	log.Info("hidden")
	log.Warn("shown", slog.String("lock", "a"))
	if got := out.String(); !strings.HasSuffix(got, " WRN shown lock=a\n") || strings.Contains(got, "\x1b") || strings.Count(got, "\n") != 1 {
		t.Errorf("log = %q, want one plain line", got)
	}
}

func TestLogOnATerminal(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		environ []string
		colour  bool
		text    bool
	}{
		{"colour", nil, true, true},
		{"NO_COLOR", []string{"NO_COLOR=1"}, false, true},
		{"empty NO_COLOR", []string{"NO_COLOR="}, true, true},
		{"JSON", []string{"TENURE_LOG_FORMAT=json"}, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var c config.Config
			if err := c.Load(config.Sources{Environ: tt.environ}); err != nil {
				t.Fatal(err)
			}
			terminal, screen := openTerminal(t)
			c.Logger(terminal).Error("went wrong", slog.Any("err", errors.New("x")))
			line := make([]byte, 4096)
			n, err := screen.Read(line)
			if err != nil {
				t.Fatal(err)
			}
			got := string(line[:n])
			if strings.Contains(got, "\x1b") != tt.colour || strings.HasPrefix(got, "{") == tt.text {
				t.Errorf("log = %q, want colour %v, text %v", got, tt.colour, tt.text)
			}
		})
	}
}

func TestLoggerOfABrokenConfigStillLogs(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := (&config.Log{Level: "loud", Format: "xml"}).Logger(&out)
	log.Info("shown")
	if !strings.Contains(out.String(), `"msg":"shown"`) {
		t.Errorf("log = %q, want the line as JSON", out.String())
	}
}

// openTerminal returns a terminal and the screen that shows what is written to it.
func openTerminal(t *testing.T) (terminal, screen *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("needs a pseudo terminal: ", err)
	}
	t.Cleanup(func() { _ = screen.Close() })
	if err := unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = terminal.Close() })
	return terminal, screen
}
