package kvlock_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"tenure/embedded/natstest"
)

// A mutant is this module with one mistake in it.
type mutant struct {
	name string
	file string // below this directory
	have string // to be found exactly once
	want string // in its place
	sign string // expression that the output of the failing test matches
}

var mutants = []mutant{
	{
		name: "trust is stretched past the TTL",
		file: "bucket/lease.go",
		have: "sent.Add(l.TTL - l.Margin)",
		want: "sent.Add(l.TTL + l.Margin)",
		sign: `began while .* lasted|while \S+ held it`,
	},
	{
		name: "a lost answer to a renewal is a loss",
		file: "renew.go",
		have: "case errors.Is(err, nats.ErrConnectionClosed):",
		want: "case errors.Is(err, bucket.ErrDoubt):\n\t\tk.lose(LostError{Reason: Expired, Err: err})\n\tcase errors.Is(err, nats.ErrConnectionClosed):",
		sign: `though it had trust until`,
	},
	{
		name: "a lost answer to a renewal is a success",
		file: "renew.go",
		have: "if err == nil {\n\t\tif !k.confirm(revision, a)",
		want: "if errors.Is(err, bucket.ErrDoubt) {\n\t\trevision, err = write.Last, nil\n\t}\n\tif err == nil {\n\t\tif !k.confirm(revision, a)",
		sign: `began while .* lasted|while \S+ held it|want lost by time`,
	},
	{
		name: "a refused renewal is a loss without a look",
		file: "renew.go",
		have: "if back := k.readBack(); back != nil {\n\t\t\terr = back\n\t\t}",
		want: "k.lose(LostError{Reason: Taken, Err: err})",
		sign: `want lost by time`,
	},
	{
		name: "release is by name and not by revision",
		file: "bucket/write.go",
		have: "if w.Purge {",
		want: "if w.Purge {\n\t\tdelete(m.Header, hdrLast)",
		sign: `was freed at .* while|want lost by time`,
	},
	{
		name: "the lock is released as soon as it was taken", // N83
		file: "gain.go",
		have: "k.due = l.firstRenewal(a.sent, l.holds.Add(1)-1)\n",
		want: "k.due = l.firstRenewal(a.sent, l.holds.Add(1)-1)\n\tgo func() { _, _ = k.replace(bucket.Write{Purge: true, TTL: markerTTL}) }()\n",
		sign: `was freed at .* while|want lost by time`,
	},
	{
		name: "the token is that of the last renewal", // K50
		file: "lock.go",
		have: "func (k *Lock) Token() uint64 { return k.token }",
		want: "func (k *Lock) Token() uint64 { return k.Revision() }",
		sign: `is not linearizable|nobody has it`,
	},
	{
		name: "the second in line is told first",
		file: "line.go",
		have: "if silent[t.Process] {",
		want: "if !silent[\"\"] {\n\t\t\tsilent[\"\"] = true",
		sign: `though .* was waiting|keys left = \[wait`,
	},
	{
		name: "a value is confirmed by the renewal before the one that has it",
		file: "election.go",
		have: "if shown >= version {",
		want: "if shown+1 >= version {",
		sign: `Proclaim of .* is stored`,
	},
	{
		name: "a lost leadership is the end of Run", // K66
		file: "election.go",
		have: "case isLost(lock.Err()):",
		want: "case isLost(lock.Err()):\n\t\t\treturn err",
		sign: `Run = `,
	},
}

// N83: the test of the tests. The random faults find what is wrong with each mutant.
func TestRandomFaultsCatchEveryMutant(t *testing.T) {
	if testing.Short() || natstest.Race {
		t.Skip("builds the package once for each mutant, without the race detector")
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			t.Parallel() // in a process of its own
			run := exec.CommandContext(t.Context(), "go", "test", "-overlay="+m.overlay(t, dir), "-vet=off", "-ldflags=-s -w", "-failfast", "-timeout=2m",
				"-run=^TestPromisesHoldUnderRandomFaults$", ".", "-seeds=20")
			run.WaitDelay = 10 * time.Second
			out, err := run.CombinedOutput()
			switch {
			case err == nil:
				t.Errorf("20 seeds found nothing wrong")
			case !strings.Contains(string(out), "--- FAIL: TestPromisesHoldUnderRandomFaults"):
				t.Errorf("the test did not run: %v\n%s", err, out)
			case !regexp.MustCompile(m.sign).Match(out):
				t.Errorf("the failure does not match %q:\n%s", m.sign, out)
			}
		})
	}
}

// overlay writes the mutant's file, and a file for the go command that puts it in
// the place of the real one.
func (m mutant) overlay(t *testing.T, dir string) string {
	t.Helper()
	source := filepath.Join(dir, filepath.FromSlash(m.file))
	code, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(code), m.have); n != 1 {
		t.Fatalf("%s: have %d times, want once: %s", m.file, n, m.have)
	}
	tmp := t.TempDir()
	mutated, overlay := filepath.Join(tmp, "mutated.go"), filepath.Join(tmp, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{source: mutated}})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{mutated: strings.Replace(string(code), m.have, m.want, 1), overlay: string(replace)} {
		if err := os.WriteFile(name, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return overlay
}
