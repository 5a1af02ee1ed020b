package bucket_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded"
	"tenure/embedded/natstest"
	"tenure/kvlock/bucket"
)

func open(t *testing.T, js jetstream.JetStream, opts ...bucket.Option) *bucket.Bucket {
	t.Helper()
	b, err := bucket.Open(t.Context(), js, append([]bucket.Option{bucket.Fresh()}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func client(t *testing.T, s *embedded.Server) jetstream.JetStream {
	t.Helper()
	return natstest.JetStream(t, natstest.Connect(t, s))
}

// B1, N87: a bucket made anew is open for nobody before its largest TTL has passed.
func TestNewBucketIsUnderQuarantineForItsLargestTTL(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := client(t, natstest.Server(t))
		began := time.Now()
		first, err := bucket.Open(t.Context(), js, bucket.MaxTTL(20*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		second := open(t, js) // that it was not made fresh is the bucket's, not the caller's
		if have := second.Quarantine(); have != 15*time.Second {
			t.Errorf("Quarantine after 5 s = %v, want 15s", have)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := second.AwaitQuarantine(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("AwaitQuarantine = %v, want %v", err, context.DeadlineExceeded)
		}
		if err := first.AwaitQuarantine(t.Context()); err != nil || time.Since(began) != 20*time.Second {
			t.Errorf("AwaitQuarantine = %v after %v, want nil after 20s", err, time.Since(began))
		}
	})
}

func TestProcessesThatMakeTheBucketAtOnceAgree(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.Server(t)
		var all sync.WaitGroup
		made := make([]*bucket.Bucket, 8)
		for i := range made {
			js := client(t, s)
			all.Go(func() { made[i] = open(t, js) })
		}
		all.Wait()
		for _, b := range made {
			if !b.Created().Equal(made[0].Created()) {
				t.Errorf("created = %v, want %v", b.Created(), made[0].Created())
			}
		}
	})
}

// N7, N16, K79, K80, H21, S10: a bucket with other settings is refused, and named.
func TestWrongSettingIsNamedWithHaveAndWant(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(*jetstream.StreamConfig)
		want  string
	}{
		{"history", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 5 }, `bucket "tenure": history: have 5, want 1`},
		{"direct", func(c *jetstream.StreamConfig) { c.AllowDirect = true }, `bucket "tenure": direct reads (allow_direct): have true, want false`},
		{"ttl", func(c *jetstream.StreamConfig) { c.AllowMsgTTL = false }, `bucket "tenure": TTL per message (allow_msg_ttl): have false, want true`},
		{"batch", func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false }, `bucket "tenure": atomic batches (allow_atomic): have false, want true`},
		{"bytes", func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 20 }, `bucket "tenure": max bytes: have 1048576, want -1`},
		{"age", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }, `bucket "tenure": max age: have 1h0m0s, want 0s`},
		{"format", func(c *jetstream.StreamConfig) { delete(c.Metadata, "tenure-format") }, `bucket "tenure": format (metadata tenure-format): have none, want "1"`},
		{"quarantine", func(c *jetstream.StreamConfig) { c.Metadata["tenure-quarantine"] = "1s" }, `bucket "tenure": quarantine (metadata tenure-quarantine): have "1s", want 0s or at least 1m0s`},
		{"first sequence", func(c *jetstream.StreamConfig) { c.FirstSeq = 1 }, `bucket "tenure": first sequence (first_seq): have 1, want at least`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				js := client(t, natstest.Server(t))
				open(t, js)
				stream, err := js.Stream(t.Context(), "KV_tenure")
				if err != nil {
					t.Fatal(err)
				}
				cfg := stream.CachedInfo().Config
				if err := js.DeleteStream(t.Context(), "KV_tenure"); err != nil {
					t.Fatal(err)
				}
				tt.spoil(&cfg)
				if _, err := js.CreateStream(t.Context(), cfg); err != nil {
					t.Fatal(err)
				}
				_, err = bucket.Open(t.Context(), js)
				if err == nil || !strings.HasPrefix(err.Error(), tt.want) || !errors.Is(err, bucket.ErrBucket) {
					t.Errorf("Open = %v, want %s", err, tt.want)
				}
			})
		})
	}
}

func TestMissingBucketIsNotMadeWhereThatIsForbidden(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		js := client(t, natstest.Server(t))
		if _, err := bucket.Open(t.Context(), js, bucket.AttachOnly()); !errors.Is(err, bucket.ErrBucket) {
			t.Errorf("Open = %v, want %v", err, bucket.ErrBucket)
		}
		if _, err := js.Stream(t.Context(), "KV_tenure"); !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Errorf("Stream = %v, want %v", err, jetstream.ErrStreamNotFound)
		}
	})
}

func TestWriteSaysWhatIsKnown(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		link := natstest.NewLink(t, natstest.Server(t))
		b := open(t, natstest.JetStream(t, link.Connect()))
		try := func(w bucket.Write) (uint64, error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return b.Write(ctx, w)
		}
		rev, err := try(bucket.Write{Key: "k", Value: []byte("1"), TTL: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		_, err = try(bucket.Write{Key: "k", Value: []byte("2")})
		if c, ok := errors.AsType[*bucket.ConflictError](err); !ok || c.Last != rev || c.Want != 0 || c.Key != "k" {
			t.Errorf("write over an entry = %v, want a conflict with %d", err, rev)
		}
		link.DropReply(1)
		if _, err := try(bucket.Write{Key: "k", Last: rev, Value: []byte("3"), TTL: 10 * time.Second}); !errors.Is(err, bucket.ErrDoubt) {
			t.Errorf("write without an answer = %v, want %v", err, bucket.ErrDoubt)
		}
		e, err := b.Get(t.Context(), "k")
		if err != nil || string(e.Value) != "3" || e.TTL != 10*time.Second || e.Marker {
			t.Errorf("Get = %+v, %v, want the write that was in doubt, with its TTL", e, err)
		}
		// A batch stores all or nothing.
		if _, err := b.Batch(t.Context(), []bucket.Write{
			{Key: "other", Value: []byte("x"), Fence: "k", Last: rev}, {Key: "k", Last: e.Revision, Value: []byte("4")},
		}); !errors.Is(err, bucket.ErrConflict) {
			t.Errorf("Batch = %v, want %v", err, bucket.ErrConflict)
		}
		if _, err := b.Get(t.Context(), "other"); !errors.Is(err, bucket.ErrNotFound) {
			t.Errorf("Get = %v, want %v", err, bucket.ErrNotFound)
		}
		last, err := b.Batch(t.Context(), []bucket.Write{
			{Key: "other", Value: []byte("x"), Fence: "k", Last: e.Revision}, {Key: "k", Last: e.Revision, Value: []byte("4"), TTL: 10 * time.Second},
		})
		if got, getErr := b.Get(t.Context(), "k"); err != nil || getErr != nil || got.Revision != last {
			t.Errorf("Batch = %d, %v; Get = %+v, %v, want the batch's last revision", last, err, got, getErr)
		}
		time.Sleep(10*time.Second + 300*time.Millisecond)
		if _, err := b.Get(t.Context(), "k"); !errors.Is(err, bucket.ErrNotFound) {
			t.Errorf("Get after the TTL = %v, want %v", err, bucket.ErrNotFound)
		}
	})
}

// S1: the server stores a purge of a wildcard, and it removes every key that matches.
func TestWriteOfAWildcardIsRefused(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := open(t, client(t, natstest.Server(t)))
		revision, err := b.Write(t.Context(), bucket.Write{Key: "lock.a", Value: []byte("v")})
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"lock.>", "lock.*", "lock. a"} {
			purge := bucket.Write{Key: key, Last: revision, Purge: true}
			if _, err := b.Write(t.Context(), purge); !errors.Is(err, bucket.ErrName) {
				t.Errorf("Write of %q = %v, want %v", key, err, bucket.ErrName)
			}
			if _, err := b.Batch(t.Context(), []bucket.Write{{Key: "lock.b"}, purge}); !errors.Is(err, bucket.ErrName) {
				t.Errorf("Batch with %q = %v, want %v", key, err, bucket.ErrName)
			}
		}
		if e, err := b.Get(t.Context(), "lock.a"); err != nil || e.Revision != revision {
			t.Errorf("Get = revision %d, %v, want %d as before", e.Revision, err, revision)
		}
	})
}

// K37, N9, N10: a watch goes on after an interruption, in order and without
// anything twice.
func TestWatchGoesOnAfterARestart(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.Server(t, embedded.Store(t.TempDir()))
		b := open(t, client(t, s))
		put := func(key string, last uint64) uint64 {
			rev, err := b.Write(t.Context(), bucket.Write{Key: key, Last: last})
			if err != nil {
				t.Fatal(err)
			}
			return rev
		}
		first := put("a.1", 0)
		var seen []uint64
		ready := 0
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = b.Watch(ctx, func(e bucket.Entry) { seen = append(seen, e.Revision) }, func() { ready++ }, "a.*")
		}()
		time.Sleep(time.Second)
		natstest.Restart(t, s)
		time.Sleep(time.Second)
		second := put("a.2", 0)
		put("b.1", 0)
		time.Sleep(5 * time.Second)
		stop()
		<-done
		synctest.Wait()
		if len(seen) != 2 || seen[0] != first || seen[1] != second || ready != 1 {
			t.Errorf("seen = %v, ready %d times, want %v once each, ready once", seen, ready, []uint64{first, second})
		}
	})
}

// B2, N93: acknowledged revisions that run backwards are noticed.
func TestBucketMadeAnewIsNoticed(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.Server(t)
		js := client(t, s)
		b := open(t, js)
		if _, err := b.Write(t.Context(), bucket.Write{Key: "k"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := js.DeleteStream(t.Context(), "KV_tenure"); err != nil {
			t.Fatal(err)
		}
		if err := b.Check(t.Context()); !errors.Is(err, bucket.ErrGone) {
			t.Errorf("Check without a bucket = %v, want %v", err, bucket.ErrGone)
		}
		open(t, js)
		if err := b.Check(t.Context()); !errors.Is(err, bucket.ErrGone) {
			t.Errorf("Check of a new bucket = %v, want %v", err, bucket.ErrGone)
		}
	})
}
