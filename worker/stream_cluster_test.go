package worker_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded/natstest"
	"tenure/worker"
)

// The server that keeps a consumer dies. Nobody tells: the stream, and the
// connection, are with other servers, and the consumer is still listed. Only that
// its heartbeats are missed shows it.
//
// The stream's and the cluster's own leaders live, since else nobody could read on
// before an election, which takes 4 to 9 seconds.
func TestReadsOnSecondsAfterTheConsumersServerDied(t *testing.T) {
	t.Run("own", func(t *testing.T) { testConsumersServerDies(t, 12) })
	t.Run("shared", func(t *testing.T) { testConsumersServerDies(t, many) })
}

func testConsumersServerDies(t *testing.T, partitions int) {
	cluster := natstest.Cluster(t)
	js := natstest.JetStream(t, cluster.Connect())
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, Replicas: 3})
	if err != nil {
		t.Fatal(err)
	}
	leader := cluster.Leader("ORDERS")
	js = natstest.JetStream(t, cluster.ConnectTo(leader))

	handled := make(chan string, partitions)
	task := &worker.Stream{
		JS: js, Stream: "ORDERS", Filter: "orders.{partition}.>",
		Handle: func(_ context.Context, p worker.Partition, _ *worker.Message) error {
			handled <- p.Name()
			return nil
		},
	}
	for i := range partitions {
		launch(t, task, newPlace(strconv.Itoa(i)).gain())
	}
	publish := func(partition string) {
		if _, err := js.Publish(t.Context(), "orders."+partition+".x", nil); err != nil {
			t.Fatal(err)
		}
	}
	round := func() {
		for i := range partitions {
			publish(strconv.Itoa(i))
		}
		for range partitions {
			<-handled
		}
	}
	round()
	victim, orphans := -1, []string(nil)
	for victim < 0 {
		for i, server := range cluster.Embedded().Servers() {
			if of := consumersOn(t, js, server.Name()); i != leader && !server.JetStreamIsLeader() && len(of) > len(orphans) {
				victim, orphans = i, of
			}
		}
		if victim < 0 { // all are with a leader: once more
			for name := range stream.ConsumerNames(t.Context()).Name() {
				if err := js.DeleteConsumer(t.Context(), "ORDERS", name); err != nil {
					t.Fatal(err)
				}
			}
			round()
		}
	}
	cluster.Kill(victim)
	died := time.Now()
	for _, partition := range orphans {
		publish(partition)
	}
	for range orphans {
		select {
		case <-handled:
		case <-time.After(time.Until(died.Add(30 * time.Second))):
			t.Fatalf("partitions %v: not all read on", orphans)
		}
	}
	took := time.Since(died)
	t.Logf("%d of %d partitions lost their consumer and read on within %v", len(orphans), partitions, took.Round(time.Millisecond))
	// About 1.7 s, and a third of a second for each time that the dead server is chosen
	// for a new consumer.
	if most := 4 * time.Second; took > most {
		t.Errorf("partitions %v read on after %v, want at most %v", orphans, took, most)
	}
}

// consumersOn returns the partitions whose consumer is kept by the server.
func consumersOn(t *testing.T, js jetstream.JetStream, server string) []string {
	t.Helper()
	stream, err := js.Stream(t.Context(), "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	var partitions []string
	for info := range stream.ListConsumers(t.Context()).Info() {
		if info.Cluster.Leader == server {
			for _, filter := range append(info.Config.FilterSubjects, info.Config.FilterSubject) {
				if filter != "" {
					partitions = append(partitions, strings.Split(filter, ".")[1])
				}
			}
		}
	}
	return partitions
}
