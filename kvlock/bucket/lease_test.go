package bucket_test

import (
	"testing"
	"time"
	"unsafe"

	"tenure/kvlock/bucket"
)

// reading returns a reading of both clocks that was made mono ago by the monotonic one
// and wall ago by the wall clock. Nothing but a suspend, or a hand on the clock, makes
// them differ, so the monotonic part of a time.Time, its second word, is set by force.
func reading(t *testing.T, mono, wall time.Duration) time.Time {
	t.Helper()
	at := time.Now().Add(-wall)
	(*[2]int64)(unsafe.Pointer(&at))[1] += int64(wall - mono)
	byMono, byWall := time.Since(at), time.Now().Round(0).Sub(at.Round(0))
	if (byMono-mono).Abs() > time.Second || (byWall-wall).Abs() > time.Second {
		t.Fatalf("reading is %v and %v old, want %v and %v: a time.Time has another layout", byMono, byWall, mono, wall)
	}
	return at
}

// N86, K32, S4: the monotonic clock stands still while the machine is suspended. The
// wall clock goes on, and ends the trust. Nor does it help to set that back (C8).
func TestTrustEndsByTheClockThatHasRunFurther(t *testing.T) {
	lease, err := bucket.NewLease(15*time.Second, 0, 3)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name       string
		mono, wall time.Duration
		over       bool
	}{
		{"fresh", time.Second, time.Second, false},
		{"old", 14 * time.Second, 14 * time.Second, true},
		{"suspended", time.Second, 10 * time.Minute, true},
		{"suspended within the trust", time.Second, 5 * time.Second, false},
		{"wall clock set back", 14 * time.Second, -time.Hour, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			trust := lease.Trust(reading(t, tt.mono, tt.wall))
			if trust.Over() != tt.over || trust.Left() > 0 == tt.over {
				t.Errorf("Over, Left = %v, %v, want over: %v", trust.Over(), trust.Left(), tt.over)
			}
		})
	}
}
