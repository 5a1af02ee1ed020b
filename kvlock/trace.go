package kvlock

import "time"

// A Trace is told what happens to the locks of a [Locker]. Every func may be nil. They
// are called from the goroutines of the Locker, several at once, while no mutex is
// held, and must not block: what they wait for is not renewed meanwhile.
type Trace struct {
	// Waiting is called when a call begins to stand in the line of a lock.
	Waiting func(name string)

	// Acquired is called when a hold has begun. Waited is the time since the call.
	Acquired func(name string, token uint64, waited time.Duration)

	// Renewed is called after a renewal was confirmed. Took is the time since it was
	// sent.
	Renewed func(name string, token uint64, took time.Duration)

	// RenewFailed is called after every attempt to renew that failed. Remaining is
	// how long the hold is still believed in if none succeeds.
	RenewFailed func(name string, token uint64, remaining time.Duration, err error)

	// Lost is called when a hold was lost.
	Lost func(err *LostError)

	// Released is called when a released hold has ended on the server; err says that
	// this is left to its TTL. Held is how long it was held.
	Released func(name string, token uint64, held time.Duration, err error)

	// HandedOver is called when somebody in line has been told of a release and takes
	// the lock. Took is the time since the release began.
	HandedOver func(name string, token uint64, took time.Duration)

	// FencedRefused is called when a fenced write found its hold ended.
	FencedRefused func(name string, token uint64, err error)
}
