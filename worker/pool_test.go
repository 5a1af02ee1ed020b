package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/fx"
	"go.uber.org/fx/fxtest"

	"tenure/claim"
	"tenure/embedded/natstest"
	"tenure/kvlock/bucket"
	"tenure/worker"
)

// N18, N67: a stop hands everything over at once, and others go on.
func TestStoppedPoolHandsOver(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		roster := newRoster()
		a := startPool(t, roster.task(), e.claimer(t, "a", 8))
		time.Sleep(5 * time.Second)
		roster.want(t, map[string]int{"a": 8})
		b := startPool(t, roster.task(), e.claimer(t, "b", 8))
		time.Sleep(5 * time.Second)
		roster.want(t, map[string]int{"a": 4, "b": 4})
		begun := time.Now()
		a.stop()
		if err := a.wait(); err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("stop took %v, want milliseconds", took)
		}
		time.Sleep(2 * time.Second)
		roster.want(t, map[string]int{"b": 8})
		b.stop()
		if err := b.wait(); err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		roster.want(t, nil)
	})
}

// N19, N75: the job is longer than the lease; it is drained, and renewed meanwhile.
func TestPoolWaitsForAJobLongerThanTheLease(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		var mu sync.Mutex
		ended := 0
		task := worker.Func(func(ctx context.Context, p worker.Partition) error {
			select {
			case <-time.After(45 * time.Second):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			mu.Lock()
			defer mu.Unlock()
			ended++
			return nil
		})
		a := startPool(t, task, e.claimer(t, "a", 2, claim.WithDrainTimeout(time.Minute)))
		time.Sleep(5 * time.Second)
		a.stop()
		if err := a.wait(); err != nil || ended != 2 {
			t.Errorf("Run = %v with %d jobs ended, want nil, 2", err, ended)
		}
	})
}

// N50, N52, N74, C7: a worker that was cut off past its lease stops its task before
// another starts, lives on, and claims again.
func TestPoolLivesOnAfterALostSession(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		roster := newRoster()
		link := natstest.NewLink(t, e.server)
		cut := e.claimerOn(t, natstest.JetStream(t, link.Connect()), "a", 4)
		a := startPool(t, roster.task(), cut)
		time.Sleep(5 * time.Second)
		b := startPool(t, roster.task(), e.claimer(t, "b", 4))
		time.Sleep(5 * time.Second)
		link.Cut()
		time.Sleep(40 * time.Second)
		roster.want(t, map[string]int{"b": 4})
		link.Mend()
		time.Sleep(time.Minute)
		roster.want(t, map[string]int{"a": 2, "b": 2})
		for _, p := range []*running{a, b} {
			p.stop()
			if err := p.wait(); err != nil {
				t.Errorf("Run = %v, want nil", err)
			}
		}
	})
}

// N69: what does not move sees nothing.
func TestMovesDisturbNobodyElse(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		roster := newRoster()
		a := startPool(t, roster.task(), e.claimer(t, "a", 8), e.claimer(t, "b", 8))
		time.Sleep(5 * time.Second)
		before := roster.started()
		c := startPool(t, roster.task(), e.claimer(t, "c", 8))
		time.Sleep(5 * time.Second)
		if moved := roster.started() - before; moved != 2 {
			t.Errorf("tasks started by a join = %d, want the 2 that move", moved)
		}
		a.stop()
		c.stop()
		if err := errors.Join(a.wait(), c.wait()); err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
}

func TestFailedClaimerStopsThePool(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		roster := newRoster()
		p := startPool(t, roster.task(), e.claimer(t, "a", 4), e.claimer(t, "b", 4))
		time.Sleep(5 * time.Second)
		if err := e.js.DeleteStream(t.Context(), "KV_tenure"); err != nil {
			t.Fatal(err)
		}
		if err := p.wait(); !errors.Is(err, claim.ErrBucket) {
			t.Errorf("Run = %v, want %v", err, claim.ErrBucket)
		}
		roster.want(t, nil)
	})
}

func TestPoolOfAStreamMovesItsPosition(t *testing.T) {
	for _, mode := range []worker.Mode{worker.Ack, worker.Offset} {
		t.Run(string(mode), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				e := newEnv(t)
				var got [4]seen
				task := &worker.Stream{
					JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Mode: mode,
					Handle: func(ctx context.Context, p worker.Partition, m *worker.Message) error {
						time.Sleep(10 * time.Millisecond)
						return got[p.Name()[0]-'0'].handle(ctx, p, m)
					},
				}
				const n = 500
				for i := range got {
					e.publish(t, fmt.Sprint(i), 0, n)
				}
				pools := []*running{startPool(t, task, e.claimer(t, "a", 4))}
				for _, id := range []string{"b", "c", "d"} {
					time.Sleep(time.Second)
					pools = append(pools, startPool(t, task, e.claimer(t, id, 4)))
				}
				for _, p := range pools[:3] {
					time.Sleep(time.Second)
					p.stop()
					if err := p.wait(); err != nil {
						t.Errorf("Run = %v, want nil", err)
					}
				}
				time.Sleep(10 * time.Second)
				for i := range got {
					got[i].want(t, n)
				}
				pools[3].stop()
				if err := pools[3].wait(); err != nil {
					t.Errorf("Run = %v, want nil", err)
				}
			})
		})
	}
}

// A worker is cut off in the middle of a message, and its partitions go on
// elsewhere. Nothing is lost or out of order; the one in hand may come twice.
func TestCutOffWorkerOfAStreamRepeatsOnlyWhatItHadInHand(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		link := natstest.NewLink(t, e.server)
		js := natstest.JetStream(t, link.Connect())
		var got [4]seen
		handle := func(ctx context.Context, p worker.Partition, m *worker.Message) error {
			time.Sleep(100 * time.Millisecond)
			return got[p.Name()[0]-'0'].handle(ctx, p, m)
		}
		const n = 600
		for i := range got {
			e.publish(t, fmt.Sprint(i), 0, n)
		}
		far := &worker.Stream{JS: js, Stream: "ORDERS", Filter: "orders.{partition}.>", Handle: handle}
		near := &worker.Stream{JS: e.js, Stream: "ORDERS", Filter: "orders.{partition}.>", Handle: handle}
		a := startPool(t, far, e.claimerOn(t, js, "a", 4))
		b := startPool(t, near, e.claimer(t, "b", 4))
		time.Sleep(5 * time.Second)
		link.Cut()
		time.Sleep(30 * time.Second)
		link.Mend()
		time.Sleep(5 * time.Minute)
		a.stop()
		b.stop()
		if err := errors.Join(a.wait(), b.wait()); err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		for i := range got {
			// While cut off, the worker goes on with what it was sent ahead, as long
			// as it can trust its claim; that is handled again.
			if twice := got[i].wantAtLeastOnce(t, n); twice > 64 {
				t.Errorf("messages of partition %d handled twice = %d, want at most what was sent ahead", i, twice)
			}
		}
	})
}

// Not in a bubble: fx listens for signals.
func TestModuleDrainsBeforeTheApplicationEnds(t *testing.T) {
	e := newEnv(t)
	began := make(chan struct{})
	ended := false
	task := worker.Func(func(ctx context.Context, p worker.Partition) error {
		close(began)
		<-p.Draining()
		time.Sleep(100 * time.Millisecond)
		ended = ctx.Err() == nil
		return nil
	})
	app := fxtest.New(t, fx.NopLogger, worker.Module,
		fx.Provide(func() worker.Task { return task }),
		fx.Supply([]*claim.Claimer{e.claimer(t, "a", 1)}, slog.New(slog.DiscardHandler)))
	app.RequireStart()
	<-began
	app.RequireStop()
	if !ended {
		t.Error("application has stopped before the task's drain")
	}
}

func TestModuleEndsTheApplicationWithCode1(t *testing.T) {
	e := newEnv(t)
	task := &worker.Stream{JS: e.js, Stream: "NONE", Filter: "x.{partition}", Handle: new(seen).handle}
	var pool *worker.Supervisor
	app := fxtest.New(t, fx.NopLogger, worker.Module,
		fx.Provide(func() worker.Task { return task }),
		fx.Supply([]*claim.Claimer{e.claimer(t, "a", 1)}, slog.New(slog.DiscardHandler)), fx.Populate(&pool))
	if err := pool.Err(); err != nil {
		t.Errorf("Err before the start = %v, want nil", err)
	}
	app.RequireStart()
	if signal := <-app.Wait(); signal.ExitCode != 1 {
		t.Errorf("exit code = %d, want 1", signal.ExitCode)
	}
	<-pool.Done()
	if err := pool.Err(); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("Err = %v, want %v", err, jetstream.ErrStreamNotFound)
	}
	app.RequireStop()
}

func TestPoolWantsClaimersAndATask(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		e := newEnv(t)
		task := newRoster().task()
		one, same := e.claimer(t, "a", 4), e.claimer(t, "a", 4)
		tests := []struct {
			claimers []*claim.Claimer
			task     worker.Task
			want     error
		}{
			{[]*claim.Claimer{one}, task, nil},
			{nil, task, worker.ErrSetting},
			{[]*claim.Claimer{one}, nil, worker.ErrSetting},
			{[]*claim.Claimer{one, same}, task, worker.ErrSetting},
		}
		for _, tt := range tests {
			if _, err := worker.NewPool(tt.claimers, tt.task, nil); !errors.Is(err, tt.want) {
				t.Errorf("NewPool = %v, want %v", err, tt.want)
			}
		}
	})
}

// claimer returns a claimer of the group orders with n partitions.
func (e *env) claimer(t *testing.T, id string, n int, opts ...claim.Option) *claim.Claimer {
	t.Helper()
	js := natstest.JetStream(t, natstest.Connect(t, e.server))
	return e.claimerOn(t, js, id, n, opts...)
}

func (e *env) claimerOn(t *testing.T, js jetstream.JetStream, id string, n int, opts ...claim.Option) *claim.Claimer {
	t.Helper()
	b, err := bucket.Open(t.Context(), js, bucket.Fresh(), bucket.Storage(jetstream.MemoryStorage))
	if err != nil {
		t.Fatal(err)
	}
	all := []claim.Option{claim.WithBucket(b), claim.WithID(id), claim.WithPartitions(claim.Numbered(n)...)}
	c, err := claim.New(t.Context(), js, "orders", append(all, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// running is a pool that runs.
type running struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func startPool(t *testing.T, task worker.Task, claimers ...*claim.Claimer) *running {
	t.Helper()
	pool, err := worker.NewPool(claimers, task, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = pool.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-r.done })
	return r
}

func (r *running) stop() { r.cancel() }

func (r *running) wait() error {
	<-r.done
	return r.err
}

// A roster knows which worker's task runs for each partition, and fails the test
// if there are two.
type roster struct {
	mu     sync.Mutex
	at     map[string]string
	starts int
	clash  string
}

func newRoster() *roster { return &roster{at: map[string]string{}} }

// task waits for the drain, as a task that has nothing to do.
func (r *roster) task() worker.Task {
	return worker.Func(func(ctx context.Context, p worker.Partition) error {
		r.mu.Lock()
		if other, ok := r.at[p.Name()]; ok {
			r.clash = fmt.Sprintf("partition %s runs at %s and %s", p.Name(), other, p.Worker())
		}
		r.at[p.Name()] = p.Worker()
		r.starts++
		r.mu.Unlock()
		defer func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			delete(r.at, p.Name())
		}()
		select {
		case <-p.Draining():
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

func (r *roster) started() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.starts
}

func (r *roster) want(t *testing.T, want map[string]int) {
	t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	got := map[string]int{}
	for _, id := range r.at {
		got[id]++
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("running = %v, want %v", got, want)
	}
	if r.clash != "" {
		t.Error(r.clash)
	}
}

// wantAtLeastOnce checks that the numbers 0 to n-1 were handled in order, where a
// part may be repeated from an earlier number on. It returns how many were repeated.
func (s *seen) wantAtLeastOnce(t *testing.T, n int) int {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	next := 0
	for _, number := range s.numbers {
		if number > next {
			t.Errorf("handled = %v, want no gap before %d", brief(s.numbers), number)
			return 0
		}
		next = max(next, number+1)
	}
	if next != n {
		t.Errorf("handled up to %d, want %d", next, n)
	}
	return len(s.numbers) - n
}
