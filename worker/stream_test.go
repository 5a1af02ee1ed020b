package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded"
	"tenure/embedded/natstest"
	"tenure/worker"
)

func TestHandsMessagesOnInOrder(t *testing.T) {
	for _, mode := range []worker.Mode{worker.Ack, worker.Offset} {
		t.Run(string(mode), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				e := newEnv(t)
				var got seen
				task := &worker.Stream{JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Mode: mode, Handle: got.handle}
				e.publish(t, "7", 0, 300)
				e.publish(t, "8", 0, 300)
				r := launch(t, task, newPlace("7").gain())
				synctest.Wait()
				e.publish(t, "7", 300, 300)
				synctest.Wait()
				got.want(t, 600)
				r.drain()
				r.wantReturn(t, nil)
				if names := e.consumers(t); len(names) != 0 {
					t.Errorf("consumers after the drain = %v, want none", names)
				}
			})
		})
	}
}

func TestNextHoldReadsOnWhereADrainStopped(t *testing.T) {
	for _, mode := range []worker.Mode{worker.Ack, worker.Offset} {
		t.Run(string(mode), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				e := newEnv(t)
				var got seen
				task := &worker.Stream{
					JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Mode: mode,
					Handle: func(ctx context.Context, p worker.Partition, m *worker.Message) error {
						time.Sleep(10 * time.Millisecond)
						return got.handle(ctx, p, m)
					},
				}
				e.publish(t, "7", 0, 200)
				place := newPlace("7")
				for range 20 {
					r := launch(t, task, place.gain())
					time.Sleep(105 * time.Millisecond)
					r.drain()
					r.wantReturn(t, nil)
				}
				got.want(t, 200)
			})
		})
	}
}

func TestNextHoldReadsOnAtTheAcknowledgedAfterACrash(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		var got seen
		block := make(chan struct{})
		task := &worker.Stream{
			JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>",
			Handle: func(ctx context.Context, p worker.Partition, m *worker.Message) error {
				if number(m) == 50 {
					select {
					case <-block:
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				}
				return got.handle(ctx, p, m)
			},
		}
		e.publish(t, "7", 0, 100)
		place := newPlace("7")
		first := launch(t, task, place.gain())
		synctest.Wait()
		first.lose()
		first.wantReturn(t, errLost)
		close(block)
		launch(t, task, place.gain())
		synctest.Wait()
		got.want(t, 100)
		if names := e.consumers(t); len(names) != 1 {
			t.Errorf("consumers = %v, want the second hold's only", names)
		}
	})
}

// The old holder is paused in its handler, overtaken, and goes on.
func TestZombieAcknowledgesNothing(t *testing.T) {
	for _, retention := range []jetstream.RetentionPolicy{
		jetstream.LimitsPolicy, jetstream.WorkQueuePolicy, jetstream.InterestPolicy,
	} {
		t.Run(retention.String(), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				e := newEnv(t, func(cfg *jetstream.StreamConfig) { cfg.Retention = retention })
				var got seen
				pause := make(chan struct{})
				task := &worker.Stream{
					JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>",
					Handle: func(ctx context.Context, p worker.Partition, m *worker.Message) error {
						if number(m) == 5 && p.Token() == 1007 {
							<-pause
						}
						return got.handle(ctx, p, m)
					},
				}
				place := newPlace("7")
				old := launch(t, task, place.gain())
				synctest.Wait()
				e.publish(t, "7", 0, 20)
				synctest.Wait()
				got.want(t, 5)

				second := place.gain() // the zombie's trust is not over by its own clock
				held := make(chan struct{})
				blocked := &worker.Stream{
					JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>",
					Handle: func(ctx context.Context, p worker.Partition, m *worker.Message) error {
						select {
						case <-held:
						case <-ctx.Done():
							return context.Cause(ctx)
						}
						return got.handle(ctx, p, m)
					},
				}
				r := launch(t, blocked, second)
				synctest.Wait()
				close(pause)
				synctest.Wait()
				old.lose()
				if err := old.wait(t); err == nil {
					t.Errorf("Run of the zombie = nil, want an error")
				}
				r.lose()
				r.wantReturn(t, errLost)

				// Whatever the zombie acknowledged, the third hold is given all
				// that the second has not acknowledged.
				var third seen
				last := &worker.Stream{JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Handle: third.handle}
				launch(t, last, place.gain())
				synctest.Wait()
				third.wantFrom(t, 5, 20)
			})
		})
	}
}

func TestStaleHoldStartsNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		var got seen
		task := &worker.Stream{JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Handle: got.handle}
		e.publish(t, "7", 0, 5)
		place := newPlace("7")
		stale := place.gain()
		place.gain()
		r := launch(t, task, stale)
		r.wantReturn(t, errStale)
		got.want(t, 0)
		if names := e.consumers(t); len(names) != 0 {
			t.Errorf("consumers = %v, want none", names)
		}
	})
}

func TestFailedMessageHoldsUpThoseBehindIt(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		var got seen
		var delivered []int
		task := &worker.Stream{
			JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>",
			Handle: func(ctx context.Context, p worker.Partition, m *worker.Message) error {
				if number(m) == 3 {
					delivered = append(delivered, m.Delivered)
					if len(delivered) < 9 {
						return errors.New("not yet")
					}
				}
				return got.handle(ctx, p, m)
			},
		}
		e.publish(t, "7", 0, 10)
		launch(t, task, newPlace("7").gain())
		time.Sleep(5 * time.Minute) // far longer than the server waits for an acknowledgement
		got.want(t, 10)
		if want := []int{1, 2, 3, 4, 5, 6, 7, 8, 9}; !slices.Equal(delivered, want) {
			t.Errorf("Delivered = %v, want %v", delivered, want)
		}
	})
}

func TestSlowHandlerIsGivenNothingTwice(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		var got seen
		task := &worker.Stream{
			JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>",
			Handle: func(ctx context.Context, p worker.Partition, m *worker.Message) error {
				time.Sleep(7 * time.Minute)
				return got.handle(ctx, p, m)
			},
		}
		e.publish(t, "7", 0, 100)
		launch(t, task, newPlace("7").gain())
		time.Sleep(12 * time.Hour)
		got.want(t, 100)
	})
}

func TestDrainFinishesTheMessageInHand(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		var got seen
		task := &worker.Stream{
			JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>",
			Handle: func(ctx context.Context, p worker.Partition, m *worker.Message) error {
				time.Sleep(time.Second)
				return got.handle(ctx, p, m)
			},
		}
		e.publish(t, "7", 0, 10)
		place := newPlace("7")
		r := launch(t, task, place.gain())
		time.Sleep(3500 * time.Millisecond)
		r.drain()
		r.wantReturn(t, nil)
		got.want(t, 4)
		launch(t, task, place.gain())
		time.Sleep(time.Minute)
		got.want(t, 10)
	})
}

func TestDrainGivesUpWaitingForARetry(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		task := &worker.Stream{
			JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>",
			Handle: func(context.Context, worker.Partition, *worker.Message) error { return errors.New("never") },
		}
		e.publish(t, "7", 0, 1)
		place := newPlace("7")
		r := launch(t, task, place.gain())
		time.Sleep(time.Hour)
		begun := time.Now()
		r.drain()
		r.wantReturn(t, nil)
		if took := time.Since(begun); took > 10*time.Millisecond {
			t.Errorf("drain took %v, want no wait", took)
		}
		var got seen
		next := &worker.Stream{JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Handle: got.handle}
		launch(t, next, place.gain())
		synctest.Wait()
		got.want(t, 1)
	})
}

func TestNoMessageStartsWithoutTrust(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		var got seen
		place := newPlace("7")
		h := place.gain()
		task := &worker.Stream{
			JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>",
			Handle: func(ctx context.Context, p worker.Partition, m *worker.Message) error {
				if number(m) == 2 && p.Remaining() > 0 {
					h.trusted(0)
				}
				return got.handle(ctx, p, m)
			},
		}
		e.publish(t, "7", 0, 10)
		r := launch(t, task, h)
		time.Sleep(time.Second)
		got.want(t, 3)
		h.trusted(time.Hour) // the renewal came after all
		time.Sleep(time.Second)
		got.want(t, 10)
		r.drain()
		r.wantReturn(t, nil)
	})
}

func TestReadsOnAfterAServerRestart(t *testing.T) {
	for _, mode := range []worker.Mode{worker.Ack, worker.Offset} {
		t.Run(string(mode), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				e := newEnv(t, inFile, embedded.Store(t.TempDir()))
				var got seen
				task := &worker.Stream{
					JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Mode: mode,
					Handle: func(ctx context.Context, p worker.Partition, m *worker.Message) error {
						time.Sleep(10 * time.Millisecond)
						return got.handle(ctx, p, m)
					},
				}
				e.publish(t, "7", 0, 200)
				r := launch(t, task, newPlace("7").gain())
				for range 5 {
					time.Sleep(300 * time.Millisecond)
					natstest.Restart(t, e.server)
				}
				time.Sleep(10 * time.Second)
				got.want(t, 200)
				e.publish(t, "7", 200, 5) // idle since; nothing else wakes the reader
				time.Sleep(time.Second)
				got.want(t, 205)
				r.drain()
				r.wantReturn(t, nil)
			})
		})
	}
}

func TestReadsOnWhenTheConsumerIsDeleted(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		var got seen
		task := &worker.Stream{JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Handle: got.handle}
		launch(t, task, newPlace("7").gain())
		for i := range 20 {
			e.publish(t, "7", 10*i, 10)
			synctest.Wait()
			for _, name := range e.consumers(t) {
				if err := e.js.DeleteConsumer(t.Context(), "ORDERS", name); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(time.Second)
		got.want(t, 200)
		if names := e.consumers(t); len(names) != 1 {
			t.Errorf("consumers = %v, want one", names)
		}
	})
}

func TestReadsOnAfterReconnects(t *testing.T) {
	for _, mode := range []worker.Mode{worker.Ack, worker.Offset} {
		t.Run(string(mode), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				e := newEnv(t)
				link := natstest.NewLink(t, e.server)
				js := natstest.JetStream(t, link.Connect())
				var got seen
				task := &worker.Stream{JS: js, Stream: "ORDERS", Filter: "orders.{partition}.>", Mode: mode, Handle: got.handle}
				r := launch(t, task, newPlace("7").gain())
				time.Sleep(time.Second)
				for i := range 20 {
					if i%2 == 0 {
						link.CutDown() // what is sent now is lost
					}
					e.publish(t, "7", 10*i, 10)
					time.Sleep(time.Second)
					link.Mend()
					link.Break()
					time.Sleep(time.Second)
				}
				time.Sleep(10 * time.Second)
				got.want(t, 200)
				r.drain()
				r.wantReturn(t, nil)
			})
		})
	}
}

// The connection neither works nor breaks, for long. In a bubble, a reader that
// does not wait between its attempts stops the time.
func TestCutOffReaderWaitsAndReadsOn(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		link := natstest.NewLink(t, e.server)
		nc := link.Connect(nats.ReconnectBufSize(8<<20), nats.PingInterval(time.Hour))
		var got seen
		task := &worker.Stream{JS: natstest.JetStream(t, nc), Stream: "ORDERS", Filter: "orders.{partition}.>", Handle: got.handle}
		launch(t, task, newPlace("7").gain())
		time.Sleep(time.Second)
		link.Cut()
		e.publish(t, "7", 0, 10)
		before := nc.Stats().OutMsgs
		time.Sleep(10 * time.Minute)
		if out := nc.Stats().OutMsgs - before; out > 200 {
			t.Errorf("requests while cut off for 10 minutes = %d, want one each few seconds", out)
		}
		link.Mend()
		time.Sleep(time.Minute)
		got.want(t, 10)
	})
}

func TestPartitionBeginsAnewInAStreamMadeAnew(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		var got seen
		task := &worker.Stream{JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Handle: got.handle}
		launch(t, task, newPlace("7").gain())
		e.publish(t, "7", 0, 10)
		time.Sleep(time.Second)
		if err := e.js.DeleteStream(t.Context(), "ORDERS"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		e.makeStream(t)
		e.publish(t, "7", 10, 5)
		time.Sleep(time.Minute)
		got.want(t, 15)
	})
}

func TestWorkQueueIsEmptiedInOrder(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t, func(cfg *jetstream.StreamConfig) { cfg.Retention = jetstream.WorkQueuePolicy })
		var got seen
		task := &worker.Stream{JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Handle: got.handle}
		e.publish(t, "7", 0, 100)
		place := newPlace("7")
		for i := range 10 {
			r := launch(t, task, place.gain())
			time.Sleep(time.Second)
			if i%2 == 0 {
				r.lose()
				_ = r.wait(t)
			} else {
				r.drain()
				r.wantReturn(t, nil)
			}
			e.publish(t, "7", 100+10*i, 10)
		}
		launch(t, task, place.gain())
		time.Sleep(time.Second)
		got.want(t, 200)
		if left := e.messages(t); left != 0 {
			t.Errorf("messages left = %d, want 0", left)
		}
	})
}

// The checkpoint was lost with its bucket; the consumer of a work queue was not.
func TestWorkQueueIsTakenFromAHoldWithoutACheckpoint(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t, func(cfg *jetstream.StreamConfig) { cfg.Retention = jetstream.WorkQueuePolicy })
		var got seen
		task := func() *worker.Stream {
			return &worker.Stream{JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Handle: got.handle}
		}
		e.publish(t, "7", 0, 10)
		place := newPlace("7")
		shared := task()
		r := launch(t, shared, place.gain())
		time.Sleep(time.Second)
		r.lose()
		_ = r.wait(t)
		place.checkpoint = nil
		launch(t, shared, place.gain()) // has listed the strays before there was one
		e.publish(t, "7", 10, 10)
		time.Sleep(time.Second)
		got.want(t, 20)
	})
}

func TestInterestIsKeptFromHoldToHold(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t, func(cfg *jetstream.StreamConfig) { cfg.Retention = jetstream.InterestPolicy })
		var got seen
		task := &worker.Stream{JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Handle: got.handle}
		place := newPlace("7")
		for i := range 10 {
			r := launch(t, task, place.gain())
			time.Sleep(time.Second)
			e.publish(t, "7", 20*i, 10)
			time.Sleep(time.Second)
			if i%2 == 0 {
				r.lose()
				_ = r.wait(t)
			} else {
				r.drain()
				r.wantReturn(t, nil)
			}
			e.publish(t, "7", 20*i+10, 10) // while nobody holds it
		}
		launch(t, task, place.gain())
		time.Sleep(time.Second)
		got.want(t, 200)
		if left := e.messages(t); left != 0 {
			t.Errorf("messages left = %d, want 0", left)
		}
		if names := e.consumers(t); len(names) != 1 {
			t.Errorf("consumers = %v, want one", names)
		}
	})
}

func TestStraysAreSweptUp(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		var got seen
		place := newPlace("7")
		for range 3 {
			task := &worker.Stream{JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Handle: got.handle}
			r := launch(t, task, place.gain())
			time.Sleep(time.Second)
			r.lose()
			_ = r.wait(t)
			place.checkpoint = nil
		}
		if names := e.consumers(t); len(names) != 1 {
			t.Errorf("consumers = %v, want the last hold's only", names)
		}
	})
}

func TestHandlerRestartedInTheSameHoldReadsOn(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		var got seen
		task := &worker.Stream{JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Handle: got.handle}
		place := newPlace("7")
		h := place.gain()
		for i := range 5 {
			h.checkpoint = []byte(place.saved())
			r := launch(t, task, h)
			e.publish(t, "7", 10*i, 10)
			time.Sleep(time.Second)
			r.lose()
			_ = r.wait(t)
		}
		got.want(t, 50)
		if names := e.consumers(t); len(names) != 1 {
			t.Errorf("consumers = %v, want one", names)
		}
	})
}

func TestOffsetModeRepeatsOnlyWhatWasNotSaved(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		var got seen
		task := &worker.Stream{
			JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Mode: worker.Offset,
			SaveAfter: 10, SaveEvery: time.Hour, Handle: got.handle,
		}
		e.publish(t, "7", 0, 25)
		place := newPlace("7")
		r := launch(t, task, place.gain())
		synctest.Wait()
		r.lose()
		_ = r.wait(t)
		got.want(t, 25)
		var again seen
		task = &worker.Stream{JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Mode: worker.Offset, Handle: again.handle}
		r = launch(t, task, place.gain())
		time.Sleep(2 * time.Second) // saved by time
		r.lose()
		_ = r.wait(t)
		again.wantFrom(t, 20, 25)
		var none seen
		task = &worker.Stream{JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Mode: worker.Offset, Handle: none.handle}
		launch(t, task, place.gain())
		time.Sleep(time.Second)
		none.want(t, 0)
	})
}

// Positions survive the loss of the consumer, which is kept in memory.
func TestPositionSurvivesCrashOfWorkerAndServer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t, inFile, embedded.Store(t.TempDir()))
		var got seen
		task := &worker.Stream{JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Handle: got.handle}
		e.publish(t, "7", 0, 10)
		place := newPlace("7")
		r := launch(t, task, place.gain())
		time.Sleep(11 * time.Second)
		r.lose()
		_ = r.wait(t)
		natstest.Restart(t, e.server)
		time.Sleep(time.Second)
		launch(t, task, place.gain())
		e.publish(t, "7", 10, 5)
		time.Sleep(time.Second)
		got.want(t, 15)
	})
}

func TestIdleStreamMakesNoTraffic(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		var got seen
		task := &worker.Stream{JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Handle: got.handle}
		launch(t, task, newPlace("7").gain())
		time.Sleep(time.Minute)
		before := e.nc.Stats()
		time.Sleep(time.Hour)
		after := e.nc.Stats()
		if out := after.OutMsgs - before.OutMsgs; out > 3600/25 {
			t.Errorf("messages sent in an idle hour = %d, want one each 30 s", out)
		}
	})
}

func TestValidateSaysWhatDoesNotFit(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		_, err := e.js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: "JOBS", Subjects: []string{"jobs.>"},
			Retention: jetstream.WorkQueuePolicy, Storage: jetstream.MemoryStorage,
		})
		if err != nil {
			t.Fatal(err)
		}
		tests := []struct {
			name           string
			stream, filter string
			mode           worker.Mode
			want           string // setting, empty for a good one
		}{
			{"good", "ORDERS", "orders.{partition}.>", "", ""},
			{"good token", "ORDERS", "orders.p{partition}.x", "", ""},
			{"no placeholder", "ORDERS", "orders.>", "", "filter"},
			{"not covered", "ORDERS", "other.{partition}.>", "", "filter"},
			{"too wide", "ORDERS", ">.{partition}", "", "filter"},
			{"bad subject", "ORDERS", "orders..{partition}", "", "filter"},
			{"bad mode", "ORDERS", "orders.{partition}.>", "other", "mode"},
			{"offset of a work queue", "JOBS", "jobs.{partition}", worker.Offset, "retention"},
		}
		for _, tt := range tests {
			task := &worker.Stream{JS: e.js, Stream: tt.stream, Filter: tt.filter, Mode: tt.mode, Handle: new(seen).handle}
			err := task.Validate(t.Context())
			if tt.want == "" {
				if err != nil {
					t.Errorf("%s: Validate = %v, want nil", tt.name, err)
				}
				continue
			}
			setting, ok := errors.AsType[*worker.SettingError](err)
			if !ok || setting.Setting != tt.want || !errors.Is(err, worker.ErrSetting) {
				t.Errorf("%s: Validate = %v, want a SettingError about the %s", tt.name, err, tt.want)
			}
		}
		missing := &worker.Stream{JS: e.js, Stream: "NONE", Filter: "orders.{partition}.>", Handle: new(seen).handle}
		if err := missing.Validate(t.Context()); !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Errorf("Validate = %v, want %v", err, jetstream.ErrStreamNotFound)
		}
		narrow := &worker.Stream{JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Handle: new(seen).handle}
		if err := launch(t, narrow, newPlace("a.b").gain()).wait(t); !errors.Is(err, worker.ErrSetting) {
			t.Errorf("Run of partition a.b = %v, want %v", err, worker.ErrSetting)
		}
		foreign := newPlace("7")
		foreign.checkpoint = []byte("mine")
		if err := launch(t, narrow, foreign.gain()).wait(t); !errors.Is(err, worker.ErrCheckpoint) {
			t.Errorf("Run with a foreign checkpoint = %v, want %v", err, worker.ErrCheckpoint)
		}
	})
}

// The server puts the messages into partitions: the subjects that are stored are
// not those that the stream listens to.
func TestReadsAStreamThatTransformsItsSubjects(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		_, err := e.js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: "SHARDS", Subjects: []string{"shard.*"}, Storage: jetstream.MemoryStorage,
			SubjectTransform: &jetstream.SubjectTransformConfig{Source: "shard.*", Destination: "shards.{{partition(4,1)}}.{{wildcard(1)}}"},
		})
		if err != nil {
			t.Fatal(err)
		}
		var got seen
		task := &worker.Stream{JS: e.js, Stream: "SHARDS", Filter: "shards.{partition}.>", Handle: got.handle}
		if err := task.Validate(t.Context()); err != nil {
			t.Errorf("Validate = %v, want nil", err)
		}
		for i := range 4 {
			launch(t, task, newPlace(fmt.Sprint(i)).gain())
		}
		for i := range 100 {
			if _, err := e.js.Publish(t.Context(), fmt.Sprintf("shard.key-%d", i), fmt.Append(nil, i)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if got.count() != 100 {
			t.Errorf("%d messages handled, want 100", got.count())
		}
	})
}

func TestPartitionsWithAlikeNamesDoNotMeet(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t, func(cfg *jetstream.StreamConfig) { cfg.Retention = jetstream.WorkQueuePolicy })
		var one, other seen
		launch(t, &worker.Stream{JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Handle: one.handle}, newPlace("a_b").gain())
		launch(t, &worker.Stream{JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Handle: other.handle}, newPlace("a/b").gain())
		time.Sleep(time.Second)
		e.publish(t, "a_b", 0, 10)
		e.publish(t, "a/b", 0, 10)
		time.Sleep(time.Second)
		one.want(t, 10)
		other.want(t, 10)
	})
}

func TestEveryMessageIsHandledOnceWhenNobodyCrashes(t *testing.T) {
	s := natstest.Server(t)
	js := natstest.JetStream(t, natstest.Connect(t, s))
	const partitions, messages = 8, 5000
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, Storage: jetstream.MemoryStorage})
	if err != nil {
		t.Fatal(err)
	}
	var got [partitions]seen
	index := func(p worker.Partition) int { return int(p.Name()[0] - 'a') }
	task := &worker.Stream{
		JS: js, Stream: "ORDERS", Filter: "orders.{partition}.>",
		Handle: func(ctx context.Context, p worker.Partition, m *worker.Message) error {
			return got[index(p)].handle(ctx, p, m)
		},
	}
	places := make([]*place, partitions)
	runs := make([]*run, partitions)
	for i := range places {
		places[i] = newPlace(string(rune('a' + i)))
		runs[i] = launch(t, task, places[i].gain())
	}
	var publishers sync.WaitGroup
	publishers.Go(func() {
		for n := range messages {
			for i := range partitions {
				if _, err := js.PublishAsync(fmt.Sprintf("orders.%c.x", 'a'+i), fmt.Append(nil, n)); err != nil {
					t.Error(err)
				}
			}
			if n%100 == 0 {
				<-js.PublishAsyncComplete()
			}
		}
		<-js.PublishAsyncComplete()
	})
	for move := 0; ; move = (move + 1) % partitions { // partitions move all the while
		total := 0
		for i := range got {
			total += got[i].count()
		}
		if total >= partitions*messages {
			break
		}
		runs[move].drain()
		runs[move].wantReturn(t, nil)
		runs[move] = launch(t, task, places[move].gain())
		time.Sleep(5 * time.Millisecond)
	}
	publishers.Wait()
	for i := range got {
		got[i].want(t, messages)
		runs[i].drain()
		runs[i].wantReturn(t, nil)
	}
}

// env is a server with a stream.
type env struct {
	server *embedded.Server
	nc     *nats.Conn
	js     jetstream.JetStream
	config jetstream.StreamConfig
}

// newEnv takes embedded.Options and functions that change the stream.
func newEnv(t *testing.T, options ...any) *env {
	t.Helper()
	config := jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, Storage: jetstream.MemoryStorage}
	var server []embedded.Option
	for _, option := range options {
		switch option := option.(type) {
		case func(*jetstream.StreamConfig):
			option(&config)
		case embedded.Option:
			server = append(server, option)
		}
	}
	e := &env{server: natstest.Server(t, server...), config: config}
	e.nc = natstest.Connect(t, e.server)
	e.js = natstest.JetStream(t, e.nc)
	e.makeStream(t)
	return e
}

func inFile(config *jetstream.StreamConfig) { config.Storage = jetstream.FileStorage }

func (e *env) makeStream(t *testing.T) {
	t.Helper()
	if _, err := e.js.CreateStream(t.Context(), e.config); err != nil {
		t.Fatal(err)
	}
}

// publish stores n messages of the partition, numbered from first.
func (e *env) publish(t *testing.T, partition string, first, n int) {
	t.Helper()
	for i := range n {
		if _, err := e.js.Publish(t.Context(), "orders."+partition+".x", fmt.Append(nil, first+i)); err != nil {
			t.Fatal(err)
		}
	}
}

func (e *env) consumers(t *testing.T) []string {
	t.Helper()
	stream, err := e.js.Stream(t.Context(), "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for name := range stream.ConsumerNames(t.Context()).Name() {
		names = append(names, name)
	}
	return names
}

func (e *env) messages(t *testing.T) uint64 {
	t.Helper()
	stream, err := e.js.Stream(t.Context(), "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	return stream.CachedInfo().State.Msgs
}

func number(m *worker.Message) int {
	var n int
	if _, err := fmt.Sscan(string(m.Data), &n); err != nil {
		return -1
	}
	return n
}

// seen records what a handler was given.
type seen struct {
	mu      sync.Mutex
	numbers []int
}

func (s *seen) handle(_ context.Context, _ worker.Partition, m *worker.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.numbers = append(s.numbers, number(m))
	return nil
}

func (s *seen) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.numbers)
}

// want checks that the numbers 0 to n-1 were handled once each, in order.
func (s *seen) want(t *testing.T, n int) {
	t.Helper()
	s.wantFrom(t, 0, n)
}

// wantFrom checks that the numbers first to end-1 were handled once each, in order.
func (s *seen) wantFrom(t *testing.T, first, end int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var want []int
	for i := first; i < end; i++ {
		want = append(want, i)
	}
	if !slices.Equal(s.numbers, want) {
		t.Errorf("handled = %v, want %d to %d", brief(s.numbers), first, end-1)
	}
}

func brief(numbers []int) string {
	text := fmt.Sprint(numbers)
	if len(text) > 400 {
		text = text[:200] + " … " + text[len(text)-200:]
	}
	return strings.TrimSpace(text)
}
