package claim_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"tenure/claim"
	"tenure/embedded"
	"tenure/embedded/natstest"
	"tenure/kvlock/bucket"
)

// group is a group under test: its workers and the history of their handlers.
type group struct {
	t       *testing.T
	srv     *embedded.Server
	parts   []string
	ttl     time.Duration
	opts    []claim.Option
	history natstest.History

	processes int // started so far

	mu     sync.Mutex
	starts map[string][]start
	saved  map[string]saved
}

// saved is the newest checkpoint that was confirmed to a handler.
type saved struct {
	token uint64
	n     int
}

// start is one call of a handler.
type start struct {
	worker     string
	token      uint64
	checkpoint string
	at         time.Time
}

// worker is one running claimer.
type worker struct {
	*claim.Claimer
	g    *group
	link *natstest.Link
	nc   *nats.Conn
	stop context.CancelFunc
	done chan struct{}
	err  error // of Run, once done is closed
}

func newGroup(t *testing.T, partitions int, opts ...claim.Option) *group {
	t.Helper()
	return &group{
		t: t, srv: natstest.Server(t), parts: claim.Numbered(partitions), ttl: 10 * time.Second,
		opts: opts, starts: make(map[string][]start), saved: make(map[string]saved),
	}
}

func logger(t *testing.T) *slog.Logger {
	if os.Getenv("TENURE_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// start runs a worker whose handler notes what it gets and returns when it is
// asked to drain or its context ends.
func (g *group) start(id string, opts ...claim.Option) *worker {
	g.t.Helper()
	return g.startWith(id, func(ctx context.Context, p *claim.Partition) error {
		select {
		case <-p.Draining():
		case <-ctx.Done():
		}
		return nil
	}, opts...)
}

func (g *group) startWith(id string, handler claim.Handler, opts ...claim.Option) *worker {
	g.t.Helper()
	w := &worker{g: g, link: natstest.NewLink(g.t, g.srv), done: make(chan struct{})}
	g.processes++
	process := fmt.Sprintf("%s#%d", id, g.processes) // two with one id are two holders
	w.nc = w.link.Connect(nats.Name(id))
	js := natstest.JetStream(g.t, w.nc)
	b, err := bucket.Open(g.t.Context(), js, bucket.Fresh(), bucket.Logger(logger(g.t)))
	if err != nil {
		g.t.Fatal(err)
	}
	all := []claim.Option{
		claim.WithBucket(b), claim.WithPartitions(g.parts...), claim.WithID(id), claim.WithTTL(g.ttl), claim.WithLogger(logger(g.t)),
	}
	w.Claimer, err = claim.New(g.t.Context(), js, "orders", append(append(all, g.opts...), opts...)...)
	if err != nil {
		g.t.Fatal(err)
	}
	var ctx context.Context
	ctx, w.stop = context.WithCancel(g.t.Context())
	g.t.Cleanup(w.leave)
	go func() {
		defer close(w.done)
		w.err = w.Run(ctx, func(ctx context.Context, p *claim.Partition) error {
			held := g.history.Begin(process, p.Name(), p.Token())
			defer held.End()
			// Belief ends with ctx, also if the handler has not noticed yet.
			defer context.AfterFunc(ctx, held.End)()
			g.mu.Lock()
			g.starts[p.Name()] = append(g.starts[p.Name()], start{id, p.Token(), string(p.Checkpoint()), time.Now()})
			g.mu.Unlock()
			return handler(ctx, p)
		})
	}()
	return w
}

// leave stops the worker and waits until it has left.
func (w *worker) leave() {
	w.g.t.Helper()
	w.stop()
	w.await(time.Minute)
}

// await waits for the end of Run, at most for d: in a bubble a wait without an
// end never ends as long as timers go off.
func (w *worker) await(d time.Duration) {
	w.g.t.Helper()
	select {
	case <-w.done:
	case <-time.After(d):
		w.g.t.Fatalf("Run of %s has not returned after %v", w.ID(), d)
	}
}

// owners returns which worker runs each partition now, as the workers know it.
func owners(workers ...*worker) map[string]string {
	m := make(map[string]string)
	for _, w := range workers {
		for p := range w.Held() {
			m[p.Name()] += w.ID()
		}
	}
	return m
}

// loads returns how many partitions each of the workers runs, sorted.
func loads(workers ...*worker) []int {
	var n []int
	for _, w := range workers {
		n = append(n, len(slices.Collect(w.Held())))
	}
	slices.Sort(n)
	return n
}

// wantLoads waits for d and compares the loads.
func (g *group) wantLoads(d time.Duration, want []int, workers ...*worker) {
	g.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	if have := loads(workers...); !slices.Equal(have, want) {
		g.t.Errorf("loads after %v = %v, want %v\n%v", d, have, want, owners(workers...))
	}
}

// startsOf returns how often handlers were started, over all partitions.
func (g *group) startsOf() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, s := range g.starts {
		n += len(s)
	}
	return n
}

// confirm notes a checkpoint that was confirmed.
func (g *group) confirm(name string, token uint64, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.saved[name]; token > s.token || token == s.token && n > s.n {
		g.saved[name] = saved{token, n}
	}
}

// confirmed returns the newest count that was confirmed under this or a smaller
// token.
func (g *group) confirmed(name string, token uint64, otherwise int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.saved[name]; s.token <= token {
		return s.n
	}
	return otherwise
}

// lastBeat waits for the worker's next heartbeat and returns when it was sent.
func (w *worker) lastBeat() time.Time {
	w.g.t.Helper()
	beat := make(chan time.Time, 100)
	stop := w.link.HoldRequest(func(subject string) bool {
		if strings.HasPrefix(subject, "$KV.tenure.member.orders.") {
			select {
			case beat <- time.Now():
			default:
			}
		}
		return false
	})
	defer stop()
	return <-beat
}
