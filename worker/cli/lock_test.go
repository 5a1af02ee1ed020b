package cli_test

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"tenure/embedded"
)

// K74
func TestChildsExitCodeIsOurs(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	tests := []struct {
		script string
		want   int
	}{
		{"exit 0", 0},
		{"exit 7", 7},
		{"exit 75", 75},
		{"kill -TERM $$", 128 + 15},
		{"kill -KILL $$", 128 + 9},
	}
	for _, tt := range tests {
		code, out, stderr := tenure(t, "lock", "--server", url, "job", "--", "sh", "-c", tt.script)
		if code != tt.want || out != "" || stderr != "" {
			t.Errorf("lock with %q = %d, %q, %q, want %d and no output", tt.script, code, out, stderr, tt.want)
		}
	}
}

func TestChildIsToldOfItsLock(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	const script = `printf '%s|%s|%s|%s\n' "$TENURE_LOCK" "$TENURE_BUCKET" "$TENURE_OWNER" "$FROM_OUTSIDE"; echo "$TENURE_TOKEN"; cat; echo error >&2`
	var tokens []uint64
	for range 2 {
		p := &process{Cmd: exec.Command(binary, "lock", "a b", "--owner", "me", "--server", url, "--", "sh", "-c", script, "--", "-x"), t: t, done: make(chan struct{})}
		p.Env = []string{"PATH=" + os.Getenv("PATH"), "FROM_OUTSIDE=yes", "TENURE_OWNER=someone", "TENURE_TOKEN=1"}
		p.Stdin, p.Stdout, p.Stderr = strings.NewReader("input\n"), &p.out, &p.err
		p.launch()
		code := p.code()
		lines := strings.Split(p.out.String(), "\n")
		if code != 0 || len(lines) != 4 || lines[0] != "a b|tenure|me|yes" || lines[2] != "input" || p.err.String() != "error\n" {
			t.Fatalf("lock = %d, %q, %q, want the environment, the token and the input", code, lines, p.err.String())
		}
		token, err := strconv.ParseUint(lines[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, token)
	}
	if tokens[0] == 0 || tokens[1] <= tokens[0] {
		t.Errorf("tokens = %d, want them to grow", tokens)
	}
}

func TestHeldLock(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	holder, lines := runLines(t, "lock", "--server", url, "--owner", "me", "job", "--", "sh", "-c", `echo "$TENURE_TOKEN"; exec sleep 1000`)
	token := nextLine(t, lines)

	for _, args := range [][]string{{"--try"}, {"--wait", "0s"}, {"--wait", "300ms"}} {
		args = append(append([]string{"lock", "--server", url, "job"}, args...), "--", "echo", "started")
		code, out, stderr := tenure(t, args...)
		if got := message(t, stderr); code != 75 || out != "" || !strings.Contains(got, `held by "me" since `) || !strings.Contains(got, "(token "+token+")") {
			t.Errorf("%q = %d, %q, %s, want 75, nothing, the holder", args, code, out, got)
		}
	}

	waiter, _ := runLines(t, "lock", "--server", url, "job", "--wait", "30s", "--", "sh", "-c", "exit 4")
	holder.signal(syscall.SIGTERM)
	if code := holder.code(); code != 128+15 {
		t.Errorf("holder = %d, want 143", code)
	}
	if code := waiter.code(); code != 4 {
		t.Errorf("waiter = %d, want its child's 4; stderr %s", code, waiter.err.String())
	}
}

func TestLockIsFreeTheMomentTheChildHasEnded(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	for range 3 {
		code, _, stderr := tenure(t, "lock", "--server", url, "job", "--try", "--", "sh", "-c", `trap "" TERM; sleep 1000 & exit 3`)
		if code != 3 {
			t.Errorf("lock = %d, want 3; stderr %s", code, stderr)
		}
	}
}

// K76, N80: the second starter comes when the job has ended.
func TestShortJobRunsOnceWithinItsMinimumHold(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	began := time.Now()
	job := func(flags ...string) (int, string, string) {
		return tenure(t, append(append([]string{"lock", "--server", url, "--owner", "me", "--min-hold", "4s", "job"}, flags...), "--", "echo", "ran")...)
	}
	if code, out, stderr := job("--try"); code != 0 || out != "ran\n" {
		t.Fatalf("lock = %d, %q, %s, want 0 and the job's output", code, out, stderr)
	}
	second, out, stderr := job("--try")
	listed, locks, _ := tenure(t, "locks", "--server", url, "--json")
	if took := time.Since(began); took > 3900*time.Millisecond {
		t.Skipf("it took %v to look", took) // a very slow machine
	}
	if second != 75 || out != "" || !strings.Contains(stderr, "minimum") {
		t.Errorf("lock = %d, %q, %s, want 75 and why", second, out, stderr)
	}
	if listed != 0 || !strings.Contains(locks, `"resting"`) {
		t.Errorf("locks = %d, %s, want a resting lock", listed, locks)
	}
	if code, out, stderr := job("--wait", "30s"); code != 0 || out != "ran\n" {
		t.Errorf("lock = %d, %q, %s, want the job to run again", code, out, stderr)
	}
	if took := time.Since(began); took < 4*time.Second {
		t.Errorf("it ran again after %v, want 4s", took)
	}
	if code, _, _ := tenure(t, "lock", "--server", url, "--min-hold", "-1s", "job", "--", "true"); code != 2 {
		t.Errorf("lock with a bad minimum = %d, want 2", code)
	}
}

// K72
func TestEverySignalReachesTheWholeGroup(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	// The child runs its trap when the grandchild has ended.
	const script = `trap "echo child" $0; sh -c 'trap "echo grandchild; exit" $0; echo ready; while :; do sleep 0.01; done' $0; exit 5`
	signals := map[string]syscall.Signal{
		"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT,
		"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "ALRM": syscall.SIGALRM, "WINCH": syscall.SIGWINCH, "ABRT": syscall.SIGABRT,
	}
	for name, number := range signals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, lines := runLines(t, "lock", "--server", url, "job-"+name, "--", "sh", "-c", script, name)
			if got := nextLine(t, lines); got != "ready" {
				t.Fatalf("line = %q, want ready", got)
			}
			p.signal(number)
			rest, err := io.ReadAll(lines)
			if err != nil {
				t.Fatal(err)
			}
			if code := p.code(); code != 5 || string(rest) != "grandchild\nchild\n" {
				t.Errorf("lock = %d, %q, want 5, both told; stderr %s", code, rest, p.err.String())
			}
		})
	}
}

// K71
func TestSignalWhileWaitingEndsTheTool(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	holder, lines := runLines(t, "lock", "--server", url, "job", "--", "sh", "-c", "echo ready; exec sleep 1000")
	nextLine(t, lines)
	for _, number := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1} {
		p := begin(t, nil, "lock", "--server", url, "job", "--log-level", "debug", "--", "echo", "started")
		time.Sleep(300 * time.Millisecond)
		p.signal(syscall.SIGCONT) // does nothing
		p.signal(number)
		if code := p.code(); code != 128+int(number) || p.out.String() != "" {
			t.Errorf("lock = %d, %q, want %d, nothing; stderr %s", code, p.out.String(), 128+int(number), p.err.String())
		}
	}
	holder.signal(syscall.SIGKILL)
}

// K73: the server is stopped, so no renewal is answered. The child ignores SIGTERM.
func TestChildIsEndedBeforeTrustEnds(t *testing.T) {
	t.Parallel()
	server, url := startServer(t)
	p, lines := runLines(t, "lock", "--server", url, "--ttl", "4s", "job", "--", "sh", "-c",
		`trap "echo term" TERM; echo $$; while :; do sleep 0.01; done`)
	pid := atoi(t, nextLine(t, lines))
	time.Sleep(2 * time.Second) // renewals go well
	stopped := time.Now()
	server.signal(syscall.SIGSTOP)
	defer func() { _ = server.Process.Signal(syscall.SIGCONT) }()

	if got := nextLine(t, lines); got != "term" {
		t.Errorf("line = %q, want term", got)
	}
	eventually(t, "child is killed", func() bool { return syscall.Kill(pid, 0) != nil })
	// TTL 4 s less margin 500 ms, from no later than the stop; and 100 ms before.
	if took, most := time.Since(stopped), 3400*time.Millisecond; took > most {
		t.Errorf("child ended %v after the last renewal, want at most %v", took, most)
	}
	if code := p.code(); code != 76 {
		t.Errorf("lock = %d, want 76; stderr %s", code, p.err.String())
	}
}

func TestPausedToolKillsItsChildAtOnce(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	p, lines := runLines(t, "lock", "--server", url, "--ttl", "2s", "job", "--", "sh", "-c", `trap "" TERM; echo $$; while :; do sleep 0.01; done`)
	pid := atoi(t, nextLine(t, lines))
	p.signal(syscall.SIGSTOP)
	code, out, stderr := tenure(t, "lock", "--server", url, "--ttl", "2s", "--wait", "20s", "job", "--", "echo", "mine")
	if code != 0 || out != "mine\n" {
		t.Errorf("lock of another = %d, %q, %s, want it to get the lock", code, out, stderr)
	}
	p.signal(syscall.SIGCONT)
	resumed := time.Now()
	eventually(t, "child is killed", func() bool { return syscall.Kill(pid, 0) != nil })
	if took := time.Since(resumed); took > most(time.Second) {
		t.Errorf("child ended %v after the tool went on, want at once", took)
	}
	if code := p.code(); code != 76 {
		t.Errorf("lock = %d, want 76; stderr %s", code, p.err.String())
	}
}

func TestCrashedToolTakesItsChildWithItAndFreesTheLockInTime(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	p, lines := runLines(t, "lock", "--server", url, "--ttl", "2s", "job", "--", "sh", "-c", `trap "" TERM; echo $$; while :; do sleep 0.01; done`)
	pid := atoi(t, nextLine(t, lines))
	p.signal(syscall.SIGKILL)
	eventually(t, "child is killed", func() bool { return syscall.Kill(pid, 0) != nil })
	begun := time.Now()
	code, _, stderr := tenure(t, "lock", "--server", url, "--wait", "20s", "job", "--", "true")
	if took := time.Since(begun); code != 0 || took > most(4*time.Second) {
		t.Errorf("lock = %d after %v, want 0 within the TTL; stderr %s", code, took, stderr)
	}
}

func TestLockNames(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	long := strings.Repeat("x", 200)
	for _, name := range []string{"a.b", "a b", "ä", "*", ">", "..", "a/b", "=41", "\xff\xfe", "line\nbreak", "A", "a", long} {
		code, out, stderr := tenure(t, "lock", "--server", url, name, "--try", "--", "sh", "-c", `printf %s "$TENURE_LOCK"`)
		if code != 0 || out != name {
			t.Errorf("lock %q = %d, %q, want 0 and its name; stderr %s", name, code, out, stderr)
		}
	}
	for _, name := range []string{"", long + "x"} {
		code, out, stderr := tenure(t, "lock", "--server", url, name, "--", "echo", "started")
		if code != 2 || out != "" || !strings.Contains(message(t, stderr), "want 1 to 200 bytes") {
			t.Errorf("lock %q = %d, %q, %s, want 2, nothing, the limit", name, code, out, stderr)
		}
	}
}

func TestWrongUseOfLock(t *testing.T) {
	t.Parallel()
	const command = "expected -- and the command to run after the name and the flags; see --help"
	tests := []struct {
		args []string
		code int
		want string
	}{
		{[]string{"job"}, 2, command},
		{[]string{"job", "--"}, 2, command},
		{[]string{"job", "true"}, 2, command},
		{[]string{"job", "--tyr", "--", "true"}, 2, `unknown flag --tyr, did you mean one of "--ttl", "--try"?; see --help`},
		{[]string{"job", "--try", "--wait", "1s", "--", "true"}, 2, "--try and --wait can't be used together; see --help"},
		{[]string{"job", "--wait=-1s", "--", "true"}, 2, "--wait: have -1s, want 0s or more"},
		{[]string{"job", "--ttl", "0s", "--", "true"}, 2, "--ttl: have 0s, want whole seconds, at least 2s"},
		{[]string{"job", "--ttl", "1s", "--", "true"}, 2, "--ttl: have 1s, want whole seconds, at least 2s"},
		{[]string{"job", "--ttl", "2500ms", "--", "true"}, 2, "--ttl: have 2.5s, want whole seconds, at least 2s"},
		{[]string{"job", "--ttl=-5s", "--", "true"}, 2, "--ttl: have -5s, want whole seconds, at least 2s"},
		{[]string{"job", "--ttl", "2m", "--", "true"}, 2, `kvlock: TTL: have 2m0s, want at most 1m0s, the largest TTL of bucket "tenure"`},
		{[]string{"job", "--", "/no/such/program"}, 1, `run "/no/such/program": stat /no/such/program: no such file or directory`},
		{[]string{"job", "--no-create", "--bucket", "none", "--", "true"}, 1, `bucket "none": bucket cannot be used: it does not exist`},
	}
	_, url := startServer(t)
	for _, tt := range tests {
		code, out, stderr := tenure(t, append([]string{"lock", "--server", url}, tt.args...)...)
		if got := message(t, stderr); code != tt.code || out != "" || got != tt.want {
			t.Errorf("lock %q = %d, %q, %s, want %d, nothing, %s", tt.args, code, out, got, tt.code, tt.want)
		}
	}
}

func TestDeniedSubjectIsNamed(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		denied string
		want   string // the subject in the message
	}{
		{"bucket", "$JS.API.STREAM.INFO.>", "$JS.API.STREAM.INFO.KV_tenure"},
		{"key", "$KV.tenure.lock.job", "$KV.tenure.lock.job"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, err := embedded.Start(embedded.Listen("127.0.0.1:0"), embedded.Tune(func(o *server.Options) {
				o.Users = []*server.User{
					{Username: "admin", Password: "x"},
					{Username: "joe", Password: "x", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{tt.denied}}}},
				}
			}))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Stop)
			code, _, stderr := tenure(t, "init", "--fresh", "--server", s.URL(), "--user", "admin", "--password", "x")
			if code != 0 {
				t.Fatalf("init = %d, %s, want 0", code, stderr)
			}
			code, out, stderr := tenure(t, "lock", "--server", s.URL(), "--user", "joe", "--password", "x", "job", "--", "echo", "started")
			lines := strings.Split(strings.TrimSpace(stderr), "\n")
			if got := message(t, lines[len(lines)-1]); code != 77 || out != "" || !strings.Contains(got, `"`+tt.want+`"`) {
				t.Errorf("lock = %d, %q, %s, want 77, nothing, %s", code, out, got, tt.want)
			}
			code, _, stderr = tenure(t, "lock", "--server", s.URL(), "--user", "joe", "--password", "wrong", "job", "--", "true")
			if got := message(t, stderr); code != 1 || !strings.Contains(got, "refused the login") {
				t.Errorf("lock with a wrong password = %d, %s, want 1, the reason", code, got)
			}
		})
	}
}

// runLines starts the program and returns what it prints, as it comes.
func runLines(t *testing.T, args ...string) (*process, *bufio.Reader) {
	t.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(binary, args...), t: t, done: make(chan struct{})}
	p.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	p.Stdout, p.Stderr = in, &p.err
	p.launch()
	_ = in.Close()
	t.Cleanup(func() { _ = out.Close() })
	return p, bufio.NewReader(out)
}

func nextLine(t *testing.T, lines *bufio.Reader) string {
	t.Helper()
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatalf("line = %q, %v, want one", line, err)
	}
	return string(bytes.TrimSuffix([]byte(line), []byte("\n")))
}

func atoi(t *testing.T, digits string) int {
	t.Helper()
	n, err := strconv.Atoi(digits)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
