package kvlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded"
	"tenure/kvlock"
	"tenure/kvlock/bucket"
)

// exampleLocker returns a Locker on a server of its own.
func exampleLocker() (locker *kvlock.Locker, stop func()) {
	srv, err := embedded.Start()
	if err != nil {
		log.Fatal(err)
	}
	nc, err := srv.Connect(kvlock.ConnOptions()...)
	if err != nil {
		log.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	locker, err = kvlock.New(ctx, js, kvlock.WithOwner("printer"), kvlock.WithBucketOptions(bucket.Fresh()))
	if err != nil {
		log.Fatal(err)
	}
	return locker, func() {
		_ = locker.Close(ctx) // the server ends next
		nc.Close()
		srv.Stop()
	}
}

func ExampleLocker_Do() {
	locker, stop := exampleLocker()
	defer stop()

	err := locker.Do(context.Background(), "reports/nightly", func(ctx context.Context, lock *kvlock.Lock) error {
		// Send lock.Token() with every write, and stop when ctx ends.
		fmt.Println("printing under", lock.Name(), lock.Token() > 0)
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// printing under reports/nightly true
	// <nil>
}

func ExampleLocker_TryLock() {
	locker, stop := exampleLocker()
	defer stop()

	ctx := context.Background()
	lock, err := locker.TryLock(ctx, "reports/nightly")
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Release(ctx)

	_, err = locker.TryLock(ctx, "reports/nightly")
	if held, ok := errors.AsType[*kvlock.HeldError](err); ok {
		fmt.Println("held by", held.Owner)
	}
	// Output:
	// held by printer
}

func ExampleLocker_Holders() {
	locker, stop := exampleLocker()
	defer stop()

	ctx := context.Background()
	for _, name := range []string{"a", "b"} {
		if _, err := locker.TryLock(ctx, name); err != nil {
			log.Fatal(err)
		}
	}
	for h, err := range locker.Holders(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(h.Name, h.Owner, h.TTL)
	}
	// Output:
	// a printer 15s
	// b printer 15s
}

func ExampleLocker_Semaphore() {
	locker, stop := exampleLocker()
	defer stop()

	ctx := context.Background()
	licences, err := locker.Semaphore(ctx, "licences", 2)
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		permit, err := licences.TryLock(ctx)
		if err != nil {
			log.Fatal(err)
		}
		defer permit.Release(ctx)
	}
	_, err = licences.TryLock(ctx)
	fmt.Println("all in use:", errors.Is(err, kvlock.ErrHeld))
	_, err = locker.Semaphore(ctx, "licences", 3)
	fmt.Println(err)
	// Output:
	// all in use: true
	// kvlock: semaphore "licences": limit: have 2, want 3
}

func ExampleLocker_RWLock() {
	locker, stop := exampleLocker()
	defer stop()

	ctx := context.Background()
	config := locker.RWLock("config")
	for range 2 { // at the same time
		reader, err := config.RLock(ctx)
		if err != nil {
			log.Fatal(err)
		}
		defer reader.Release(ctx)
	}
	_, err := config.TryLock(ctx)
	if held, ok := errors.AsType[*kvlock.HeldError](err); ok {
		fmt.Println("read by", held.Owner)
	}
	// Output:
	// read by printer
}
