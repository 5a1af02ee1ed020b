package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tenure/config"
	"tenure/kvlock/bucket"
)

// connectPause is the time between two tries to reach a server. One that is just
// starting shall be found as soon as it is there.
const connectPause = 100 * time.Millisecond

// connect connects to the configured servers. It tries for as long as the connect
// timeout says and has the exit code for that when it gives up; credentials that
// are refused, or that cannot be read, end it at once.
func (r *run) connect(ctx context.Context) (*nats.Conn, jetstream.JetStream, error) {
	opts, err := r.connOptions()
	if err != nil {
		return nil, nil, err
	}
	servers := r.cfg.Server
	if servers == "" {
		servers = nats.DefaultURL
	}
	nc, err := dial(ctx, servers, r.cfg.ConnectTimeout, opts)
	if err != nil {
		return nil, nil, err
	}
	js, err := r.jetStream(nc)
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return nc, js, nil
}

// dial connects within the timeout, however many servers there are and whatever they
// do, or ends with ctx.
func dial(ctx context.Context, servers config.Servers, timeout time.Duration, opts []nats.Option) (*nats.Conn, error) {
	deadline := time.Now().Add(timeout)
	within, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	pause := time.NewTicker(connectPause)
	defer pause.Stop()
	last := errors.New("no answer")
	for {
		dialer := &cutDialer{ctx: within}
		nc, err := nats.Connect(servers.Reveal(), append(opts, nats.Timeout(min(2*time.Second, timeout)), nats.SetCustomDialer(dialer))...)
		switch {
		case err == nil && dialer.release():
			return nc, nil
		case err == nil: // cut at the last moment
			nc.Close()
		case within.Err() != nil: // what is said of a connection that was cut is of no use
		case refused(err):
			return nil, fmt.Errorf("%v refused the login: %w; check --creds, --nkey, --user and --token", servers, err)
		case !transient(err):
			return nil, fmt.Errorf("connect to %v: %w", servers, err)
		case time.Until(deadline) < connectPause: // nor of one that is about to be
		default:
			last = err
		}
		select {
		case <-pause.C:
		case <-within.Done():
		}
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("connect to %v: %w", servers, context.Cause(ctx))
		case within.Err() != nil:
			return nil, &codeError{exitUnreachable, fmt.Errorf(
				"no NATS server at %v within %v: %w; start one with `tenure server` or name yours with --server", servers, timeout, last)}
		}
	}
}

// A cutDialer dials for [nats.Connect], which knows no context: until it is released,
// the end of ctx cuts every connection, also one to a server that never says a word.
type cutDialer struct {
	mu       sync.Mutex
	ctx      context.Context
	keep     []func() bool // of each connection: it is not cut any more
	released bool
}

// Dial implements [nats.CustomDialer].
func (d *cutDialer) Dial(network, address string) (net.Conn, error) {
	d.mu.Lock()
	ctx, released := d.ctx, d.released
	d.mu.Unlock()
	if released {
		ctx = context.WithoutCancel(ctx)
	}
	conn, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, network, address)
	if err != nil || released {
		return conn, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.keep = append(d.keep, context.AfterFunc(ctx, func() { _ = conn.Close() })) // whoever reads from it is told
	return conn, nil
}

// release reports whether nothing was cut. From then on nothing is.
func (d *cutDialer) release() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.released = true
	whole := true
	for _, keep := range d.keep {
		whole = keep() && whole
	}
	return whole
}

// refused reports whether a server answered and does not let us in.
func refused(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) ||
		errors.Is(err, nats.ErrAccountAuthExpired)
}

// transient reports whether trying again may help.
func transient(err error) bool {
	var network interface{ Timeout() bool } // what errors of the network have in common
	return errors.Is(err, nats.ErrNoServers) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrConnectionClosed) ||
		errors.Is(err, io.EOF) || errors.As(err, &network)
}

// connOptions returns the options of a connection that leases are kept over.
func (r *run) connOptions() ([]nats.Option, error) {
	c := &r.cfg.Connection
	opts := append(bucket.ConnOptions(), r.connEvents()...)
	opts = append(opts, nats.Name("tenure"))
	for _, file := range []struct {
		setting, path string
	}{{"creds", c.Creds}, {"nkey", c.NKey}, {"tlsca", c.TLSCA}, {"tlscert", c.TLSCert}, {"tlskey", c.TLSKey}} {
		if file.path == "" {
			continue
		}
		if err := readable(file.path); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", config.ErrInvalid, file.setting, err)
		}
	}
	if c.Creds != "" {
		opts = append(opts, nats.UserCredentials(c.Creds))
	}
	if c.NKey != "" {
		nkey, err := nats.NkeyOptionFromSeed(c.NKey)
		if err != nil {
			return nil, fmt.Errorf("%w: nkey: %s: %w", config.ErrInvalid, c.NKey, err)
		}
		opts = append(opts, nkey)
	}
	if c.User != "" {
		opts = append(opts, nats.UserInfo(c.User, c.Password.Reveal()))
	}
	if c.Token != "" {
		opts = append(opts, nats.Token(c.Token.Reveal()))
	}
	if c.TLSCA != "" {
		opts = append(opts, nats.RootCAs(c.TLSCA))
	}
	if c.TLSCert != "" {
		opts = append(opts, nats.ClientCert(c.TLSCert, c.TLSKey))
	}
	if c.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(c.InboxPrefix))
	}
	return opts, nil
}

func readable(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	return file.Close()
}

// connEvents returns the options that tell what happens to a connection. Without
// an error handler the client prints to standard error itself.
func (r *run) connEvents() []nats.Option {
	return []nats.Option{
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				r.log.Warn("disconnected from NATS", slog.Any("err", err))
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			r.log.Info("connected to NATS again", slog.String("server", nc.ConnectedUrlRedacted()))
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			r.log.Debug("NATS reports an error", slog.Any("err", err)) // the call it belongs to fails with it
		}),
	}
}

// jetStream returns the JetStream of the configured domain or prefix.
func (r *run) jetStream(nc *nats.Conn) (jetstream.JetStream, error) {
	switch {
	case r.cfg.JSDomain != "":
		return jetstream.NewWithDomain(nc, r.cfg.JSDomain)
	case r.cfg.JSAPIPrefix != "":
		return jetstream.NewWithAPIPrefix(nc, r.cfg.JSAPIPrefix)
	default:
		return jetstream.New(nc)
	}
}
