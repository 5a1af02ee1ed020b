package admin

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"tenure/claim"
	"tenure/kvlock/bucket"
)

// Limits of what a client can take of the server.
const (
	readTimeout  = 10 * time.Second
	writeTimeout = 30 * time.Second // of an answer; of each event, on a stream of them
	idleTimeout  = time.Minute
	maxHeader    = 16 << 10

	// lingering is how long the end waits for answers that are under way.
	lingering = time.Second
)

// A Pool is what a [Server] shows: at least one claimer, of one bucket.
type Pool struct {
	Bucket   *bucket.Bucket
	Claimers []*claim.Claimer
}

// An Option sets how a [Server] works.
type Option func(*Server)

// WithToken admits requests with this bearer token only, and those that [WithPassword]
// admits. Who has no way to send one gives it as the password of any user.
func WithToken(token string) Option { return func(s *Server) { s.guard.token = token } }

// WithPassword admits requests with this user and password only, and those that
// [WithToken] admits.
func WithPassword(user, password string) Option {
	return func(s *Server) { s.guard.user, s.guard.password = user, password }
}

// WithAnyHost makes a server without a secret answer by whatever name it is called;
// see DNS rebinding. The default is by its address and localhost.
func WithAnyHost() Option { return func(s *Server) { s.guard.anyone = true } }

// WithLogger sets where the server logs. The default discards everything.
func WithLogger(log *slog.Logger) Option { return func(s *Server) { s.log = log } }

// WithMetrics sets the metrics to be served beside those of the process. They are fed
// by the traces that they return.
func WithMetrics(m *Metrics) Option { return func(s *Server) { s.metrics = m } }

// A Server answers HTTP requests about a pool. Its methods may be called concurrently.
type Server struct {
	guard   guard
	log     *slog.Logger
	metrics *Metrics
	handler http.Handler
	pool    atomic.Pointer[Pool]
	live    live

	reading chan struct{} // has one element while somebody reads
	last    *view         // what was read last; used by who reads only
}

// New returns a server that has nothing to show yet.
func New(opts ...Option) *Server {
	s := &Server{log: slog.New(slog.DiscardHandler), metrics: NewMetrics(), reading: make(chan struct{}, 1)}
	for _, opt := range opts {
		opt(s)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(s.metrics, &gauges{server: s},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	open, closed := http.NewServeMux(), http.NewServeMux()
	closed.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn), MaxRequestsInFlight: 8, Timeout: writeTimeout / 2,
	}))
	closed.HandleFunc("GET /{$}", s.page)
	closed.HandleFunc("GET /events", s.events)
	for _, file := range []string{"/page.css", "/page.js", "/icon.svg"} {
		closed.HandleFunc("GET "+file, s.files)
	}
	open.HandleFunc("GET /livez", s.livez)
	open.HandleFunc("GET /readyz", s.readyz)
	open.Handle("/", s.guard.only(closed))
	s.handler = hardened(open)
	return s
}

// Show says what the server shows from now on.
func (s *Server) Show(pool Pool) { s.pool.Store(&pool) }

// Handler returns the server as a handler of all of its paths, for a program that
// serves HTTP itself.
func (s *Server) Handler() http.Handler { return s.handler }

// Serve answers the requests that come in until ctx is done, and then, for a second at
// most, those that are under way. It closes ln, and returns nil unless ln fails.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	// Not the requests' own context: a stream of events ends first, or it would keep
	// the end waiting.
	streams, end := context.WithCancelCause(context.WithoutCancel(ctx))
	server := &http.Server{
		Handler:     s.handler,
		ReadTimeout: readTimeout, ReadHeaderTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader,
		ErrorLog:       slog.NewLogLogger(s.log.Handler(), slog.LevelDebug), // of what clients do
		BaseContext:    func(net.Listener) context.Context { return streams },
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	select {
	case err := <-served:
		end(err)
		return err
	case <-ctx.Done():
	}
	end(context.Cause(ctx))
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lingering)
	defer cancel()
	if server.Shutdown(last) != nil {
		_ = server.Close() // whoever is not done by now is cut off
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// hardened answers with headers that let a browser do nothing with an answer but show
// it: what comes from this server's own files runs, and nothing else.
func hardened(next http.Handler) http.Handler {
	headers := map[string]string{
		"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
			"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		"X-Content-Type-Options":       "nosniff",
		"X-Frame-Options":              "DENY",
		"Referrer-Policy":              "no-referrer",
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Cache-Control":                "no-store",
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range headers {
			w.Header().Set(name, value)
		}
		next.ServeHTTP(w, r)
	})
}
