package worker_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/fx"

	"tenure/claim"
	"tenure/embedded"
	"tenure/kvlock/bucket"
	"tenure/worker"
)

// newClaimers returns the one worker of this process. The bucket is new, and nobody can
// hold anything of an older one.
func newClaimers(nc *nats.Conn) ([]*claim.Claimer, error) {
	ctx := context.Background()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	b, err := bucket.Open(ctx, js, bucket.Fresh())
	if err != nil {
		return nil, err
	}
	claimer, err := claim.New(ctx, js, "orders", claim.WithBucket(b), claim.WithPartitions("eu"), claim.WithID("host-1"))
	return []*claim.Claimer{claimer}, err
}

// An application that works on partitions from its start to its stop.
func ExampleModule() {
	srv, err := embedded.Start()
	if err != nil {
		log.Fatal(err)
	}
	defer srv.Stop()

	began := make(chan struct{})
	task := worker.Func(func(_ context.Context, p worker.Partition) error {
		fmt.Println(p.Worker(), "works on", p.Name())
		close(began)
		<-p.Draining()
		fmt.Println(p.Name(), "is handed over after this")
		return nil
	})
	app := fx.New(
		worker.Module,
		fx.Provide(func() (*nats.Conn, error) { return srv.Connect(bucket.ConnOptions()...) }, newClaimers, func() worker.Task { return task }),
		fx.Supply(slog.New(slog.DiscardHandler)),
		fx.NopLogger,
	)
	ctx := context.Background()
	if err := app.Start(ctx); err != nil { // app.Run does all of this, until a signal
		log.Fatal(err)
	}
	<-began
	if err := app.Stop(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// host-1 works on eu
	// eu is handed over after this
}
