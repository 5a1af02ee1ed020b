package cli_test

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"tenure/kvlock/bucket"
)

// The holder is killed right after a renewal, when the lock stays taken longest.
func TestKilledHoldersLockIsTheNextInLinesWithinTheTTL(t *testing.T) {
	const ttl = 3 * time.Second
	_, url := startServer(t, "--store", t.TempDir(), "--log-level", "warn")
	holder := startHolder(t, url, ttl)
	renewals, waiters := watchLock(t, url)
	<-renewals // what was there
	token := holder.token(t)
	for range 2 {
		next := startHolder(t, url, ttl)
		<-waiters
		for len(renewals) > 0 {
			<-renewals
		}
		<-renewals
		killed := time.Now()
		holder.signalGroup(syscall.SIGKILL)
		if code := holder.code(); code != 128+9 {
			t.Errorf("lock = %d, want 137", code)
		}
		larger := next.token(t)
		started := time.Since(killed)
		gained := <-renewals
		for gained.Revision != larger {
			gained = <-renewals
		}
		// By the server's clock, which is that of this machine: how busy it is with
		// starting the command does not count.
		took := gained.Time.Sub(killed)
		if limit := ttl + most(500*time.Millisecond); took > limit {
			t.Errorf("the next has the lock after %v, want at most %v", took, limit)
		}
		if larger <= token {
			t.Errorf("token = %d, want more than %d", larger, token)
		}
		t.Logf("killed right after a renewal, the next has the lock after %v and its command runs after %v; tokens %d and %d",
			took.Round(time.Millisecond), started.Round(time.Millisecond), token, larger)
		holder, token = next, larger
	}
	holder.signalGroup(syscall.SIGTERM)
	if code := holder.code(); code != 128+15 {
		t.Errorf("lock = %d, want 143, as its command ended", code)
	}
}

// A lockHolder is `tenure lock` with a command that prints its token.
type lockHolder struct{ *process }

func startHolder(t *testing.T, url string, ttl time.Duration) lockHolder {
	t.Helper()
	return lockHolder{spawn(t, nil, binary, "lock", "job", "--server", url, "--ttl", ttl.String(), "--log-level", "debug",
		"--", "sh", "-c", `echo "$TENURE_TOKEN"; exec sleep 60`)}
}

// token waits until the command runs.
func (h lockHolder) token(t *testing.T) uint64 {
	t.Helper()
	var token uint64
	eventually(t, "the command runs", func() bool {
		_, err := fmt.Sscanln(h.out.String(), &token)
		return err == nil
	})
	return token
}

// watchLock returns when the lock's record is written, and when somebody begins to
// wait for the lock.
func watchLock(t *testing.T, url string) (renewals, waiters <-chan bucket.Entry) {
	t.Helper()
	lock, wait := make(chan bucket.Entry, 1000), make(chan bucket.Entry, 1000)
	b := open(t, url)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = b.Watch(ctx, func(e bucket.Entry) {
			switch {
			case e.Marker:
			case strings.HasPrefix(e.Key, "wait."):
				wait <- e
			default:
				lock <- e
			}
		}, func() {}, "lock.job", "wait.job.*")
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return lock, wait
}
