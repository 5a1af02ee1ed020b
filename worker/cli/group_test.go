package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"tenure/claim"
)

// startGroup runs workers of a group in the test's process.
func startGroup(t *testing.T, url string, partitions int, ids ...string) {
	t.Helper()
	for _, id := range ids {
		claimer, err := claim.New(t.Context(), connect(t, url), "orders", claim.WithID(id), claim.WithPartitions(claim.Numbered(partitions)...))
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
	}
}

// groupStatus reads the status of the group.
func groupStatus(t *testing.T, url string) (s claim.Status) {
	t.Helper()
	code, out, stderr := tenure(t, "status", "orders", "--json", "--server", url)
	if err := json.Unmarshal([]byte(out), &s); err != nil || code != 0 {
		t.Fatalf("status = %d, %q, %s, want one object", code, out, stderr)
	}
	return s
}

func settled(t *testing.T, url string, partitions int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d partitions run", partitions), func() bool {
		s := groupStatus(t, url)
		return len(s.Partitions) == partitions && s.Unassigned == 0 && s.Plan.Moving == 0
	})
}

// Every verb does to a working group what it says, as status then shows.
func TestGroupVerbs(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	startGroup(t, url, 4, "a", "b")
	settled(t, url, 4)
	group := func(args ...string) string {
		t.Helper()
		code, out, stderr := tenure(t, append(append([]string{"group"}, args...), "--server", url)...)
		if code != 0 || stderr != "" {
			t.Errorf("group %q = %d, %q, %s, want 0", args, code, out, stderr)
		}
		return out
	}
	state := func(partition int) string {
		t.Helper()
		p := groupStatus(t, url).Partitions[partition]
		return p.State + " " + p.Worker
	}

	if got, want := group("pause", "orders", "1", "--wait", "20s"), "group orders: pause 1: done\n"; got != want {
		t.Errorf("pause says %q, want %q", got, want)
	}
	if got := state(1); got != "paused " {
		t.Errorf("partition 1 is %q, want it paused", got)
	}
	if got, want := group("resume", "orders", "1", "--wait", "20s", "--json"), `{"group":"orders","verb":"resume","partitions":["1"],"carried_out":true}`+"\n"; got != want {
		t.Errorf("resume says %q, want %q", got, want)
	}
	if got := state(1); !strings.HasPrefix(got, "running ") && !strings.HasPrefix(got, "moving ") {
		t.Errorf("partition 1 is %q, want it to run", got)
	}
	group("pin", "orders", "0,1", "b", "--wait", "20s")
	group("move", "orders", "2", "a", "--wait", "20s")
	for p, want := range []string{"running b", "running b", "running a"} {
		if got := state(p); got != want {
			t.Errorf("partition %d is %q, want %q", p, got, want)
		}
	}
	group("drain", "orders", "b", "--wait", "20s")
	if s := groupStatus(t, url); s.Workers[1].Partitions != 0 || !s.Workers[1].Draining {
		t.Errorf("worker = %+v, want it drained", s.Workers[1])
	}
	group("uncordon", "orders", "b")
	settled(t, url, 4)
	group("unpin", "orders", "0", "1")
	group("cordon", "orders", "a")
	if s := groupStatus(t, url); !s.Workers[0].Cordoned {
		t.Errorf("worker = %+v, want it cordoned", s.Workers[0])
	}
	group("uncordon", "orders", "a", "b")
	group("weigh", "orders", "3", "2")

	group("resize", "orders", "6", "--after-drain", "--wait", "20s")
	settled(t, url, 6)
	group("resize", "orders", "3", "--wait", "20s")
	settled(t, url, 3)

	if got := group("policy", "orders", "--moves-per-minute", "9", "--zones", "spread", "--json"); !strings.Contains(got, `"moves_per_minute":9`) || !strings.Contains(got, `"zones":"spread"`) {
		t.Errorf("policy says %q, want what was set", got)
	}
	if got := group("policy", "orders", "--rollout"); !strings.Contains(got, "moves per minute  9\n") || !strings.Contains(got, "rollout           true\n") {
		t.Errorf("policy says %q, want what was set before too", got)
	}

	var x claim.Explanation
	if err := json.Unmarshal([]byte(group("explain", "orders", "0", "--json")), &x); err != nil || x.Worker == "" || x.Token == 0 || x.Since.IsZero() || len(x.History) == 0 || len(x.Others) != 1 {
		t.Errorf("explain = %+v, %v, want who, since when, why, and before", x, err)
	}
	out := group("explain", "orders", "0")
	for _, want := range []string{"partition 0 of group orders: running at ", "token ", "why: ", "planned: at ", "NOT AT  WHY\n", "BEFORE  TOKEN"} {
		if !strings.Contains(out, want) {
			t.Errorf("explain lacks %q:\n%s", want, out)
		}
	}
	var p claim.Preview
	if err := json.Unmarshal([]byte(group("plan", "orders", "--add", "c", "--remove", "a", "--json")), &p); err != nil || len(p.Workers) != 3 || len(p.Moves) == 0 {
		t.Errorf("plan = %+v, %v, want moves among three workers", p, err)
	}
	if out := group("plan", "orders", "--add", "c,d"); !strings.Contains(out, "WORKER  NOW  THEN\n") {
		t.Errorf("plan says %q, want a table", out)
	}
}

func TestGroupVerbsRefuseWhatIsNotThere(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	startGroup(t, url, 2, "a")
	settled(t, url, 2)
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"pause", "orders", "17"}, 1, "claim: pause: group \"orders\": partition: have 2 numbered, want \"17\": no such partition; `tenure status` shows the partitions"},
		{[]string{"pin", "orders", "1", "x"}, 1, "claim: pin: group \"orders\": worker: have [\"a\"], want \"x\": no such worker; `tenure status` shows the workers"},
		{[]string{"explain", "orders", "x"}, 1, "claim: explain: group \"orders\": partition: have 2 numbered, want \"x\": no such partition; `tenure status` shows the partitions"},
		{[]string{"plan", "orders", "--remove", "x"}, 1, "claim: plan: group \"orders\": worker to remove: have [\"a\"], want \"x\": no such worker; `tenure status` shows the workers"},
		{[]string{"drain", "none", "a"}, 1, `claim: group "none": group cannot be used: it does not exist`},
		{[]string{"resize", "orders", "0"}, 2, "partitions: have 0, want a number from 1 to 1000000, or names separated by commas"},
		{[]string{"resize", "orders", "4", "--parent", "x"}, 2, `--parent: have "x", want CHILD=PARENT, with several parents separated by commas`},
		{[]string{"pause", "orders", "1", "--wait=-1s"}, 2, "--wait: have -1s, want 0s or more"},
		{[]string{"drain", "orders"}, 2, `expected "<worker> ..."; see --help`},
	} {
		code, out, stderr := tenure(t, append(append([]string{"group"}, tt.args...), "--server", url)...)
		if got := message(t, stderr); code != tt.code || out != "" || got != tt.want {
			t.Errorf("%q = %d, %q, %s, want %d, nothing, %s", tt.args, code, out, got, tt.code, tt.want)
		}
	}
	// What cannot be carried out is said in time.
	begun := time.Now()
	code, _, stderr := tenure(t, "group", "drain", "orders", "a", "--wait", "1s", "--server", url)
	if code != 1 || !strings.Contains(stderr, "it is stored, and not carried out yet: it is not done after 1s") || time.Since(begun) > 10*time.Second {
		t.Errorf("drain of the only worker = %d, %s, want 1 after a second", code, stderr)
	}
}

// What work is told of a worker, status shows, and a plan goes by.
func TestWorkSaysCapacityWeightZoneAndBuild(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	p := begin(t, nil, "work", "orders", "--server", url, "--id", "a", "--partitions", "4", "--capacity", "3", "--weight", "2", "--zone", "x", "--build", "7", "--", "sleep", "1000")
	eventually(t, "three partitions run", func() bool {
		code, out, _ := tenure(t, "status", "orders", "--json", "--server", url)
		var s claim.Status
		if code != 0 || json.Unmarshal([]byte(out), &s) != nil || s.Unassigned != 1 || len(s.Workers) != 1 {
			return false
		}
		w := s.Workers[0]
		return w.Capacity == 3 && w.Weight == 2 && w.Zone == "x" && w.Build == 7 && w.Partitions == 3
	})
	code, _, stderr := tenure(t, "work", "orders", "--server", url, "--partitions", "5", "--", "true")
	if code != 1 || !strings.Contains(stderr, "`tenure group resize` changes them") {
		t.Errorf("work with other partitions = %d, %s, want 1 and what to do", code, stderr)
	}
	if err := p.Process.Kill(); err != nil {
		t.Error(err)
	}
}
