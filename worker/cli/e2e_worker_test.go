package cli_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tenure/claim"
	"tenure/kvlock/bucket"
	"tenure/worker"
)

// workerEnv is set for a run of the test binary that is to be a worker.
const workerEnv = "TENURE_E2E_WORKER"

// A job is what the workers of a test do: handle the messages of a stream with
// one write to a guard each.
type job struct {
	URL        string
	Group      string
	Partitions int
	Stream     string
	Filter     string
	TTL        time.Duration
	Guard      string // its address
	ID         string // of the worker
}

// A fleet starts workers, each a process of its own in a session of its own.
type fleet func(t *testing.T, j job) *process

// taskWorker is a [fleet] of processes that run a pool with a handler in Go.
func taskWorker(t *testing.T, j job) *process {
	t.Helper()
	spec, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	return spawn(t, []string{workerEnv + "=" + string(spec)}, os.Args[0])
}

// commandWorker is a [fleet] of `tenure work` with a command per message.
func commandWorker(t *testing.T, j job) *process {
	t.Helper()
	return spawn(t, []string{"E2E_GUARD=" + j.Guard}, binary, "work", j.Group, "--server", j.URL, "--id", j.ID,
		"--partitions", fmt.Sprint(j.Partitions), "--ttl", j.TTL.String(), "--stream", j.Stream, "--filter", j.Filter,
		"--log-level", "debug", "--", buildGuarded(t))
}

// spawn starts a program as the leader of a session and its first process group,
// which is killed when the test ends. What the program starts in groups of their own
// ends with it.
func spawn(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(args[0], args[1:]...), t: t, done: make(chan struct{})}
	p.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, env...)
	p.Stdout, p.Stderr = &p.out, &p.err
	p.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	p.WaitDelay = time.Second
	p.launch()
	t.Cleanup(func() {
		_ = syscall.Kill(-p.Process.Pid, syscall.SIGKILL) // if there is anybody left
		<-p.done
		if t.Failed() {
			keepLog(t, p)
		}
	})
	return p
}

// keepLog keeps what a process said, for whoever has to find out why a test failed.
func keepLog(t *testing.T, p *process) {
	t.Helper()
	var text strings.Builder
	for line := range strings.Lines(p.err.String()) {
		if !strings.Contains(line, `"fx":`) {
			text.WriteString(line)
		}
	}
	name := filepath.Join(t.ArtifactDir(), fmt.Sprintf("%s-%d.log", filepath.Base(p.Path), p.Process.Pid))
	if err := os.WriteFile(name, []byte(text.String()), 0o600); err != nil {
		t.Log(err)
	}
	const most = 4000
	tail := text.String()
	tail = tail[max(0, len(tail)-most):]
	t.Logf("process %d, the end of %s:\n%s", p.Process.Pid, name, tail)
}

// signalGroup sends s to the process group that p leads.
func (p *process) signalGroup(s syscall.Signal) {
	p.t.Helper()
	if err := syscall.Kill(-p.Process.Pid, s); err != nil {
		p.t.Fatalf("kill = %v, want nil", err)
	}
}

var guarded struct {
	sync.Once
	path string
	err  error
}

// buildGuarded builds the command that handles a message, once.
func buildGuarded(t *testing.T) string {
	t.Helper()
	guarded.Do(func() {
		guarded.path = filepath.Join(filepath.Dir(binary), "guarded")
		build := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", guarded.path, "./testdata/guarded")
		if out, err := build.CombinedOutput(); err != nil {
			guarded.err = fmt.Errorf("build: %w\n%s", err, out)
		}
	})
	if guarded.err != nil {
		t.Fatal(guarded.err)
	}
	return guarded.path
}

// runWorker is the main function of a worker that is a run of the test binary. It
// does what `tenure work` does, with a handler in Go.
func runWorker(spec string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var j job
	if err := json.Unmarshal([]byte(spec), &j); err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	nc, err := nats.Connect(j.URL, bucket.ConnOptions()...)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	claimer, err := claim.New(ctx, js, j.Group,
		claim.WithPartitions(claim.Numbered(j.Partitions)...), claim.WithID(j.ID), claim.WithTTL(j.TTL), claim.WithLogger(log))
	if err != nil {
		return err
	}
	task := &worker.Stream{
		JS: js, Stream: j.Stream, Filter: j.Filter, Log: log,
		Handle: func(_ context.Context, p worker.Partition, m *worker.Message) error { return handle(j.Guard, p, m) },
	}
	pool, err := worker.NewPool([]*claim.Claimer{claimer}, task, log)
	if err != nil {
		return err
	}
	return pool.Run(ctx)
}

// handle handles a message as the command does. It asks neither whether the hold
// has ended nor what became of its write: that is left to the worker and the guard.
func handle(guard string, p worker.Partition, m *worker.Message) error {
	conn, err := net.Dial("unix", guard)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	ask := func(line string) error {
		if _, err := conn.Write([]byte(line + "\n")); err != nil {
			return err
		}
		_, err := in.ReadString('\n')
		return err
	}
	key := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	if err := ask(fmt.Sprint(p.Worker(), " ", p.Name(), " ", p.Token(), " ", m.Sequence, " ", key, " ", os.Getpid())); err != nil {
		return err
	}
	return ask("write")
}
