package cli_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"tenure/embedded/natstest"
)

// The server that leads both the bucket and the messages' stream is killed. A TTL
// outlasts the election, so nobody loses anything.
func TestKilledServerMovesNoPartition(t *testing.T) {
	t.Parallel()
	cluster, run := newClusterRun(t, commandWorker)
	run.publish(scale(900), scale(60))
	run.begin("a", "b", "c")
	before := run.guard.holders()

	killed := time.Now()
	cluster.Kill(cluster.Leader("KV_tenure"))
	messages := run.finish()
	if after := run.guard.holders(); !maps.Equal(after, before) {
		t.Errorf("holders = %v, want those before the server was killed: %v", after, before)
	}
	log := run.guard.entries()
	checkLog(t, log, excuses{})
	t.Logf("server killed, partitions stood still for %v", gaps(log, killed))
	if again := len(of(log, accepted)) - messages; again != 0 {
		t.Errorf("%d messages were handled twice, want none: no worker has ended", again)
	}
	run.end("a", "b", "c")
}

// A machine that runs a server and a worker is lost, and with it consumers that the
// next holders would have asked for the position.
func TestWorkerAndServerKilledAtOnce(t *testing.T) {
	t.Parallel()
	cluster, run := newClusterRun(t, commandWorker)
	// The next holders ask a server that does not answer twice, for two seconds each,
	// and the election may take more than is left of the TTL. A death so near an outage is
	// taken for a part of it, and its worker waited for, for one TTL more.
	run.late = 10*time.Second + run.job.TTL
	run.publish(scale(900), scale(60))
	run.begin("a", "b", "c")
	server := mostConsumers(t, run, cluster, "a")
	cluster.Kill(server)
	run.crash("a")
	run.finish()
	checkLog(t, run.guard.entries(), excuses{crashed: []string{"a"}, forgotten: []string{"a"}})
	run.end("b", "c")
}

// newClusterRun starts a cluster of three and a run on it. One server leads both the
// bucket and the stream.
func newClusterRun(t *testing.T, start fleet) (*natstest.ThreeNodes, *run) {
	t.Helper()
	cluster := natstest.Cluster(t)
	if code, _, stderr := tenure(t, "init", "--server", cluster.URL(), "--replicas", "3", "--fresh"); code != 0 {
		t.Fatalf("init = %d, %s, want 0", code, stderr)
	}
	run := newRun(t, start, cluster.URL(), 15*time.Second, 3)
	deadline := time.Now().Add(30 * time.Second)
	for cluster.Leader(run.job.Stream) != cluster.Leader("KV_tenure") {
		if time.Now().After(deadline) {
			t.Fatal("bucket and stream are not led by one server within 30 s")
		}
		cluster.StepDown(run.job.Stream)
		time.Sleep(100 * time.Millisecond)
	}
	return cluster, run
}

// holders returns the token under which each partition is held.
func (g *guard) holders() map[string]uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make(map[string]uint64)
	for partition, e := range g.owners {
		all[partition] = e.token
	}
	return all
}

// gaps returns for how long nothing was begun in each partition, from the time
// given, sorted.
func gaps(log []entry, since time.Time) []time.Duration {
	last, longest := make(map[string]time.Time), make(map[string]time.Duration)
	for _, e := range of(log, begun) {
		if e.at.After(since) {
			longest[e.partition] = max(longest[e.partition], e.at.Sub(last[e.partition]).Round(time.Millisecond))
		}
		last[e.partition] = e.at
	}
	return slices.Sorted(maps.Values(longest))
}

// mostConsumers returns the server that has most of the worker's consumers.
func mostConsumers(t *testing.T, run *run, cluster *natstest.ThreeNodes, id string) int {
	t.Helper()
	stream, err := run.js.Stream(t.Context(), run.job.Stream)
	if err != nil {
		t.Fatal(err)
	}
	count := make(map[string]int)
	for info := range stream.ListConsumers(t.Context()).Info() {
		for _, partition := range run.guard.owned(id) {
			if strings.HasPrefix(info.Name, "tenure_"+run.job.Group+"_"+partition+"_") {
				count[info.Cluster.Leader]++
			}
		}
	}
	most := 0
	for i, server := range cluster.Embedded().Servers() {
		if count[server.Name()] > count[cluster.Embedded().Servers()[most].Name()] {
			most = i
		}
	}
	t.Logf("consumers of worker %s by server: %v", id, count)
	return most
}
