package kvlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"tenure/embedded/natstest"
	"tenure/kvlock"
	"tenure/kvlock/fence"
)

// A worker is one goroutine that takes locks and writes under them.
type worker struct {
	*chaos
	things []thing
	who    string
	client int
	rnd    *rand.Rand
	serial int // of the last value put
}

func (w *worker) within(d time.Duration) time.Duration { return time.Duration(w.rnd.Int64N(int64(d))) }

// work takes locks and writes under them until ctx ends.
func (w *worker) work(ctx context.Context) {
	for ctx.Err() == nil {
		what := w.things[w.rnd.IntN(len(w.things))]
		take, cancel := context.WithCancel(ctx)
		if w.rnd.IntN(2) == 0 {
			take, cancel = context.WithTimeout(ctx, w.within(10*time.Second))
		} else { // a wait without a known end: its ticket lives for an hour
			time.AfterFunc(w.within(10*time.Second), cancel)
		}
		begun, since := w.linear.now(), time.Now()
		got, err := what.take(take, w.rnd.IntN(4) > 0)
		w.record(call{span{who: w.who, name: what.name, from: since, to: time.Now()}, err == nil})
		cancel()
		if err != nil {
			time.Sleep(w.within(200 * time.Millisecond))
			continue
		}
		for _, k := range got.locks {
			w.linear.add(w.client, k.Name(), input{op: gains, token: k.Token()}, begun, true)
		}
		if len(got.locks) == 0 {
			w.linear.add(w.client, what.name, input{op: reads}, begun, true)
		}
		w.hold(ctx, what.name, got)
	}
}

// A belief watches one hold from the outside.
type belief struct {
	taken
	least time.Time // it cannot be lost by time before
}

// sample notes for how long the hold cannot be lost by time.
func (b *belief) sample() {
	if left := b.Remaining(); left > 0 {
		if until := time.Now().Add(left); until.After(b.least) {
			b.least = until
		}
	}
}

// hold works under a hold for a while, sometimes past its end, and writes once more
// after it.
func (w *worker) hold(ctx context.Context, name string, got holding) {
	b := belief{taken: got}
	b.sample()
	begun := time.Now()
	var held []*natstest.Hold
	for _, k := range got.locks {
		held = append(held, w.history.Begin(w.who, k.Name(), k.Token()))
	}
	writes := make(map[*kvlock.Lock]*natstest.Hold) // from the moment that the resource knows of the hold
	for _, k := range got.locks {
		if w.raise(k) && got.Err() == nil {
			writes[k] = w.history.Begin(w.who, "resource "+k.Name(), k.Token())
			held = append(held, writes[k])
		}
	}
	var ended time.Time
	end := func() {
		ended = time.Now()
		for _, h := range held {
			h.End()
		}
		for _, k := range got.locks {
			w.linear.add(w.client, k.Name(), input{op: ends, token: k.Token()}, w.linear.now(), true)
		}
		if len(got.locks) == 0 {
			w.linear.add(w.client, name, input{op: leaves}, w.linear.now(), true)
		}
	}
	lost := make(chan struct{})
	stop := context.AfterFunc(got.Context(), func() {
		end()
		close(lost)
	})
	careless := w.rnd.IntN(4) == 0 // it does not look whether it still has the lock
	long := time.Second
	if w.rnd.IntN(3) == 0 {
		long = 2 * chaosTTL
	}
	for range w.rnd.IntN(4) {
		pause := time.NewTimer(w.within(long))
		if careless {
			<-pause.C
		} else {
			select {
			case <-pause.C:
			case <-lost:
			}
		}
		pause.Stop()
		b.sample()
		w.write(got.locks, writes)
		if name == mainElection {
			w.proclaim(got.locks[0])
		}
	}
	if stop() {
		end()
	} else {
		<-lost
		w.justified(&b, ended)
	}
	w.spend(name, got, begun, ended)
	before := got.Err()
	err := got.Release(ctx)
	if reason, ok := errors.AsType[*kvlock.LostError](err); ok && before == nil && reason.Reason != kvlock.Revoked {
		w.t.Errorf("Release = %v after Err = nil at the same time", err)
	}
	for _, k := range got.locks {
		if err == nil && w.witness.stands(k.Name(), k.Token()) {
			w.t.Errorf("hold of %q with token %d stands after Release = nil", k.Name(), k.Token())
		}
	}
	time.Sleep(w.within(time.Second))
	w.write(got.locks, writes)
}

// spend records for how long what was taken was believed in.
func (w *worker) spend(name string, got holding, from, to time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, k := range got.locks {
		w.spans = append(w.spans, span{who: w.who, name: k.Name(), from: from, to: to, token: k.Token()})
	}
	if len(got.locks) == 0 {
		w.spans = append(w.spans, span{who: w.who, name: name, from: from, to: to, shared: true})
	}
}

// justified checks that a hold was lost by time, not before trust ended, or was
// broken: nothing else happens in a run. A lost answer is no loss (S7), nor is a
// refusal (S9).
func (w *worker) justified(b *belief, at time.Time) {
	cause := context.Cause(b.Context())
	if err := b.Err(); err != cause {
		w.t.Errorf("Err = %v, want the cause of its context: %v", err, cause)
	}
	lost, ok := errors.AsType[*kvlock.LostError](cause)
	if !ok {
		w.t.Errorf("cause = %v of a hold that was not released, want lost", cause)
		return
	}
	w.mu.Lock()
	broken := w.broken[lost.Name]
	w.mu.Unlock()
	switch {
	case lost.Reason == kvlock.Expired && at.Before(b.least):
		w.t.Errorf("%v at %v, though it had trust until %v", lost, clock(at), clock(b.least))
	case lost.Reason == kvlock.Revoked && broken:
	case lost.Reason != kvlock.Expired:
		w.t.Errorf("%v, want lost by time or because somebody broke it", lost)
	}
}

// resource returns the key of what is written to under a hold.
func resource(k *kvlock.Lock) string { return strings.ReplaceAll(k.Name(), "#", "/") }

// raise raises the mark of the guarded resource.
func (w *worker) raise(k *kvlock.Lock) bool {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
	defer cancel()
	begun := w.linear.now()
	err := w.guard.Raise(ctx, resource(k), k.Token())
	w.linear.write(w.client, k, begun, err)
	return err == nil && k.Err() == nil
}

// write writes under each lock, to the guarded resource and under its own fence.
func (w *worker) write(locks []*kvlock.Lock, writes map[*kvlock.Lock]*natstest.Hold) {
	for _, k := range locks {
		if h := writes[k]; h != nil {
			w.guarded(k, h)
		}
		w.put(k)
	}
}

// guarded writes to the guarded resource.
func (w *worker) guarded(k *kvlock.Lock, h *natstest.Hold) {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
	defer cancel()
	attempt, begun := h.Write(), w.linear.now()
	revision, err := w.guard.Put(ctx, resource(k), k.Token(), []byte("v"))
	w.linear.write(w.client, k, begun, err)
	switch {
	case err == nil:
		attempt.Accepted(revision)
	case errors.Is(err, fence.ErrStale):
		attempt.Refused(err)
	}
}

// put writes under the fence of the lock itself.
func (w *worker) put(k *kvlock.Lock) {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
	defer cancel()
	w.serial++
	begun, out := w.linear.now(), accepted
	if err := k.Put(ctx, k.Name(), fmt.Appendf(nil, "%s %d %d", k.Name(), k.Token(), w.serial)); err != nil {
		out = unknown
	}
	w.linear.add(w.client, k.Name(), input{op: puts, token: k.Token()}, begun, out)
}
