package natstest

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// Bubble runs f like [synctest.Test]: in fake time, which moves only when
// everything waits, and with a failure if a goroutine is left at the end. The
// server, its clients and the code under test all belong inside.
//
// It empties every sync.Pool first: nats.go pools timers for the whole process,
// and a timer must not enter another bubble. So no test that uses Bubble may be
// parallel, nor run beside one that is.
//
// With the race detector it sets GOMAXPROCS to one while f runs: two threads in
// one bubble can crash the detector (golang.org/issue/78156). It finds races all
// the same, since it goes by what happened before what, not by the clock.
func Bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	// What is pooled survives the first collection.
	runtime.GC()
	runtime.GC()
	if Race {
		// All timers of a bubble share one context of the detector. A due ticker
		// runs on the thread that receives from it, so two of them use the context
		// at once and it is torn.
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	}
	synctest.Test(t, func(t *testing.T) {
		// Registered first, so it runs last. A stopped server's flush loops still
		// sleep for a moment, and time stands still once this function has ended.
		t.Cleanup(func() { time.Sleep(linger) })
		f(t)
	})
}

// linger is how long goroutines may take to end after everything was stopped.
const linger = 100 * time.Millisecond
