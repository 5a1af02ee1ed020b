package cli_test

import (
	"bufio"
	"encoding/json"
	"strings"
	"syscall"
	"testing"
)

// startCandidate stands in the election "job" with a command that prints its token and
// ends by SIGTERM, which it says.
func startCandidate(t *testing.T, url, owner string) (*process, *bufio.Reader) {
	t.Helper()
	return runLines(t, "elect", "job", "--server", url, "--owner", owner, "--value", owner+" value", "--ttl", "30s", "--",
		"sh", "-c", `trap "echo term; exit 9" TERM; echo "$TENURE_TOKEN"; echo "$TENURE_LOCK,$TENURE_OWNER,$TENURE_VALUE"; while :; do sleep 0.01; done`)
}

func TestOneCandidateLeadsUntilItsCommandEndsAndTheNextFollows(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	watch, seen := runLines(t, "elect", "job", "--watch", "--server", url)
	if got, want := nextLine(t, seen), `nobody leads "job"`; got != want {
		t.Fatalf("watch shows %q, want %q", got, want)
	}
	code, out, stderr := tenure(t, "elect", "job", "--show", "--server", url)
	if got, want := message(t, stderr), `nobody leads "job"`; code != 1 || out != "" || got != want {
		t.Errorf("elect --show = %d, %q, %s, want 1, nothing, %s", code, out, got, want)
	}

	first, lines := startCandidate(t, url, "a")
	token := nextLine(t, lines)
	if got, want := nextLine(t, lines), "job,a,a value"; got != want {
		t.Errorf("environment is %q, want %q", got, want)
	}
	if got, want := times.ReplaceAllString(nextLine(t, seen), "TIME"), `"a" leads "job" since TIME (token `+token+`) value "a value"`; got != want {
		t.Errorf("watch shows %q, want %q", got, want)
	}
	code, out, stderr = tenure(t, "elect", "job", "--show", "--json", "--server", url)
	want := `{"name":"job","leader":"a","token":` + token + `,"value":"a value","since":"TIME","expires":"TIME"}` + "\n"
	if got := times.ReplaceAllString(out, "TIME"); code != 0 || got != want || stderr != "" {
		t.Errorf("elect --show --json = %d, %s, %s, want 0, %s", code, got, stderr, want)
	}

	_, next := startCandidate(t, url, "b")
	first.signal(syscall.SIGTERM)
	if code := first.code(); code != 9 {
		t.Errorf("elect = %d, want the 9 of its command; stderr %s", code, first.err.String())
	}
	if got := nextLine(t, lines); got != "term" {
		t.Errorf("line = %q, want term", got)
	}
	if later := nextLine(t, next); atoi(t, later) <= atoi(t, token) {
		t.Errorf("token = %s, want more than %s", later, token)
	}
	watch.signal(syscall.SIGINT)
	if code := watch.code(); code != 0 {
		t.Errorf("elect --watch = %d, want 0; stderr %s", code, watch.err.String())
	}
}

// N85: a candidate that has lost stands again, behind the one that leads now.
func TestCandidateThatHasLostStandsAgain(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	first, lines := startCandidate(t, url, "a")
	tokens := []string{nextLine(t, lines)}
	nextLine(t, lines)
	second, next := startCandidate(t, url, "b")
	eventually(t, "the second stands in line", func() bool {
		state, err := open(t, url).State(t.Context(), "wait.>")
		return err == nil && len(state.Keys) > 0
	})
	if code, _, stderr := tenure(t, "break", "job", "--reason", "a test", "--server", url); code != 0 {
		t.Fatalf("break = %d, %s, want 0", code, stderr)
	}
	if got := nextLine(t, lines); got != "term" {
		t.Errorf("line = %q, want term", got)
	}
	tokens = append(tokens, nextLine(t, next))
	nextLine(t, next)
	second.signal(syscall.SIGTERM)
	if code := second.code(); code != 9 {
		t.Errorf("second = %d, want the 9 of its command", code)
	}
	tokens = append(tokens, nextLine(t, lines)) // the first leads again
	if atoi(t, tokens[0]) >= atoi(t, tokens[1]) || atoi(t, tokens[1]) >= atoi(t, tokens[2]) {
		t.Errorf("tokens = %v, want them to grow", tokens)
	}
	if got := first.err.String(); !strings.Contains(got, "stands again") || !strings.Contains(got, "a test") {
		t.Errorf("log = %s, want why it stands again", got)
	}
}

// The command may take its time after a loss. Who is asked to end meanwhile must not
// stand again, though no command runs that could be told.
func TestCandidateThatIsAskedToEndDoesNotStandAgain(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	p, lines := runLines(t, "elect", "job", "--server", url, "--ttl", "30s", "--",
		"sh", "-c", `trap "echo term" TERM; echo ready; while :; do sleep 0.01; done`)
	nextLine(t, lines)
	if code, _, stderr := tenure(t, "break", "job", "--reason", "a test", "--server", url); code != 0 {
		t.Fatalf("break = %d, %s, want 0", code, stderr)
	}
	if got := nextLine(t, lines); got != "term" {
		t.Errorf("line = %q, want term", got)
	}
	p.signal(syscall.SIGTERM)
	if code := p.code(); code != 128+15 {
		t.Errorf("elect = %d, want 143; stderr %s", code, p.err.String())
	}

	holder, ready := runLines(t, "lock", "job", "--server", url, "--", "sh", "-c", "echo ready; exec sleep 1000")
	nextLine(t, ready)
	waiting := begin(t, nil, "elect", "job", "--server", url, "--", "echo", "started")
	eventually(t, "it stands in line", func() bool {
		state, err := open(t, url).State(t.Context(), "wait.>")
		return err == nil && len(state.Keys) > 0
	})
	waiting.signal(syscall.SIGTERM)
	if code := waiting.code(); code != 128+15 || waiting.out.String() != "" {
		t.Errorf("elect = %d, %q, want 143, nothing; stderr %s", code, waiting.out.String(), waiting.err.String())
	}
	holder.signal(syscall.SIGTERM)
}

func TestElectEndsAsItsCommandEnds(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	tests := []struct {
		script string
		want   int
	}{{"exit 0", 0}, {"exit 76", 76}, {"kill -KILL $$", 128 + 9}}
	for _, tt := range tests {
		code, out, stderr := tenure(t, "elect", "job", "--server", url, "--log-level", "warn", "--", "sh", "-c", tt.script)
		if code != tt.want || out != "" || stderr != "" {
			t.Errorf("elect with %q = %d, %q, %q, want %d and no output", tt.script, code, out, stderr, tt.want)
		}
	}
	watch, seen := runLines(t, "elect", "job", "--watch", "--json", "--server", url)
	var status struct {
		Name, Leader string
		Token        uint64
	}
	if err := json.Unmarshal([]byte(nextLine(t, seen)), &status); err != nil || status.Name != "job" || status.Token != 0 {
		t.Errorf("elect --watch --json shows %+v, %v, want nobody", status, err)
	}
	watch.signal(syscall.SIGTERM)
}

func TestWrongUseOfElect(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	const command = "expected -- and the command to run after the name and the flags; see --help"
	tests := []struct {
		args []string
		code int
		want string
	}{
		{[]string{"job"}, 2, command},
		{[]string{"job", "true"}, 2, command},
		{[]string{"job", "--json", "--", "true"}, 2, "--json is of use with --show or --watch only; see --help"},
		{[]string{"job", "--show", "--watch"}, 2, "--show and --watch can't be used together; see --help"},
		{[]string{"job", "--show", "--", "true"}, 2, "expected either --show, --watch or a command; see --help"},
		{[]string{"job", "--watch", "--value", "x"}, 2, "--value is of use with a command only; see --help"},
		{[]string{"", "--", "true"}, 2, `name "": have 0 bytes, want 1 to 200 bytes`},
		{[]string{"", "--watch"}, 2, `name "": have 0 bytes, want 1 to 200 bytes`},
		{[]string{"job", "--value", strings.Repeat("x", 4097), "--", "true"}, 2, "--value: have 4097 bytes, want at most 4096"},
		{[]string{"job", "--", "/no/such/program"}, 1, `run "/no/such/program": stat /no/such/program: no such file or directory`},
		{[]string{"job", "--no-create", "--bucket", "none", "--", "true"}, 1, `bucket "none": bucket cannot be used: it does not exist`},
	}
	for _, tt := range tests {
		code, out, stderr := tenure(t, append([]string{"elect", "--server", url}, tt.args...)...)
		if got := message(t, stderr); code != tt.code || out != "" || got != tt.want {
			t.Errorf("elect %q = %d, %q, %s, want %d, nothing, %s", tt.args, code, out, got, tt.code, tt.want)
		}
	}
}
