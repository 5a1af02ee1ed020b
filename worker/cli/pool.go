package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"tenure/claim"
	"tenure/config"
	"tenure/embedded"
	"tenure/kvlock/bucket"
	"tenure/worker"
	"tenure/worker/admin"
)

// An upstream is the NATS that a pool works with.
type upstream struct {
	js    jetstream.JetStream
	url   string // of the server in this process, empty if it is another
	fresh bool   // that server has never run before
}

// newUpstream connects to the servers that are named, or to one in this process
// if there are none. What there is to see of the pool is served before.
func newUpstream(c *workCommand, r *run, stop *stop, end *undo, _ *display) (*upstream, error) {
	if r.cfg.Server != "" {
		nc, js, err := r.connect(stop.drain)
		if err != nil {
			return nil, err
		}
		end.add(nc.Close)
		return &upstream{js: js}, nil
	}
	server, err := c.startServer(r)
	if err != nil {
		return nil, err
	}
	end.add(server.Stop)
	nc, err := server.Connect(append(bucket.ConnOptions(), r.connEvents()...)...)
	if err != nil {
		return nil, err
	}
	end.add(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	return &upstream{js: js, url: server.URL(), fresh: server.Fresh()}, nil
}

// startServer starts a server in this process.
func (c *workCommand) startServer(r *run) (*embedded.Server, error) {
	if setting := r.cfg.Login(); setting != "" {
		return nil, fmt.Errorf("%w: %s is of no use without a server: name one with --server", config.ErrInvalid, setting)
	}
	store := c.Store
	if store == "" {
		state, err := stateDir(r.environ)
		if err != nil {
			return nil, err
		}
		store = filepath.Join(state, "tenure", "work")
	}
	server, err := embedded.Start(embedded.Listen("127.0.0.1:0"), embedded.Store(store), embedded.Logger(r.log))
	if errors.Is(err, embedded.ErrStoreInUse) {
		return nil, fmt.Errorf("%w; name its address with --server to work with it, or give this one another --store", err)
	}
	if err != nil {
		return nil, err
	}
	r.log.Warn("no server is named, so one runs in this process: for this machine only, it is no shared lock service",
		slog.String("url", server.URL()), slog.String("store", store))
	return server, nil
}

// stateDir returns the directory for what a program of the user keeps.
func stateDir(environ []string) (string, error) {
	if dir := lookup(environ, "XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return dir, nil
	}
	if home := lookup(environ, "HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state"), nil
	}
	return "", fmt.Errorf("%w: no home directory for the store of the server in this process: give one with --store, or name a server with --server", config.ErrInvalid)
}

func newBucket(c *workCommand, r *run, up *upstream, stop *stop) (*bucket.Bucket, error) {
	var opts []bucket.Option
	if c.NoCreate {
		opts = append(opts, bucket.AttachOnly())
	}
	if up.fresh {
		opts = append(opts, bucket.Fresh())
	}
	return inTime(r, stop, func(ctx context.Context) (*bucket.Bucket, error) { return r.openBucket(ctx, up.js, opts...) })
}

// inTime does a step of the start that a server has to answer. One that does not, for as
// long as a connection may take, is as good as none: who supervises us knows when to try
// again.
func inTime[T any](r *run, stop *stop, step func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(stop.drain, r.cfg.ConnectTimeout)
	defer cancel()
	v, err := step(ctx)
	switch {
	case err == nil || ctx.Err() == nil:
		return v, err
	case stop.drain.Err() != nil:
		return v, context.Cause(stop.drain)
	default:
		return v, &codeError{exitUnreachable, fmt.Errorf(
			"the server did not answer within %v: %w; a cluster without a majority does not, nor does JetStream while it elects a leader", r.cfg.ConnectTimeout, err)}
	}
}

// newClaimers makes the workers of this process. It sets the group up if that is
// new, so it wants the task, which may find something wrong, to be made before.
func newClaimers(c *workCommand, r *run, b *bucket.Bucket, _ worker.Task, stop *stop, display *display) ([]*claim.Claimer, error) {
	opts := []claim.Option{
		claim.WithBucket(b), claim.WithLogger(r.log),
		claim.WithTTL(c.TTL), claim.WithMargin(c.LeaseMargin()), claim.WithHeartbeats(c.Renewals),
		claim.WithDrainTimeout(c.DrainTimeout),
		claim.WithCapacity(c.Capacity), claim.WithWeight(c.Weight), claim.WithZone(c.Zone), claim.WithBuild(c.Build),
		claim.WithTrace(stop.watched(display.metrics.Claims(c.Group))),
	}
	if c.Partitions != "" { // else the group has to be there
		names, err := c.Names()
		if err != nil {
			return nil, err
		}
		opts = append(opts, claim.WithPartitions(names...))
	}
	claimers := make([]*claim.Claimer, c.Workers)
	for i, id := range c.ids(display.id) {
		claimer, err := inTime(r, stop, func(ctx context.Context) (*claim.Claimer, error) {
			return claim.New(ctx, b.JetStream(), c.Group, append(opts, claim.WithID(id))...)
		})
		if _, ok := errors.AsType[*claim.GroupError](err); ok {
			return nil, fmt.Errorf("%w; `tenure group resize` changes them, and `tenure work` without --partitions takes those of the group", err)
		}
		if err != nil {
			return nil, err
		}
		claimers[i] = claimer
	}
	return claimers, display.show(stop, admin.Pool{Bucket: b, Claimers: claimers})
}

// name returns the name of the pool: the id that is given, or one made up.
func (c *workCommand) name() string {
	host, _ := os.Hostname() // for people
	host, _, _ = strings.Cut(host, ".")
	return cmp.Or(c.ID, cmp.Or(host, "worker")+"-"+strings.ToLower(rand.Text()[:8]))
}

// ids returns the ids of the workers: the name of the pool, with a number after it if
// there are several.
func (c *workCommand) ids(base string) []string {
	if c.Workers == 1 {
		return []string{base}
	}
	ids := make([]string, c.Workers)
	for i := range ids {
		ids[i] = base + "-" + strconv.Itoa(i+1)
	}
	return ids
}

func newTask(c *workCommand, r *run, up *upstream, stop *stop) (worker.Task, error) {
	command := &worker.Command{
		Args:    c.Command,
		Restart: worker.Restart(c.Restart),
		Grace:   c.ChildGrace(),
		Bucket:  r.cfg.Bucket,
		Stdout:  r.Out,
		Stderr:  r.Err,
		Prefix:  c.Prefix,
		Log:     r.log,
	}
	if up.url != "" {
		command.Env = []string{"NATS_URL=" + up.url}
	}
	if c.Stream == "" {
		return mortal{command, stop.now}, nil
	}
	stream := &worker.Stream{
		JS:     up.js,
		Stream: c.Stream,
		Filter: c.Filter,
		Mode:   worker.Mode(c.Mode),
		Handle: worker.CommandHandler(command),
		Log:    r.log,
	}
	_, err := inTime(r, stop, func(ctx context.Context) (any, error) { return nil, stream.Validate(ctx) })
	if err != nil {
		return nil, err
	}
	return mortal{stream, stop.now}, nil
}

// A mortal task ends at once with now, as if every partition had been lost.
type mortal struct {
	worker.Task
	now context.Context
}

func (m mortal) Run(ctx context.Context, p worker.Partition) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(context.Canceled)
	defer context.AfterFunc(m.now, func() { cancel(context.Cause(m.now)) })()
	return m.Task.Run(ctx, p)
}
