package admin_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"tenure/claim"
	"tenure/embedded"
	"tenure/embedded/natstest"
	"tenure/kvlock/bucket"
	"tenure/worker/admin"
)

// A site is a server, and the pools of one group on it.
type site struct {
	t      *testing.T
	server *embedded.Server
}

// A pool is what one process has, of one worker: its claimer and what is to be seen
// of it.
type pool struct {
	*claim.Claimer
	admin   *admin.Server
	metrics *admin.Metrics
	bucket  *bucket.Bucket
	link    *natstest.Link
	stop    func()
}

// pool starts a pool of one worker, which runs its handlers until they drain. It ends
// with the test.
func (s *site) pool(id string, handler claim.Handler, opts ...admin.Option) *pool {
	s.t.Helper()
	p := &pool{metrics: admin.NewMetrics(), link: natstest.NewLink(s.t, s.server)}
	js := natstest.JetStream(s.t, p.link.Connect())
	var err error
	if p.bucket, err = bucket.Open(s.t.Context(), js, bucket.Fresh()); err != nil {
		s.t.Fatal(err)
	}
	p.admin = admin.New(append(opts, admin.WithMetrics(p.metrics))...)
	p.Claimer, err = claim.New(s.t.Context(), js, "orders", claim.WithBucket(p.bucket), claim.WithID(id),
		claim.WithPartitions(claim.Numbered(4)...), claim.WithTTL(10*time.Second), claim.WithTrace(p.metrics.Claims("orders")))
	if err != nil {
		s.t.Fatal(err)
	}
	if handler == nil {
		handler = idle
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := p.Run(ctx, handler); err != nil {
			s.t.Errorf("Run = %v, want nil", err)
		}
	}()
	p.stop = func() {
		cancel()
		<-done
	}
	s.t.Cleanup(p.stop)
	return p
}

// show shows the pool on its server.
func (p *pool) show() {
	p.admin.Show(admin.Pool{Bucket: p.bucket, Claimers: []*claim.Claimer{p.Claimer}})
}

// idle is a handler that waits for the drain.
func idle(ctx context.Context, p *claim.Partition) error {
	select {
	case <-p.Draining():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// get asks the handler as a client of this machine does.
func get(h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", "http://127.0.0.1:9090"+path, nil)
	for _, h := range header {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			r.Host = value
		}
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}
