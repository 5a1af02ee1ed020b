package claim

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"tenure/kvlock/bucket"
)

// A death is a write, not an absence (rule C1). An epoch E of a worker has ended
// only if
//
//	(a) this process's own write of a certificate, expecting no entry on the
//	    worker's member key, was acknowledged, or
//	(b) some entry on that key, from any source however stale, has a revision
//	    above E and is neither a heartbeat of E nor a revocation.
//
// A read that finds nothing, a list, silence, or "no responders" prove nothing:
//
//	the leader L of the stream is cut off; w heartbeats on the majority;
//	L hears none and expires its own copy; X reads "absent" from L, reconnects,
//	and takes w's partitions by CAS on the majority, while w still trusts.
//
// The certificate is its own probe: it is refused while the session's key stands.

// deaths is what this process has proof of, per worker: all epochs up to and
// including the number have ended.
type deaths struct {
	mu   sync.Mutex
	upTo map[string]uint64
}

func (d *deaths) note(worker string, epoch uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.upTo == nil {
		d.upTo = make(map[string]uint64)
	}
	d.upTo[worker] = max(d.upTo[worker], epoch)
}

func (d *deaths) proven(worker string, epoch uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return epoch <= d.upTo[worker]
}

// observe takes an entry of a worker's member key, from any source, as evidence
// by (b). Bytes that are no record are none: nobody's protocol wrote them.
func (d *deaths) observe(worker string, e bucket.Entry) {
	if e.Marker {
		d.note(worker, e.Revision-1)
		return
	}
	m, err := parseMember(e)
	switch {
	case err != nil || m.State == revoked:
	case m.State == dead:
		d.note(worker, e.Revision-1)
	default:
		d.note(worker, m.epoch(e.Revision)-1)
	}
}

// certificateTTL is how long a certificate stays readable.
func certificateTTL(ttl time.Duration) time.Duration { return max(time.Minute, 4*ttl) }

// probe tries to prove the present session of worker dead and reports whether
// epoch is. It does nothing to a session that the server still keeps. The
// certificate says for how long the worker is waited for, given its rejoin delay.
func (c *Claimer) probe(ctx context.Context, worker string, epoch uint64, rejoin time.Duration) bool {
	if c.deaths.proven(worker, epoch) {
		return true
	}
	key, err := c.memberKey(worker)
	if err != nil {
		return false
	}
	try, cancel := context.WithTimeout(ctx, c.lease.Attempt)
	defer cancel()
	revision, err := c.bucket.Write(try, bucket.Write{
		Key: key, TTL: certificateTTL(c.lease.TTL),
		Value: encode(member{
			Version: recordVersion, State: dead, Nonce: bucket.Nonce(), By: c.id,
			Rejoin: max(0, rejoin-c.lease.TTL).Milliseconds(), // so long ago was its last heartbeat
		}),
	})
	if err == nil {
		c.log.WarnContext(ctx, "worker is dead", slog.String("dead", worker), slog.Uint64("epoch", epoch))
		c.deaths.note(worker, revision-1)
		return true
	}
	if errors.Is(err, bucket.ErrConflict) {
		e, err := c.bucket.Get(try, key)
		if err == nil {
			c.deaths.observe(worker, e)
		}
	}
	return c.deaths.proven(worker, epoch)
}

// ended reports whether epoch of worker is proven dead, and looks for the proof
// on the member key if it is not known yet.
func (c *Claimer) ended(ctx context.Context, worker string, epoch uint64) bool {
	if c.deaths.proven(worker, epoch) {
		return true
	}
	key, err := c.memberKey(worker)
	if err != nil {
		return false
	}
	try, cancel := context.WithTimeout(ctx, c.lease.Attempt)
	defer cancel()
	e, err := c.bucket.Get(try, key)
	switch {
	case err == nil:
		c.deaths.observe(worker, e)
	case errors.Is(err, bucket.ErrNotFound):
		return c.probe(ctx, worker, epoch, 0)
	}
	return c.deaths.proven(worker, epoch)
}
