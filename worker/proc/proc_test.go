package proc_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tenure/worker/proc"
)

func TestExitCodeIsTheChilds(t *testing.T) {
	t.Parallel()
	tests := []struct {
		script string
		want   int
	}{
		{"exit 0", 0},
		{"exit 7", 7},
		{"kill -TERM $$", 128 + 15},
		{"kill -KILL $$", 128 + 9},
	}
	for _, tt := range tests {
		g := start(t, sh(tt.script))
		err := g.Wait()
		if got := g.ExitCode(); got != tt.want {
			t.Errorf("ExitCode of %q = %d, want %d", tt.script, got, tt.want)
		}
		if (err == nil) != (tt.want == 0) {
			t.Errorf("Wait of %q = %v, want an error only for a code other than 0", tt.script, err)
		}
	}
}

func TestSignalReachesGrandchildren(t *testing.T) {
	t.Parallel()
	g, lines := startLines(t, sh(`
		trap "wait; echo child; exit 3" TERM
		sh -c 'trap "echo grandchild; exit" TERM; echo ready; while :; do sleep 0.01; done' &
		while :; do sleep 0.01; done`))
	wantLine(t, lines, "ready")
	if err := g.Signal(syscall.SIGTERM); err != nil {
		t.Fatalf("Signal = %v, want nil", err)
	}
	wantLine(t, lines, "grandchild")
	wantLine(t, lines, "child")
	_ = g.Wait()
	if got := g.ExitCode(); got != 3 {
		t.Errorf("ExitCode = %d, want 3", got)
	}
}

func TestNoGrandchildSurvivesTheChild(t *testing.T) {
	t.Parallel()
	g, lines := startLines(t, sh(`trap "" TERM HUP; sleep 1000 & echo $!; exit 0`))
	pid := readPid(t, lines)
	if err := g.Wait(); err != nil {
		t.Errorf("Wait = %v, want nil", err)
	}
	if alive(pid) {
		t.Errorf("grandchild %d runs after Wait, want it killed", pid)
	}
}

func TestKillEndsAGroupThatIgnoresTerm(t *testing.T) {
	t.Parallel()
	g, lines := startLines(t, sh(`trap "" TERM; sleep 1000 & echo $!; echo ready; wait; wait`))
	pid := readPid(t, lines)
	wantLine(t, lines, "ready")
	if err := g.Signal(syscall.SIGTERM); err != nil {
		t.Fatalf("Signal = %v, want nil", err)
	}
	select {
	case <-g.Done():
		t.Fatal("child ended at SIGTERM, want it to ignore that")
	case <-time.After(50 * time.Millisecond):
	}
	if err := g.Kill(); err != nil {
		t.Fatalf("Kill = %v, want nil", err)
	}
	_ = g.Wait()
	if alive(pid) || g.ExitCode() != 128+9 {
		t.Errorf("grandchild alive %v, exit code %d, want false, 137", alive(pid), g.ExitCode())
	}
}

func TestStoppedGroupObeysTerm(t *testing.T) {
	t.Parallel()
	g, lines := startLines(t, sh(`trap "exit 4" TERM; echo ready; while :; do sleep 0.01; done`))
	wantLine(t, lines, "ready")
	if err := g.Signal(syscall.SIGSTOP); err != nil {
		t.Fatalf("Signal(STOP) = %v, want nil", err)
	}
	if err := g.Signal(syscall.SIGTERM); err != nil {
		t.Fatalf("Signal(TERM) = %v, want nil", err)
	}
	_ = g.Wait()
	if got := g.ExitCode(); got != 4 {
		t.Errorf("ExitCode = %d, want 4", got)
	}
}

func TestStopIsNotTakenForTheEnd(t *testing.T) {
	t.Parallel()
	g, lines := startLines(t, sh(`echo ready; sleep 1000`))
	wantLine(t, lines, "ready")
	if err := g.Signal(syscall.SIGSTOP); err != nil {
		t.Fatalf("Signal(STOP) = %v, want nil", err)
	}
	select {
	case <-g.Done():
		t.Error("Done is closed for a stopped child, want it open")
	case <-time.After(50 * time.Millisecond):
	}
	_ = g.Kill()
	_ = g.Wait()
}

func TestSignalAfterTheEndIsRefused(t *testing.T) {
	t.Parallel()
	g := start(t, sh("exit 0"))
	_ = g.Wait()
	if err := g.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Signal = %v, want %v", err, os.ErrProcessDone)
	}
	if err := g.Kill(); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Kill = %v, want %v", err, os.ErrProcessDone)
	}
}

func TestSignalsRaceTheEnd(t *testing.T) {
	t.Parallel()
	for range 50 {
		g := start(t, sh("exit 0"))
		var signallers sync.WaitGroup
		for range 4 {
			signallers.Go(func() {
				for {
					if err := g.Signal(syscall.SIGCONT); err != nil {
						if !errors.Is(err, os.ErrProcessDone) {
							t.Errorf("Signal = %v, want nil or %v", err, os.ErrProcessDone)
						}
						return
					}
				}
			})
		}
		if err := g.Wait(); err != nil {
			t.Errorf("Wait = %v, want nil", err)
		}
		signallers.Wait()
	}
}

func TestContextKillsTheGroup(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", `sleep 1000 & echo $!; wait`)
	g, lines := startLines(t, cmd)
	pid := readPid(t, lines)
	cancel()
	_ = g.Wait()
	if alive(pid) {
		t.Errorf("grandchild %d runs after the context's end, want it killed", pid)
	}
}

func TestDaemonDoesNotHoldUpWait(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("needs setsid")
	}
	pids, pid, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := sh(`setsid sleep 5 & echo $! >&3; exit 0`)
	cmd.ExtraFiles = []*os.File{pid}
	cmd.Stdout = io.Discard
	cmd.Stdout = struct{ io.Writer }{io.Discard} // a pipe, that the daemon keeps open
	cmd.WaitDelay = 50 * time.Millisecond
	g := start(t, cmd)
	_ = pid.Close()
	daemon := readPid(t, scan(pids))
	t.Cleanup(func() { _ = syscall.Kill(daemon, syscall.SIGKILL) })
	begun := time.Now()
	if err := g.Wait(); err != nil {
		t.Errorf("Wait = %v, want nil", err)
	}
	if took := time.Since(begun); took > 2*time.Second {
		t.Errorf("Wait took %v, want about the wait delay", took)
	}
}

func TestStartSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	if _, err := proc.Start(exec.Command("/no/such/program")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Start = %v, want %v", err, os.ErrNotExist)
	}
}

func TestShutGateStartsNothing(t *testing.T) {
	t.Parallel()
	var gate proc.Gate
	g, err := gate.Start(sh("exit 0"))
	if err != nil {
		t.Fatalf("Start = %v, want nil", err)
	}
	_ = g.Wait()
	gate.Shut()
	if _, err := gate.Start(sh("exit 0")); !errors.Is(err, proc.ErrShut) {
		t.Errorf("Start = %v, want %v", err, proc.ErrShut)
	}
}

// The child must not die with the thread that asked for it.
func TestChildOutlivesTheThreadThatStartedIt(t *testing.T) {
	t.Parallel()
	started := make(chan *proc.Group)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		g, err := proc.Start(sh("sleep 0.3; exit 5"))
		if err != nil {
			t.Error(err)
		}
		started <- g
	}()
	g := <-started
	_ = g.Wait()
	if got := g.ExitCode(); got != 5 {
		t.Errorf("ExitCode = %d, want 5", got)
	}
}

// The test binary is its own child here: it starts a sleeper and is killed.
func TestChildDiesWithItsParent(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs Pdeathsig")
	}
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), parentEnv+"=1")
	g, lines := startLines(t, parent)
	pid := readPid(t, lines)
	if !alive(pid) {
		t.Fatalf("child %d is not running", pid)
	}
	if err := syscall.Kill(g.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = g.Wait()
	for begun := time.Now(); alive(pid); time.Sleep(time.Millisecond) {
		if time.Since(begun) > 5*time.Second {
			t.Fatalf("child %d runs 5 s after its parent was killed", pid)
		}
	}
}

// SIGKILL of the parent: the kernel ends the child, the warden what the child has
// started. A group that has ended before is nobody's business any more.
func TestGrandchildDiesWithItsGrandparent(t *testing.T) {
	t.Parallel()
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), parentEnv+"=warden")
	g, lines := startLines(t, parent)
	pid := readPid(t, lines)
	if !alive(pid) {
		t.Fatalf("grandchild %d is not running", pid)
	}
	if err := syscall.Kill(g.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = g.Wait()
	for begun := time.Now(); alive(pid); time.Sleep(time.Millisecond) {
		if time.Since(begun) > 5*time.Second {
			t.Fatalf("grandchild %d runs 5 s after its grandparent was killed", pid)
		}
	}
}

func TestWardenKillsOnlyTheGroupsThatAreLeft(t *testing.T) {
	ended, left, free := start(t, sh("sleep 1000")), start(t, sh("sleep 1000")), start(t, sh("sleep 1000"))
	guard := exec.Command(os.Args[0])
	guard.Env = append(os.Environ(), parentEnv+"=guard")
	guard.Stdin = strings.NewReader(fmt.Sprintf("+%d\n+%d\nnonsense\n\n+1\n+0\n-%d\n", ended.Pid(), left.Pid(), ended.Pid()))
	if err := guard.Run(); err != nil {
		t.Fatal(err)
	}
	if err := left.Wait(); err == nil {
		t.Error("the group that was left ended with 0, want SIGKILL")
	}
	if !alive(ended.Pid()) || !alive(free.Pid()) {
		t.Error("the warden killed a group that had ended for it, or that it was not told of")
	}
}

func TestWaitingTakesNoThreads(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs pidfd")
	}
	before := threads(t)
	var groups []*proc.Group
	for range 50 {
		groups = append(groups, start(t, exec.Command("sleep", "1000")))
	}
	time.Sleep(50 * time.Millisecond)
	if more := threads(t) - before; more > 20 {
		t.Errorf("50 children take %d threads, want a handful", more)
	}
	for _, g := range groups {
		_ = g.Kill()
		_ = g.Wait()
	}
}

const parentEnv = "PROC_TEST_PARENT"

func TestMain(m *testing.M) {
	switch os.Getenv(parentEnv) {
	case "guard":
		proc.Guard(os.Stdin)
		os.Exit(0)
	case "warden":
		guard := exec.Command(os.Args[0])
		guard.Env = []string{parentEnv + "=guard"}
		if _, err := proc.Ward(guard); err != nil {
			os.Exit(1)
		}
		child := sh("read go; sleep 1000 & echo $!; wait")
		child.Stdout = os.Stdout
		in, err := child.StdinPipe()
		if err != nil {
			os.Exit(1)
		}
		if g, err := proc.Start(child); err == nil {
			_, _ = in.Write([]byte("\n")) // the warden has been told by now
			_ = g.Wait()
		}
		os.Exit(1)
	}
	if os.Getenv(parentEnv) != "" {
		g, err := proc.Start(exec.Command("sleep", "1000"))
		if err != nil {
			os.Exit(1)
		}
		_, _ = os.Stdout.WriteString(strconv.Itoa(g.Pid()) + "\n")
		_ = g.Wait()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func sh(script string) *exec.Cmd { return exec.Command("/bin/sh", "-c", script) }

func start(t *testing.T, cmd *exec.Cmd) *proc.Group {
	t.Helper()
	g, err := proc.Start(cmd)
	if err != nil {
		t.Fatalf("Start = %v, want nil", err)
	}
	t.Cleanup(func() { _ = g.Kill(); _ = g.Wait() })
	return g
}

// startLines starts cmd and returns the lines of its output.
func startLines(t *testing.T, cmd *exec.Cmd) (*proc.Group, *bufio.Scanner) {
	t.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = in
	g := start(t, cmd)
	_ = in.Close()
	t.Cleanup(func() { _ = out.Close() })
	return g, scan(out)
}

func scan(r io.Reader) *bufio.Scanner { return bufio.NewScanner(r) }

func wantLine(t *testing.T, lines *bufio.Scanner, want string) {
	t.Helper()
	if !lines.Scan() || lines.Text() != want {
		t.Fatalf("line = %q, want %q", lines.Text(), want)
	}
}

func readPid(t *testing.T, lines *bufio.Scanner) int {
	t.Helper()
	lines.Scan()
	pid, err := strconv.Atoi(strings.TrimSpace(lines.Text()))
	if err != nil {
		t.Fatalf("line = %q, want a pid", lines.Text())
	}
	return pid
}

// alive reports whether the process runs; one that waits to be reaped does not.
func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return syscall.Kill(pid, 0) == nil && runtime.GOOS != "linux"
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(after, "Z")
}

func threads(t *testing.T) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(tasks)
}
