package kvlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tenure/embedded/natstest"
	"tenure/kvlock"
	"tenure/kvlock/bucket"
)

// An entry is what an RLock call in another goroutine came to.
type entry struct {
	reader *kvlock.Reader
	err    error
	at     time.Time
}

// reading calls RLock in a goroutine and returns once it waits or is in.
func reading(ctx context.Context, rw *kvlock.RWLock) <-chan entry {
	c := make(chan entry, 1)
	go func() {
		r, err := rw.RLock(ctx)
		c <- entry{r, err, time.Now()}
	}()
	time.Sleep(time.Millisecond) // in a bubble: until it is asleep
	return c
}

func tryRLock(t testing.TB, rw *kvlock.RWLock) *kvlock.Reader {
	t.Helper()
	r, err := rw.TryRLock(t.Context())
	if err != nil {
		t.Fatalf("TryRLock = %v, want nil", err)
	}
	return r
}

func leave(t testing.TB, r *kvlock.Reader) {
	t.Helper()
	if err := r.Release(t.Context()); err != nil {
		t.Errorf("Release = %v, want nil", err)
	}
}

// wantWaiting fails the test if something has come out of the channel.
func wantWaiting[T any](t testing.TB, what string, c <-chan T) {
	t.Helper()
	synctest.Wait()
	select {
	case got := <-c:
		t.Fatalf("%s ended with %+v, want that it waits", what, got)
	default:
	}
}

// S1, S6, H11: readers and writers are never in at the same time, whatever the network
// does, and in the end the lock can be had again.
func TestReadersAndWritersExcludeEachOther(t *testing.T) {
	n := fewer(30)
	if testing.Short() {
		n = 4
	}
	for seed := range uint64(n) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				s := newSite(t)
				rnd := rand.New(rand.NewPCG(seed, 2))
				ctx, stop := context.WithTimeout(t.Context(), time.Minute)
				defer stop()
				var y tally
				var all sync.WaitGroup
				var ps []*process
				writes := 0
				for i := range 4 {
					p := s.process(string(rune('a'+i)), kvlock.WithTTL(chaosTTL))
					ps = append(ps, p)
					rw := p.RWLock("cfg")
					for j := range 3 {
						mine := rand.New(rand.NewPCG(seed, uint64(10*i+j+10)))
						work := func(done <-chan struct{}) {
							work := time.NewTimer(time.Duration(mine.IntN(2000)) * time.Millisecond)
							defer work.Stop()
							select {
							case <-work.C:
							case <-done:
							}
						}
						all.Go(func() {
							for ctx.Err() == nil {
								wait, cancel := context.WithTimeout(ctx, time.Duration(mine.IntN(8000))*time.Millisecond)
								if j > 0 {
									if r, err := rw.RLock(wait); err == nil {
										y.gain(t, r, false, 100)
										work(r.Context().Done())
										_ = r.Release(ctx)
									}
								} else {
									_ = rw.Do(wait, func(_ context.Context, k *kvlock.Lock) error {
										y.gain(t, k, true, 1)
										y.mu.Lock()
										writes++
										y.mu.Unlock()
										work(k.Context().Done())
										return nil
									})
								}
								cancel()
								time.Sleep(time.Duration(mine.IntN(1000)) * time.Millisecond)
							}
						})
					}
				}
				faults(ctx, rnd, ps)
				all.Wait()
				if y.most < 2 || writes < 5 {
					t.Errorf("most readers at once = %d, writes = %d: the test is too weak", y.most, writes)
				}
				time.Sleep(2 * chaosTTL)
				k := must(t, ps[0].RWLock("cfg").TryLock)
				release(t, k)
				t.Logf("%d holds, %d of them of writers, %d readers at once", y.took, writes, y.most)
			})
		})
	}
}

func TestWriterWaitsForReadersAndIsServedAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b, c := s.process("a"), s.process("b"), s.process("c")
		first, second := tryRLock(t, a.RWLock("cfg")), tryRLock(t, b.RWLock("cfg"))
		_, err := c.RWLock("cfg").TryLock(t.Context())
		if held, ok := errors.AsType[*kvlock.HeldError](err); !ok || held.Owner != "a" && held.Owner != "b" {
			t.Errorf("TryLock = %v, want held by a reader", err)
		}
		writer := asking(t.Context(), c.RWLock("cfg").Lock)
		time.Sleep(time.Minute)
		leave(t, first)
		wantWaiting(t, "Lock", writer)
		began := time.Now()
		leave(t, second)
		got := <-writer
		if got.err != nil || !got.at.Equal(began) {
			t.Fatalf("Lock = %v, %v after the last reader left, want nil, at once", got.err, got.at.Sub(began))
		}
		if _, err := a.RWLock("cfg").TryRLock(t.Context()); !errors.Is(err, kvlock.ErrHeld) {
			t.Errorf("TryRLock = %v, want %v", err, kvlock.ErrHeld)
		}
		release(t, got.lock)
		leave(t, tryRLock(t, a.RWLock("cfg")))
		time.Sleep(3 * time.Second)
		if keys := s.keys(""); len(keys) > 0 {
			t.Errorf("keys = %v, want none", keys)
		}
	})
}

// A waiting writer bars new readers, also those of a process that reads already, so
// that it is not starved.
func TestWaitingWriterIsNotStarved(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		rw := a.RWLock("cfg")
		first := tryRLock(t, rw)
		second := tryRLock(t, rw)
		leave(t, first)
		writer := asking(t.Context(), b.RWLock("cfg").Lock)
		if _, err := rw.TryRLock(t.Context()); !errors.Is(err, kvlock.ErrHeld) {
			t.Errorf("TryRLock while a writer waits = %v, want %v", err, kvlock.ErrHeld)
		}
		later := reading(t.Context(), rw)
		wantWaiting(t, "RLock", later)
		leave(t, second)
		got := <-writer
		wantWaiting(t, "RLock", later)
		release(t, got.lock)
		leave(t, (<-later).reader)
	})
}

// Readers between two writers come in together, in no time, and the second writer
// after them.
func TestReadersAndWritersAreServedInTheOrderOfTheirComing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b, c := s.process("a"), s.process("b"), s.process("c")
		k := must(t, a.RWLock("cfg").TryLock)
		var run []<-chan entry
		for _, p := range []*process{b, c, a, b} {
			run = append(run, reading(t.Context(), p.RWLock("cfg")))
		}
		writer := asking(t.Context(), c.RWLock("cfg").Lock)
		last := reading(t.Context(), b.RWLock("cfg"))
		time.Sleep(time.Minute)
		began := time.Now()
		release(t, k)
		var in []*kvlock.Reader
		for i, c := range run {
			got := <-c
			if got.err != nil || !got.at.Equal(began) {
				t.Fatalf("RLock %d = %v, %v after the release, want nil, at once", i, got.err, got.at.Sub(began))
			}
			in = append(in, got.reader)
		}
		for _, r := range in {
			wantWaiting(t, "Lock", writer)
			wantWaiting(t, "RLock", last)
			time.Sleep(time.Second)
			began = time.Now()
			leave(t, r)
		}
		got := <-writer
		if got.err != nil || !got.at.Equal(began) {
			t.Fatalf("Lock = %v, %v after the last reader left, want nil, at once", got.err, got.at.Sub(began))
		}
		wantWaiting(t, "RLock", last)
		began = time.Now()
		release(t, got.lock)
		if got := <-last; got.err != nil || !got.at.Equal(began) {
			t.Errorf("RLock = %v, %v after the release, want nil, at once", got.err, got.at.Sub(began))
		} else {
			leave(t, got.reader)
		}
	})
}

// H11: a reader that saw the gate open comes in only if it still is.
func TestLateEntryOfAReaderIsRefused(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		let := a.link.HoldRequest(func(s string) bool { return strings.HasPrefix(s, "$KV.tenure.read.") })
		reader := reading(t.Context(), a.RWLock("cfg"))
		k := must(t, b.RWLock("cfg").TryLock)
		let()
		wantWaiting(t, "RLock", reader)
		release(t, k)
		leave(t, (<-reader).reader)
	})
}

// L9, L8: a late entry that nobody wants any more holds up a writer for milliseconds.
func TestGhostOfAReaderIsEndedWhenAWriterAsks(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		let := a.link.HoldRequest(func(s string) bool { return strings.HasPrefix(s, "$KV.tenure.read.") })
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := a.RWLock("cfg").RLock(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("RLock = %v, want %v", err, context.DeadlineExceeded)
		}
		time.Sleep(time.Second)
		let()
		time.Sleep(time.Millisecond)
		if keys := s.keys("read."); len(keys) != 1 {
			t.Fatalf("keys = %v, want the ghost", keys)
		}
		began := time.Now()
		got := <-asking(t.Context(), b.RWLock("cfg").Lock)
		if after := got.at.Sub(began); got.err != nil || after > 20*time.Millisecond {
			t.Fatalf("Lock = %v after %v, want nil within 20ms", got.err, after)
		}
		release(t, got.lock)
	})
}

// S7: an entry whose answer was lost is found, and is one hold.
func TestReaderWhoseAnswerWasLostIsIn(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a := s.process("a")
		a.link.DropReply(1)
		r := tryRLock(t, a.RWLock("cfg"))
		if keys := s.keys("read."); len(keys) != 1 {
			t.Errorf("keys = %v, want one", keys)
		}
		time.Sleep(time.Minute)
		if err := r.Err(); err != nil {
			t.Errorf("Err = %v, want nil", err)
		}
		leave(t, r)
	})
}

// B7: a writer relies on no list that is more than a margin older than its last
// renewal: a server that was cut off may have expired a reader that goes on.
func TestWriterRenewsBeforeItReliesOnALateList(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, _ := two(t)
		a.link.Delay(450 * time.Millisecond)
		began := time.Now()
		writer := asking(t.Context(), a.RWLock("cfg").Lock)
		time.Sleep(time.Until(began.Add(1700 * time.Millisecond))) // the list is on its way back
		a.link.Delay(0)
		got := <-writer
		if got.err != nil {
			t.Fatal(got.err)
		}
		if got.lock.Revision() == got.lock.Token() {
			t.Errorf("Lock returned %v after the gate was written without a renewal", got.at.Sub(began))
		}
		release(t, got.lock)
	})
}

// K60: a writer that gives up lets in the readers behind it, but no writer beside the
// readers before it.
func TestWriterThatGivesUpLetsInReadersAndNoWriter(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b, c := s.process("a"), s.process("b"), s.process("c")
		first := tryRLock(t, a.RWLock("cfg"))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		expires := asking(ctx, b.RWLock("cfg").Lock)
		second := reading(t.Context(), c.RWLock("cfg"))
		writer := asking(t.Context(), c.RWLock("cfg").Lock)
		wantWaiting(t, "RLock", second)
		got := <-expires
		if !errors.Is(got.err, context.DeadlineExceeded) || !errors.Is(got.err, kvlock.ErrHeld) {
			t.Errorf("Lock = %v, want %v and %v", got.err, context.DeadlineExceeded, kvlock.ErrHeld)
		}
		in := <-second
		if in.err != nil || !in.at.Equal(got.at) {
			t.Fatalf("RLock = %v, %v after the writer gave up, want nil, at once", in.err, in.at.Sub(got.at))
		}
		wantWaiting(t, "Lock", writer)
		leave(t, in.reader)
		time.Sleep(time.Minute)
		wantWaiting(t, "Lock", writer)
		leave(t, first)
		release(t, (<-writer).lock)
	})
}

// K60: a waiter that gives up while a writer is in lets nobody in.
func TestReaderThatGivesUpLetsNobodyIn(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b, c := s.process("a"), s.process("b"), s.process("c")
		k := must(t, a.RWLock("cfg").TryLock)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		expires := reading(ctx, b.RWLock("cfg"))
		reader := reading(t.Context(), c.RWLock("cfg"))
		writer := asking(t.Context(), b.RWLock("cfg").Lock)
		if got := <-expires; !errors.Is(got.err, context.DeadlineExceeded) {
			t.Errorf("RLock = %v, want %v", got.err, context.DeadlineExceeded)
		}
		time.Sleep(time.Minute)
		wantWaiting(t, "RLock", reader)
		wantWaiting(t, "Lock", writer)
		release(t, k)
		leave(t, (<-reader).reader)
		release(t, (<-writer).lock)
		time.Sleep(3 * time.Second)
		if keys := s.keys(""); len(keys) > 0 {
			t.Errorf("keys = %v, want none", keys)
		}
	})
}

// K61, K25: a reader with a short lease that crashes ends its own hold only.
func TestShortLeaseOfAReaderDoesNotShortenAnothers(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		short, long, c := s.process("short", kvlock.WithTTL(3*time.Second)), s.process("long"), s.process("c")
		stays := tryRLock(t, long.RWLock("cfg"))
		tryRLock(t, short.RWLock("cfg"))
		short.link.Cut()
		writer := asking(t.Context(), c.RWLock("cfg").Lock)
		time.Sleep(time.Minute)
		wantWaiting(t, "Lock", writer)
		if err := stays.Err(); err != nil {
			t.Errorf("Err of the reader with the long lease = %v, want nil", err)
		}
		if keys := s.keys("read."); len(keys) != 1 {
			t.Errorf("readers = %v, want the one with the long lease", keys)
		}
		leave(t, stays)
		release(t, (<-writer).lock)
	})
}

// S6: a crashed reader holds up a writer for its TTL.
func TestWriterWaitsForACrashedReaderOneTTL(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		r := tryRLock(t, a.RWLock("cfg"))
		writer := asking(t.Context(), b.RWLock("cfg").Lock)
		time.Sleep(31 * time.Second) // the last renewal was 1 s ago
		a.link.Cut()
		end := time.Now().Add(14 * time.Second)
		got := <-writer
		if after := got.at.Sub(end); got.err != nil || after < 0 || after > 500*time.Millisecond {
			t.Errorf("Lock = %v, %v after the end of the reader's TTL, want nil, 0s to 500ms", got.err, after)
		}
		wantLost(t, "Err", r.Err(), kvlock.Expired)
		wantLost(t, "cause", context.Cause(r.Context()), kvlock.Expired)
		wantLost(t, "Release", r.Release(t.Context()), kvlock.Expired)
		if d := r.Remaining(); d != 0 {
			t.Errorf("Remaining = %v, want 0s", d)
		}
		release(t, got.lock)
	})
}

// S6: a writer that crashes while it waits for readers bars others for its TTL.
func TestCrashedWaitingWriterBarsReadersOneTTL(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b, c := s.process("a"), s.process("b"), s.process("c")
		first := tryRLock(t, a.RWLock("cfg"))
		asking(t.Context(), b.RWLock("cfg").Lock)
		began := time.Now()
		reader := reading(t.Context(), c.RWLock("cfg"))
		b.link.Cut()
		got := <-reader
		if after := got.at.Sub(began); got.err != nil || after > 15500*time.Millisecond {
			t.Fatalf("RLock = %v after %v, want nil within 15.5s", got.err, after)
		}
		leave(t, got.reader)
		leave(t, first)
	})
}

// What was lost while it waited was no hold: the writer goes on waiting.
func TestWriterThatLosesTheGateWhileItWaitsGoesOn(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		first := tryRLock(t, a.RWLock("cfg"))
		writer := asking(t.Context(), b.RWLock("cfg").Lock)
		b.link.Cut()
		time.Sleep(time.Minute)
		b.link.Mend()
		time.Sleep(10 * time.Second)
		wantWaiting(t, "Lock", writer)
		leave(t, first)
		got := <-writer
		if got.err != nil {
			t.Fatal(got.err)
		}
		wantHeldOn(t, got.lock)
		release(t, got.lock)
	})
}

// Readers of one process share a key: all but the first come in without a message.
func TestReadersOfOneProcessShareAKey(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a := s.process("a")
		rw := a.RWLock("cfg")
		first := tryRLock(t, rw)
		before := a.nc.Stats().OutMsgs
		var more []*kvlock.Reader
		for range 100 {
			more = append(more, tryRLock(t, rw))
		}
		leave(t, first)
		if err := first.Err(); !errors.Is(err, kvlock.ErrReleased) {
			t.Errorf("Err of a released reader = %v, want %v", err, kvlock.ErrReleased)
		}
		for _, r := range more[1:] {
			leave(t, r)
			leave(t, r) // once more changes nothing
		}
		if n := a.nc.Stats().OutMsgs - before; n > 0 {
			t.Errorf("messages = %d, want none", n)
		}
		if err := more[0].Err(); err != nil || len(s.keys("read.")) != 1 {
			t.Errorf("Err of the last reader = %v, keys = %v; want nil and its key", err, s.keys("read."))
		}
		leave(t, more[0])
		if keys := s.keys(""); len(keys) > 0 {
			t.Errorf("keys = %v, want none", keys)
		}
	})
}

// S8, S5: Close ends the contexts of readers; those of RDo are released by it.
func TestCloseWaitsForTheReadersOfRDo(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		rw := a.RWLock("cfg")
		loose := tryRLock(t, rw)
		done := make(chan error, 1)
		go func() {
			done <- rw.RDo(t.Context(), func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(5 * time.Second)
				return context.Cause(ctx)
			})
		}()
		time.Sleep(time.Second)
		writer := asking(t.Context(), b.RWLock("cfg").Lock)
		began := time.Now()
		if err := a.Close(t.Context()); err != nil {
			t.Errorf("Close = %v, want nil", err)
		}
		got := <-writer
		if after := got.at.Sub(began); got.err != nil || after != 5*time.Second {
			t.Errorf("Lock = %v, %v after Close, want nil, 5s", got.err, after)
		}
		if err := <-done; !errors.Is(err, kvlock.ErrClosed) {
			t.Errorf("RDo = %v, want %v", err, kvlock.ErrClosed)
		}
		if err := loose.Err(); !errors.Is(err, kvlock.ErrReleased) {
			t.Errorf("Err of the other reader = %v, want %v", err, kvlock.ErrReleased)
		}
		if _, err := rw.RLock(t.Context()); !errors.Is(err, kvlock.ErrClosed) {
			t.Errorf("RLock of a closed Locker = %v, want %v", err, kvlock.ErrClosed)
		}
		release(t, got.lock)
	})
}

func TestOneNameIsOneKindOfLock(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		for _, c := range []struct {
			have string
			take func() func()
			want map[string]func() error
		}{
			{"lock", func() func() { k := a.tryLock(t, "cfg"); return func() { release(t, k) } }, map[string]func() error{
				"TryLock":  func() error { _, err := b.RWLock("cfg").TryLock(t.Context()); return err },
				"Lock":     func() error { _, err := b.RWLock("cfg").Lock(t.Context()); return err },
				"TryRLock": func() error { _, err := b.RWLock("cfg").TryRLock(t.Context()); return err },
				"RLock":    func() error { _, err := b.RWLock("cfg").RLock(t.Context()); return err },
			}},
			{"rw", func() func() { k := must(t, a.RWLock("cfg").TryLock); return func() { release(t, k) } }, map[string]func() error{
				"TryLock": func() error { _, err := b.TryLock(t.Context(), "cfg"); return err },
				"Lock":    func() error { _, err := b.Lock(t.Context(), "cfg"); return err },
			}},
		} {
			end := c.take()
			for call, f := range c.want {
				err := f()
				if kind, ok := errors.AsType[*kvlock.KindError](err); !ok || !errors.Is(err, kvlock.ErrKind) || kind.Have != c.have || kind.Name != "cfg" {
					t.Errorf("%s = %v, want in use as %q", call, err, c.have)
				}
			}
			end()
		}
	})
}

// S5: an operator ends a writer's hold, and nobody comes in before the work has ended.
func TestBrokenWriterBarsReadersUntilItHasStopped(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := must(t, a.RWLock("cfg").TryLock)
		if err := b.Break(t.Context(), "cfg", "enough"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		wantLost(t, "Err", k.Err(), kvlock.Revoked)
		reader := reading(t.Context(), b.RWLock("cfg"))
		time.Sleep(5 * time.Second)
		wantWaiting(t, "RLock", reader)
		_ = k.Release(t.Context())
		leave(t, (<-reader).reader)
	})
}

// 40 readers that leave one after another cost the writer two lists, not 40.
func TestWriterIsNotWokenByEveryReaderThatLeaves(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		var in []*kvlock.Reader
		for i := range 40 {
			in = append(in, tryRLock(t, s.process(fmt.Sprint("r", i)).RWLock("cfg")))
		}
		w := s.process("w")
		writer := asking(t.Context(), w.RWLock("cfg").Lock)
		before := w.nc.Stats().OutMsgs
		for _, r := range in {
			leave(t, r)
		}
		got := <-writer
		if n := w.nc.Stats().OutMsgs - before; got.err != nil || n > 40+2+40 { // answers, a renewal and a list, markers
			t.Errorf("Lock = %v, messages = %d, want nil, at most 82", got.err, n)
		}
		release(t, got.lock)
	})
}

// The shapes on three real servers, where entries of readers that are under way at the
// same time collide at the gate.
func TestShapesOnAClusterInRealTime(t *testing.T) {
	if testing.Short() {
		t.Skip("a cluster in real time")
	}
	c := natstest.Cluster(t)
	var ls []*kvlock.Locker
	for i := range 4 {
		nc := c.Connect(kvlock.ConnOptions()...)
		l, err := kvlock.New(t.Context(), natstest.JetStream(t, nc),
			kvlock.WithOwner(fmt.Sprint(i)), kvlock.WithBucketOptions(bucket.Fresh(), bucket.Replicas(3)))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close(context.WithoutCancel(t.Context()))
		ls = append(ls, l)
	}
	var rooms, perms tally
	var all sync.WaitGroup
	for i, l := range ls {
		sem, err := l.Semaphore(t.Context(), "pool", 3)
		if err != nil {
			t.Fatal(err)
		}
		for j := range 4 {
			rw := l.RWLock("cfg") // an own key each
			all.Go(func() {
				for range 10 {
					err := sem.Do(t.Context(), func(_ context.Context, k *kvlock.Lock) error {
						perms.gain(t, k, false, 3)
						time.Sleep(time.Millisecond)
						return nil
					})
					if err != nil {
						t.Errorf("Do of client %d = %v, want nil", i, err)
					}
					if j == 0 {
						err = rw.Do(t.Context(), func(_ context.Context, k *kvlock.Lock) error {
							rooms.gain(t, k, true, 1)
							time.Sleep(time.Millisecond)
							return nil
						})
						if err != nil {
							t.Errorf("Do of client %d = %v, want nil", i, err)
						}
						continue
					}
					r, err := rw.RLock(t.Context())
					if err != nil {
						t.Errorf("RLock of client %d = %v, want nil", i, err)
						continue
					}
					rooms.gain(t, r, false, 12)
					time.Sleep(time.Millisecond)
					leave(t, r)
				}
			})
		}
	}
	all.Wait()
	t.Logf("permits at once: %d, readers at once: %d", perms.most, rooms.most)
}

func toReaderKey(s string) bool { return strings.HasPrefix(s, "$KV.tenure.read.") }

// S7, L9: a reader that does not know that it is in finds out, also when a writer has
// closed the gate behind it.
func TestReaderWhoseAnswerWasLostIsInBeforeTheWriterThatFollows(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		a.link.DropReply(1)
		began := time.Now()
		reader := reading(t.Context(), a.RWLock("cfg"))
		writer := asking(t.Context(), b.RWLock("cfg").Lock)
		got := <-reader
		if after := got.at.Sub(began); got.err != nil || after > 1100*time.Millisecond {
			t.Fatalf("RLock = %v after %v, want nil within 1.1s", got.err, after)
		}
		wantWaiting(t, "Lock", writer)
		leave(t, got.reader)
		release(t, (<-writer).lock)
	})
}

// L8: a late write of the own entry is taken for what it is, not for the loss.
func TestReaderOutlivesTheGhostOfItsEntry(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		held := 0
		let := a.link.HoldRequest(func(s string) bool {
			if !toReaderKey(s) {
				return false
			}
			held++
			return held == 1
		})
		r := <-reading(t.Context(), a.RWLock("cfg"))
		if r.err != nil {
			t.Fatal(r.err)
		}
		let()
		time.Sleep(time.Minute)
		if err := r.reader.Err(); err != nil {
			t.Errorf("Err = %v, want nil", err)
		}
		writer := asking(t.Context(), b.RWLock("cfg").Lock)
		wantWaiting(t, "Lock", writer)
		leave(t, r.reader)
		release(t, (<-writer).lock)
	})
}

// L6w: a reader that is in, and whose ticket still stands, keeps no writer waiting.
func TestTicketOfAReaderThatIsInKeepsNobodyWaiting(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := must(t, b.RWLock("cfg").TryLock)
		reader := reading(t.Context(), a.RWLock("cfg"))
		a.link.DropRequest(-1, func(s string) bool { return strings.HasPrefix(s, "$JS.API.STREAM.MSG.DELETE.") })
		release(t, k)
		in := <-reader
		writer := asking(t.Context(), b.RWLock("cfg").Lock)
		wantWaiting(t, "Lock", writer)
		left := time.Now()
		done := make(chan struct{})
		go func() {
			defer close(done)
			leave(t, in.reader) // waits until the ticket is given up
		}()
		got := <-writer
		if after := got.at.Sub(left); got.err != nil || after > 100*time.Millisecond {
			t.Fatalf("Lock = %v, %v after the reader left, want nil within 100ms", got.err, after)
		}
		release(t, got.lock)
		<-done
	})
}

// A writer that comes while a reader before it is coming in waits until that is in.
func TestWriterDoesNotOvertakeAReaderThatIsComingIn(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		a, b := two(t)
		k := must(t, b.RWLock("cfg").TryLock)
		reader := reading(t.Context(), a.RWLock("cfg"))
		let := a.link.HoldRequest(toReaderKey)
		release(t, k)
		writer := asking(t.Context(), b.RWLock("cfg").Lock)
		time.Sleep(500 * time.Millisecond)
		let()
		in := <-reader
		wantWaiting(t, "Lock", writer)
		leave(t, in.reader)
		release(t, (<-writer).lock)
	})
}

// B7: what a message says of a reader is not relied on.
func TestWriterBelievesNoMessageThatAReaderHasLeft(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		a, b := s.process("a"), s.process("b")
		r := tryRLock(t, a.RWLock("cfg"))
		writer := asking(t.Context(), b.RWLock("cfg").Lock)
		var gate, read kvlock.Holder
		for h, err := range a.Holders(t.Context()) {
			switch {
			case err != nil:
				t.Fatal(err)
			case h.Kind == "rw":
				gate = h
			default:
				read = h
			}
		}
		if gate.Name != "cfg" || read.Name != "cfg" || read.Kind != "reader" {
			t.Fatalf("Holders = %+v and %+v, want the writer and the reader", gate, read)
		}
		id := strings.TrimPrefix(read.Key, "read.cfg.")
		lie := fmt.Sprintf(`{"op":"gone","lock":"cfg","part":%q,"token":%d}`, id, gate.Token)
		for range 10 {
			if err := a.nc.Publish("_tenure.tenure."+gate.Process, []byte(lie)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			wantWaiting(t, "Lock", writer)
		}
		leave(t, r)
		release(t, (<-writer).lock)
	})
}

// The minimum and the maximum hold of a writer count from when it is in: who gives up
// before that leaves nothing, and waiting uses nothing up.
func TestMinimumAndMaximumHoldOfAWriterCountFromWhenItIsIn(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		var acquired, ended int
		a, b := s.process("a"), s.process("b", kvlock.WithMaxHold(10*time.Second), kvlock.WithMinHold(5*time.Second), kvlock.WithTrace(&kvlock.Trace{
			Acquired: func(string, uint64, time.Duration) { acquired++ },
			Released: func(string, uint64, time.Duration, error) { ended++ },
			Lost:     func(*kvlock.LostError) { ended++ },
		}))
		rw := a.RWLock("cfg")
		first := tryRLock(t, rw)
		if _, err := b.RWLock("cfg").TryLock(t.Context()); !errors.Is(err, kvlock.ErrHeld) {
			t.Errorf("TryLock = %v, want %v", err, kvlock.ErrHeld)
		}
		leave(t, tryRLock(t, a.RWLock("cfg"))) // nothing rests
		if acquired != 0 || ended != 0 {
			t.Errorf("traced = %d acquired, %d ended before any hold, want none", acquired, ended)
		}
		writer := asking(t.Context(), b.RWLock("cfg").Lock)
		time.Sleep(time.Minute)
		wantWaiting(t, "Lock", writer)
		leave(t, first)
		began := time.Now()
		got := <-writer
		if got.err != nil || !got.at.Equal(began) {
			t.Fatalf("Lock = %v, %v after the reader left, want nil, at once", got.err, got.at.Sub(began))
		}
		<-got.lock.Context().Done()
		if after := time.Since(began); after != 10*time.Second {
			t.Errorf("the hold lasted %v, want 10s", after)
		}
		wantLost(t, "Err", got.lock.Err(), kvlock.Overrun)
		synctest.Wait()
		if acquired != 1 || ended != 1 {
			t.Errorf("traced = %d acquired, %d ended, want one of each", acquired, ended)
		}
	})
}

// A reader does not lose its hold because those before it had theirs for long.
func TestMaximumHoldIsThatOfEachReader(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		rw := s.process("a", kvlock.WithMaxHold(10*time.Second)).RWLock("cfg")
		first := tryRLock(t, rw)
		time.Sleep(6 * time.Second)
		second := tryRLock(t, rw)
		time.Sleep(6 * time.Second)
		wantLost(t, "Err of the first", first.Err(), kvlock.Overrun)
		if err := second.Err(); err != nil {
			t.Errorf("Err of the second = %v, want nil", err)
		}
		leave(t, second)
	})
}
