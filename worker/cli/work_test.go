package cli_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tenure/claim"
)

func TestWorkRunsACommandPerPartition(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	p, lines := runLines(t, "work", "--server", url, "orders", "--partitions", "eu,us 1", "--id", "a", "--",
		"sh", "-c", `echo "$0|$1|$TENURE_GROUP|$TENURE_PARTITION|$TENURE_TOKEN|$TENURE_WORKER|$TENURE_BUCKET"; trap 'kill $!; exit' TERM; sleep 1000 & wait`,
		"{partition}", "{token}")
	started := []string{nextLine(t, lines), nextLine(t, lines)}
	slices.Sort(started)
	status := readStatus(t, url, "orders")
	for i, partition := range []string{"eu", "us 1"} {
		token := fmt.Sprint(status.Partitions[i].Token)
		if want := strings.Join([]string{partition, token, "orders", partition, token, "a", "tenure"}, "|"); started[i] != want {
			t.Errorf("command says %q, want %q", started[i], want)
		}
	}
	p.signal(syscall.SIGINT)
	if code := p.code(); code != 0 {
		t.Errorf("work = %d, want 0; stderr %s", code, p.err.String())
	}
}

func TestTermHandsEverythingOverBeforeTheEnd(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	work := func(id string) *process {
		return begin(t, nil, "work", "--server", url, "orders", "--partitions", "8", "--id", id, "--workers", "2", "--",
			"sh", "-c", `trap 'kill $!; exit 0' TERM; sleep 1000 & wait`)
	}
	first := work("a")
	awaitOwners(t, url, "orders", "a-1", "a-2")
	second := work("b")
	awaitOwners(t, url, "orders", "a-1", "a-2", "b-1", "b-2")
	first.signal(syscall.SIGTERM)
	begun := time.Now()
	if code := first.code(); code != 0 {
		t.Errorf("work = %d, want 0; stderr %s", code, first.err.String())
	}
	awaitOwners(t, url, "orders", "b-1", "b-2")
	if took := time.Since(begun); took > most(4*time.Second) {
		t.Errorf("others own everything after %v, want well before the TTL of 15 s", took)
	}
	second.signal(syscall.SIGTERM)
	if code := second.code(); code != 0 {
		t.Errorf("work = %d, want 0; stderr %s", code, second.err.String())
	}
	if status := readStatus(t, url, "orders"); status.Unassigned != 8 || len(status.Workers) != 0 {
		t.Errorf("status = %+v, want nobody left", status)
	}
}

func TestKilledWorkersPartitionsMove(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	work := func(id string) *process {
		return begin(t, nil, "work", "--server", url, "orders", "--partitions", "4", "--id", id, "--ttl", "3s", "--",
			"sh", "-c", `trap 'kill $!; exit 0' TERM; sleep 1000 & wait`)
	}
	first := work("a")
	awaitOwners(t, url, "orders", "a")
	work("b")
	awaitOwners(t, url, "orders", "a", "b")
	first.signal(syscall.SIGKILL)
	begun := time.Now()
	awaitOwners(t, url, "orders", "b")
	// TTL + 1 s, and another TTL of waiting for a stable id to come back.
	if took := time.Since(begun); took > most(15*time.Second) {
		t.Errorf("b owns everything after %v", took)
	}
}

func TestSecondSignalKillsTheCommands(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	p, lines := runLines(t, "work", "--server", url, "orders", "--partitions", "1", "--grace", "30s", "--", "sh", "-c",
		`trap "echo term" TERM; sleep 1000 & echo $!; while :; do sleep 0.01; done`)
	pid := atoi(t, nextLine(t, lines))
	p.signal(syscall.SIGTERM)
	if got := nextLine(t, lines); got != "term" {
		t.Errorf("line = %q, want term", got)
	}
	p.signal(syscall.SIGINT)
	if code := p.code(); code != 128+2 {
		t.Errorf("work = %d, want 130; stderr %s", code, p.err.String())
	}
	eventually(t, "grandchild is killed", func() bool { return syscall.Kill(pid, 0) != nil })
	if status := readStatus(t, url, "orders"); len(status.Workers) != 0 {
		t.Errorf("status = %+v, want the worker to have left", status)
	}
}

func TestStreamRunsACommandPerMessage(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	js := connect(t, url)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		message := &nats.Msg{Subject: "orders.1.new", Data: fmt.Appendf(nil, "payload %d", i), Header: nats.Header{"Order-Id": []string{fmt.Sprint(i)}}}
		if _, err := js.PublishMsg(t.Context(), message); err != nil {
			t.Fatal(err)
		}
	}
	for _, mode := range []string{"ack", "offset"} {
		p, lines := runLines(t, "work", "--server", url, "orders-"+mode, "--partitions", "2", "--stream", "ORDERS", "--filter", "orders.{partition}.>", "--mode", mode,
			"--", "sh", "-c", `echo "$TENURE_SUBJECT $TENURE_SEQ $TENURE_DELIVERED $TENURE_HEADER_ORDER_ID $TENURE_PARTITION $(cat)"; [ "$TENURE_SEQ$TENURE_DELIVERED" != 21 ]`)
		for _, want := range []string{"1 1 0 1 payload 0", "2 1 1 1 payload 1", "2 2 1 1 payload 1", "3 1 2 1 payload 2"} {
			if got := nextLine(t, lines); got != "orders.1.new "+want {
				t.Errorf("mode %s: line = %q, want orders.1.new %s", mode, got, want)
			}
		}
		p.signal(syscall.SIGTERM)
		if code := p.code(); code != 0 {
			t.Errorf("work = %d, want 0; stderr %s", code, p.err.String())
		}
	}
	info, err := stream.Info(t.Context())
	if err != nil || info.State.Msgs != 3 {
		t.Errorf("stream has %d messages, %v, want all 3", info.State.Msgs, err)
	}
}

func TestWorkWithoutAServerRunsOne(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	env := []string{"XDG_STATE_HOME=" + state}
	args := []string{"work", "orders", "--partitions", "1", "--", "sh", "-c", `echo "$NATS_URL"; exec sleep 1000`}
	p := begin(t, env, args...)
	var warning struct{ Level, Msg, URL, Store string }
	eventually(t, "the server is announced", func() bool {
		line, _, ok := strings.Cut(p.err.String(), "\n")
		return ok && json.Unmarshal([]byte(line), &warning) == nil
	})
	store := filepath.Join(state, "tenure", "work")
	if warning.Level != "WARN" || !strings.Contains(warning.Msg, "no shared lock service") || warning.Store != store {
		t.Errorf("first line = %+v, want a warning with the store %s", warning, store)
	}
	awaitOwners(t, warning.URL, "orders", readStatus(t, warning.URL, "orders").Workers[0].ID)

	second := begin(t, env, args...)
	if code := second.code(); code != 1 {
		t.Errorf("second work = %d, want 1", code)
	}
	want := `embedded: start: store directory "` + store + `" is in use by another server; name its address with --server to work with it, or give this one another --store`
	if got := message(t, second.err.String()); got != want {
		t.Errorf("message = %s, want %s", got, want)
	}
	p.signal(syscall.SIGTERM)
	if code := p.code(); code != 0 || p.out.String() != warning.URL+"\n" {
		t.Errorf("work = %d, %q, want 0, its own address; stderr %s", code, p.out.String(), p.err.String())
	}
}

func TestWrongUseOfWork(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	const command = "expected -- and the command to run after the name and the flags; see --help"
	if code, _, stderr := tenure(t, "init", "--server", url); code != 0 {
		t.Fatal(stderr)
	}
	setUp := begin(t, nil, "work", "--server", url, "orders", "--partitions", "4", "--", "sleep", "1000")
	eventually(t, "the group is there", func() bool {
		code, _, _ := tenure(t, "status", "--server", url, "orders")
		return code == 0
	})
	setUp.signal(syscall.SIGTERM)
	tests := []struct {
		args []string
		code int
		want string
	}{
		{[]string{"orders"}, 2, command},
		{[]string{"orders", "--partitions", "4", "true"}, 2, command},
		{[]string{"orders", "--partitions", "0", "--", "true"}, 2, "--partitions: have 0, want a number from 1 to 1000000, or names separated by commas"},
		{[]string{"orders", "--workers", "0", "--", "true"}, 2, "--workers: have 0, want 1 to 10000"},
		{[]string{"orders", "--ttl", "0s", "--", "true"}, 2, "--ttl: have 0s, want whole seconds, at least 2s"},
		{[]string{"orders", "--grace", "40s", "--", "true"}, 2, "grace <= drain-timeout does not hold: have 40s > 30s, want grace of at most 30s (--grace)"},
		{[]string{"orders", "--stream", "S", "--", "true"}, 2, "--stream: have one of the two, want stream and filter together"},
		{[]string{"orders", "--restart", "perhaps", "--", "true"}, 2, `--restart: have "perhaps", want always, on-failure or never`},
		{[]string{"orders", "--partitions", "5", "--", "true"}, 1, "claim: group \"orders\": partitions: have 4 numbered, want 5 numbered; `tenure group resize` changes them, and `tenure work` without --partitions takes those of the group"},
		{[]string{"", "--partitions", "5", "--", "true"}, 2, `claim: group name "": have 0 bytes, want 1 to 200 bytes`},
		{[]string{"orders", "--partitions", "4", "--", "/no/such/program"}, 2, `worker: command: program: have "/no/such/program": exec: "/no/such/program": stat /no/such/program: no such file or directory, want a program that can be run`},
	}
	for _, tt := range tests {
		code, out, stderr := tenure(t, append([]string{"work", "--server", url}, tt.args...)...)
		if got := message(t, stderr); code != tt.code || out != "" || got != tt.want {
			t.Errorf("work %q = %d, %q, %s, want %d, nothing, %s", tt.args, code, out, got, tt.code, tt.want)
		}
	}
	p := begin(t, []string{"NATS_TOKEN=x"}, "work", "orders", "--partitions", "4", "--", "true")
	if code, want := p.code(), "configuration cannot be used: NATS_TOKEN is of no use without a server: name one with --server"; code != 2 || message(t, p.err.String()) != want {
		t.Errorf("work with a token and no server = %d, %s, want 2, %s", code, p.err.String(), want)
	}
}

// awaitOwners waits until every partition of the group runs and the workers, all
// of which have some, are those.
func awaitOwners(t *testing.T, url, group string, workers ...string) {
	t.Helper()
	eventually(t, "partitions are with "+strings.Join(workers, " "), func() bool {
		code, out, _ := tenure(t, "status", "--json", "--server", url, group)
		var status claim.Status
		if code != 0 || json.Unmarshal([]byte(out), &status) != nil || status.Unassigned > 0 || status.Plan.Moving > 0 {
			return false
		}
		owners := make(map[string]bool)
		for _, p := range status.Partitions {
			owners[p.Worker] = true
		}
		for _, worker := range workers {
			if !owners[worker] {
				return false
			}
		}
		return len(owners) == len(workers)
	})
}

// readStatus reads the status of a group that is there soon.
func readStatus(t *testing.T, url, group string) claim.Status {
	t.Helper()
	var status claim.Status
	eventually(t, "status of "+group, func() bool {
		code, out, _ := tenure(t, "status", "--json", "--server", url, group)
		return code == 0 && json.Unmarshal([]byte(out), &status) == nil && status.Plan.Revision != 0
	})
	return status
}
