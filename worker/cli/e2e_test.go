package cli_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded/natstest"
)

const (
	partitions = 12
	keys       = 1000
)

// Every message is handled once, in order, by a handler in Go.
func TestWorkersCrashLeaveAndFreezeAndEveryMessageIsHandledOnceInOrder(t *testing.T) {
	// No server crashes here, and a disk may take a minute to sync so often.
	crashLeaveFreeze(t, taskWorker, scale(20_000), scale(1500), "--sync", "1m")
}

// The same with one process per message.
func TestCommandsCrashLeaveAndFreezeAndEveryMessageIsHandledOnceInOrder(t *testing.T) {
	crashLeaveFreeze(t, commandWorker, scale(2000), scale(130))
}

// scale makes a test smaller where it shall be quick, or cannot be.
func scale(n int) int {
	if testing.Short() || natstest.Race {
		return n / 5
	}
	return n
}

// crashLeaveFreeze has three workers, of which the first is killed, the second is
// asked to leave, and the third is frozen for longer than its TTL with a message in
// hand for each of its partitions, and then finishes those. Others come in for them.
func crashLeaveFreeze(t *testing.T, start fleet, messages, perSecond int, server ...string) {
	_, url := startServer(t, append(server, "--store", t.TempDir(), "--log-level", "warn")...)
	run := newRun(t, start, url, 3*time.Second, 1)
	run.publish(messages, perSecond)
	run.begin("a", "b", "c")
	run.await("a tenth is handled", func() bool { return run.guard.count() > messages/10 })
	run.crash("a")
	run.begin("d")
	run.leave("b")
	run.begin("e")
	run.freeze("c")

	run.finish()
	checkLog(t, run.guard.entries(), excuses{crashed: []string{"a"}, frozen: []string{"c"}})
	run.end("c", "d", "e")
}

// A run is a stream, the workers that handle its messages, and the guard that they
// write to.
type run struct {
	t       *testing.T
	start   fleet
	job     job
	guard   *guard
	js      jetstream.JetStream
	workers map[string]*process
	late    time.Duration // how long after the TTL others may take to run what a dead worker had
	begun   time.Time     // when the first message was published
	stop    chan struct{} // closed: publish no more than the least
	sent    chan struct{} // closed when all messages are published

	mu   sync.Mutex
	keys map[uint64]string // of what was published, by sequence
}

// newRun makes the stream. The server puts the messages into partitions.
func newRun(t *testing.T, start fleet, url string, ttl time.Duration, replicas int) *run {
	t.Helper()
	r := &run{
		t: t, start: start, guard: newGuard(t), js: connect(t, url),
		workers: make(map[string]*process),
		// The promise is one second. The rest is for a machine with other things to do.
		late: 2 * time.Second,
		stop: make(chan struct{}), sent: make(chan struct{}), keys: make(map[uint64]string),
	}
	r.job = job{
		URL: url, Group: "orders", Partitions: partitions, Stream: "ORDERS", Filter: "orders.{partition}.>",
		TTL: ttl, Guard: r.guard.addr,
	}
	_, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: r.job.Stream, Subjects: []string{"order.*"}, Replicas: replicas,
		SubjectTransform: &jetstream.SubjectTransformConfig{
			Source: "order.*", Destination: fmt.Sprintf("orders.{{partition(%d,1)}}.{{wildcard(1)}}", partitions),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// publish begins to publish messages of random keys, at least so many, and until
// finish is called. Each is published until it is known to be stored, as publishers
// do, and stored once.
func (r *run) publish(least, perSecond int) {
	const publishers = 8
	ctx, cancel := context.WithCancel(r.t.Context())
	var publishing sync.WaitGroup
	r.begun = time.Now()
	for p := range publishers {
		publishing.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(p)))
			for i := p; i < least || !r.enough(); i += publishers {
				select {
				case <-time.After(time.Until(r.begun.Add(time.Duration(i) * time.Second / time.Duration(perSecond)))):
				case <-ctx.Done():
					return
				}
				r.store(ctx, strconv.Itoa(i), fmt.Sprintf("k%03d", random.IntN(keys)))
			}
		})
	}
	go func() {
		defer close(r.sent)
		publishing.Wait()
	}()
	r.t.Cleanup(func() {
		cancel()
		<-r.sent
	})
}

// enough reports whether no more messages are needed.
func (r *run) enough() bool {
	select {
	case <-r.stop:
		return true
	default:
		return false
	}
}

// store publishes one message until it is stored.
func (r *run) store(ctx context.Context, id, key string) {
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		ack, err := r.js.Publish(try, "order."+key, []byte(key), jetstream.WithMsgID(id))
		cancel()
		if err == nil {
			r.mu.Lock()
			r.keys[ack.Sequence] = key
			r.mu.Unlock()
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// await waits until the condition holds.
func (r *run) await(what string, holds func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(time.Minute)
	if end, ok := r.t.Deadline(); ok && end.Add(-5*time.Second).Before(deadline) {
		deadline = end.Add(-5 * time.Second) // to fail here, with the logs, and not by the time limit of all tests
	}
	for !holds() {
		if time.Now().After(deadline) {
			r.t.Fatalf("not in time: %s; %d handled, owners %v", what, r.guard.count(), r.owned())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// owned returns how many partitions each worker has.
func (r *run) owned() map[string]int {
	all := make(map[string]int)
	for id := range r.workers {
		all[id] = len(r.guard.owned(id))
	}
	return all
}

// begin starts workers and waits until all have the same share.
func (r *run) begin(ids ...string) {
	r.t.Helper()
	begun := time.Now()
	for _, id := range ids {
		j := r.job
		j.ID = id
		r.workers[id] = r.start(r.t, j)
	}
	share := partitions / len(r.workers)
	r.await(fmt.Sprintf("all of %s have %d partitions", strings.Join(ids, ", "), share), func() bool {
		for id := range r.workers {
			if len(r.guard.owned(id)) != share {
				return false
			}
		}
		return true
	})
	r.t.Logf("%s: started, everybody has %d partitions after %v", strings.Join(ids, ", "), share, time.Since(begun).Round(time.Millisecond))
}

// crash kills a worker and waits until others have begun messages of all of its
// partitions.
func (r *run) crash(id string) {
	r.t.Helper()
	before := r.holds(id)
	killed := time.Now()
	r.workers[id].signalGroup(syscall.SIGKILL)
	delete(r.workers, id)
	took := r.takeOvers(before, killed)
	r.t.Logf("%s: killed at %d handled, its partitions run elsewhere after %v", id, r.guard.count(), took)
	if longest, most := slices.Max(took), r.job.TTL+r.late; longest > most {
		r.t.Errorf("take-over after %v, want at most %v", longest, most)
	}
}

// leave asks a worker to leave, and waits for its end.
func (r *run) leave(id string) {
	r.t.Helper()
	before := r.holds(id)
	asked := time.Now()
	r.workers[id].signalGroup(syscall.SIGTERM)
	if code := r.workers[id].code(); code != 0 {
		r.t.Errorf("worker %s = %d, want 0", id, code)
	}
	left := time.Since(asked)
	delete(r.workers, id)
	r.t.Logf("%s: left within %v, its partitions run elsewhere after %v", id, left.Round(time.Millisecond), r.takeOvers(before, asked))
}

// freeze stops a worker while it has a message of each partition in hand, until
// others have taken over. Then its handlers go on as if nothing had happened.
//
// Commands are not in the process group of the tool. Every other one is stopped
// with it and goes on before it; the rest have never been stopped.
func (r *run) freeze(id string) {
	r.t.Helper()
	worker := r.workers[id]
	r.guard.shut(id)
	var before map[string]entry
	r.await("worker "+id+" has a message of every partition in hand", func() bool {
		before = r.guard.inHand(id)
		return len(before) == partitions/len(r.workers)
	})
	time.Sleep(500 * time.Millisecond) // some more come, and must not be begun after what is in hand
	stopped := time.Now()
	worker.signalGroup(syscall.SIGSTOP)
	var commands []int
	for _, e := range before {
		if e.pid != worker.Process.Pid && len(commands) < len(before)/2 {
			commands = append(commands, e.pid)
			signalPID(r.t, e.pid, syscall.SIGSTOP)
		}
	}
	took := r.takeOvers(before, stopped)
	r.await("others have written", func() bool {
		for _, e := range before {
			if _, ok := r.guard.after(e, accepted); !ok {
				return false
			}
		}
		return true
	})
	r.t.Logf("%s: stopped with %d commands at %d handled, its partitions run elsewhere after %v", id, len(commands), r.guard.count(), took)
	if longest, most := slices.Max(took), r.job.TTL+r.late; longest > most {
		r.t.Errorf("take-over after %v, want at most %v", longest, most)
	}

	late := func() int { return len(of(r.guard.entries(), refused)) }
	r.guard.open(id)
	if inside := before[slices.Sorted(maps.Keys(before))[0]].pid == worker.Process.Pid; !inside {
		r.await("the late writes of the commands that run are refused", func() bool { return late() >= len(before)-len(commands) })
		for _, pid := range commands {
			signalPID(r.t, pid, syscall.SIGCONT)
		}
		r.await("the late writes of the commands that were stopped are refused", func() bool { return late() >= len(before) })
	}
	resumed := time.Now()
	worker.signalGroup(syscall.SIGCONT)
	r.await("the late writes are refused", func() bool { return late() >= len(before) })
	r.await("the worker is one of the others again", func() bool { return len(r.guard.owned(id)) == partitions/len(r.workers) })
	r.t.Logf("%s: went on after %v, %d late writes refused, has its share again after %v", id,
		resumed.Sub(stopped).Round(time.Millisecond), late(), time.Since(resumed).Round(time.Millisecond))
}

// holds returns the last entry of every partition that the worker has.
func (r *run) holds(id string) map[string]entry {
	r.t.Helper()
	all := make(map[string]entry)
	for _, partition := range r.guard.owned(id) {
		all[partition] = r.guard.owner(partition)
	}
	return all
}

// takeOvers waits until others have begun messages of all partitions, under larger
// tokens, and returns after what times.
func (r *run) takeOvers(before map[string]entry, since time.Time) []time.Duration {
	r.t.Helper()
	var took []time.Duration
	for _, e := range before {
		var next entry
		r.await("partition "+e.partition+" of worker "+e.worker+" is taken over", func() bool {
			var ok bool
			next, ok = r.guard.after(e, begun)
			return ok
		})
		took = append(took, next.at.Sub(since).Round(time.Millisecond))
	}
	slices.Sort(took)
	return took
}

// finish ends the publishing, waits until all messages are handled, and compares
// what was handled with what was published. It returns the number of messages.
func (r *run) finish() int {
	r.t.Helper()
	close(r.stop)
	<-r.sent
	r.await("every message is handled", func() bool { return r.guard.count() >= len(r.keys) })
	handled := make(map[uint64]string)
	for _, e := range of(r.guard.entries(), accepted) {
		handled[e.sequence] = e.key
	}
	if !maps.Equal(handled, r.keys) {
		r.t.Errorf("sequences and keys that were handled are not those that were published: %d and %d", len(handled), len(r.keys))
	}
	r.t.Logf("%d messages handled in %v", len(handled), time.Since(r.begun).Round(time.Millisecond))
	return len(handled)
}

// end asks the workers to leave.
func (r *run) end(ids ...string) {
	r.t.Helper()
	for _, id := range ids {
		r.workers[id].signalGroup(syscall.SIGTERM)
	}
	for _, id := range ids {
		if code := r.workers[id].code(); code != 0 {
			r.t.Errorf("worker %s = %d, want 0", id, code)
		}
	}
	if status := readStatus(r.t, r.job.URL, r.job.Group); len(status.Workers) != 0 || status.Unassigned != partitions {
		r.t.Errorf("status = %+v, want nobody left", status)
	}
}

func signalPID(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatalf("kill %d = %v, want nil", pid, err)
	}
}
