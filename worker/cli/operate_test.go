package cli_test

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"tenure/claim"
)

// times stand for nothing that a test could know.
var times = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`)

func TestLocksShowsTheHolders(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	code, out, _ := tenure(t, "locks", "--server", url)
	if want := "LOCK  OWNER  TOKEN  SINCE  EXPIRES  NOTE\n"; code != 0 || out != want {
		t.Errorf("locks = %d, %q, want 0, %q", code, out, want)
	}
	code, out, _ = tenure(t, "locks", "--json", "--server", url)
	if want := `{"locks":[]}` + "\n"; code != 0 || out != want {
		t.Errorf("locks --json = %d, %q, want 0, %q", code, out, want)
	}

	tokens := make(map[string]string)
	for _, name := range []string{"b\n\xff", "a"} {
		_, lines := runLines(t, "lock", "--server", url, "--owner", "me", "--note", "a note", "--ttl", "30s", name, "--", "sh", "-c", `echo "$TENURE_TOKEN"; exec sleep 1000`)
		tokens[name] = nextLine(t, lines)
	}
	code, out, stderr := tenure(t, "locks", "--server", url)
	if code != 0 || stderr != "" {
		t.Errorf("locks = %d, %q, want 0, nothing", code, stderr)
	}
	got := regexp.MustCompile(` +`).ReplaceAllString(times.ReplaceAllString(out, "TIME"), " ")
	want := "LOCK OWNER TOKEN SINCE EXPIRES NOTE\n" +
		"a me " + tokens["a"] + " TIME TIME \"a note\"\n" +
		`"b\n\xff" me ` + tokens["b\n\xff"] + " TIME TIME \"a note\"\n"
	if got != want {
		t.Errorf("locks = %q, want %q", got, want)
	}

	_, out, _ = tenure(t, "locks", "--json", "--server", url)
	var list struct {
		Locks []struct {
			Name, Key, Owner, TTL string
			Token, Revision       uint64
			Since, Expires        time.Time
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Locks) != 2 {
		t.Fatalf("locks --json = %q, %v, want two locks", out, err)
	}
	l := list.Locks[1]
	if l.Key != "lock.b=0A=FF" || l.Owner != "me" || l.TTL != "30s" || l.Token == 0 || l.Revision < l.Token {
		t.Errorf("locks --json shows %+v, want key, owner, TTL, token and revision", l)
	}
	if left := time.Until(l.Expires); left < 10*time.Second || left > 31*time.Second {
		t.Errorf("lock expires in %v, want about its TTL of 30 s", left)
	}
}

func TestBreakEndsTheHolderAndFreesTheLock(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	holder, lines := runLines(t, "lock", "--server", url, "--owner", "me", "--ttl", "30s", "job", "--", "sh", "-c",
		`trap "echo term; exit 1" TERM; echo "$TENURE_TOKEN"; while :; do sleep 0.01; done`)
	token := nextLine(t, lines)
	waiter := begin(t, nil, "lock", "--server", url, "--wait", "1m", "job", "--", "echo", "mine")
	begun := time.Now()
	code, out, stderr := tenure(t, "break", "--server", url, "job", "--reason", "a test")
	out = times.ReplaceAllString(out, "TIME")
	want := `lock "job" of "me" (token ` + token + `) is revoked; it is free when its holder has stopped, or after TIME` + "\n"
	if code != 0 || out != want {
		t.Errorf("break = %d, %q, %s, want 0, %q", code, out, stderr, want)
	}
	if got := nextLine(t, lines); got != "term" {
		t.Errorf("line = %q, want term", got)
	}
	if code := holder.code(); code != 76 || !strings.Contains(holder.err.String(), "a test") {
		t.Errorf("holder = %d, %s, want 76, the reason", code, holder.err.String())
	}
	if code := waiter.code(); code != 0 || waiter.out.String() != "mine\n" {
		t.Errorf("waiter = %d, %q, want it to get the lock", code, waiter.out.String())
	}
	if took := time.Since(begun); took > most(15*time.Second) {
		t.Errorf("lock was free after %v, want at once", took)
	}
}

func TestForcedBreakFreesTheLockOfAStoppedHolder(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	holder, lines := runLines(t, "lock", "--server", url, "--ttl", "60s", "job", "--", "sh", "-c", "echo ready; exec sleep 1000")
	nextLine(t, lines)
	holder.signal(syscall.SIGSTOP)
	code, out, stderr := tenure(t, "break", "--server", url, "job", "--reason", "gone", "--force")
	if code != 0 || !strings.HasSuffix(out, "is free\n") || !strings.Contains(stderr, "only its token is stale") {
		t.Errorf("break = %d, %q, %s, want 0, free, a warning", code, out, stderr)
	}
	code, _, stderr = tenure(t, "lock", "--server", url, "job", "--wait", "10s", "--", "true")
	if code != 0 {
		t.Errorf("lock = %d, %s, want 0", code, stderr)
	}
	holder.signal(syscall.SIGCONT)
	if code := holder.code(); code != 76 {
		t.Errorf("holder = %d, want 76", code)
	}
}

func TestWrongUseOfOperatorCommands(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	tests := []struct {
		args []string
		code int
		want string
	}{
		{[]string{"break", "job"}, 2, "missing flags: --reason=TEXT; see --help"},
		{[]string{"break", "job", "--reason", ""}, 2, `--reason: have "", want a text`},
		{[]string{"break", "job", "--reason", "x"}, 1, "kvlock: holder of \"job\": lock is free; `tenure locks` shows the locks that are held"},
		{[]string{"break", "", "--reason", "x"}, 2, `kvlock: holder of "": name "": have 0 bytes, want 1 to 200 bytes`},
		{[]string{"locks", "--bucket", "none"}, 1, `bucket "none": bucket cannot be used: it does not exist`},
		{[]string{"status", "none"}, 1, "claim: group \"none\": group cannot be used: it does not exist"},
		{[]string{"status"}, 2, `expected "<group>"; see --help`},
	}
	for _, tt := range tests {
		code, out, stderr := tenure(t, append(tt.args, "--server", url)...)
		if got := message(t, stderr); code != tt.code || out != "" || got != tt.want {
			t.Errorf("%q = %d, %q, %s, want %d, nothing, %s", tt.args, code, out, got, tt.code, tt.want)
		}
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	js := connect(t, url)
	claimer, err := claim.New(t.Context(), js, "orders", claim.WithID("a"), claim.WithPartitions("eu", "us 1"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- claimer.Run(ctx, func(_ context.Context, p *claim.Partition) error {
			<-p.Draining()
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
	var status claim.Status
	eventually(t, "both partitions run", func() bool {
		code, out, stderr := tenure(t, "status", "orders", "--json", "--server", url)
		if err := json.Unmarshal([]byte(out), &status); err != nil || code != 0 || strings.Count(out, "\n") != 1 {
			t.Fatalf("status = %d, %q, %s, want one object", code, out, stderr)
		}
		return status.Unassigned == 0 && status.Plan.Moving == 0
	})
	if status.Group != "orders" || len(status.Workers) != 1 || !status.Workers[0].Leader || status.Partitions[1].Name != "us 1" ||
		status.Partitions[0].State != claim.StateRunning || status.Partitions[0].Token == 0 {
		t.Errorf("status = %+v, want it to say what runs", status)
	}

	code, out, _ := tenure(t, "status", "orders", "--server", url)
	got := regexp.MustCompile(`\d{10,}`).ReplaceAllString(regexp.MustCompile(` +`).ReplaceAllString(out, " "), "N")
	want := "group orders: 2 partitions, 0 unassigned, 0 moving, plan N\n\n" +
		"WORKER PARTITIONS EPOCH\na 2 N leader\n\n" +
		"PARTITION STATE WORKER TOKEN ATTEMPTS\neu running a N 0\n\"us 1\" running a N 0\n"
	if code != 0 || got != want {
		t.Errorf("status = %d, %q, want 0, %q", code, got, want)
	}

	watch, lines := runLines(t, "status", "orders", "--json", "--watch", "--server", url)
	nextLine(t, lines)
	cancel()
	for {
		if err := json.Unmarshal([]byte(nextLine(t, lines)), &status); err != nil {
			t.Fatal(err)
		}
		if status.Unassigned == 2 {
			break
		}
	}
	watch.signal(syscall.SIGINT)
	if code := watch.code(); code != 0 {
		t.Errorf("status --watch = %d, want 0; stderr %s", code, watch.err.String())
	}
}
