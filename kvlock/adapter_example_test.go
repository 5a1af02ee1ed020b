package kvlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"sync/atomic"

	"tenure/kvlock"
)

// The shapes that the scheduler gocron (v2) wants of a lock and of an elector.
type (
	cronLocker interface {
		Lock(ctx context.Context, key string) (cronLock, error)
	}
	cronLock interface {
		Unlock(ctx context.Context) error
	}
	cronElector interface {
		IsLeader(ctx context.Context) error
	}
)

// A jobLocker lets one node run a job: who is refused skips the run. Give the Locker a
// minimum hold ([kvlock.WithMinHold]) of the period less 2 s, so that nodes whose clocks
// differ skip it too.
type jobLocker struct{ *kvlock.Locker }

func (l jobLocker) Lock(ctx context.Context, key string) (cronLock, error) {
	k, err := l.TryLock(ctx, key)
	if err != nil {
		return nil, err // not a jobLock with nothing in it
	}
	return jobLock{k}, nil
}

// The hold outlives the context that it was taken with, and Release works after the end of
// the one it is given, so that a scheduler that shuts down frees the lock at once.
type jobLock struct{ *kvlock.Lock }

func (k jobLock) Unlock(ctx context.Context) error { return k.Release(ctx) }

func ExampleLocker_schedulerLock() {
	locker, stop := exampleLocker()
	defer stop()

	var scheduler cronLocker = jobLocker{locker}
	ctx, shutdown := context.WithCancel(context.Background())
	lock, err := scheduler.Lock(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	_, err = scheduler.Lock(ctx, "report")
	fmt.Println("second node skips:", errors.Is(err, kvlock.ErrHeld))

	shutdown()
	fmt.Println("unlock:", lock.Unlock(ctx))
	_, err = locker.Holder(context.Background(), "report")
	fmt.Println("free:", errors.Is(err, kvlock.ErrFree))
	// Output:
	// second node skips: true
	// unlock: <nil>
	// free: true
}

// A nodeElector runs an election beside the scheduler. It leads as long as its hold says so,
// which asks the clock and no server.
type nodeElector struct{ lock atomic.Pointer[kvlock.Lock] }

func (e *nodeElector) campaign(ctx context.Context, election *kvlock.Election) error {
	return election.Run(ctx, "", func(ctx context.Context, lock *kvlock.Lock) error {
		e.lock.Store(lock)
		<-ctx.Done()
		return nil
	})
}

func (e *nodeElector) IsLeader(context.Context) error {
	if lock := e.lock.Load(); lock != nil {
		return lock.Err()
	}
	return errors.New("not elected yet")
}

func ExampleElection_schedulerElector() {
	locker, stop := exampleLocker()
	defer stop()

	ctx, cancel := context.WithCancel(context.Background())
	elector := new(nodeElector)
	var scheduler cronElector = elector
	fmt.Println("leader:", scheduler.IsLeader(ctx) == nil)

	var campaign sync.WaitGroup
	campaign.Go(func() { _ = elector.campaign(ctx, locker.Election("scheduler")) }) // ends with ctx
	for h := range locker.Election("scheduler").Observe(ctx) {
		if h.Token != 0 {
			break
		}
	}
	for scheduler.IsLeader(ctx) != nil { // the record is seen a moment before its leader knows
	}
	fmt.Println("leader:", scheduler.IsLeader(ctx) == nil)
	cancel()
	campaign.Wait()
	fmt.Println("leader:", scheduler.IsLeader(ctx) == nil)
	// Output:
	// leader: false
	// leader: true
	// leader: false
}

// A mutex is a [sync.Locker]. It hides what matters: Lock can wait for ever and has nowhere
// to put an error, and who holds it is not told that the lock was lost. Use it only where an
// interface asks for it, and do not rely on it for more than saving work.
type mutex struct {
	locker *kvlock.Locker
	name   string
	lock   *kvlock.Lock // of whoever is between Lock and Unlock
}

func (m *mutex) Lock() {
	k, err := m.locker.Lock(context.Background(), m.name)
	if err != nil {
		panic(err) // the bucket, the name or the permissions are wrong, or all is closed
	}
	m.lock = k
}

func (m *mutex) Unlock() {
	if err := m.lock.Release(context.Background()); err != nil {
		log.Print(err) // the work was perhaps not exclusive
	}
}

func ExampleLocker_syncLocker() {
	locker, stop := exampleLocker()
	defer stop()

	var mu sync.Locker = &mutex{locker: locker, name: "counter"}
	var count int
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			mu.Lock()
			defer mu.Unlock()
			count++
		})
	}
	all.Wait()
	fmt.Println(count)
	// Output:
	// 3
}

func ExampleLock_Put() {
	locker, stop := exampleLocker()
	defer stop()

	ctx := context.Background()
	lock, err := locker.TryLock(ctx, "account")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(lock.Put(ctx, "balance", []byte("100")))
	balance, _, err := locker.Data(ctx, "balance")
	fmt.Printf("%s %v\n", balance, err)

	lock.Release(ctx)
	fmt.Println(errors.Is(lock.Put(ctx, "balance", []byte("0")), kvlock.ErrReleased))
	// Output:
	// <nil>
	// 100 <nil>
	// true
}

func ExampleLocker_LockAll() {
	locker, stop := exampleLocker()
	defer stop()

	ctx := context.Background()
	locks, err := locker.LockAll(ctx, "to", "from")
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Release(ctx)
	for lock := range locks.All() {
		fmt.Println(lock.Name(), lock.Token() > 0)
	}
	// Output:
	// from true
	// to true
}
