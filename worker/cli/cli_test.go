package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tenure/embedded/natstest"
)

// binary is the program under test, built once.
var binary string

func TestMain(m *testing.M) {
	if spec := os.Getenv(workerEnv); spec != "" {
		if err := runWorker(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "tenure-cli-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		binary = filepath.Join(dir, "tenure")
		args := []string{"build", "-buildvcs=false", "-o", binary}
		if natstest.Race {
			args = append(args, "-race")
		}
		build := exec.Command("go", append(args, "tenure")...)
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// A process is one run of the program.
type process struct {
	*exec.Cmd
	t    *testing.T
	out  output
	err  output
	done chan struct{}
}

// An output is what a process has written so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(data []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(data)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// begin starts the program. Its environment has nothing of ours that it listens
// to, and env on top.
func begin(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(binary, args...), t: t, done: make(chan struct{})}
	p.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, env...)
	p.Stdout, p.Stderr = &p.out, &p.err
	p.WaitDelay = time.Second
	p.launch()
	return p
}

// launch starts p and waits for it in the background.
func (p *process) launch() {
	p.t.Helper()
	// The race detector would let every process sleep for a second before its end.
	p.Env = append(p.Env, "GORACE=atexit_sleep_ms=0")
	if err := startTied(p.Cmd); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.Wait() // the state says the same
	}()
	p.t.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.done
	})
}

// code waits for the end and returns the exit code, 128+n after signal n as a
// shell has it.
func (p *process) code() int {
	p.t.Helper()
	return p.codeWithin(time.Minute)
}

func (p *process) codeWithin(limit time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(limit):
		p.t.Fatalf("%q still runs after %v; stderr %s", p.Args, limit, p.err.String())
	}
	if status := p.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal())
	}
	return p.ProcessState.ExitCode()
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.Process.Signal(s); err != nil {
		p.t.Fatalf("Signal = %v, want nil", err)
	}
}

// tenure runs the program to its end and returns the exit code and its output.
func tenure(t *testing.T, args ...string) (code int, out, err string) {
	t.Helper()
	p := begin(t, nil, args...)
	code = p.code()
	return code, p.out.String(), p.err.String()
}

// message returns the text of the one JSON line that stderr has to be.
func message(t *testing.T, stderr string) string {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
	var record struct{ Level, Msg string }
	if err := json.Unmarshal([]byte(lines[0]), &record); err != nil || len(lines) != 1 || record.Level != "ERROR" {
		t.Fatalf("stderr = %q, want one line with an error", stderr)
	}
	return record.Msg
}

// startServer runs `tenure server` with args and returns it and its address.
func startServer(t *testing.T, args ...string) (*process, string) {
	t.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{
		Cmd: exec.Command(binary, append([]string{"server", "--listen", "127.0.0.1:0"}, args...)...),
		t:   t, done: make(chan struct{}),
	}
	p.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	p.Stdout, p.Stderr = in, &p.err
	p.launch()
	_ = in.Close()
	t.Cleanup(func() { _ = out.Close() })
	line, err := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "listening on ")
	if err != nil || !ok {
		t.Fatalf("first line = %q, %v, want the address; stderr %s", line, err, p.err.String())
	}
	return p, url
}

// most returns the time limit d, or more of it under the race detector, which slows
// every process down, next to the tests of other packages.
func most(d time.Duration) time.Duration {
	if natstest.Race {
		return 4 * d
	}
	return d
}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !holds() {
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}
