package cli_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"tenure/embedded/natstest"
)

// What `tenure verify --json` prints.
type verified struct {
	OK     bool `json:"ok"`
	Checks []struct {
		Name    string           `json:"name"`
		OK      bool             `json:"ok"`
		Figures map[string]int64 `json:"figures"`
		Wrong   []string         `json:"wrong"`
	} `json:"checks"`
}

// verify runs a binary's verify and returns its exit code and what it printed.
func verify(t *testing.T, binary string, args ...string) (code int, result verified, stderr string) {
	t.Helper()
	p := &process{Cmd: exec.Command(binary, append([]string{"verify", "--json", "--log-level", "error"}, args...)...), t: t, done: make(chan struct{})}
	p.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	p.Stdout, p.Stderr = &p.out, &p.err
	p.launch()
	code = p.codeWithin(3 * time.Minute)
	if out := p.out.String(); out != "" {
		if err := json.Unmarshal([]byte(out), &result); err != nil {
			t.Fatalf("output %q: %v", out, err)
		}
	}
	return code, result, p.err.String()
}

// checkVerified checks that every promise held, and was looked at.
func checkVerified(t *testing.T, code int, result verified, stderr string) {
	t.Helper()
	if code != 0 || !result.OK || stderr != "" {
		t.Errorf("verify = %d, %+v, want 0 and ok; stderr %s", code, result, stderr)
	}
	var names []string
	for _, c := range result.Checks {
		names = append(names, c.Name)
		f := c.Figures
		good := f["overlaps"] == 0
		switch c.Name {
		case "crash":
			good = good && f["takeover_ms"] > 0 && f["takeover_ms"] <= f["limit_ms"] && f["old_token"] > 0 && f["new_token"] > f["old_token"]
		case "pause":
			good = good && f["takeover_ms"] <= f["limit_ms"] && f["new_token"] > f["old_token"] && f["refused"] == 2
		case "load":
			good = good && f["processes"] > 2 && f["sections"] > 10 && f["count"] == f["sections"] && f["least_of_a_process"] > 0
		case "worker":
			good = good && f["moved"] == 4 && f["moved_again"] == 0 && f["stayed"] == 8 && f["disturbed"] == 0 && f["takeover_ms"] <= f["limit_ms"]
		}
		if !good || !c.OK {
			t.Errorf("%s = %+v", c.Name, c)
		}
	}
	if want := []string{"crash", "pause", "load", "worker"}; !slices.Equal(names, want) {
		t.Errorf("checks = %q, want %q", names, want)
	}
}

// short is how the checks are made in tests. Half a second is what a take-over may be
// late by, whatever the TTL; the longer that is, the more of it is over at the crash.
var short = []string{"--ttl", "3s", "--load", "1s", "--processes", "8"}

func init() {
	if natstest.Race {
		short[1] = "6s"
	}
}

func TestEveryPromiseHoldsOnAServerInTheProcess(t *testing.T) {
	code, result, stderr := verify(t, binary, short...)
	checkVerified(t, code, result, stderr)
}

func TestEveryPromiseHoldsOnAClusterAndNothingIsLeft(t *testing.T) {
	_, url := startServer(t, "--cluster", "3", "--store", t.TempDir(), "--log-level", "error")
	code, result, stderr := verify(t, binary, append(short, "--server", url)...)
	checkVerified(t, code, result, stderr)
	checkEmpty(t, url)
}

// checkEmpty checks that the bucket has nothing in it.
func checkEmpty(t *testing.T, url string) {
	t.Helper()
	state, err := open(t, url).State(t.Context(), ">")
	if err != nil || len(state.Keys) != 0 {
		t.Errorf("keys left = %v, %v, want none", state.Keys, err)
	}
}

// An interrupt ends all processes and leaves nothing in the bucket.
func TestVerifyThatIsInterruptedLeavesNothing(t *testing.T) {
	_, url := startServer(t)
	p := begin(t, nil, "verify", "--server", url, "--ttl", "3s", "--only", "pause", "--log-level", "error")
	b := open(t, url)
	eventually(t, "the lock is taken over", func() bool {
		state, err := b.State(t.Context(), "data.*")
		return err == nil && len(state.Keys) > 0
	})
	p.signal(syscall.SIGINT)
	if code := p.code(); code != 128+2 {
		t.Errorf("verify = %d, want 130; stderr %s", code, p.err.String())
	}
	checkEmpty(t, url)
}

func TestVerifyRefusesWhatItCannotVerify(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--only", "fly"}, {"--processes", "1"}, {"--load", "0s"}, {"--user", "me"}} {
		if code, _, stderr := tenure(t, append([]string{"verify"}, args...)...); code != 2 {
			t.Errorf("verify %q = %d, want 2; stderr %s", args, code, stderr)
		}
	}
}

// A brokenBuild is the program with one promise broken.
type brokenBuild struct {
	name  string
	file  string // below the module's directory
	have  string // to be found exactly once
	want  string // in its place
	check string // that has to find it
	sign  string // expression that what it says matches
}

var brokenBuilds = []brokenBuild{
	{
		name:  "trust outlives the lease",
		file:  "kvlock/bucket/lease.go",
		have:  "sent.Add(l.TTL - l.Margin)",
		want:  "sent.Add(l.TTL + 3*l.Margin)",
		check: "crash",
		sign:  "before the trust of holder ended",
	},
	{
		name:  "a renewal drops the TTL",
		file:  "kvlock/bucket/write.go",
		have:  "if w.TTL > 0 {",
		want:  "if w.TTL > 0 && (w.Last == 0 || w.Purge) {",
		check: "crash",
		sign:  "nobody has the lock",
	},
	{
		name:  "the token is that of the last renewal",
		file:  "kvlock/lock.go",
		have:  "func (k *Lock) Token() uint64 { return k.token }",
		want:  "func (k *Lock) Token() uint64 { return k.Revision() }",
		check: "crash",
		sign:  "a token must not change",
	},
	{
		name:  "writes are not fenced",
		file:  "kvlock/bucket/write.go",
		have:  "if w.Fence != \"\" {\n\t\tm.Header[hdrLastSubject]",
		want:  "if w.Fence != \"\" {\n\t\tdelete(m.Header, hdrLast)\n\t}\n\tif w.Fence == \"-\" {\n\t\tm.Header[hdrLastSubject]",
		check: "pause",
		sign:  "fenced with the old token was stored",
	},
	{
		name:  "a hold does not look at the clock",
		file:  "kvlock/bucket/lease.go",
		have:  "return min(t.until.Sub(now), t.until.Round(0).Sub(now.Round(0)))",
		want:  "_ = now\n\treturn time.Hour",
		check: "pause",
		sign:  "still believes",
	},
	{
		name:  "a lock is taken without looking whether it is free",
		file:  "kvlock/bucket/write.go",
		have:  "m := &nats.Msg{Subject: b.publish + w.Key, Data: w.Value, Header: nats.Header{\n\t\thdrLast: {strconv.FormatUint(w.Last, 10)},\n\t}}",
		want:  "m := &nats.Msg{Subject: b.publish + w.Key, Data: w.Value, Header: nats.Header{}}\n\tif w.Last != 0 {\n\t\tm.Header[hdrLast] = []string{strconv.FormatUint(w.Last, 10)}\n\t}",
		check: "load",
		sign:  "lost the lock|while p",
	},
	{
		name:  "a death shares everything out anew",
		file:  "claim/plan/make.go",
		have:  "p.base[i] = part.Target",
		want:  "p.base[i] = part.Target\n\t\t\tif len(p.in.Workers) == 2 {\n\t\t\t\tp.base[i] = i % 2\n\t\t\t}",
		check: "worker",
		sign:  "though its worker lives",
	},
	{
		name:  "a worker that died is waited for",
		file:  "claim/claimer.go",
		have:  "o.rejoin = min(o.rejoin, lease.TTL)",
		want:  "o.rejoin = MaxRejoinDelay",
		check: "worker",
		sign:  "runs elsewhere after",
	},
}

// A tool that cannot fail proves nothing.
func TestVerifyFindsWhatEachBrokenBuildBreaks(t *testing.T) {
	if testing.Short() || natstest.Race {
		t.Skip("builds the program once for each")
	}
	_, url := startServer(t, "--log-level", "error")
	for _, b := range brokenBuilds {
		t.Run(strings.ReplaceAll(b.name, " ", "_"), func(t *testing.T) {
			code, result, stderr := verify(t, b.build(t), append(short, "--server", url, "--only", b.check)...)
			if code != 1 || result.OK || len(result.Checks) != 1 || result.Checks[0].OK {
				t.Fatalf("verify = %d, %+v, want 1 and a check that is not ok; stderr %s", code, result, stderr)
			}
			if wrong := result.Checks[0].Wrong; !slices.ContainsFunc(wrong, func(s string) bool { return regexp.MustCompile(b.sign).MatchString(s) }) {
				t.Errorf("wrong = %q, want one with %q", wrong, b.sign)
			}
		})
	}
}

// build builds the program. The broken file lies outside of the tree.
func (b brokenBuild) build(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(root, filepath.FromSlash(b.file))
	code, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(code), b.have); n != 1 {
		t.Fatalf("%s: have %d times, want once: %s", b.file, n, b.have)
	}
	tmp := t.TempDir()
	broken, overlay, out := filepath.Join(tmp, "broken.go"), filepath.Join(tmp, "overlay.json"), filepath.Join(tmp, "tenure")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{source: broken}})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{broken: strings.Replace(string(code), b.have, b.want, 1), overlay: string(replace)} {
		if err := os.WriteFile(name, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-overlay", overlay, "-o", out, "tenure").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return out
}
