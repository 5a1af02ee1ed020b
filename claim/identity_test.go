package claim_test

import (
	"encoding/json"
	"errors"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"tenure/claim"
	"tenure/embedded/natstest"
	"tenure/kvlock/bucket"
)

func (g *group) bucket() *bucket.Bucket {
	g.t.Helper()
	b, err := bucket.Open(g.t.Context(), natstest.JetStream(g.t, natstest.Connect(g.t, g.srv)))
	if err != nil {
		g.t.Fatal(err)
	}
	return b
}

// C22: proof that the old process is gone makes a restart quick, and nothing moves
// elsewhere meanwhile.
func TestRestartOnTheSameMachineTakesItsOwnBackAtOnce(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no proof is known on this system")
	}
	old := exec.Command("true")
	if err := old.Run(); err != nil {
		t.Fatal(err)
	}
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		a, b := g.start("a"), g.start("b")
		g.wantLoads(time.Second, []int{2, 2}, a, b)
		a.link.Cut()
		time.Sleep(g.ttl - 2*time.Second) // one second before its trust ends
		a.stop()
		a.await(time.Minute) // "a" has ended, its session has not

		// As if it had been another process: in a bubble there is only one.
		store := g.bucket()
		e, err := store.Get(t.Context(), "member.orders.a")
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(e.Value, &m); err != nil {
			t.Fatal(err)
		}
		m["pid"] = old.Process.Pid
		value, _ := json.Marshal(m)
		if _, err := store.Write(t.Context(), bucket.Write{Key: e.Key, Last: e.Revision, TTL: g.ttl, Value: value}); err != nil {
			t.Fatal(err)
		}
		again := g.start("a")
		g.wantLoads(500*time.Millisecond, []int{2, 2}, again, b)
		if n := g.moved(); n != 0 {
			t.Errorf("partitions that changed owner = %d, want 0", n)
		}
		g.history.Check(t)
	})
}

// C23, N26: whoever asked not to wait for ever is told who has the id.
func TestSecondProcessGivesUpIfAskedAndSaysWhoHasTheID(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2)
		a := g.start("a")
		time.Sleep(time.Second)
		second := g.start("a", claim.WithIDTimeout(25*time.Second))
		began := time.Now()
		second.await(time.Minute)
		var held *claim.WorkerIDError
		if !errors.Is(second.err, claim.ErrWorkerID) || !errors.As(second.err, &held) || held.Host == "" || held.PID == 0 || held.Epoch == 0 {
			t.Errorf("Run = %v, want %v with host, process and epoch", second.err, claim.ErrWorkerID)
		}
		if took := time.Since(began); took < 25*time.Second || took > 26*time.Second {
			t.Errorf("Run returned after %v, want 25s", took)
		}
		g.wantLoads(0, []int{2}, a)
	})
}

// N27: three processes with one id have one owner among them.
func TestThreeProcessesWithOneIDHaveOneOwner(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 3)
		all := []*worker{g.start("w"), g.start("w"), g.start("w")}
		g.wantLoads(3*g.ttl, []int{0, 0, 3}, all...)
		if n := g.startsOf(); n != 3 {
			t.Errorf("handlers started = %d, want 3: the id does not go back and forth", n)
		}
		g.history.Check(t)
	})
}
