package config

import (
	"io"
	"log/slog"
	"os"

	"github.com/lmittmann/tint"
)

// Logger returns a logger that writes to w as c says. It writes one JSON object
// a line, or lines for people, coloured if w is a terminal and NO_COLOR is not
// set. A level or format that is not known counts as info and auto, so that
// there is a logger to report it with.
func (l *Log) Logger(w io.Writer) *slog.Logger {
	level := slog.LevelInfo
	_ = level.UnmarshalText([]byte(l.Level)) // see above
	terminal := IsTerminal(w)
	if l.Format == "json" || l.Format != "text" && !terminal {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: spellDurations}))
	}
	return slog.New(tint.NewTextHandler(w, &tint.Options{
		Level:       level,
		TimeFormat:  "15:04:05.000",
		NoColor:     l.NoColor || !terminal,
		ReplaceAttr: reddenErrors,
	}))
}

// spellDurations writes 15s in place of a number of nanoseconds.
func spellDurations(_ []string, attr slog.Attr) slog.Attr {
	if attr.Value.Kind() == slog.KindDuration {
		return slog.String(attr.Key, attr.Value.Duration().String())
	}
	return attr
}

func reddenErrors(_ []string, attr slog.Attr) slog.Attr {
	if _, ok := attr.Value.Any().(error); ok {
		return tint.Attr(9, attr)
	}
	return attr
}

// IsTerminal reports whether people read what is written to w. It takes the null
// device for a terminal too, where nobody minds.
func IsTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
