package natstest_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tenure/embedded/natstest"
)

func TestHistoryViolations(t *testing.T) {
	tests := []struct {
		name   string
		record func(h *natstest.History)
		want   []string
	}{
		{"nothing", func(*natstest.History) {}, nil},
		{"one after the other", func(h *natstest.History) {
			a := h.Begin("a", "x", 1)
			a.Write().Accepted(5)
			time.Sleep(time.Second)
			a.End()
			b := h.Begin("b", "x", 2)
			a.Write().Refused(errors.New("stale"))
			b.Write().Accepted(6)
			b.End()
		}, nil},
		{"different things", func(h *natstest.History) {
			h.Begin("a", "x", 2)
			h.Begin("b", "y", 1)
		}, nil},
		{"overlap", func(h *natstest.History) {
			a := h.Begin("a", "x", 1)
			time.Sleep(time.Second)
			h.Begin("b", "x", 2)
			time.Sleep(time.Second)
			a.End()
		}, []string{
			`b's hold of "x" (token 2, 00:00:01.000000 to ...) began while a's hold of "x" (token 1, 00:00:00.000000 to 00:00:02.000000) lasted`,
		}},
		{"overlap at one time", func(h *natstest.History) {
			a := h.Begin("a", "x", 1)
			h.Begin("b", "x", 2)
			a.End()
		}, []string{
			`b's hold of "x" (token 2, 00:00:00.000000 to ...) began while a's hold of "x" (token 1, 00:00:00.000000 to 00:00:00.000000) lasted`,
		}},
		{"overlap with an earlier one", func(h *natstest.History) {
			h.Begin("a", "x", 1)
			h.Begin("b", "x", 2).End()
			h.Begin("c", "x", 3).End()
		}, []string{
			`b's hold of "x" (token 2, 00:00:00.000000 to 00:00:00.000000) began while a's hold of "x" (token 1, 00:00:00.000000 to ...) lasted`,
			`c's hold of "x" (token 3, 00:00:00.000000 to 00:00:00.000000) began while a's hold of "x" (token 1, 00:00:00.000000 to ...) lasted`,
		}},
		{"end seen late", func(h *natstest.History) {
			a := h.Begin("a", "x", 1)
			time.Sleep(time.Second)
			end := time.Now()
			h.Begin("b", "x", 2)
			time.Sleep(time.Second)
			a.EndAt(end)
			a.End()
		}, nil},
		{"token falls", func(h *natstest.History) {
			h.Begin("a", "x", 2).End()
			h.Begin("b", "x", 1).End()
		}, []string{
			`b's hold of "x" (token 1, 00:00:00.000000 to 00:00:00.000000) does not have a larger token than a's hold of "x" (token 2, 00:00:00.000000 to 00:00:00.000000)`,
		}},
		{"token of another", func(h *natstest.History) {
			h.Begin("a", "x", 1).End()
			h.Begin("b", "x", 1).End()
		}, []string{
			`b's hold of "x" (token 1, 00:00:00.000000 to 00:00:00.000000) does not have a larger token than a's hold of "x" (token 1, 00:00:00.000000 to 00:00:00.000000)`,
		}},
		{"resumed", func(h *natstest.History) {
			h.Begin("a", "x", 1).End()
			h.Begin("a", "x", 1).End()
		}, nil},
		{"resumed after another", func(h *natstest.History) {
			h.Begin("a", "x", 1).End()
			h.Begin("b", "x", 2).End()
			h.Begin("a", "x", 1).End()
		}, []string{
			`a's hold of "x" (token 1, 00:00:00.000000 to 00:00:00.000000) does not have a larger token than b's hold of "x" (token 2, 00:00:00.000000 to 00:00:00.000000)`,
		}},
		{"no token", func(h *natstest.History) {
			h.Begin("a", "x", 0)
		}, []string{`a's hold of "x" (token 0, 00:00:00.000000 to ...) has no token`}},
		{"stale write", func(h *natstest.History) {
			a := h.Begin("a", "x", 1)
			a.End()
			h.Begin("b", "x", 2)
			a.Write().Accepted(0)
		}, []string{
			`write of a's hold of "x" (token 1, 00:00:00.000000 to 00:00:00.000000) at 00:00:00.000000 was accepted after b's hold of "x" (token 2, 00:00:00.000000 to ...) had begun`,
		}},
		{"write sent in time", func(h *natstest.History) {
			a := h.Begin("a", "x", 1)
			w := a.Write()
			a.End()
			h.Begin("b", "x", 2)
			w.Accepted(0)
		}, nil},
		{"write ordered behind a newer one", func(h *natstest.History) {
			a := h.Begin("a", "x", 1)
			w := a.Write()
			a.End()
			h.Begin("b", "x", 2).Write().Accepted(7)
			w.Accepted(8)
		}, []string{
			`write of a's hold of "x" (token 1, 00:00:00.000000 to 00:00:00.000000) has revision 8, above revision 7 of b's hold of "x" (token 2, 00:00:00.000000 to ...)`,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var h natstest.History
				tt.record(&h)
				if got := h.Violations(); !slices.Equal(got, tt.want) {
					t.Errorf("Violations = %q, want %q", got, tt.want)
				}
			})
		})
	}
}

// A recorder is a test that may fail.
type recorder struct {
	testing.TB
	errors []string
}

func (r *recorder) Helper()             {}
func (r *recorder) Error(args ...any)   { r.errors = append(r.errors, fmt.Sprint(args...)) }
func (r *recorder) Logf(string, ...any) {}

func TestCheckFailsTheTestForAViolation(t *testing.T) {
	var h natstest.History
	a := h.Begin("a", "x", 1)
	r := &recorder{TB: t}
	h.Check(r)
	if len(r.errors) != 0 {
		t.Errorf("errors = %q, want none", r.errors)
	}
	h.Begin("b", "x", 2)
	a.Write().Accepted(9)
	h.Check(r)
	if len(r.errors) != 2 {
		t.Errorf("errors = %q, want an overlap and a stale write", r.errors)
	}
	if got := strings.Count(h.String(), "\n"); got != 4 {
		t.Errorf("String has %d lines, want 4:\n%s", got, &h)
	}
}
