package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"tenure/kvlock"
	"tenure/kvlock/bucket"
	"tenure/worker/proc"
)

// A site is where one check happens: its processes, and who watches them.
type site struct {
	*Config
	locker   *kvlock.Locker
	name     string // of the lock or the group
	witness  *witness
	children map[string]*process
	out      *os.File // what the children write to
	read     chan struct{}
}

// A process is one child.
type process struct {
	*proc.Group
	orders io.WriteCloser
}

func newSite(c *Config, locker *kvlock.Locker, name string) (*site, error) {
	in, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s := &site{
		Config: c, locker: locker, name: name,
		witness: newWitness(), children: make(map[string]*process), out: out, read: make(chan struct{}),
	}
	go func() {
		defer close(s.read)
		defer func() { _ = in.Close() }()
		s.witness.read(in)
	}()
	return s, nil
}

// start starts a child in a role.
func (s *site) start(role, who string, n int) error {
	cmd := s.Command(role, who, s.name, strconv.Itoa(n))
	cmd.Stdout = s.out
	var log bytes.Buffer
	cmd.Stderr = &log // not to be read before the child has ended
	orders, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	group, err := proc.Start(cmd)
	if err != nil {
		return err
	}
	s.children[who] = &process{group, orders}
	go func() { // ends with the child
		<-group.Done()
		if code := group.ExitCode(); code != 0 && !s.witness.isGone(who) {
			s.witness.take(event{What: failed, Who: who, At: time.Now().UnixNano(), Code: code, Text: complaint(log.String(), code)})
		}
	}()
	return nil
}

// complaint returns why a child has ended: the message of its last line of log.
func complaint(log string, code int) string {
	log = strings.TrimSpace(log)
	last := log[strings.LastIndexByte(log, '\n')+1:]
	var line struct{ Msg string }
	if json.Unmarshal([]byte(last), &line) == nil && line.Msg != "" {
		return line.Msg
	}
	return fmt.Sprintf("a process ended with exit code %d: %s", code, last)
}

// order tells a child what to do.
func (s *site) order(who, order string) error {
	_, err := io.WriteString(s.children[who].orders, order+"\n")
	return err
}

// ask tells a child what to do and returns what became of it.
func (s *site) ask(ctx context.Context, who, order string) error {
	asked := time.Now()
	if err := s.order(who, order); err != nil {
		return err
	}
	e, err := s.witness.await(ctx, who+" does: "+order, func(e event) bool { return is(wrote, who, s.name)(e) && e.at().After(asked) })
	if err == nil && e.Text != "" {
		err = fmt.Errorf("%s could not do %q: %s", who, order, e.Text)
	}
	return err
}

// kill ends a child as a crash does.
func (s *site) kill(who string) time.Time { return s.silence(who, "killed", syscall.SIGKILL) }

// stop stops a child where it is.
func (s *site) stop(who string) time.Time { return s.silence(who, "stopped", syscall.SIGSTOP) }

func (s *site) silence(who, how string, sig syscall.Signal) time.Time {
	s.witness.leaves(who, how)
	at := time.Now()
	_ = s.children[who].Signal(sig) // it has not ended, or the check fails by that
	return at
}

// close ends all children and waits for them.
func (s *site) close() {
	for _, c := range s.children {
		_ = c.orders.Close() // the order to end
	}
	limit := time.NewTimer(s.TTL + time.Second)
	defer limit.Stop()
	for who, c := range s.children {
		if s.witness.isGone(who) {
			_ = c.Kill() // it cannot obey
		}
		select {
		case <-c.Done():
		case <-limit.C:
			limit.Reset(0) // for those that follow
			_ = c.Kill()
			<-c.Done()
		}
	}
	_ = s.out.Close()
	<-s.read
}

// clean removes what the check has put into the bucket, and waits until it is gone.
//
// Nobody lives any more who could write it again. What a killed process held ends by
// itself, but for the records of a group, which have no TTL.
func (s *site) clean(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.TTL+20*time.Second, errors.New("the bucket does not get clean"))
	defer cancel()
	name, err := bucket.EncodeName(s.name)
	if err != nil {
		return err
	}
	look := time.NewTicker(200 * time.Millisecond)
	defer look.Stop()
	for {
		left, err := s.sweep(ctx, name)
		if left == nil && err == nil {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("clean up: %w: left are %s; %w", context.Cause(ctx), strings.Join(left, " "), err)
		}
	}
}

// sweep purges what there is under the name and returns it, markers included.
func (s *site) sweep(ctx context.Context, name string) (left []string, err error) {
	filters := []string{"lock." + name, "wait." + name + ".*", "data." + name}
	if strings.HasSuffix(s.name, "/worker") {
		filters = []string{"group." + name, "plan." + name, "claim." + name + ".*", "check." + name + ".*", "member." + name + ".*"}
	}
	for _, filter := range filters {
		state, e := s.Bucket.State(ctx, filter)
		err = errors.Join(err, e)
		for key := range state.Keys {
			left = append(left, key)
			entry, e := s.Bucket.Get(ctx, key)
			if errors.Is(e, bucket.ErrNotFound) || e == nil && entry.Marker && entry.TTL > 0 {
				continue // it goes by itself
			}
			if e == nil {
				_, e = s.Bucket.Write(ctx, bucket.Write{Key: key, Last: entry.Revision, Purge: true, TTL: time.Second})
			}
			if !errors.Is(e, bucket.ErrConflict) {
				err = errors.Join(err, e)
			}
		}
	}
	return left, err
}
