package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tenure/kvlock/bucket"
)

type initCommand struct {
	Replicas *int           `name:"replicas" placeholder:"N" help:"Replicas, 1 to 5; 1 for a new bucket if not given."`
	Storage  string         `name:"storage" placeholder:"KIND" help:"file or memory; file for a new bucket if not given."`
	MaxTTL   *time.Duration `name:"max-ttl" placeholder:"DURATION" help:"Largest TTL that may be used in the bucket; 60s for a new one if not given."`
	Fresh    bool           `name:"fresh" help:"There was no such bucket before: use it at once, without quarantine."`
}

func (*initCommand) Help() string {
	return `Makes the bucket, or verifies the one that is there, and prints what it found. What is given has to agree with it.

A bucket that is made anew cannot be used for as long as its largest TTL, since holders of a lost one may still trust
their locks. --fresh says that none was lost.

Example:

    tenure init --replicas 3 --fresh`
}

func (c *initCommand) Run(ctx context.Context, r *run) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	opts, err := c.options(r)
	if err != nil {
		return err
	}
	nc, js, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()

	_, err = js.Stream(ctx, "KV_"+r.cfg.Bucket)
	done := "found"
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		done = "made" // by us, or this very moment by somebody else
	}
	b, err := bucket.Open(ctx, js, opts...)
	if err != nil {
		return err
	}
	stream, err := js.Stream(ctx, b.Stream())
	if err != nil {
		return err
	}
	have := stream.CachedInfo().Config

	quarantine := "none"
	if left := b.Quarantine(); left > 0 {
		quarantine = fmt.Sprintf("another %v, until %s", left.Round(time.Second), time.Now().Add(left).Format(time.RFC3339))
	}
	return printTable(r.Out,
		[]string{"bucket", b.Name() + " (" + done + ")"},
		[]string{"created", b.Created().Local().Format(time.RFC3339)},
		[]string{"replicas", strconv.Itoa(have.Replicas)},
		[]string{"storage", storageName(have.Storage)},
		[]string{"max TTL", b.MaxTTL().String()},
		[]string{"quarantine", quarantine},
	)
}

// options returns what the flags ask of the bucket.
func (c *initCommand) options(r *run) ([]bucket.Option, error) {
	opts := []bucket.Option{bucket.Name(r.cfg.Bucket), bucket.Logger(r.log)}
	if n := c.Replicas; n != nil {
		if *n < 1 || *n > 5 {
			return nil, wrongFlag("replicas", fmt.Sprint(*n), "1 to 5")
		}
		opts = append(opts, bucket.Replicas(*n))
	}
	switch c.Storage {
	case "":
	case "file":
		opts = append(opts, bucket.Storage(jetstream.FileStorage))
	case "memory":
		opts = append(opts, bucket.Storage(jetstream.MemoryStorage))
	default:
		return nil, wrongFlag("storage", fmt.Sprintf("%q", c.Storage), "file or memory")
	}
	if d := c.MaxTTL; d != nil {
		if *d < bucket.MinTTL || *d%time.Second != 0 {
			return nil, wrongFlag("max-ttl", d.String(), fmt.Sprintf("whole seconds, at least %v", bucket.MinTTL))
		}
		opts = append(opts, bucket.MaxTTL(*d))
	}
	if c.Fresh {
		opts = append(opts, bucket.Fresh())
	}
	return opts, nil
}

func storageName(storage jetstream.StorageType) string {
	if storage == jetstream.MemoryStorage {
		return "memory"
	}
	return "file"
}
