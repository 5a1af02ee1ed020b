package claim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"tenure/kvlock/bucket"
)

// Kick ends the worker's present session. The plan gives its partitions to others,
// to whom a worker that is alive hands over what it can until its next heartbeat;
// then its handlers end with [ErrRevoked], and it joins anew. One that is not alive,
// or cannot be reached, counts as dead only when its lease has ended, one TTL from
// now, as it may trust in it until then (rule C9): so Kick makes no death known
// sooner. To keep a worker from getting anything, use [Admin.Drain].
//
// It blocks until that is stored or ctx is done. A worker that has no session is
// [ErrWorker].
func (a *Admin) Kick(ctx context.Context, worker string) error {
	if err := a.kick(ctx, worker); err != nil {
		return fmt.Errorf("claim: kick: %w", err)
	}
	return nil
}

func (a *Admin) kick(ctx context.Context, worker string) error {
	id, err := bucket.EncodeName(worker)
	if err != nil {
		return fmt.Errorf("worker %w", err)
	}
	host, _ := os.Hostname() // for people only
	key, nonce := memberKey(a.g, id), ""
	for {
		try, cancel := context.WithTimeout(ctx, time.Second)
		e, err := a.bucket.Get(try, key)
		var m member
		if err == nil {
			m, err = parseMember(e)
		}
		switch {
		case err == nil && (m.State == revoked || m.session() && nonce != "" && m.Nonce != nonce):
			cancel()
			return nil // by this or another write; or it has joined anew since
		case err == nil && m.session():
			nonce = m.Nonce
			m.State, m.Epoch, m.By = revoked, m.epoch(e.Revision), "an operator on "+host
			_, err = a.bucket.Write(try, bucket.Write{Key: key, Last: e.Revision, TTL: time.Duration(m.TTL) * time.Second, Value: encode(m)})
			if err == nil {
				cancel()
				return nil
			}
		case err == nil || errors.Is(err, errRecord) || errors.Is(err, bucket.ErrNotFound):
			cancel()
			if nonce != "" {
				return nil // it has ended since
			}
			return &AdminError{Group: a.group, What: "worker", Have: "no session", Want: strconv.Quote(worker), Err: ErrWorker}
		}
		cancel()
		if permanent(err) || errors.Is(err, bucket.ErrFull) {
			return err
		}
		if cause := pause(ctx, retryPause/5); cause != nil { // its heartbeat came between
			return fmt.Errorf("%w (%w)", cause, err)
		}
	}
}
