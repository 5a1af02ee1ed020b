package worker_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"tenure/worker"
)

func FuzzCheckpoint(f *testing.F) {
	f.Add([]byte(`{"stream":"ORDERS","made":1,"floor":12,"consumer":"tenure_a_b_00_7-1","gone":["x"]}`))
	f.Add([]byte(`{"stream":""}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, checkpoint []byte) {
		again, err := worker.ReadPosition(checkpoint)
		if err != nil {
			if !errors.Is(err, worker.ErrCheckpoint) {
				t.Errorf("error = %v, want %v", err, worker.ErrCheckpoint)
			}
			return
		}
		if len(checkpoint) == 0 {
			return
		}
		if twice, err := worker.ReadPosition(again); err != nil || !bytes.Equal(twice, again) {
			t.Errorf("read again = %q, %v, want %q, nil", twice, err, again)
		}
	})
}

func FuzzHeaderVariables(f *testing.F) {
	f.Add("Nats-Msg-Id", "1")
	f.Add("ä=\x00", "\x00")
	f.Fuzz(func(t *testing.T, name, value string) {
		for variable, value := range worker.HeaderVariables(nats.Header{name: {value}, "b": {value, "2"}}) {
			rest, ok := strings.CutPrefix(variable, "TENURE_HEADER_")
			if !ok || strings.Trim(rest, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "" || strings.ContainsRune(value, 0) {
				t.Errorf("variable = %q=%q, want one that can be set", variable, value)
			}
		}
	})
}

func TestSubjects(t *testing.T) {
	t.Parallel()
	tests := []struct {
		subject, filter string
		covers, overlap bool
	}{
		{"orders.>", "orders.7.>", true, true},
		{"orders.>", "orders.7", true, true},
		{"orders.>", "orders", false, false},
		{"orders.*", "orders.7", true, true},
		{"orders.*", "orders.7.x", false, false},
		{"orders.*", "orders.>", false, true},
		{"orders.7.x", "orders.*.x", false, true},
		{"orders.7.x", "orders.p*.x", false, true}, // p{partition}: not decided here
		{"orders.*.x", "orders.7.*", false, true},
		{">", "orders.7", true, true},
		{"orders.7", "orders.7", true, true},
		{"orders.7", "orders.8", false, false},
	}
	for _, tt := range tests {
		if got := worker.SubjectCovers(tt.subject, tt.filter); got != tt.covers {
			t.Errorf("subjectCovers(%q, %q) = %v, want %v", tt.subject, tt.filter, got, tt.covers)
		}
		if got := worker.SubjectsOverlap(tt.subject, tt.filter); got != tt.overlap {
			t.Errorf("subjectsOverlap(%q, %q) = %v, want %v", tt.subject, tt.filter, got, tt.overlap)
		}
	}
}
