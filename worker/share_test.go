package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tenure/embedded/natstest"
	"tenure/worker"
)

// many is how many partitions of a task share a consumer for certain.
const many = 24

// A crowd is many partitions, what was handled of each, and who holds them.
type crowd struct {
	env    *env
	got    []*seen
	places []*place
	runs   []*run
	sent   int // messages of each partition
}

func newCrowd(t *testing.T, options ...any) *crowd {
	t.Helper()
	c := &crowd{env: newEnv(t, options...)}
	for i := range many {
		c.got = append(c.got, new(seen))
		c.places = append(c.places, newPlace(fmt.Sprint(i)))
	}
	c.runs = make([]*run, many)
	return c
}

// task returns the task of another process. before, if not nil, is called with each message.
func (c *crowd) task(before func(ctx context.Context, p worker.Partition, m *worker.Message) error) *worker.Stream {
	return &worker.Stream{
		JS: c.env.js, Stream: "ORDERS", Filter: "orders.{partition}.>",
		Handle: func(ctx context.Context, p worker.Partition, m *worker.Message) error {
			if before != nil {
				if err := before(ctx, p, m); err != nil {
					return err
				}
			}
			return c.seen(p).handle(ctx, p, m)
		},
	}
}

func (c *crowd) seen(p worker.Partition) *seen {
	for i, place := range c.places {
		if place.name == p.Name() {
			return c.got[i]
		}
	}
	panic("no partition " + p.Name())
}

// gain begins a hold of each partition from first to end-1.
func (c *crowd) gain(t *testing.T, task worker.Task, first, end int) {
	t.Helper()
	for i := first; i < end; i++ {
		c.runs[i] = launch(t, task, c.places[i].gain())
	}
}

// publish stores n messages of each partition.
func (c *crowd) publish(t *testing.T, n int) {
	t.Helper()
	for range n {
		for i := range many {
			c.env.publish(t, fmt.Sprint(i), c.sent, 1)
		}
		c.sent++
	}
}

// want checks that all that was published was handled once, in order.
func (c *crowd) want(t *testing.T) {
	t.Helper()
	for i := range many {
		c.got[i].want(t, c.sent)
	}
}

// wantConsumers checks how many consumers there are, and that all are shared ones.
func (c *crowd) wantConsumers(t *testing.T, n int) {
	t.Helper()
	names := c.env.consumers(t)
	for _, name := range names {
		if !strings.Contains(name, "_shared_") {
			t.Errorf("consumer %s, want shared ones only", name)
		}
	}
	if len(names) != n {
		t.Errorf("consumers = %v, want %d", names, n)
	}
}

// 1,000 consumers with a filter each make the server look at every message 1,000 times.
func TestManyPartitionsShareAConsumer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		c := newCrowd(t)
		c.publish(t, 3)
		one, two := c.task(nil), c.task(nil)
		c.gain(t, one, 0, many) // two tasks of 12 would not share
		time.Sleep(time.Second)
		c.want(t)
		c.publish(t, 3)
		time.Sleep(10 * time.Second) // those that were alone at first join the others
		c.want(t)
		c.wantConsumers(t, 1)
		for i := range many { // all of them move
			c.runs[i].drain()
			c.runs[i].wantReturn(t, nil)
			c.publish(t, 1)
			c.gain(t, two, i, i+1)
		}
		time.Sleep(10 * time.Second)
		c.want(t)
		c.publish(t, 3) // those that were alone at first join the others
		time.Sleep(10 * time.Second)
		c.want(t)
		c.wantConsumers(t, 1)
		for i := range many {
			c.runs[i].drain()
			c.runs[i].wantReturn(t, nil)
		}
		time.Sleep(5 * time.Second)
		c.wantConsumers(t, 0)
	})
}

// N66, N67: partitions move between two processes while messages flow.
func TestSharedPartitionsMoveAndEveryMessageIsHandledOnceInOrder(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		c := newCrowd(t)
		slow := func(context.Context, worker.Partition, *worker.Message) error {
			time.Sleep(3 * time.Millisecond)
			return nil
		}
		tasks := []*worker.Stream{c.task(slow), c.task(slow)}
		c.gain(t, tasks[0], 0, many)
		for round := range 40 {
			c.publish(t, 5)
			for i := round % 5; i < many; i += 5 {
				c.runs[i].drain()
				c.runs[i].wantReturn(t, nil)
				c.gain(t, tasks[(round+i)%2], i, i+1)
			}
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		c.want(t)
	})
}

// The partition is lost while its message is in hand. What the old holder does then,
// acknowledging and reading on in the consumer that it shares, moves nothing: the next
// holder begins at the message in hand, and the one after that behind what was handled.
func TestZombieAcknowledgesNothingInASharedConsumer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		c := newCrowd(t)
		stuck := make(chan struct{})
		old := c.task(func(_ context.Context, p worker.Partition, m *worker.Message) error {
			if p.Name() == "7" && number(m) == 3 {
				<-stuck
				return errors.New("not by me")
			}
			return nil
		})
		c.gain(t, old, 0, many)
		c.publish(t, 10)
		time.Sleep(time.Second)
		zombie := c.runs[7]
		zombie.trusted(0)
		next := c.task(nil)
		c.gain(t, next, 7, 8)
		time.Sleep(time.Second)
		close(stuck)
		zombie.trusted(time.Hour) // it believes, wrongly
		c.publish(t, 10)
		time.Sleep(2 * time.Second)
		c.runs[7].lose() // a crash, right after its last message
		_ = c.runs[7].wait(t)
		zombie.lose()
		c.gain(t, c.task(nil), 7, 8)
		c.publish(t, 5)
		time.Sleep(time.Second)
		for i := range many {
			if i != 7 {
				c.got[i].want(t, c.sent)
			}
		}
		// The zombie, too, handled what it was sent: its writes are to be refused by
		// their token. What counts is that the others missed and repeated nothing.
		var counts [32]int
		for _, n := range c.got[7].all() {
			counts[n]++
		}
		for n := range c.sent {
			if counts[n] == 0 {
				t.Errorf("message %d was not handled", n)
			}
		}
	})
}

// The process dies without a word. The next holders ask its consumer how far all
// was handled, so that they repeat what was in hand, and next to nothing else.
func TestNextHoldsReadOnAtTheAcknowledgedAfterACrashOfAll(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		c := newCrowd(t)
		dead := make(chan struct{})
		var inHand atomic.Int32
		old := c.task(func(ctx context.Context, _ worker.Partition, m *worker.Message) error {
			if number(m) == 50 {
				inHand.Add(1)
				select {
				case <-dead:
				case <-ctx.Done():
				}
				return context.Canceled
			}
			return nil
		})
		c.gain(t, old, 0, many)
		c.publish(t, 60)
		time.Sleep(2 * time.Second)
		if n := inHand.Load(); n != many {
			t.Fatalf("messages in hand = %d, want one of each partition", n)
		}
		for i := range many {
			c.runs[i].lose()
		}
		for i := range many {
			_ = c.runs[i].wait(t)
		}
		c.gain(t, c.task(nil), 0, many)
		time.Sleep(2 * time.Second)
		c.want(t) // nothing was acknowledged behind message 50, so nothing is repeated
		close(dead)
	})
}

// The process lives, but has lost a partition. Its consumer is sent the partition's
// messages all the same: were they acknowledged, the next holder, who asks how far it
// was handled, would pass them over.
func TestMessagesOfALostPartitionAreLeftToTheNextHold(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		c := newCrowd(t)
		c.gain(t, c.task(nil), 0, many)
		c.publish(t, 3)
		time.Sleep(3 * time.Second)
		c.runs[7].lose()
		_ = c.runs[7].wait(t)
		c.publish(t, 3)
		time.Sleep(100 * time.Millisecond)
		c.gain(t, c.task(nil), 7, 8)
		time.Sleep(3 * time.Second)
		c.want(t)
	})
}

// Once a partition has moved, its messages shall not keep the consumer that it has left
// from knowing how far the others were handled.
func TestMovedPartitionDoesNotHideHowFarTheOthersWereHandled(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		c := newCrowd(t)
		c.gain(t, c.task(nil), 0, many)
		c.publish(t, 3)
		time.Sleep(3 * time.Second)
		c.runs[7].drain()
		c.runs[7].wantReturn(t, nil)
		c.gain(t, c.task(nil), 7, 8)
		c.publish(t, 30)
		time.Sleep(100 * time.Millisecond)
		for i := range many {
			if i != 7 { // the process dies
				c.runs[i].lose()
			}
		}
		for i := range many {
			if i != 7 {
				_ = c.runs[i].wait(t)
			}
		}
		c.publish(t, 1)
		rest := c.task(nil)
		c.gain(t, rest, 0, 7)
		c.gain(t, rest, 8, many)
		time.Sleep(3 * time.Second)
		c.want(t)
	})
}

// N69: one partition whose handler hangs takes itself out, not the others.
func TestSlowPartitionHoldsUpNobodyElse(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		c := newCrowd(t)
		release := make(chan struct{})
		task := c.task(func(_ context.Context, p worker.Partition, m *worker.Message) error {
			if p.Name() == "7" && number(m) == 5 {
				<-release
			}
			return nil
		})
		c.gain(t, task, 0, many)
		c.publish(t, 300)
		time.Sleep(5 * time.Second)
		for i := range many {
			if i != 7 {
				c.got[i].want(t, 300)
			}
		}
		c.got[7].want(t, 5)
		close(release)
		time.Sleep(20 * time.Second)
		c.want(t)
		c.publish(t, 1)
		time.Sleep(10 * time.Second)
		c.want(t)
		c.wantConsumers(t, 1) // it is back among the others
	})
}

func TestSharedConsumerThatIsDeletedOrCutOffIsMadeAnew(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		c := newCrowd(t)
		link := natstest.NewLink(t, c.env.server)
		task := c.task(nil)
		task.JS = natstest.JetStream(t, link.Connect())
		c.gain(t, task, 0, many)
		time.Sleep(time.Second)
		for i := range 12 {
			switch i % 3 {
			case 0:
				for _, name := range c.env.consumers(t) {
					if err := c.env.js.DeleteConsumer(t.Context(), "ORDERS", name); err != nil {
						t.Fatal(err)
					}
				}
			case 1:
				link.CutDown() // what is sent now is lost
			}
			c.publish(t, 4)
			time.Sleep(time.Second)
			link.Mend()
			link.Break()
			time.Sleep(2 * time.Second)
		}
		time.Sleep(10 * time.Second)
		c.want(t)
	})
}

// all returns the numbers of what was handled.
func (s *seen) all() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]int(nil), s.numbers...)
}
