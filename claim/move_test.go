package claim_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tenure/claim"
	"tenure/embedded/natstest"
)

// C30, N66, N67: the next owner starts after the handler has returned, with what
// it saved or staged last.
func TestMoveCarriesTheCheckpointAndNeverOverlaps(t *testing.T) {
	for _, staged := range []bool{false, true} {
		t.Run(fmt.Sprintf("staged=%v", staged), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				g := newGroup(t, 2)
				var returned atomic.Int64
				a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
					if err := p.Save(ctx, []byte("first")); err != nil {
						return err
					}
					<-p.Draining()
					time.Sleep(3 * time.Second) // finishing what was begun
					defer func() { returned.Store(time.Now().UnixNano()) }()
					if staged {
						p.Stage([]byte("last"))
						return nil
					}
					return p.Save(ctx, []byte("last"))
				})
				g.wantLoads(time.Second, []int{2}, a)
				b := g.start("b")
				g.wantLoads(2*time.Second, []int{0, 2}, a, b)
				g.wantLoads(2*time.Second, []int{1, 1}, a, b)
				for name, starts := range g.starts {
					if len(starts) == 1 {
						continue
					}
					first, second := starts[0], starts[1]
					if second.checkpoint != "last" || second.worker != "b" || second.token <= first.token {
						t.Errorf("partition %s: %+v after %+v, want worker b, checkpoint last, larger token", name, second, first)
					}
					if gap := second.at.UnixNano() - returned.Load(); gap != 0 {
						t.Errorf("gap = %v, want none in a bubble", time.Duration(gap))
					}
				}
				g.history.Check(t)
			})
		})
	}
}

// C4, H25: nothing is drained for a worker that does not answer.
func TestPartitionStaysWhereItIsIfTheNextOwnerIsSilent(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2)
		a := g.start("a")
		g.wantLoads(time.Second, []int{2}, a)
		b := g.start("b")
		time.Sleep(100 * time.Millisecond) // it has joined, the plan comes after 200 ms
		b.link.Cut()
		g.wantLoads(8*time.Second, []int{0, 2}, a, b)
		if n := g.startsOf(); n != 2 {
			t.Errorf("handlers started = %d, want 2", n)
		}
		g.history.Check(t)
	})
}

// C35: a handler that ignores the drain keeps its partition, visibly.
func TestHandlerThatIgnoresTheDrainKeepsItsPartition(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2, claim.WithDrainTimeout(5*time.Second))
		release := make(chan struct{})
		var cause atomic.Value
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			<-ctx.Done()
			cause.Store(context.Cause(ctx))
			<-release
			return nil
		})
		g.wantLoads(time.Second, []int{2}, a)
		b := g.start("b")
		time.Sleep(4 * time.Second)
		if v := cause.Load(); v != nil {
			t.Errorf("cause before the deadline = %v, want none", v)
		}
		g.wantLoads(time.Minute, []int{0, 2}, a, b) // renewed all the while (S8, C4, N75, N76)
		if err, _ := cause.Load().(error); !errors.Is(err, claim.ErrDrainDeadline) {
			t.Errorf("cause = %v, want %v", err, claim.ErrDrainDeadline)
		}
		close(release)
		g.wantLoads(time.Second, []int{1, 1}, a, b)
	})
}

// C36, N69: one slow drain holds nobody up.
func TestSlowDrainDelaysNoOtherMove(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 8)
		var drains atomic.Int64
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			<-p.Draining()
			if drains.Add(1) <= 2 { // the first two of those that move
				time.Sleep(20 * time.Second)
			}
			return nil
		})
		g.wantLoads(time.Second, []int{8}, a)
		b, c := g.start("b"), g.start("c")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		// a keeps its share of 2 or 3 and the two slow ones; all others have moved.
		if ofA, others := loads(a)[0], loads(b)[0]+loads(c)[0]; ofA > 5 || ofA+others != 8 {
			t.Errorf("loads = %d of a, %d of b and c, want at most 5, and 8 in all", ofA, others)
		}
		g.wantLoads(20*time.Second, []int{2, 3, 3}, a, b, c)
		g.history.Check(t)
	})
}

// C46, K28: an error or a panic is one partition's affair and is tried again
// later and later.
func TestFailingHandlerIsRestartedWithBackoffAlone(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 3, claim.WithBackoff(time.Second, 8*time.Second))
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			switch p.Name() {
			case "0":
				return errors.New("no luck")
			case "1":
				panic("no luck at all")
			}
			<-p.Draining()
			return nil
		})
		time.Sleep(500 * time.Millisecond)
		began := time.Now()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		for _, name := range []string{"0", "1"} {
			var at []time.Duration
			for _, s := range g.starts[name] {
				at = append(at, s.at.Sub(began).Round(time.Second))
			}
			if have, want := fmt.Sprint(at), "[0s 1s 3s 7s 15s 23s]"; have != want {
				t.Errorf("partition %s started at %s, want %s", name, have, want)
			}
		}
		if n := len(g.starts["2"]); n != 1 {
			t.Errorf("partition 2 was started %d times, want 1", n)
		}
		status, err := a.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if p := status.Partitions[1]; p.Attempts < 5 || p.State != claim.StateRunning || p.Worker != "a" {
			t.Errorf("status = %+v, want at least 5 attempts, running on a", p)
		}
	})
}

func TestFinishedHandlerIsNotRunAgainBeforeItMoves(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2)
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error { return nil })
		time.Sleep(time.Minute)
		if n := g.startsOf(); n != 2 {
			t.Errorf("handlers started = %d, want 2", n)
		}
		b := g.start("b")
		g.wantLoads(time.Second, []int{0, 1}, a, b)
	})
}

func TestWriteAfterTheHandlerHasReturnedIsRefusedAndSaysWhy(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 1)
		kept := make(chan *claim.Partition, 1)
		causes := make(chan error, 1)
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			context.AfterFunc(ctx, func() { causes <- context.Cause(ctx) })
			kept <- p
			return nil
		})
		g.wantLoads(time.Second, []int{0}, a)
		if err := (<-kept).Save(t.Context(), []byte("late")); !errors.Is(err, claim.ErrReturned) {
			t.Errorf("Save = %v, want %v", err, claim.ErrReturned)
		}
		if err := <-causes; !errors.Is(err, claim.ErrReturned) {
			t.Errorf("cause = %v, want %v", err, claim.ErrReturned)
		}
	})
}

// S3, C7, N30, N60: what a worker writes after its claim has ended is refused.
func TestSaveOfAPausedWorkerIsRefused(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 1)
		saved := make(chan error, 1)
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			if err := p.Save(ctx, []byte("from a")); err != nil {
				t.Errorf("Save = %v, want nil", err)
			}
			<-ctx.Done()
			time.Sleep(time.Minute) // paused: it knows nothing of what happened
			saved <- p.Save(context.WithoutCancel(ctx), []byte("late"))
			return nil
		})
		g.wantLoads(time.Second, []int{1}, a)
		a.link.Cut()
		var checkpoint atomic.Value
		g.startWith("b", func(ctx context.Context, p *claim.Partition) error {
			checkpoint.Store(string(p.Checkpoint()))
			<-p.Draining()
			return p.Save(ctx, []byte("from b"))
		})
		time.Sleep(2 * g.ttl)
		a.link.Mend()
		if err := <-saved; !errors.Is(err, claim.ErrSessionLost) {
			t.Errorf("Save after the session was lost = %v, want %v", err, claim.ErrSessionLost)
		}
		if have := checkpoint.Load(); have != "from a" {
			t.Errorf("checkpoint at b = %q, want %q", have, "from a")
		}
	})
}
