package kvlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded/natstest"
	"tenure/kvlock"
	"tenure/kvlock/bucket"
)

const clusterStream = "KV_" + bucket.DefaultName

// threeNodes starts a cluster with the bucket on three replicas. These tests run in
// real time: elections and quorums are what they are about.
func threeNodes(t *testing.T) *natstest.ThreeNodes {
	t.Helper()
	if testing.Short() {
		t.Skip("elections in real time")
	}
	c := natstest.Cluster(t)
	onCluster(t, c.Connect(), "first")
	return c
}

// onCluster returns a Locker that uses the bucket on three replicas.
func onCluster(t *testing.T, nc *nats.Conn, owner string, opts ...kvlock.Option) *kvlock.Locker {
	t.Helper()
	base := []kvlock.Option{
		kvlock.WithOwner(owner),
		kvlock.WithBucketOptions(bucket.Fresh(), bucket.Replicas(3), bucket.Storage(jetstream.MemoryStorage)),
	}
	l, err := kvlock.New(t.Context(), natstest.JetStream(t, nc), append(base, opts...)...)
	if err != nil {
		t.Fatalf("New = %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
		defer cancel()
		_ = l.Close(ctx) // the cluster ends next
	})
	return l
}

// K14, N2, N6: of those who try at once one gets the lock, and the others hear that it
// is held, whatever code the server refused them with.
func TestOfRacingClientsOnThreeReplicasOneWins(t *testing.T) {
	c := threeNodes(t)
	var ls []*kvlock.Locker
	for i := range 8 {
		ls = append(ls, onCluster(t, c.Connect(), fmt.Sprint(i)))
	}
	for round := range 50 {
		name := fmt.Sprintf("job%d", round%2) // also over the marker of a release
		won := make([]*kvlock.Lock, len(ls))
		var all sync.WaitGroup
		for i, l := range ls {
			all.Go(func() {
				var err error
				if won[i], err = l.TryLock(t.Context(), name); err != nil && !errors.Is(err, kvlock.ErrHeld) {
					t.Errorf("TryLock = %v, want nil or %v", err, kvlock.ErrHeld)
				}
			})
		}
		all.Wait()
		winners := 0
		for _, k := range won {
			if k != nil {
				winners++
				release(t, k)
			}
		}
		if winners != 1 {
			t.Errorf("round %d: winners = %d, want 1", round, winners)
		}
	}
}

// N4, S1, S2: many goroutines in several processes, and tokens that rise.
func TestManyGoroutinesOnThreeReplicasExcludeEachOther(t *testing.T) {
	c := threeNodes(t)
	ls := []*kvlock.Locker{onCluster(t, c.Connect(), "a"), onCluster(t, c.Connect(), "b"), onCluster(t, c.Connect(), "c")}
	var history natstest.History
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			for range 3 {
				err := ls[i%len(ls)].Do(t.Context(), "job", func(_ context.Context, k *kvlock.Lock) error {
					defer history.Begin(fmt.Sprint(i), "job", k.Token()).End()
					return nil
				})
				if err != nil {
					t.Errorf("Do = %v, want nil", err)
				}
			}
		})
	}
	all.Wait()
	history.Check(t)
}

// hundred takes a hundred locks.
func hundred(t *testing.T, l *kvlock.Locker) []*kvlock.Lock {
	t.Helper()
	ks := make([]*kvlock.Lock, 100)
	for i := range ks {
		k, err := l.TryLock(t.Context(), fmt.Sprintf("job%d", i))
		if err != nil {
			t.Fatal(err)
		}
		ks[i] = k
	}
	return ks
}

// wantAllHeld checks that the locks are held, and that others see that too.
func wantAllHeld(t *testing.T, other *kvlock.Locker, ks []*kvlock.Lock) {
	t.Helper()
	for _, k := range ks {
		wantHeldOn(t, k)
		h, err := other.Holder(t.Context(), k.Name())
		if err != nil || h.Token != k.Token() {
			t.Errorf("Holder of %q = %+v, %v, want token %d", k.Name(), h, err, k.Token())
		}
	}
}

// N36, K20, K36, N38, N39: the leader changes again and again, and refuses or forgets
// the writes that it was about to store.
func TestLocksOutliveLeadersThatStepDown(t *testing.T) {
	c := threeNodes(t)
	l, other := onCluster(t, c.Connect(), "a", kvlock.WithTTL(5*time.Second)), onCluster(t, c.Connect(), "b")
	ks := hundred(t, l)
	for range 12 {
		time.Sleep(time.Second)
		c.StepDown(clusterStream)
	}
	wantAllHeld(t, other, ks)
}

// N38, K36, S9: the leader is killed, and for some seconds there is none.
func TestLocksOutliveTheCrashOfTheLeader(t *testing.T) {
	c := threeNodes(t)
	leader := c.Leader(clusterStream)
	l, other := onCluster(t, c.Connect(), "a"), onCluster(t, c.ConnectTo((leader+1)%3), "b")
	ks := hundred(t, l)
	c.Kill(leader)
	time.Sleep(18 * time.Second) // longer than the TTL
	wantAllHeld(t, other, ks)
}

// H5, D1, H1, B3: the holder is on the side of a leader that is cut off and answers from
// the past. It does not take that for a loss; its hold ends by time, and another takes
// the lock on the other side after that.
func TestHolderBesideACutOffLeaderLosesItsLockByTimeOnly(t *testing.T) {
	c := threeNodes(t)
	leader := c.Leader(clusterStream)
	const ttl = 8 * time.Second
	a := onCluster(t, c.ConnectTo(leader), "a", kvlock.WithTTL(ttl))
	b := onCluster(t, c.ConnectTo((leader+1)%3), "b", kvlock.WithTTL(ttl))
	var history natstest.History
	k, err := a.TryLock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	ofA := history.Begin("a", "job", k.Token())
	c.Isolate(leader)
	cut := time.Now()
	next := make(chan gained, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		k, err := b.Lock(ctx, "job")
		next <- gained{k, err, time.Now()}
	}()
	least := k.Remaining()
	<-k.Context().Done()
	ofA.End()
	if lasted := time.Since(cut); lasted < least-time.Second {
		t.Errorf("loss %v after the cut, though there was trust for %v", lasted, least)
	}
	wantLost(t, "cause", context.Cause(k.Context()), kvlock.Expired)
	got := <-next
	if got.err != nil {
		t.Fatal(got.err)
	}
	history.Begin("b", "job", got.lock.Token())
	history.Check(t)
	t.Logf("next hold %v after the cut", got.at.Sub(cut))
	c.Heal()
	time.Sleep(3 * time.Second)
	wantHeldOn(t, got.lock)
	wantLost(t, "Err after the cut", k.Err(), kvlock.Expired)
}

// N5: without a quorum nobody is said to hold the lock. With it again the lock is free,
// since its TTL has ended.
func TestExpiredLockIsTakenOnceThereIsAQuorumAgain(t *testing.T) {
	c := threeNodes(t)
	leader := c.Leader(clusterStream)
	a := onCluster(t, c.ConnectTo((leader+1)%3), "a", kvlock.WithTTL(2*time.Second))
	b := onCluster(t, c.ConnectTo(leader), "b", kvlock.WithTTL(2*time.Second))
	k, err := a.TryLock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	c.Kill((leader + 1) % 3)
	c.Kill((leader + 2) % 3)
	<-k.Context().Done()
	time.Sleep(12 * time.Second) // until the leader knows that it is none
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := b.TryLock(ctx, "job"); errors.Is(err, kvlock.ErrHeld) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("TryLock without a quorum = %v, want %v and nobody who holds it", err, context.DeadlineExceeded)
	}
	c.Restart((leader + 1) % 3)
	began := time.Now()
	ctx, cancel = context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	next, err := b.Lock(ctx, "job")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("taken %v after there was a quorum again", time.Since(began))
	if next.Token() <= k.Token() {
		t.Errorf("token = %d, want more than %d", next.Token(), k.Token())
	}
}

// N3, K19, N23: the answers to renewals are lost, or the writes are on their way for
// long, on three replicas.
func TestRenewalsOnThreeReplicasAreReadBack(t *testing.T) {
	c := threeNodes(t)
	link := natstest.NewLink(t, c.Embedded())
	l, other := onCluster(t, link.Connect(), "a", kvlock.WithTTL(6*time.Second)), onCluster(t, c.Connect(), "b")
	k, err := l.TryLock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		link.DropReply(1, func(subject string, _ []byte) bool { return subject == jobSubject })
		time.Sleep(2500 * time.Millisecond)
		let := link.HoldRequest(to(jobSubject))
		time.Sleep(2500 * time.Millisecond)
		let()
	}
	time.Sleep(time.Second)
	wantAllHeld(t, other, []*kvlock.Lock{k})
	release(t, k)
}
