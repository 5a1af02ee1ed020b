package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"tenure/embedded"
	"tenure/kvlock/bucket"
)

type serverCommand struct {
	Listen  string `name:"listen" default:"127.0.0.1:4222" placeholder:"HOST:PORT" help:"Where to listen; port 0 takes a free one."`
	Store   string `name:"store" placeholder:"DIR" help:"Directory to keep everything in; without it everything is forgotten at the end."`
	Cluster int    `name:"cluster" default:"1" placeholder:"N" help:"Servers in this process, 1 or 3."`
	Sync    string `name:"sync" default:"always" placeholder:"WHEN" help:"When the store is synced to the disk: always, or an interval such as 2m."`
}

func (*serverCommand) Help() string {
	return `Runs a NATS server with JetStream in this process, and makes the bucket if the store is new.
It is right for one machine and for trying things: all of it ends with this process.

The address is printed to standard output when the server is ready. SIGTERM stops it cleanly.

Example:

    tenure server --listen 127.0.0.1:0 --store /var/lib/tenure`
}

func (c *serverCommand) Run(ctx context.Context, r *run) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	opts := []embedded.Option{embedded.Listen(c.Listen), embedded.Cluster(c.Cluster), embedded.Logger(r.log)}
	if c.Store != "" {
		every, err := c.syncEvery()
		if err != nil {
			return err
		}
		opts = append(opts, embedded.Store(c.Store), embedded.SyncEvery(every))
	} else {
		r.log.WarnContext(ctx, "no --store: everything is forgotten when this server ends; before it is started again let one TTL pass")
	}
	server, err := embedded.Start(opts...)
	if errors.Is(err, embedded.ErrStoreInUse) {
		return fmt.Errorf("%w; give this one another --store", err)
	}
	if err != nil {
		return err
	}
	defer server.Stop()
	if err := r.freshBucket(ctx, server, c.Cluster); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(r.Out, "listening on %s\n", server.URL()); err != nil {
		return err
	}
	<-ctx.Done()
	r.log.InfoContext(ctx, "server stops", slog.Any("err", context.Cause(ctx)))
	return nil
}

func (c *serverCommand) syncEvery() (time.Duration, error) {
	if c.Sync == "always" {
		return 0, nil
	}
	every, err := time.ParseDuration(c.Sync)
	if err != nil || every <= 0 {
		return 0, wrongFlag("sync", fmt.Sprintf("%q", c.Sync), "always, or an interval such as 2m")
	}
	return every, nil
}

// freshBucket makes the bucket on a server whose store is new. Nobody can hold
// anything that was kept there, so it needs no quarantine.
func (r *run) freshBucket(ctx context.Context, server *embedded.Server, replicas int) error {
	if !server.Fresh() {
		return nil
	}
	nc, err := server.Connect(append(bucket.ConnOptions(), r.connEvents()...)...)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := r.jetStream(nc)
	if err != nil {
		return err
	}
	_, err = bucket.Open(ctx, js, bucket.Name(r.cfg.Bucket), bucket.Replicas(replicas), bucket.Fresh(), bucket.Logger(r.log))
	return err
}
