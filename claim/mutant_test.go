package claim_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A mutant is this package with one mistake in it.
type mutant struct {
	name string
	file string // below this directory
	have string // to be found exactly once
	want string // in its place
	test string // that has to find it
	sign string // expression that the output of the failing test matches
}

var mutants = []mutant{
	{
		name: "a live owner is taken from", // C2 of the rules
		file: "slot.go",
		have: `case rec.Owner != "" && !s.c.ended(sess.ctx, rec.Owner, rec.Epoch):`,
		want: `case rec.Owner != "" && sess.over():`,
		test: "TestRandomFaults",
		sign: `began while`,
	},
	{
		name: "trust outlives the key", // S4
		file: "session.go",
		have: "s.trust, s.sentAt = s.c.lease.Trust(sent), sent\n\ts.mu.Unlock()",
		want: "s.trust, s.sentAt = s.c.lease.Trust(sent.Add(3*s.c.lease.Margin)), sent\n\ts.mu.Unlock()",
		test: "TestRandomFaults",
		sign: `began while`,
	},
	{
		name: "a checkpoint is not fenced", // S3
		file: "../kvlock/bucket/write.go",
		have: "if w.Fence != \"\" {\n\t\tm.Header[hdrLastSubject]",
		want: "if w.Fence != \"\" {\n\t\tdelete(m.Header, hdrLast)\n\t}\n\tif w.Fence == \"-\" {\n\t\tm.Header[hdrLastSubject]",
		test: "TestRandomFaults",
		sign: `was stored at .* under the claim`,
	},
	{
		name: "a partition is handed to a session that the plan does not name",
		file: "serve.go",
		have: "to = record{Owner: v.worker, Epoch: v.epoch}",
		want: "to = record{Owner: v.worker, Epoch: h.sess.epoch}",
		test: "TestRandomFaults",
		sign: `which no plan ordered`,
	},
	{
		name: "the token goes with the partition", // S2
		file: "serve.go",
		have: "next.Owner, next.Epoch,",
		want: "next.Token = h.token\n\tnext.Owner, next.Epoch,",
		test: "TestRandomFaults",
		sign: `token \d+ of .* after|larger token`,
	},
	{
		name: "the fullest worker comes first",
		file: "plan/ranking.go",
		have: "x, y := (2*a.load+unit)*b.weight, (2*b.load+unit)*a.weight",
		want: "x, y := (2*b.load+unit)*a.weight, (2*a.load+unit)*b.weight",
		test: "TestRandomMembershipMovesTheMinimum",
		sign: `want them within one`,
	},
}

// The test of the tests: the random faults find what is wrong with each mutant.
func TestRandomFaultsCatchEveryMutant(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the package once for each mutant")
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			run := exec.CommandContext(t.Context(), "go", "test", "-overlay="+m.overlay(t, dir), "-vet=off", "-failfast", "-timeout=3m",
				"-run=^"+m.test+"$", ".", "-seeds=40")
			run.WaitDelay = 10 * time.Second
			out, err := run.CombinedOutput()
			switch {
			case err == nil:
				t.Errorf("the seeds found nothing wrong")
			case !strings.Contains(string(out), "--- FAIL: "+m.test):
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
