package worker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tenure/worker"
)

func TestCommandIsToldItsPartition(t *testing.T) {
	t.Parallel()
	var out output
	place := newPlace("7")
	place.checkpoint = []byte(`{"at":3}`)
	task := &worker.Command{
		Args:    []string{"sh", "-c", `echo "$0 $TENURE_GROUP $TENURE_PARTITION $TENURE_TOKEN $TENURE_WORKER $TENURE_BUCKET $TENURE_CHECKPOINT $MINE"`, "part-{partition}-{token}"},
		Restart: worker.RestartOnFailure, Bucket: "b", Env: []string{"MINE=x"}, Stdout: &out,
	}
	launch(t, task, place.gain()).wantReturn(t, nil)
	out.want(t, `part-7-1007 orders 7 1007 w1 b {"at":3} x`)
}

func TestCommandIsNotToldOfAnotherPartition(t *testing.T) {
	t.Setenv("TENURE_SUBJECT", "outer")
	t.Setenv("TENURE_HEADER_A", "outer")
	t.Setenv("TENURE_CHECKPOINT", "outer")
	var out output
	task := &worker.Command{
		Args:    []string{"sh", "-c", `echo "[$TENURE_SUBJECT$TENURE_HEADER_A$TENURE_CHECKPOINT]"`},
		Restart: worker.RestartNever, Stdout: &out,
	}
	launch(t, task, newPlace("7").gain()).wantReturn(t, nil)
	out.want(t, "[]")
}

func TestDrainAsksTheCommandToEnd(t *testing.T) {
	t.Parallel()
	var out output
	task := &worker.Command{Args: shell(`trap "echo asked; exit 3" TERM; echo ready; while :; do sleep 0.01; done`), Stdout: &out}
	r := launch(t, task, newPlace("7").gain())
	out.await(t, "ready")
	r.drain()
	r.wantReturn(t, nil)
	out.want(t, "ready", "asked")
}

func TestDrainKillsTheCommandAfterTheGrace(t *testing.T) {
	t.Parallel()
	var out output
	const grace = 300 * time.Millisecond
	task := &worker.Command{Args: shell(`trap "" TERM; echo ready; while :; do sleep 0.01; done`), Stdout: &out, Grace: grace}
	r := launch(t, task, newPlace("7").gain())
	out.await(t, "ready")
	begun := time.Now()
	r.drain()
	r.wantReturn(t, nil)
	if took := time.Since(begun); took < grace || took > grace+2*time.Second {
		t.Errorf("drain took %v, want the grace of %v", took, grace)
	}
}

func TestEndOfTheHoldKillsTheCommandAtOnce(t *testing.T) {
	t.Parallel()
	var out output
	task := &worker.Command{Args: shell(`trap "" TERM; sleep 1000 & echo $!; echo ready; while :; do sleep 0.01; done`), Stdout: &out, Grace: time.Minute}
	r := launch(t, task, newPlace("7").gain())
	out.await(t, "ready")
	begun := time.Now()
	r.lose()
	r.wantReturn(t, errLost)
	if took := time.Since(begun); took > time.Second {
		t.Errorf("end took %v, want none", took)
	}
	wantDead(t, out.lines()[0])
}

func TestDrainOutrunByTheEndOfTheHoldKills(t *testing.T) {
	t.Parallel()
	var out output
	task := &worker.Command{Args: shell(`trap "" TERM; echo ready; while :; do sleep 0.01; done`), Stdout: &out, Grace: time.Minute}
	r := launch(t, task, newPlace("7").gain())
	out.await(t, "ready")
	r.drain()
	time.Sleep(20 * time.Millisecond)
	r.lose()
	r.wantReturn(t, errLost)
}

// The hold is not renewed. Nothing tells the task; it sees the trust run out.
func TestCommandIsDeadBeforeTrustEnds(t *testing.T) {
	t.Parallel()
	for _, obeys := range []bool{true, false} {
		var out output
		script := `trap "echo asked" TERM; sleep 1000 & echo $!; echo ready; while :; do sleep 0.01; done`
		if obeys {
			script = `trap "echo asked; exit" TERM; sleep 1000 & echo $!; echo ready; while :; do sleep 0.01; done`
		}
		h := newPlace("7").gain()
		h.trusted(2 * time.Second)
		task := &worker.Command{Args: shell(script), Stdout: &out, Restart: worker.RestartNever}
		r := launch(t, task, h)
		out.await(t, "ready")
		pid := out.lines()[0]
		out.await(t, "asked")
		if left := h.Remaining(); left < 300*time.Millisecond || left > time.Second {
			t.Errorf("trust left at SIGTERM = %v, want about half a second", left)
		}
		for alive(pid) {
			time.Sleep(time.Millisecond)
		}
		if left := h.Remaining(); left < 100*time.Millisecond {
			t.Errorf("trust left when the last process ended = %v, want at least 100ms", left)
		}
		r.lose()
		r.wantReturn(t, errLost)
	}
}

func TestRenewalsKeepTheCommandRunning(t *testing.T) {
	t.Parallel()
	var out output
	h := newPlace("7").gain()
	const lease = 1500 * time.Millisecond
	h.trusted(lease)
	task := &worker.Command{Args: shell(`trap "echo asked" TERM; echo ready; while :; do sleep 0.01; done`), Stdout: &out}
	r := launch(t, task, h)
	out.await(t, "ready")
	for range 10 {
		time.Sleep(lease / 3)
		h.trusted(lease)
	}
	out.want(t, "ready")
	r.lose()
	_ = r.wait(t)
}

// The renewal comes when the command was asked to end already.
func TestCommandStartsAgainWhenTheHoldIsRenewedLate(t *testing.T) {
	t.Parallel()
	var out output
	h := newPlace("7").gain()
	h.trusted(2 * time.Second)
	task := &worker.Command{Args: shell(`trap "echo asked; exit" TERM; echo ready; while :; do sleep 0.01; done`), Stdout: &out, Restart: worker.RestartNever}
	r := launch(t, task, h)
	out.await(t, "asked")
	h.trusted(time.Hour)
	out.awaitN(t, "ready", 2)
	r.drain()
	r.wantReturn(t, nil)
	out.want(t, "ready", "asked", "ready", "asked")
}

func TestNoCommandStartsWithoutTrust(t *testing.T) {
	t.Parallel()
	var out output
	h := newPlace("7").gain()
	h.trusted(0)
	r := launch(t, &worker.Command{Args: shell("echo started"), Stdout: &out}, h)
	time.Sleep(200 * time.Millisecond)
	r.drain()
	r.wantReturn(t, nil)
	out.want(t)
}

func TestNoCommandStartsInADrain(t *testing.T) {
	t.Parallel()
	var out output
	h := newPlace("7").gain()
	h.drain()
	launch(t, &worker.Command{Args: shell("echo started"), Stdout: &out}, h).wantReturn(t, nil)
	out.want(t)
}

func TestRestartPolicy(t *testing.T) {
	t.Parallel()
	tests := []struct {
		restart worker.Restart
		code    int
		again   bool
	}{
		{"", 0, true},
		{worker.RestartAlways, 0, true},
		{worker.RestartAlways, 1, true},
		{worker.RestartOnFailure, 0, false},
		{worker.RestartOnFailure, 1, true},
		{worker.RestartNever, 0, false},
		{worker.RestartNever, 1, false},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.restart, tt.code), func(t *testing.T) {
			t.Parallel()
			var out output
			task := &worker.Command{
				Args: shell("echo run; exit " + strconv.Itoa(tt.code)), Restart: tt.restart, Stdout: &out,
				Backoff: worker.Backoff{Min: 10 * time.Millisecond, Max: 20 * time.Millisecond},
			}
			r := launch(t, task, newPlace("7").gain())
			if !tt.again {
				r.wantReturn(t, nil)
				out.want(t, "run")
				return
			}
			out.awaitN(t, "run", 3)
			r.drain()
			r.wantReturn(t, nil)
		})
	}
}

func TestRestartsBackOff(t *testing.T) {
	t.Parallel()
	var out output
	task := &worker.Command{
		Args: shell("echo run; exit 1"), Stdout: &out,
		Backoff: worker.Backoff{Min: 50 * time.Millisecond, Max: time.Hour},
	}
	r := launch(t, task, newPlace("7").gain())
	time.Sleep(800 * time.Millisecond) // 0, 50, 150, 350, 750 ms, a fifth more or less
	r.drain()
	r.wantReturn(t, nil)
	if n := len(out.lines()); n < 2 || n > 5 {
		t.Errorf("runs = %d, want 4 or 5", n)
	}
}

func TestCommandThatCannotStartIsAnError(t *testing.T) {
	t.Parallel()
	tests := map[string]*worker.Command{
		"program": {Args: []string{"/no/such/program"}},
		"restart": {Args: shell("true"), Restart: "sometimes"},
		"grace":   {Args: shell("true"), Grace: -1},
	}
	for want, task := range tests {
		err := launch(t, task, newPlace("7").gain()).wait(t)
		setting, ok := errors.AsType[*worker.SettingError](err)
		if !ok || setting.Setting != want {
			t.Errorf("Run = %v, want a SettingError about the %s", err, want)
		}
	}
	task := &worker.Command{Args: []string{"/no/such/{partition}"}, Restart: worker.RestartNever}
	if err := launch(t, task, newPlace("7").gain()).wait(t); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Run = %v, want %v", err, os.ErrNotExist)
	}
}

func TestLinesOfManyCommandsDoNotMix(t *testing.T) {
	t.Parallel()
	var out output
	task := &worker.Command{
		Args:   shell(`i=0; while [ $i -lt 50 ]; do printf 'aaaaaaaaaa'; printf 'bbbbbbbbbb\n'; i=$((i+1)); done; printf 'end'`),
		Stdout: &out, Stderr: &out, Prefix: true, Restart: worker.RestartNever,
	}
	var all sync.WaitGroup
	for i := range 10 {
		r := launch(t, task, newPlace(strconv.Itoa(i)).gain())
		all.Go(func() { r.wantReturn(t, nil) })
	}
	all.Wait()
	counts := map[string]int{}
	for _, line := range out.lines() {
		name, text, _ := strings.Cut(line, ": ")
		if text != "aaaaaaaaaabbbbbbbbbb" && text != "end" {
			t.Errorf("line = %q, want whole lines", line)
		}
		counts[name]++
	}
	for i := range 10 {
		if n := counts[strconv.Itoa(i)]; n != 51 {
			t.Errorf("lines of partition %d = %d, want 51", i, n)
		}
	}
}

func TestNothingOfACommandIsLeft(t *testing.T) {
	t.Parallel()
	var out output
	task := &worker.Command{Args: shell(`sh -c 'trap "" TERM; sleep 1000 & echo $!; wait' & sleep 0.2; exit 0`), Stdout: &out, Restart: worker.RestartNever}
	launch(t, task, newPlace("7").gain()).wantReturn(t, nil)
	wantDead(t, out.lines()[0])
}

func TestCommandHandlesAMessage(t *testing.T) {
	t.Parallel()
	var out output
	handle := worker.CommandHandler(&worker.Command{
		Args: shell(`echo "$TENURE_PARTITION $TENURE_TOKEN $TENURE_SUBJECT $TENURE_SEQ $TENURE_DELIVERED"
			echo "$TENURE_HEADER_NATS_MSG_ID $TENURE_HEADER_X_A"; cat; exit $TENURE_HEADER_CODE`),
		Stdout: &out,
	})
	h := newPlace("7").gain()
	m := &worker.Message{
		Subject: "orders.7.x", Sequence: 12, Delivered: 2, Data: []byte("payload\n"),
		Header: nats.Header{"Nats-Msg-Id": {"id 1"}, "x.a": {"1", "2"}, "X-A": {"0"}, "Code": {"0"}},
	}
	if err := handle(t.Context(), h, m); err != nil {
		t.Errorf("handler = %v, want nil", err)
	}
	out.want(t, "7 1007 orders.7.x 12 2", "id 1 0,1,2", "payload")
	m.Header.Set("Code", "9")
	if err := handle(t.Context(), h, m); err == nil {
		t.Error("handler = nil for exit code 9, want an error")
	}
}

func TestCommandNeedNotReadItsMessage(t *testing.T) {
	t.Parallel()
	handle := worker.CommandHandler(&worker.Command{Args: shell("exit 0")})
	m := &worker.Message{Subject: "s", Data: bytes.Repeat([]byte("x"), 1<<20)}
	if err := handle(t.Context(), newPlace("7").gain(), m); err != nil {
		t.Errorf("handler = %v, want nil", err)
	}
}

func TestDrainLetsAMessageCommandFinish(t *testing.T) {
	t.Parallel()
	var out output
	handle := worker.CommandHandler(&worker.Command{Args: shell(`trap "echo asked" TERM; echo ready; sleep 0.3; echo finished`), Stdout: &out})
	h := newPlace("7").gain()
	done := make(chan error, 1)
	go func() { done <- handle(t.Context(), h, &worker.Message{}) }()
	out.await(t, "ready")
	h.drain()
	if err := <-done; err != nil {
		t.Errorf("handler = %v, want nil", err)
	}
	out.want(t, "ready", "finished")
}

func TestEndOfTheHoldKillsAMessageCommand(t *testing.T) {
	t.Parallel()
	var out output
	handle := worker.CommandHandler(&worker.Command{Args: shell(`trap "" TERM; echo ready; sleep 1000`), Stdout: &out})
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- handle(ctx, newPlace("7").gain(), &worker.Message{}) }()
	out.await(t, "ready")
	cancel(errLost)
	if err := <-done; !errors.Is(err, errLost) {
		t.Errorf("handler = %v, want %v", err, errLost)
	}
}

func TestIdleCommandsCostNothing(t *testing.T) {
	const n = 200
	var out output
	task := &worker.Command{Args: shell("echo ready; exec sleep 1000"), Stdout: &out}
	runs := make([]*run, n)
	for i := range runs {
		runs[i] = launch(t, task, newPlace(strconv.Itoa(i)).gain())
	}
	out.awaitN(t, "ready", n)
	least := time.Hour
	for range 10 { // the least busy of some, since the machine does other things
		before := cpu(t)
		time.Sleep(200 * time.Millisecond)
		least = min(least, cpu(t)-before)
	}
	if least > 10*time.Millisecond {
		t.Errorf("%d idle commands use %v in 200ms, want nearly nothing", n, least)
	}
	for _, r := range runs {
		r.drain()
	}
	for _, r := range runs {
		r.wantReturn(t, nil)
	}
}

func shell(script string) []string { return []string{"sh", "-c", script} }

// output collects lines.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(data []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(data)
}

func (o *output) lines() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.FieldsFunc(o.text.String(), func(r rune) bool { return r == '\n' })
}

func (o *output) want(t *testing.T, want ...string) {
	t.Helper()
	if got := o.lines(); !slices.Equal(got, want) {
		t.Errorf("output = %q, want %q", got, want)
	}
}

func (o *output) await(t *testing.T, line string) { t.Helper(); o.awaitN(t, line, 1) }

// awaitN waits until the line was there n times.
func (o *output) awaitN(t *testing.T, line string, n int) {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		found := 0
		for _, got := range o.lines() {
			if got == line {
				found++
			}
		}
		if found >= n {
			return
		}
		if time.Since(begun) > 20*time.Second {
			t.Fatalf("output = %q, want %q %d times", o.lines(), line, n)
		}
	}
}

// alive reports whether the process runs; one that waits to be reaped does not.
func alive(pid string) bool {
	if runtime.GOOS != "linux" {
		number, _ := strconv.Atoi(pid)
		return syscall.Kill(number, 0) == nil
	}
	stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	_, after, _ := strings.Cut(string(stat), ") ")
	return err == nil && !strings.HasPrefix(after, "Z")
}

func wantDead(t *testing.T, pid string) {
	t.Helper()
	if alive(pid) {
		t.Errorf("process %s runs, want it killed", pid)
	}
}

func cpu(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
