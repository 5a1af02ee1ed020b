package claim_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tenure/claim"
	"tenure/embedded/natstest"
	"tenure/kvlock/bucket"
)

// C30, N66: the next owner warms up while the old one drains, and its handler starts
// when both are done, at once.
func TestNextOwnerPreparesWhileTheOldOneDrains(t *testing.T) {
	tests := []struct {
		name                  string
		drain, prepare, limit time.Duration
		want                  time.Duration // from the drain to the next start
	}{
		{"shorter than the drain", 5 * time.Second, 3 * time.Second, time.Minute, 5 * time.Second},
		{"longer than the drain", 5 * time.Second, 7 * time.Second, time.Minute, 7 * time.Second},
		{"longer than the limit", 5 * time.Second, 20 * time.Second, 3 * time.Second, 8 * time.Second},
		{"without a limit", 5 * time.Second, 20 * time.Second, 0, 5 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				g := newGroup(t, 2)
				var asked, name atomic.Value
				a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
					<-p.Draining()
					if asked.CompareAndSwap(nil, time.Now()) {
						name.Store(p.Name())
						time.Sleep(tt.drain)
					}
					return nil
				}, claim.WithPrepare(func(context.Context, string) error {
					t.Error("Prepare was called for a partition that nobody ran")
					return nil
				}, 0))
				g.wantLoads(time.Second, []int{2}, a)
				var calls atomic.Int64
				var prepared atomic.Value
				ended := make(chan error, 1)
				b := g.start("b", claim.WithPrepare(func(ctx context.Context, partition string) error {
					calls.Add(1)
					prepared.Store(partition)
					context.AfterFunc(ctx, func() { ended <- context.Cause(ctx) })
					select {
					case <-time.After(tt.prepare):
					case <-ctx.Done():
					}
					return errors.New("is logged only")
				}, tt.limit))
				g.wantLoads(30*time.Second, []int{1, 1}, a, b)
				if n := calls.Load(); n != 1 || prepared.Load() != name.Load() {
					t.Errorf("Prepare was called %d times, last for %v, want once for %v", n, prepared.Load(), name.Load())
				}
				starts := g.starts[name.Load().(string)]
				if have := starts[1].at.Sub(asked.Load().(time.Time)); have != tt.want {
					t.Errorf("handler started %v after the drain, want %v", have, tt.want)
				}
				if cause := <-ended; !errors.Is(cause, context.Canceled) {
					t.Errorf("cause = %v, want %v", cause, context.Canceled)
				}
				g.history.Check(t)
			})
		})
	}
}

// C34, C38: a move that is withdrawn while the owner drains ends the preparation, and
// the partition goes on where it is, under its token.
func TestWithdrawnMoveEndsThePreparation(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2, claim.WithDrainTimeout(time.Hour))
		leave := make(chan struct{})
		var name atomic.Value
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			<-p.Draining()
			if name.CompareAndSwap(nil, p.Name()) {
				<-leave
			}
			return nil
		})
		g.wantLoads(time.Second, []int{2}, a)
		ended := make(chan error, 1)
		b := g.start("b", claim.WithPrepare(func(ctx context.Context, partition string) error {
			context.AfterFunc(ctx, func() { ended <- context.Cause(ctx) })
			return nil // what it watches over lives on
		}, time.Minute))
		g.wantLoads(time.Second, []int{0, 2}, a, b)
		select {
		case cause := <-ended:
			t.Fatalf("preparation ended early: %v", cause)
		default:
		}
		ok(t, g.admin().Pin(t.Context(), "a", []string{name.Load().(string)}))
		time.Sleep(time.Second)
		synctest.Wait()
		select {
		case cause := <-ended:
			if !errors.Is(cause, claim.ErrWithdrawn) {
				t.Errorf("cause = %v, want %v", cause, claim.ErrWithdrawn)
			}
		default:
			t.Error("preparation goes on though the move was withdrawn")
		}
		close(leave)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		starts := g.starts[name.Load().(string)]
		if len(starts) != 2 || starts[1].worker != "a" || starts[1].token != starts[0].token {
			t.Errorf("it started %+v, want at a twice under one token", starts)
		}
	})
}

// C32, C50: the preparation ends with the session, and a Prepare that panics costs
// nothing.
func TestPreparationEndsWithTheSession(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2, claim.WithDrainTimeout(time.Hour))
		leave := make(chan struct{})
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			<-p.Draining()
			<-leave
			return nil
		})
		g.wantLoads(time.Second, []int{2}, a)
		ended := make(chan error, 1)
		b := g.start("b", claim.WithPrepare(func(ctx context.Context, partition string) error {
			context.AfterFunc(ctx, func() { ended <- context.Cause(ctx) })
			panic("no luck")
		}, time.Minute))
		g.wantLoads(time.Second, []int{0, 2}, a, b)
		b.link.Cut()
		if cause := <-ended; !errors.Is(cause, claim.ErrSessionLost) {
			t.Errorf("cause = %v, want %v", cause, claim.ErrSessionLost)
		}
		close(leave)
		g.wantLoads(g.ttl, []int{2}, a)
		b.link.Mend()
		g.wantLoads(2*g.ttl, []int{1, 1}, a, b)
		g.history.Check(t)
	})
}

// C34: a plan that is older than the offer withdraws nothing.
func TestPlanOlderThanTheOfferEndsNoPreparation(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 4)
		ended := make(chan string, 4)
		a := g.start("a", claim.WithPrepare(func(ctx context.Context, partition string) error {
			context.AfterFunc(ctx, func() { ended <- partition })
			return nil
		}, 0))
		b := g.start("b")
		g.wantLoads(time.Second, []int{2, 2}, a, b)
		s, err := a.Status(t.Context())
		ok(t, err)
		var ofB []string
		for p := range b.Held() {
			ofB = append(ofB, p.Name())
		}
		nc := natstest.Connect(t, g.srv)
		subject := fmt.Sprintf("_tenure.tenure.claim.orders.a.%d", s.Workers[0].Epoch)
		for i, revision := range []uint64{s.Plan.Revision + 1, s.Plan.Revision + 1000} {
			_, err := nc.Request(subject, fmt.Appendf(nil, `{"op":"offer","partition":%q,"revision":%d}`, ofB[i], revision), time.Second)
			ok(t, err)
		}
		ok(t, g.admin().Pause(t.Context(), []string{ofB[1]}))
		time.Sleep(time.Second)
		synctest.Wait()
		if have := <-ended; have != ofB[0] || len(ended) != 0 {
			t.Errorf("preparation ended for %s and %d more, want %s alone", have, len(ended), ofB[0])
		}
	})
}

// notes collects what a trace says.
type notes struct {
	mu   sync.Mutex
	said []string
}

func (n *notes) add(words ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.said = append(n.said, strings.Join(words, " "))
}

func (n *notes) take() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := strings.Join(n.said, "; ")
	n.said = nil
	return s
}

func (n *notes) trace() *claim.Trace {
	return &claim.Trace{
		Joined:      func(uint64) { n.add("joined") },
		SessionLost: func(err error) { n.add("session lost") },
		Gained:      func(p string, _ uint64) { n.add("gained", p) },
		Draining:    func(p string, _ uint64, cause error) { n.add("draining", p) },
		HandedOver: func(p string, _ uint64, to string, took time.Duration) {
			n.add("handed over", p, "to", to, "after", took.String())
		},
		Lost: func(p string, _ uint64, cause error) { n.add("lost", p) },
		Failed: func(p string, _ uint64, err error, attempts int, again time.Duration) {
			n.add("failed", p, err.Error(), again.String())
		},
		Stuck: func(p string, _ uint64, cause error) { n.add("stuck", p) },
		Moved: func(p string, _ uint64, gap time.Duration) { n.add("moved", p, gap.String()) },
	}
}

func TestTraceTellsWhatHappens(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 1, claim.WithBackoff(time.Second, time.Minute))
		var ofA, ofB notes
		expect := func(n *notes, want string) {
			t.Helper()
			synctest.Wait()
			if have := n.take(); have != want {
				t.Errorf("trace = %q, want %q", have, want)
			}
		}
		var failed atomic.Bool
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			if failed.CompareAndSwap(false, true) {
				return errors.New("no luck")
			}
			<-p.Draining()
			time.Sleep(2 * time.Second)
			return nil
		}, claim.WithTrace(ofA.trace()))
		g.wantLoads(2*time.Second, []int{1}, a)
		expect(&ofA, "joined; gained 0; failed 0 no luck 1s")
		b := g.start("b", claim.WithTrace(ofB.trace()))
		time.Sleep(time.Second)
		a.link.Delay(50 * time.Millisecond) // each way: what the hand-over takes to the server is not in the gap
		b.link.Delay(30 * time.Millisecond)
		a.stop()
		g.wantLoads(5*time.Second, []int{1}, b)
		a.link.Delay(0)
		b.link.Delay(0)
		if have := ofA.take(); !strings.HasPrefix(have, "draining 0; handed over 0 to b after 2.") {
			t.Errorf("trace = %q, want draining and handed over to b after 2 s and some", have)
		}
		have := ofB.take()
		gap, err := time.ParseDuration(have[strings.LastIndexByte(have, ' ')+1:])
		if !strings.HasPrefix(have, "joined; gained 0; moved 0 ") || err != nil {
			t.Fatalf("trace = %q, want joined, gained and moved", have)
		}
		// The next owner was asked again: a to b and back, 160 ms. Stored: a hears of it
		// 50 ms later and tells b, 80 ms; b reads the claim and the checkpoint, 120 ms.
		if want := (160 + 50 + 80 + 120) * time.Millisecond; gap != want {
			t.Errorf("gap = %v, want %v", gap, want)
		}
		b.link.Cut()
		time.Sleep(g.ttl)
		if have := ofB.take(); have != "lost 0; session lost" && have != "session lost; lost 0" {
			t.Errorf("trace = %q, want lost 0 and session lost", have)
		}
	})
}

// C50: who chooses so runs on while the store is away, sees that it is, and cannot
// write; if the store comes back in time nothing has happened.
func TestDegradedHandlersRunOnAndAreTrustedAgain(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		var said notes
		g := newGroup(t, 2, claim.WithDegraded(), claim.WithTrace(&claim.Trace{Degraded: func(is bool) {
			if is {
				said.add("degraded")
			} else {
				said.add("trusted")
			}
		}}))
		parts := make(chan *claim.Partition, 2)
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			parts <- p
			return idle(ctx, p)
		})
		g.wantLoads(time.Second, []int{2}, a)
		p := <-parts
		time.Sleep(time.Until(a.lastBeat()) + 50*time.Millisecond)
		sent := time.Now().Add(-50 * time.Millisecond)
		a.link.Cut()
		time.Sleep(time.Until(sent.Add(9*time.Second - time.Millisecond)))
		if p.Degraded() || p.Remaining() != time.Millisecond {
			t.Errorf("Degraded, Remaining before the end of trust = %v, %v, want false, 1ms", p.Degraded(), p.Remaining())
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if !p.Degraded() || p.Remaining() != 0 {
			t.Errorf("Degraded, Remaining after it = %v, %v, want true, 0", p.Degraded(), p.Remaining())
		}
		if err := p.Put(t.Context(), "x", nil); !errors.Is(err, claim.ErrDegraded) {
			t.Errorf("Put = %v, want %v", err, claim.ErrDegraded)
		}
		if err := p.Save(t.Context(), nil); !errors.Is(err, claim.ErrDegraded) {
			t.Errorf("Save = %v, want %v", err, claim.ErrDegraded)
		}
		a.link.Mend()
		g.wantLoads(time.Second, []int{2}, a)
		if p.Degraded() || p.Remaining() < 5*time.Second {
			t.Errorf("Degraded, Remaining when the store is back = %v, %v, want false, most of a TTL", p.Degraded(), p.Remaining())
		}
		if err := p.Put(t.Context(), "x", []byte("1")); err != nil {
			t.Errorf("Put = %v, want nil", err)
		}
		if n := g.startsOf(); n != 2 {
			t.Errorf("handlers started = %d, want 2", n)
		}
		if have, want := said.take(), "degraded; trusted"; have != want {
			t.Errorf("trace = %q, want %q", have, want)
		}
		// And it still works.
		b := g.start("b")
		g.wantLoads(time.Second, []int{1, 1}, a, b)
		g.history.Check(t)
	})
}

// C50: if the session has ended meanwhile, the handlers end when the store is back,
// and not before.
func TestDegradedHandlersEndWhenTheSessionTurnsOutToBeOver(t *testing.T) {
	for _, taken := range []bool{false, true} {
		natstest.Bubble(t, func(t *testing.T) {
			g := newGroup(t, 2)
			var cause atomic.Value
			var ended atomic.Int64
			a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
				<-ctx.Done()
				ended.Add(1)
				cause.Store(context.Cause(ctx))
				return nil
			}, claim.WithDegraded())
			g.wantLoads(time.Second, []int{2}, a)
			a.link.Cut()
			var b *worker
			if taken { // it was a that was cut off
				b = g.start("b")
				g.wantLoads(2*g.ttl, []int{2}, b)
			}
			g.wantLoads(5*g.ttl, []int{2}, a)
			if n := ended.Load(); n != 0 {
				t.Errorf("handlers ended while the store was away: %d, want 0", n)
			}
			a.link.Mend()
			time.Sleep(g.ttl)
			synctest.Wait()
			if n := ended.Load(); n != 2 {
				t.Errorf("handlers ended = %d, want 2", n)
			}
			if err, _ := cause.Load().(error); !errors.Is(err, claim.ErrSessionLost) {
				t.Errorf("cause = %v, want %v", err, claim.ErrSessionLost)
			}
			if taken {
				g.wantLoads(0, []int{1, 1}, a, b)
			} else {
				g.wantLoads(0, []int{2}, a)
			}
		})
	}
}

// C50: a write without trust is not even sent.
func TestDegradedWriteIsNotMade(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 1, claim.WithDegraded())
		parts := make(chan *claim.Partition, 2)
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			parts <- p
			return idle(ctx, p)
		})
		g.wantLoads(time.Second, []int{1}, a)
		beat := a.lastBeat()
		a.link.HoldRequest(func(subject string) bool { return strings.HasPrefix(subject, "$KV.tenure.member.") })
		time.Sleep(time.Until(beat.Add(9*time.Second + time.Millisecond)))
		if err := (<-parts).Put(t.Context(), "x", []byte("1")); !errors.Is(err, claim.ErrDegraded) || errors.Is(err, bucket.ErrDoubt) {
			t.Errorf("Put = %v, want %v and no doubt", err, claim.ErrDegraded)
		}
		if have := g.value("data.x"); have != "" {
			t.Errorf("data = %q, want none", have)
		}
	})
}

// C50: a worker that is degraded can be stopped.
func TestDegradedWorkerStops(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 2, claim.WithDegraded())
		a := g.start("a")
		g.wantLoads(time.Second, []int{2}, a)
		a.link.Cut()
		time.Sleep(3 * g.ttl)
		a.stop()
		a.await(5 * time.Second)
		if a.err != nil {
			t.Errorf("Run = %v, want nil", a.err)
		}
	})
}
