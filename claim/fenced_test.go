package claim_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tenure/claim"
	"tenure/embedded/natstest"
	"tenure/kvlock/bucket"
)

// isData matches requests to write users' data.
func isData(subject string) bool { return strings.HasPrefix(subject, "$KV.tenure.data.") }

// value returns what is stored under a key, empty if nothing is.
func (g *group) value(key string) string {
	g.t.Helper()
	b, err := bucket.Open(g.t.Context(), natstest.JetStream(g.t, natstest.Connect(g.t, g.srv)))
	if err != nil {
		g.t.Fatal(err)
	}
	e, err := b.Get(g.t.Context(), key)
	if err != nil && !errors.Is(err, bucket.ErrNotFound) {
		g.t.Fatal(err)
	}
	return string(e.Value)
}

func TestPutAndPublishStoreUnderTheClaim(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 1)
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			if err := p.Put(ctx, "total of 0", []byte("1")); err != nil {
				t.Errorf("Put = %v, want nil", err)
			}
			if err := p.Publish(ctx, "$KV.tenure.events.x", []byte("2")); err != nil {
				t.Errorf("Publish = %v, want nil", err)
			}
			for _, subject := range []string{"orders.x", "$KV.tenure.claim.orders.0", "$KV.tenure.member.orders.a", "$KV.tenure.*", "$KV.tenure.a..b", "$KV.tenure."} {
				if err := p.Publish(ctx, subject, nil); !errors.Is(err, claim.ErrName) {
					t.Errorf("Publish to %q = %v, want %v", subject, err, claim.ErrName)
				}
			}
			if err := p.Put(ctx, "", nil); !errors.Is(err, claim.ErrName) {
				t.Errorf("Put without a key = %v, want %v", err, claim.ErrName)
			}
			<-p.Draining()
			return nil
		})
		g.wantLoads(time.Second, []int{1}, a)
		if have := g.value("data.total=20of=200"); have != "1" {
			t.Errorf("data = %q, want 1", have)
		}
		if have := g.value("events.x"); have != "2" {
			t.Errorf("published = %q, want 2", have)
		}
	})
}

// S3, C7, F1: the server refuses a write that arrives after the claim has changed
// hands, however long it was under way.
func TestWriteThatArrivesAfterTheHandOverIsRefused(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 1)
		begun := make(chan *worker, 1)
		arrive := make(chan func(), 1)
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			arrive <- (<-begun).link.HoldRequest(isData)
			<-p.Draining()
			short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			defer cancel()
			err := p.Put(short, "x", []byte("from a"))
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, bucket.ErrDoubt) {
				t.Errorf("Put without an answer = %v, want %v and %v", err, context.DeadlineExceeded, bucket.ErrDoubt)
			}
			return nil
		})
		begun <- a
		g.wantLoads(time.Second, []int{1}, a)
		b := g.startWith("b", func(ctx context.Context, p *claim.Partition) error {
			if err := p.Put(ctx, "x", []byte("from b")); err != nil {
				t.Errorf("Put = %v, want nil", err)
			}
			<-p.Draining()
			return nil
		})
		time.Sleep(time.Second)
		a.leave()
		g.wantLoads(time.Second, []int{1}, b)
		(<-arrive)()
		time.Sleep(time.Second)
		if have := g.value("data.x"); have != "from b" {
			t.Errorf("data = %q, want %q", have, "from b")
		}
	})
}

// H13, F2: a Put whose answer was lost is not stored over a newer one later.
func TestGhostOfAPutNeverOverwritesANewerOne(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 1)
		begun := make(chan *worker, 1)
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			var held atomic.Bool
			arrive := (<-begun).link.HoldRequest(func(s string) bool { return isData(s) && held.CompareAndSwap(false, true) })
			short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			defer cancel()
			if err := p.Put(short, "x", []byte("one")); err == nil {
				t.Error("Put without an answer = nil, want an error")
			}
			if err := p.Put(ctx, "x", []byte("two")); err != nil {
				t.Errorf("Put = %v, want nil", err)
			}
			arrive()
			<-p.Draining()
			return nil
		})
		begun <- a
		g.wantLoads(5*time.Second, []int{1}, a)
		if have := g.value("data.x"); have != "two" {
			t.Errorf("data = %q, want two", have)
		}
	})
}

// S7: a write that was stored is not made again because its answer was lost.
func TestLostAnswerPublishesOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 1)
		begun := make(chan *worker, 1)
		var sent atomic.Int64
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			link := (<-begun).link
			isEvent := func(s string) bool { return strings.HasPrefix(s, "$KV.tenure.events.") }
			link.HoldRequest(func(s string) bool {
				if isEvent(s) {
					sent.Add(1)
				}
				return false
			})
			link.DropReply(1, func(s string, _ []byte) bool { return isEvent(s) })
			if err := p.Publish(ctx, "$KV.tenure.events.x", []byte("once")); err != nil {
				t.Errorf("Publish = %v, want nil", err)
			}
			<-p.Draining()
			return nil
		})
		begun <- a
		g.wantLoads(5*time.Second, []int{1}, a)
		if n := sent.Load(); n != 1 {
			t.Errorf("messages sent = %d, want 1", n)
		}
		if have := g.value("events.x"); have != "once" {
			t.Errorf("published = %q, want once", have)
		}
	})
}

// C42, C11, N69: a claim that somebody else has taken ends its own handler, and no
// other.
func TestLostClaimEndsItsOwnHandlerAlone(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		g := newGroup(t, 8)
		steal := make(chan struct{})
		var first atomic.Bool
		var ended atomic.Int64
		var cause atomic.Value
		a := g.startWith("a", func(ctx context.Context, p *claim.Partition) error {
			if p.Name() == "3" && first.CompareAndSwap(false, true) {
				<-steal
				if err := p.Put(ctx, "x", nil); !errors.Is(err, claim.ErrFenced) {
					t.Errorf("Put under a claim that was taken = %v, want %v", err, claim.ErrFenced)
				}
				cause.Store(context.Cause(ctx))
			}
			select {
			case <-ctx.Done():
				ended.Add(1)
			case <-p.Draining():
			}
			return nil
		})
		g.wantLoads(time.Second, []int{8}, a)
		b, err := bucket.Open(t.Context(), natstest.JetStream(t, natstest.Connect(t, g.srv)))
		if err != nil {
			t.Fatal(err)
		}
		e, err := b.Get(t.Context(), "claim.orders.3")
		if err != nil {
			t.Fatal(err)
		}
		forged := strings.Replace(string(e.Value), `"nonce":"`, `"nonce":"x`, 1) // by nobody's protocol
		if _, err := b.Write(t.Context(), bucket.Write{Key: e.Key, Last: e.Revision, Value: []byte(forged)}); err != nil {
			t.Fatal(err)
		}
		close(steal)
		time.Sleep(time.Minute)
		synctest.Wait()
		if err, _ := cause.Load().(error); !errors.Is(err, claim.ErrFenced) {
			t.Errorf("cause = %v, want %v", err, claim.ErrFenced)
		}
		if n := ended.Load(); n != 1 {
			t.Errorf("handlers ended = %d, want the one", n)
		}
	})
}
