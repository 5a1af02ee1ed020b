package natstest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded"
	"tenure/embedded/natstest"
)

// A rig is a bucket seen over a link and, as a witness, without it.
type rig struct {
	srv     *embedded.Server
	link    *natstest.Link
	nc      *nats.Conn
	kv      jetstream.KeyValue
	witness jetstream.KeyValue
}

func newRig(t *testing.T) rig {
	t.Helper()
	srv := natstest.Server(t)
	witness := bucket(t, natstest.Connect(t, srv), jetstream.MemoryStorage)
	link := natstest.NewLink(t, srv)
	nc := link.Connect()
	kv, err := natstest.JetStream(t, nc).KeyValue(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	return rig{srv, link, nc, kv, witness}
}

func bucket(t *testing.T, nc *nats.Conn, storage jetstream.StorageType) jetstream.KeyValue {
	t.Helper()
	kv, err := natstest.JetStream(t, nc).CreateKeyValue(t.Context(), jetstream.KeyValueConfig{
		Bucket: "b", Storage: storage, LimitMarkerTTL: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

// put writes over the link with a deadline of one second.
func (r rig) put(t *testing.T, key string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := r.kv.PutString(ctx, key, "v")
	return err
}

// stored reports whether the key is in the bucket, as the witness sees it.
func (r rig) stored(t *testing.T, key string) bool {
	t.Helper()
	_, err := r.witness.Get(t.Context(), key)
	if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Fatal(err)
	}
	return err == nil
}

func (r rig) wantStored(t *testing.T, key string, want bool) {
	t.Helper()
	if got := r.stored(t, key); got != want {
		t.Errorf("%q stored = %v, want %v", key, got, want)
	}
}

// wantTimeout checks that a put gets no answer.
func (r rig) wantTimeout(t *testing.T, key string) {
	t.Helper()
	if err := r.put(t, key); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Put %q = %v, want %v", key, err, context.DeadlineExceeded)
	}
}

func (r rig) wantPut(t *testing.T, key string) {
	t.Helper()
	if err := r.put(t, key); err != nil {
		t.Errorf("Put %q = %v, want no error", key, err)
	}
}

// settle lets everything that is due now happen.
func settle() {
	time.Sleep(time.Nanosecond)
	synctest.Wait()
}

func toBucket(subject string) bool { return strings.HasPrefix(subject, "$KV.") }

func TestRoundTripTakesTwiceTheDelay(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.link.Delay(250 * time.Millisecond)
		for _, want := range []time.Duration{500 * time.Millisecond, 0} {
			asked := time.Now()
			r.wantPut(t, "k")
			if got := time.Since(asked); got != want {
				t.Errorf("round trip = %v, want %v", got, want)
			}
			r.link.Delay(0)
		}
	})
}

func TestShorterDelayKeepsTheOrder(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.link.Delay(time.Second)
		if err := r.nc.Publish("$KV.b.k", []byte("first")); err != nil {
			t.Fatal(err)
		}
		settle() // flushed
		r.link.Delay(0)
		if err := r.nc.Publish("$KV.b.k", []byte("second")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		settle()
		entry, err := r.witness.Get(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if got := string(entry.Value()); got != "second" || entry.Revision() != 2 {
			t.Errorf("entry = %q at revision %d, want %q at 2", got, entry.Revision(), "second")
		}
	})
}

func TestCutKeepsBytesUntilMend(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.link.Cut()
		r.wantTimeout(t, "k")
		r.wantStored(t, "k", false)
		if got := r.nc.Status(); got != nats.CONNECTED {
			t.Errorf("status in the cut = %v, want %v", got, nats.CONNECTED)
		}
		r.link.Mend()
		settle()
		r.wantStored(t, "k", true)
		r.wantPut(t, "k2")
	})
}

// Pings go out 5, 10 and 15 s after the last one before the cut; the third finds
// two of them unanswered.
func TestClientFindsACutByItsPings(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		srv := natstest.Server(t)
		link := natstest.NewLink(t, srv)
		lost := make(chan error, 1)
		back := make(chan time.Time, 1)
		nc := link.Connect(
			nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { lost <- err }),
			nats.ReconnectHandler(func(*nats.Conn) { back <- time.Now() }),
		)
		link.Cut()
		cut := time.Now()
		if err := <-lost; !errors.Is(err, nats.ErrStaleConnection) {
			t.Errorf("disconnected by %v, want %v", err, nats.ErrStaleConnection)
		}
		if got, want := time.Since(cut), 15*time.Second; got != want {
			t.Errorf("disconnected after %v, want %v", got, want)
		}
		if err := nc.Publish("x", nil); !errors.Is(err, nats.ErrReconnectBufExceeded) {
			t.Errorf("Publish while disconnected = %v, want %v", err, nats.ErrReconnectBufExceeded)
		}
		time.Sleep(10*time.Second + 50*time.Millisecond)
		link.Mend()
		if got, want := (<-back).Sub(cut), 25*time.Second+100*time.Millisecond; got != want {
			t.Errorf("connected again after %v, want %v", got, want)
		}
	})
}

func TestServerFindsACutByItsPings(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		r := newRig(t)
		before := r.srv.Server().NumClients()
		r.link.Cut()
		time.Sleep(10 * time.Minute)
		if got, want := r.srv.Server().NumClients(), before-1; got != want {
			t.Errorf("clients after the cut = %d, want %d", got, want)
		}
		r.link.Mend()
		time.Sleep(time.Second)
		r.wantPut(t, "k")
	})
}

func TestConnectOverACutFailsAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		link := natstest.NewLink(t, natstest.Server(t))
		asked := time.Now()
		for _, cut := range []func(){link.Cut, link.CutUp, link.CutDown} {
			cut()
			if _, err := nats.Connect("", nats.InProcessServer(link)); !errors.Is(err, natstest.ErrCut) {
				t.Errorf("Connect = %v, want %v", err, natstest.ErrCut)
			}
			link.Mend()
			link.Connect()
		}
		if got := time.Since(asked); got != 0 {
			t.Errorf("took %v, want no time", got)
		}
	})
}

func TestCutDownLosesOnlyTheAnswer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.link.CutDown()
		r.wantTimeout(t, "k")
		r.wantStored(t, "k", true)
		r.link.Mend()
		r.wantPut(t, "k")
	})
}

func TestCutUpStillBringsMessages(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		r := newRig(t)
		sub, err := r.nc.SubscribeSync("news")
		if err != nil {
			t.Fatal(err)
		}
		if err := r.nc.Flush(); err != nil {
			t.Fatal(err)
		}
		r.link.CutUp()
		r.wantTimeout(t, "k")
		r.wantStored(t, "k", false)
		if err := natstest.Connect(t, r.srv).Publish("news", nil); err != nil {
			t.Fatal(err)
		}
		if _, err := sub.NextMsg(time.Second); err != nil {
			t.Errorf("NextMsg = %v, want the message", err)
		}
		r.link.Mend()
		settle()
		r.wantStored(t, "k", true)
	})
}

func TestBrokenClientIsBackAfterTheReconnectWait(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.link.Break()
		settle()
		if got := r.nc.Status(); got != nats.RECONNECTING {
			t.Errorf("status = %v, want %v", got, nats.RECONNECTING)
		}
		time.Sleep(100 * time.Millisecond)
		settle()
		if got := r.nc.Status(); got != nats.CONNECTED {
			t.Errorf("status = %v, want %v", got, nats.CONNECTED)
		}
		r.wantPut(t, "k")
	})
}

func TestBreakDuringACutIsSeenAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		r := newRig(t)
		before := r.srv.Server().NumClients()
		r.link.Cut()
		r.link.Break()
		settle()
		if got := r.nc.Status(); got != nats.RECONNECTING {
			t.Errorf("status = %v, want %v", got, nats.RECONNECTING)
		}
		if got, want := r.srv.Server().NumClients(), before-1; got != want {
			t.Errorf("clients = %d, want %d", got, want)
		}
	})
}

func TestDroppedReplyWasCarriedOut(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.link.DropReply(2)
		r.wantTimeout(t, "k1")
		r.wantTimeout(t, "k2")
		r.wantPut(t, "k3")
		for _, key := range []string{"k1", "k2", "k3"} {
			r.wantStored(t, key, true)
		}
	})
}

func TestDropReplyOfTheAPI(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.link.DropReply(1, func(subject string, payload []byte) bool {
			return strings.HasPrefix(subject, "$JS.API.STREAM.INFO.") && strings.Contains(string(payload), "KV_b")
		})
		r.wantPut(t, "k")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.kv.Status(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Status = %v, want %v", err, context.DeadlineExceeded)
		}
		if _, err := r.kv.Status(t.Context()); err != nil {
			t.Errorf("second Status = %v, want no error", err)
		}
	})
}

func TestDropReplyLeavesOtherRepliesAndMessagesAlone(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		r := newRig(t)
		other := natstest.Connect(t, r.srv)
		if _, err := other.Subscribe("echo", func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
			t.Fatal(err)
		}
		if err := other.Flush(); err != nil {
			t.Fatal(err)
		}
		js := natstest.JetStream(t, r.nc)
		consumer, err := js.CreateConsumer(t.Context(), "KV_b", jetstream.ConsumerConfig{})
		if err != nil {
			t.Fatal(err)
		}
		r.wantPut(t, "k")

		r.link.DropReply(1)
		if _, err := r.nc.Request("echo", []byte("hi"), time.Second); err != nil {
			t.Errorf("Request = %v, want the reply", err)
		}
		if _, err := r.nc.Request("nobody", nil, time.Second); !errors.Is(err, nats.ErrNoResponders) {
			t.Errorf("Request = %v, want %v", err, nats.ErrNoResponders)
		}
		if _, err := consumer.Next(jetstream.FetchMaxWait(2 * time.Second)); err != nil {
			t.Errorf("Next = %v, want the message", err)
		}
		if _, err := consumer.Next(jetstream.FetchMaxWait(2 * time.Second)); !errors.Is(err, nats.ErrTimeout) {
			t.Errorf("Next = %v, want %v", err, nats.ErrTimeout)
		}
		r.wantTimeout(t, "k")
	})
}

func TestDroppedRequestIsNotCarriedOut(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.link.DropRequest(1, toBucket)
		r.wantTimeout(t, "k")
		r.wantStored(t, "k", false)
		r.wantPut(t, "k")
	})
}

func TestDuplicateReplyDoesNoHarm(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		r := newRig(t)
		var got []*nats.Msg
		inbox := r.nc.NewInbox()
		if _, err := r.nc.Subscribe(inbox, func(m *nats.Msg) { got = append(got, m) }); err != nil {
			t.Fatal(err)
		}
		r.link.DuplicateReply(1)
		if err := r.nc.PublishRequest("$KV.b.k", inbox, nil); err != nil {
			t.Fatal(err)
		}
		settle()
		if len(got) != 2 {
			t.Errorf("replies = %d, want 2", len(got))
		}
	})
}

func TestHeldReplyComesAfterRelease(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		r := newRig(t)
		release := r.link.HoldReply()
		asked := time.Now()
		time.AfterFunc(700*time.Millisecond, release)
		r.wantPut(t, "k")
		if got, want := time.Since(asked), 700*time.Millisecond; got != want {
			t.Errorf("Put took %v, want %v", got, want)
		}
		r.wantPut(t, "k2")
		release() // again does nothing
	})
}

func TestHeldRequestIsOvertaken(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		r := newRig(t)
		release := r.link.HoldRequest(func(subject string) bool { return subject == "$KV.b.held" })
		r.wantTimeout(t, "held")
		r.wantPut(t, "k")
		r.wantStored(t, "held", false)
		release()
		settle()
		entry, err := r.witness.Get(t.Context(), "held")
		if err != nil {
			t.Fatal(err)
		}
		if got := entry.Revision(); got != 2 {
			t.Errorf("revision of the held write = %d, want 2", got)
		}
	})
}

func TestGhostWriteOutlivesItsConnection(t *testing.T) {
	ends := map[string]func(r rig){
		"closed":           func(r rig) { r.nc.Close() },
		"broken":           func(r rig) { r.link.Break() },
		"broken in a cut":  func(r rig) { r.link.Cut(); r.link.Break(); time.Sleep(time.Second); r.link.Mend() },
		"closed in a cut":  func(r rig) { r.link.Cut(); r.nc.Close(); time.Sleep(time.Second); r.link.Mend() },
		"stale from a cut": func(r rig) { r.link.Cut(); time.Sleep(20 * time.Second); r.link.Mend() },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				r := newRig(t)
				before := r.srv.Server().NumClients()
				release := r.link.HoldRequest(toBucket)
				r.wantTimeout(t, "k")
				end(r)
				time.Sleep(time.Second)
				r.wantStored(t, "k", false)
				release()
				settle()
				r.wantStored(t, "k", true)
				want := before
				if r.nc.IsClosed() {
					want--
				}
				if got := r.srv.Server().NumClients(); got != want {
					t.Errorf("clients = %d, want %d: the old connection is gone", got, want)
				}
			})
		})
	}
}

func TestLinkFollowsTheServerThroughARestart(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		srv := natstest.Server(t, embedded.Store(t.TempDir()))
		link := natstest.NewLink(t, srv)
		nc := link.Connect()
		r := rig{srv: srv, link: link, nc: nc, kv: bucket(t, nc, jetstream.FileStorage)}
		r.witness = r.kv
		r.wantPut(t, "k")
		natstest.Restart(t, srv)
		time.Sleep(100 * time.Millisecond)
		settle()
		r.wantStored(t, "k", true)
		r.wantPut(t, "k2")
	})
}

func TestServerGoneDuringACutIsSeenWhenMended(t *testing.T) {
	for _, cut := range []func(*natstest.Link){(*natstest.Link).Cut, (*natstest.Link).CutDown} {
		natstest.Bubble(t, func(t *testing.T) {
			r := newRig(t)
			cut(r.link)
			natstest.Restart(t, r.srv)
			_ = r.nc.Publish("x", nil) // nobody receives it, and the client does not know
			time.Sleep(time.Second)
			if got := r.nc.Status(); got != nats.CONNECTED {
				t.Errorf("status in the cut = %v, want %v", got, nats.CONNECTED)
			}
			r.link.Mend()
			settle()
			if got := r.nc.Status(); got != nats.RECONNECTING {
				t.Errorf("status after Mend = %v, want %v", got, nats.RECONNECTING)
			}
			time.Sleep(100 * time.Millisecond)
			settle()
			if got := r.nc.Status(); got != nats.CONNECTED {
				t.Errorf("status = %v, want %v", got, nats.CONNECTED)
			}
		})
	}
}

func TestLargeMessagesPassWhole(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		r := newRig(t)
		value := make([]byte, 900<<10)
		for i := range value {
			value[i] = "PUB x 1\r\n"[i%9]
		}
		for range 3 {
			if _, err := r.kv.Put(t.Context(), "k", value); err != nil {
				t.Fatal(err)
			}
			entry, err := r.kv.Get(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			if string(entry.Value()) != string(value) {
				t.Fatal("value changed on its way")
			}
		}
	})
}
