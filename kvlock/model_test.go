package kvlock_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"tenure/kvlock"
	"tenure/kvlock/fence"
)

// What was done to a lock, or to the resource behind it.
type op string

const (
	gains  op = "gains"
	ends   op = "ends"  // or noticed the loss
	reads  op = "reads" // gains for reading
	leaves op = "leaves"
	writes op = "writes" // to a guarded resource
	puts   op = "puts"   // under the fence of the lock itself
)

// An input is one operation with the token that it was done with, or that it gave.
type input struct {
	op    op
	token uint64
}

// An outcome is what is known of a write.
type outcome string

const (
	accepted outcome = "accepted"
	refused  outcome = "refused"
	unknown  outcome = "unknown"
)

// A fenced is the state of a mutex with a guarded resource: see mutexModel.
type fenced struct {
	holder uint64 // its token, 0: nobody
	last   uint64 // token ever given
	mark   uint64 // of the resource
}

// mutexModel says what a lock with fencing tokens may do: one holder at a time, each
// with a larger token than all before; the resource accepts no token that is lower
// than its mark.
var mutexModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{fenced{}} },
	Step: func(state, in, out any) []any {
		s, i := state.(fenced), in.(input)
		switch i.op {
		case gains:
			if s.holder == 0 && i.token > s.last {
				return []any{fenced{holder: i.token, last: i.token, mark: s.mark}}
			}
		case ends:
			if s.holder == i.token {
				return []any{fenced{last: s.last, mark: s.mark}}
			}
		case puts: // a refused one may come at any time
			if out != accepted || i.token == s.last {
				return []any{s}
			}
		case writes:
			after := fenced{holder: s.holder, last: s.last, mark: i.token}
			switch stale := i.token < s.mark; {
			case out == unknown && !stale:
				return []any{s, after}
			case out == unknown, stale && out == refused:
				return []any{s}
			case !stale && out == accepted:
				return []any{after}
			}
		}
		return nil
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%v: %v", in, out) },
}

// permitsModel says what a semaphore with two permits may do.
var permitsModel = porcupine.Model{
	Init: func() any { return 0 },
	Step: func(state, in, _ any) (bool, any) {
		n := state.(int)
		if in.(input).op == gains {
			return n < 2, n + 1
		}
		return n > 0, n - 1
	},
}

// A shared is the state of a lock for readers and writers.
type shared struct{ readers, writers int }

// sharedModel says what a lock for readers and writers may do.
var sharedModel = porcupine.Model{
	Init: func() any { return shared{} },
	Step: func(state, in, _ any) (bool, any) {
		s := state.(shared)
		switch in.(input).op {
		case reads:
			return s.writers == 0, shared{s.readers + 1, s.writers}
		case leaves:
			return s.readers > 0, shared{s.readers - 1, s.writers}
		case gains:
			return s == shared{}, shared{0, 1}
		default:
			return s.writers == 1, shared{}
		}
	},
}

// models say what is checked beside the locks, by name.
var models = map[string]porcupine.Model{"pool": permitsModel, "rw shared": sharedModel}

// linear collects operations for the check that they are linearizable.
type linear struct {
	mu    sync.Mutex
	steps int64
	ops   map[string][]porcupine.Operation // by the name of the lock, permit or semaphore
}

// now returns the next moment. Moments and not times, since much happens at the same
// time in a bubble.
func (l *linear) now() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.steps++
	return l.steps
}

// add records an operation that has ended.
func (l *linear) add(client int, name string, in input, begun int64, out any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ops == nil {
		l.ops = make(map[string][]porcupine.Operation)
	}
	l.steps++
	made := porcupine.Operation{ClientId: client, Input: in, Output: out, Call: begun, Return: l.steps}
	if in.op == reads || in.op == leaves {
		name += " shared"
	}
	l.ops[name] = append(l.ops[name], made)
	if name == "rw" && (in.op == gains || in.op == ends) {
		l.ops["rw shared"] = append(l.ops["rw shared"], made)
	}
	if of, _, permit := strings.Cut(name, "#"); permit && (in.op == gains || in.op == ends) {
		l.ops[of] = append(l.ops[of], made)
	}
}

// write records a write to the resource behind a lock. The resource is reached
// without faults, so a write that failed is not carried out later.
func (l *linear) write(client int, k *kvlock.Lock, begun int64, err error) {
	out := unknown
	switch {
	case err == nil:
		out = accepted
	case errors.Is(err, fence.ErrStale):
		out = refused
	}
	l.add(client, k.Name(), input{op: writes, token: k.Token()}, begun, out)
}

// check fails the test for everything that is not linearizable, or not known to be.
func (l *linear) check(t *testing.T) {
	t.Helper()
	for _, v := range l.violations() {
		t.Error(v)
	}
}

func (l *linear) violations() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
	for name, ops := range l.ops {
		model, ok := models[name]
		if !ok {
			model = mutexModel.ToModel()
		}
		const patience = 20 * time.Second
		switch porcupine.CheckOperationsTimeout(model, ops, patience) {
		case porcupine.Ok:
		case porcupine.Unknown:
			found = append(found, fmt.Sprintf("whether the history of %q is linearizable is not known after %v: %d operations", name, patience, len(ops)))
		default:
			found = append(found, fmt.Sprintf("history of %q is not linearizable: %v", name, ops))
		}
	}
	return found
}

func TestModelsRefuseWhatIsPromisedNotToHappen(t *testing.T) {
	tests := []struct {
		name string
		do   func(l *linear)
		want bool
	}{
		{"one after the other", func(l *linear) { l.one("x", gains, 1); l.one("x", ends, 1); l.one("x", gains, 2) }, true},
		{"two holders", func(l *linear) { l.one("x", gains, 1); l.one("x", gains, 2) }, false},
		{"token falls", func(l *linear) { l.one("x", gains, 2); l.one("x", ends, 2); l.one("x", gains, 1) }, false},
		{"stale write", func(l *linear) { l.one("x", writes, 2); l.one("x", writes, 1) }, false},
		{"late put", func(l *linear) { l.one("x", gains, 1); l.one("x", ends, 1); l.one("x", gains, 2); l.one("x", puts, 1) }, false},
		{"two readers", func(l *linear) { l.one("rw", reads, 0); l.one("rw", reads, 0); l.one("rw", leaves, 0) }, true},
		{"reader beside a writer", func(l *linear) { l.one("rw", reads, 0); l.one("rw", gains, 1) }, false},
		{"two permits", func(l *linear) { l.one("pool#0", gains, 1); l.one("pool#1", gains, 2) }, true},
		{"three permits", func(l *linear) { l.one("pool#0", gains, 1); l.one("pool#1", gains, 2); l.one("pool#2", gains, 3) }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var l linear
			tt.do(&l)
			if got := len(l.violations()) == 0; got != tt.want {
				t.Errorf("linearizable = %v, want %v", got, tt.want)
			}
		})
	}
}

// one adds an operation that nothing else was at the same time as.
func (l *linear) one(name string, o op, token uint64) {
	l.add(0, name, input{op: o, token: token}, l.now(), accepted)
}
