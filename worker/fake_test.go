package worker_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"tenure/worker"
)

// errStale is what a fake partition answers to a hold that is over.
var errStale = errors.New("stale token")

// A place is a partition as the bucket knows it: who holds it and its checkpoint.
type place struct {
	group, name string

	mu         sync.Mutex
	token      uint64
	checkpoint []byte
}

func newPlace(name string) *place { return &place{group: "orders", name: name, token: 1000} }

// gain begins a new hold, which ends the one before whether it knows or not.
func (pl *place) gain() *hold {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.token += 7
	return &hold{
		place: pl, token: pl.token, checkpoint: slices.Clone(pl.checkpoint),
		draining: make(chan struct{}), trust: time.Now().Add(math.MaxInt64 / 4),
	}
}

// saved returns the checkpoint.
func (pl *place) saved() string {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return string(pl.checkpoint)
}

// A hold is a fake [worker.Partition] whose trust and drain a test controls.
type hold struct {
	*place
	token      uint64
	checkpoint []byte
	draining   chan struct{}

	mu    sync.Mutex
	trust time.Time
}

var _ worker.Partition = (*hold)(nil)

func (h *hold) Group() string             { return h.group }
func (h *hold) Name() string              { return h.name }
func (h *hold) Worker() string            { return "w1" }
func (h *hold) Token() uint64             { return h.token }
func (h *hold) Checkpoint() []byte        { return h.checkpoint }
func (h *hold) Draining() <-chan struct{} { return h.draining }

func (h *hold) Save(ctx context.Context, data []byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	h.place.mu.Lock()
	defer h.place.mu.Unlock()
	if h.token != h.place.token {
		return errStale
	}
	h.place.checkpoint = slices.Clone(data)
	return nil
}

func (h *hold) Remaining() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Until(h.trust)
}

// trusted sets how long the hold can be trusted from now on.
func (h *hold) trusted(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trust = time.Now().Add(d)
}

func (h *hold) drain() { close(h.draining) }

// A run is a task running for a hold.
type run struct {
	*hold
	cancel context.CancelCauseFunc
	done   chan error
}

var errLost = errors.New("session lost")

// launch runs task for h until the test ends.
func launch(t *testing.T, task worker.Task, h *hold) *run {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	r := &run{hold: h, cancel: cancel, done: make(chan error, 1)}
	go func() { r.done <- task.Run(ctx, h) }()
	t.Cleanup(func() { cancel(errLost) })
	return r
}

// lose ends the hold's context.
func (r *run) lose() { r.cancel(errLost) }

// wait waits for the task to return.
func (r *run) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(30 * time.Second):
		t.Fatal("task does not return")
		return nil
	}
}

// wantReturn waits for the task to return want.
func (r *run) wantReturn(t *testing.T, want error) {
	t.Helper()
	if err := r.wait(t); !errors.Is(err, want) || want == nil && err != nil {
		t.Errorf("Run = %v, want %v", err, want)
	}
}
