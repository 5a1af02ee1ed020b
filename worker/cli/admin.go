package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"

	"tenure/config"
	"tenure/worker/admin"
)

// A display is how others see the pool.
type display struct {
	id      string // of the pool
	server  *admin.Server
	metrics *admin.Metrics
	service bool // on NATS
	log     *slog.Logger
	end     *undo
}

// show shows the pool from now on.
func (d *display) show(stop *stop, pool admin.Pool) error {
	d.server.Show(pool)
	if !d.service {
		return nil
	}
	service, err := admin.StartService(stop.drain, pool, d.id, stop.ask, d.log)
	if err != nil {
		return err
	}
	d.end.add(func() { _ = service.Stop() }) // it ends with the connection otherwise
	return nil
}

// newDisplay begins to serve what there is to see of the pool, if that is asked for.
func newDisplay(c *workCommand, r *run, stop *stop, end *undo) (*display, error) {
	d := &display{id: c.name(), metrics: admin.NewMetrics(), service: c.Service, log: r.log, end: end}
	opts := []admin.Option{admin.WithMetrics(d.metrics), admin.WithLogger(r.log)}
	token, err := readSecret("admin-token-file", c.AdminTokenFile)
	if err != nil {
		return nil, err
	}
	password, err := readSecret("admin-password-file", c.AdminPasswordFile)
	if err != nil {
		return nil, err
	}
	if token != "" {
		opts = append(opts, admin.WithToken(token))
	}
	if password != "" {
		opts = append(opts, admin.WithPassword(c.AdminUser, password))
	}
	if c.AdminOpen {
		opts = append(opts, admin.WithAnyHost())
	}
	d.server = admin.New(opts...)
	d.notify(r.environ, stop, end)
	if c.AdminAddress == "" {
		return d, nil
	}
	ln, err := net.Listen("tcp", c.Listen())
	if err != nil {
		return nil, fmt.Errorf("admin: %w; give another address with --admin", err)
	}
	r.log.Info("probes, metrics and the status page are served", slog.String("url", "http://"+ln.Addr().String()+"/"))
	// It ends after everything else: that the pool drains, and how, is to be seen.
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := d.server.Serve(ctx, ln); err != nil {
			r.log.Error("nothing is served any more", slog.Any("err", err))
		}
	}()
	end.add(func() {
		cancel()
		<-served
	})
	return d, nil
}

// maxSecret bounds a file with a secret.
const maxSecret = 4 << 10

// readSecret returns the first and only line of a file, nothing if no file is given.
func readSecret(setting, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("%w: %s: %w", config.ErrInvalid, setting, err)
	}
	defer func() { _ = file.Close() }() // only read from
	data, err := io.ReadAll(io.LimitReader(file, maxSecret+1))
	secret := strings.TrimRight(string(data), "\r\n")
	switch {
	case err != nil:
	case secret == "":
		err = errors.New("have an empty file, want a secret in it")
	case len(data) > maxSecret || strings.ContainsAny(secret, "\r\n"):
		err = fmt.Errorf("have more than one line or %d bytes, want a secret alone", maxSecret)
	default:
		return secret, nil
	}
	return "", fmt.Errorf("%w: %s: %s: %w", config.ErrInvalid, setting, path, err)
}
