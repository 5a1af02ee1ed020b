package admin_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"tenure/embedded/natstest"
	"tenure/worker/admin"
)

// /livez does not depend on NATS. /readyz is 200 while the worker has a session that
// can be relied on, and only then.
func TestProbesSayWhetherTheProcessLivesAndThePoolIsReady(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := &site{t, natstest.Server(t)}
		p := s.pool("a", nil)
		probes := func(when string, ready int, want string) {
			t.Helper()
			synctest.Wait()
			if got := get(p.admin.Handler(), "/livez"); got.Code != http.StatusOK || got.Body.String() != "ok\n" {
				t.Errorf("%s: /livez = %d, %q, want 200", when, got.Code, got.Body)
			}
			if got := get(p.admin.Handler(), "/readyz"); got.Code != ready || got.Body.String() != want+"\n" {
				t.Errorf("%s: /readyz = %d, %q, want %d, %q", when, got.Code, got.Body, ready, want)
			}
		}
		probes("before there is a pool", 503, "the pool has not been set up yet")
		p.show()
		time.Sleep(2 * time.Second)
		probes("after the start", 200, "ok")
		p.link.Cut()
		time.Sleep(10 * time.Second)
		if got := get(p.admin.Handler(), "/readyz"); got.Code != 503 {
			t.Errorf("/readyz without a server = %d, %q, want 503", got.Code, got.Body)
		}
		if got := get(p.admin.Handler(), "/livez"); got.Code != 200 {
			t.Errorf("/livez without a server = %d, %q, want 200", got.Code, got.Body)
		}
		p.link.Mend()
		time.Sleep(20 * time.Second)
		probes("after an outage", 200, "ok")
		p.stop()
		probes("after the end", 503, `worker is unhealthy: worker "a": Run does not run`)
	})
}

// A pool that drains is not ready any more, and alive.
func TestPoolThatDrainsIsNotReady(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := &site{t, natstest.Server(t)}
		p := s.pool("a", slowly(5*time.Second))
		p.show()
		time.Sleep(2 * time.Second)
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			p.stop()
		}()
		time.Sleep(3 * time.Second)
		if got, want := get(p.admin.Handler(), "/readyz"), "worker is unhealthy: worker \"a\": it drains for 3s\n"; got.Code != 503 || got.Body.String() != want {
			t.Errorf("/readyz = %d, %q, want 503, %q", got.Code, got.Body, want)
		}
		if got := get(p.admin.Handler(), "/livez"); got.Code != 200 {
			t.Errorf("/livez = %d, want 200", got.Code)
		}
		<-stopped
	})
}

// Who may see nothing else gets one word from a probe.
func TestProbesTellAStrangerNoReason(t *testing.T) {
	h := admin.New(admin.WithToken("secret")).Handler()
	if got := get(h, "/readyz"); got.Code != 503 || got.Body.String() != "not ready\n" {
		t.Errorf("/readyz = %d, %q, want 503, not ready", got.Code, got.Body)
	}
	if got := get(h, "/readyz", "Authorization: Bearer secret"); got.Code != 503 || got.Body.String() != "the pool has not been set up yet\n" {
		t.Errorf("/readyz = %d, %q, want 503 and why", got.Code, got.Body)
	}
	if got := get(h, "/livez"); got.Code != 200 {
		t.Errorf("/livez = %d, want 200", got.Code)
	}
}
