package admin

import (
	"errors"
	"io"
	"net/http"
)

// livez answers whether the process is not stuck. It asks every worker how it is and
// does not care for the answer: a worker that cannot say is a reason to restart, one
// without a session is none.
func (s *Server) livez(w http.ResponseWriter, _ *http.Request) {
	s.Alive()
	probe(w, http.StatusOK, "ok")
}

// Alive returns when every worker could be asked how it is, at once unless something
// is stuck: whoever feeds a watchdog calls it first.
func (s *Server) Alive() {
	if pool := s.pool.Load(); pool != nil {
		for _, c := range pool.Claimers {
			_ = c.Healthy() // see livez
		}
	}
}

// readyz answers whether the pool does its share. Why not is told to those who may
// look at the rest too.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	err := s.Ready()
	switch {
	case err == nil:
		probe(w, http.StatusOK, "ok")
	case s.guard.admits(r):
		probe(w, http.StatusServiceUnavailable, err.Error())
	default:
		probe(w, http.StatusServiceUnavailable, "not ready")
	}
}

// errNothing is why a pool that is not shown yet is not ready.
var errNothing = errors.New("the pool has not been set up yet")

// Ready returns nil when every worker of the pool is ready, see [claim.Claimer.Ready];
// else why not. It asks nothing of NATS.
func (s *Server) Ready() error {
	pool := s.pool.Load()
	if pool == nil {
		return errNothing
	}
	var errs []error
	for _, c := range pool.Claimers {
		errs = append(errs, c.Ready())
	}
	return errors.Join(errs...)
}

func probe(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text+"\n") // who asked may have gone
}
