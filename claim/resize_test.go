package claim_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tenure/claim"
	"tenure/embedded/natstest"
)

func TestResizeUpStartsTheNewOnesAndTouchesNoOther(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		a := g.start("a")
		time.Sleep(time.Second)
		b := g.start("b")
		g.wantLoads(time.Second, []int{2, 2}, a, b)
		before := g.startsOf()
		ok(t, g.admin().Resize(t.Context(), claim.Numbered(10)))
		g.wantLoads(time.Second, []int{5, 5}, a, b)
		if n := g.startsOf() - before; n != 6 {
			t.Errorf("handlers started = %d, want the 6 new ones", n)
		}
		g.history.Check(t)
	})
}

// What is removed drains, finds ErrRemoved if it has to be cancelled, and keeps
// its checkpoint for later.
func TestResizeDownDrainsWhatIsRemovedAndKeepsItsCheckpoint(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 6)
		var causes sync.Map
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			<-p.Draining()
			p.Stage([]byte("last of " + p.Name()))
			time.Sleep(2 * time.Second)
			context.AfterFunc(ctx, func() { causes.Store(p.Name(), context.Cause(ctx)) })
			return nil
		})
		g.wantLoads(time.Second, []int{6}, a)
		admin := g.admin()
		ok(t, admin.Pin(t.Context(), "a", []string{"5"}))
		ok(t, admin.Pause(t.Context(), []string{"4"}, claim.Wait()))
		before, began := g.startsOf(), time.Now()
		ok(t, admin.Resize(t.Context(), claim.Numbered(2), claim.Wait()))
		if took := time.Since(began).Round(time.Millisecond); took != 2*time.Second {
			t.Errorf("resize took %v, want the 2s of the drain: no plan is needed", took)
		}
		g.wantLoads(time.Minute, []int{2}, a)
		if n := g.startsOf() - before; n != 0 {
			t.Errorf("handlers started = %d, want none", n)
		}
		if cause, _ := causes.Load("3"); !errors.Is(cause.(error), claim.ErrRemoved) {
			t.Errorf("cause = %v, want %v", cause, claim.ErrRemoved)
		}
		ok(t, admin.Resize(t.Context(), claim.Numbered(6)))
		g.wantLoads(time.Second, []int{6}, a) // the pause is forgotten
		if s := g.starts["3"]; s[len(s)-1].checkpoint != "last of 3" {
			t.Errorf("checkpoint = %q, want %q", s[len(s)-1].checkpoint, "last of 3")
		}
		if x, err := admin.Explain(t.Context(), "5"); err != nil || x.Pin != "" {
			t.Errorf("pin = %q, %v, want it forgotten", x.Pin, err)
		}
		g.history.Check(t)
	})
}

// spans notes when handlers of each partition ran.
type spans struct {
	mu   sync.Mutex
	runs map[string][][2]time.Time
}

func (s *spans) note(name string, from time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runs == nil {
		s.runs = make(map[string][][2]time.Time)
	}
	s.runs[name] = append(s.runs[name], [2]time.Time{from, time.Now()})
}

// C43: a child starts when its parents have been drained, not before, and others
// do not wait for it.
func TestChildDoesNotStartBeforeItsParentsAreDrained(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		g.parts = []string{"eu", "us", "asia"}
		var ended sync.Map
		slow := map[string]time.Duration{"eu": 5 * time.Second, "us": 9 * time.Second}
		handler := func(ctx context.Context, p *claim.Partition) error {
			<-p.Draining()
			time.Sleep(slow[p.Name()])
			ended.Store(p.Name(), time.Now())
			return nil
		}
		a := g.startWith("a", handler)
		time.Sleep(time.Second)
		b := g.startWith("b", handler)
		g.wantLoads(20*time.Second, []int{1, 2}, a, b)
		began := time.Now()
		ok(t, g.admin().Resize(t.Context(), []string{"asia", "west", "north", "new"},
			claim.AfterParents(map[string][]string{"west": {"eu", "us"}, "north": {"eu"}}), claim.Wait()))
		time.Sleep(time.Second)
		synctest.Wait()
		for child, want := range map[string]time.Duration{"new": 0, "north": 5 * time.Second, "west": 9 * time.Second} {
			starts := g.starts[child]
			if len(starts) != 1 {
				t.Fatalf("%s started %d times, want once", child, len(starts))
			}
			if at := starts[0].at.Sub(began); at < want || at > want+100*time.Millisecond {
				t.Errorf("%s started after %v, want %v", child, at, want)
			}
		}
		if n := len(g.starts["asia"]); n > 2 {
			t.Errorf("asia started %d times, want it left alone", n)
		}
		g.history.Check(t)
	})
}

func TestParentThatStaysIsDrainedOnceForItsChildren(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2)
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			<-p.Draining()
			time.Sleep(3 * time.Second)
			return nil
		})
		g.wantLoads(time.Second, []int{2}, a)
		began := time.Now()
		ok(t, g.admin().Resize(t.Context(), claim.Numbered(3), claim.AfterParents(map[string][]string{"2": {"1"}})))
		g.wantLoads(2*time.Second, []int{2}, a) // 1 drains
		g.wantLoads(2*time.Second, []int{3}, a)
		if n := fmt.Sprint(len(g.starts["0"]), len(g.starts["1"]), len(g.starts["2"])); n != "1 2 1" {
			t.Errorf("handlers of 0, 1 and 2 started %s times, want 1 2 1", n)
		}
		if at := g.starts["2"][0].at.Sub(began); at < 3*time.Second {
			t.Errorf("child started after %v, want its parent's 3s", at)
		}
		g.history.Check(t)
	})
}

// An owner that has died before anybody could see it is proven dead for the gate.
func TestGateOpensWhenTheParentsOwnerDiedUnseen(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		a := g.start("a")
		g.wantLoads(time.Second, []int{4}, a)
		a.link.Cut()
		time.Sleep(time.Minute)
		ok(t, g.admin().Resize(t.Context(), claim.Numbered(6), claim.AfterDrain()))
		b := g.start("b", claim.WithPartitions())
		g.wantLoads(2*time.Second, []int{6}, b)
	})
}

// C43 for numbered partitions: two partitions that can have a key in common, one of
// the old layout and one of the new, never run at the same time.
func TestResizeAfterDrainNeverHasAKeyInTwoPartitions(t *testing.T) {
	for _, sizes := range [][2]int{{4, 8}, {8, 4}, {4, 6}, {3, 5}, {6, 4}} {
		t.Run(fmt.Sprint(sizes), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				from, to := sizes[0], sizes[1]
				g := newGroup(t, from)
				var before, after spans
				var resized atomic.Bool
				handler := func(ctx context.Context, p *claim.Partition) error {
					began, old := time.Now(), !resized.Load()
					select {
					case <-p.Draining():
						n, _ := strconv.Atoi(p.Name())
						time.Sleep(time.Duration(n) * time.Second)
					case <-ctx.Done():
					}
					if old {
						before.note(p.Name(), began)
					} else {
						after.note(p.Name(), began)
					}
					return nil
				}
				a := g.startWith("a", handler)
				b := g.startWith("b", handler)
				c := g.startWith("c", handler)
				time.Sleep(20 * time.Second)
				synctest.Wait()
				admin := g.admin()
				ok(t, admin.Resize(t.Context(), claim.Numbered(to), claim.AfterDrain()))
				resized.Store(true)
				time.Sleep(2 * time.Second)
				b.link.Cut() // its partitions are parents too: they end by its death
				time.Sleep(40 * time.Second)
				synctest.Wait()
				if n := len(owners(a, c)); n != to {
					t.Errorf("%d partitions run, want %d: %v", n, to, owners(a, c))
				}
				b.link.Mend()
				for _, w := range []*worker{a, b, c} {
					w.leave()
				}
				for key := range 120 {
					for _, o := range before.runs[strconv.Itoa(key%from)] {
						for _, n := range after.runs[strconv.Itoa(key%to)] {
							if n[0].Before(o[1]) && o[0].Before(n[1]) {
								t.Fatalf("key %d was in old partition %d and in new partition %d at once", key, key%from, key%to)
							}
						}
					}
				}
				if len(after.runs) != to {
					t.Errorf("partitions that ran afterwards = %d, want %d", len(after.runs), to)
				}
				g.history.Check(t)
			})
		})
	}
}

// Parents that nobody owns, or ever owned, hold nobody up.
func TestResizeAfterDrainOfAGroupThatNeverRanBeginsAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		_, err := claim.New(t.Context(), natstest.JetStream(t, natstest.Connect(t, g.srv)), "orders",
			claim.WithBucket(freshBucket(t, g)), claim.WithPartitions(g.parts...))
		ok(t, err)
		ok(t, g.admin().Resize(t.Context(), claim.Numbered(6), claim.AfterDrain()))
		g.parts = claim.Numbered(6)
		a := g.start("a")
		g.wantLoads(time.Second, []int{6}, a)
	})
}

// A worker that is behind does not take what a later plan has taken from everybody.
func TestPausedPartitionIsNotTakenByAnOlderPlan(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 1)
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			<-p.Draining()
			time.Sleep(5 * time.Second)
			return nil
		})
		g.wantLoads(time.Second, []int{1}, a)
		b := g.start("b")
		time.Sleep(time.Second)
		admin := g.admin()
		ok(t, admin.Move(t.Context(), "0", "b")) // a drains
		time.Sleep(time.Second)
		// From here on b's watch is blind; all else of it works.
		release := b.link.HoldRequest(func(subject string) bool { return strings.Contains(subject, ".CONSUMER.") })
		b.link.Break()
		time.Sleep(time.Second)
		ok(t, admin.Pause(t.Context(), []string{"0"}))
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if n := g.startsOf(); n != 1 {
			t.Errorf("handlers started = %d, want 1: %+v", n, g.starts)
		}
		release()
		ok(t, admin.Resume(t.Context(), []string{"0"}, claim.Wait()))
		time.Sleep(time.Second)
		synctest.Wait()
		if o := owners(a, b); len(o) != 1 {
			t.Errorf("owners = %v, want one", o)
		}
		g.history.Check(t)
	})
}
