package cli_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tenure/kvlock/fence"
)

// A guard is the resource that the handlers of messages write to. It listens on a
// socket in the test's process, refuses stale tokens, and keeps a log of all that
// it was asked.
//
// A handler says who it is when it begins, waits to be let go, writes, and is told
// whether that was accepted. It can be kept waiting, as if it took long.
type guard struct {
	addr  string
	fence fence.Guard

	mu      sync.Mutex
	log     []entry
	owners  map[string]entry         // by partition: who began last
	handled map[uint64]bool          // by sequence
	gates   map[string]chan struct{} // by worker: closed to let its handlers go
	waiting map[string]entry         // by partition: who waits at a gate
}

// An entry is one line of the guard's log.
type entry struct {
	at        time.Time
	what      what
	worker    string
	partition string
	token     uint64
	sequence  uint64
	key       string
	pid       int
}

type what string

const (
	begun    what = "begun"
	accepted what = "accepted"
	refused  what = "refused"
	broken   what = "broken" // the handler ended, or was killed, before it wrote
)

func (e entry) String() string {
	return fmt.Sprintf("%s %s: worker %s, partition %s, token %d, sequence %d, key %s",
		e.at.Format("15:04:05.000000"), e.what, e.worker, e.partition, e.token, e.sequence, e.key)
}

// newGuard starts a guard that ends with the test.
func newGuard(t *testing.T) *guard {
	t.Helper()
	g := &guard{
		addr:   filepath.Join(t.TempDir(), "guard"),
		owners: make(map[string]entry), handled: make(map[uint64]bool),
		gates: make(map[string]chan struct{}), waiting: make(map[string]entry),
	}
	listener, err := net.Listen("unix", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer func() { _ = conn.Close() }()
				if err := g.serve(conn); err != nil {
					t.Error(err)
				}
			})
		}
	})
	t.Cleanup(func() { // after that of the processes that speak to it
		_ = listener.Close()
		for worker := range g.gates {
			g.open(worker)
		}
		serving.Wait()
	})
	return g
}

// serve serves one handler. Its error is one of the test itself.
func (g *guard) serve(conn net.Conn) error {
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	if err != nil {
		return nil // killed before it spoke
	}
	e, err := parseEntry(line)
	if err != nil {
		return fmt.Errorf("guard: line %q: %w", line, err)
	}
	g.await(e)
	if _, err := conn.Write([]byte("go\n")); err != nil {
		g.note(e, broken)
		return nil
	}
	if line, err := in.ReadString('\n'); err != nil || line != "write\n" {
		g.note(e, broken)
		return nil
	}
	err = g.fence.Do(context.Background(), e.partition, e.token, func() error {
		g.note(e, accepted)
		return nil
	})
	verdict := accepted
	if errors.Is(err, fence.ErrStale) {
		verdict = refused
		g.note(e, refused)
	}
	_, _ = conn.Write([]byte(verdict + "\n")) // who was killed does not hear it
	return nil
}

func parseEntry(line string) (entry, error) {
	fields := strings.Fields(line)
	if len(fields) != 6 {
		return entry{}, errors.New("want six fields")
	}
	token, tokenErr := strconv.ParseUint(fields[2], 10, 64)
	sequence, sequenceErr := strconv.ParseUint(fields[3], 10, 64)
	pid, pidErr := strconv.Atoi(fields[5])
	return entry{worker: fields[0], partition: fields[1], token: token, sequence: sequence, key: fields[4], pid: pid},
		errors.Join(tokenErr, sequenceErr, pidErr)
}

// await notes the begin, and waits for as long as the gate of the worker is shut.
func (g *guard) await(e entry) {
	g.note(e, begun)
	g.mu.Lock()
	gate := g.gates[e.worker]
	if gate != nil {
		g.waiting[e.partition] = e
	}
	g.mu.Unlock()
	if gate != nil {
		<-gate
	}
}

func (g *guard) note(e entry, w what) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e.at, e.what = time.Now(), w
	g.log = append(g.log, e)
	switch w {
	case begun:
		g.owners[e.partition] = e
	case accepted:
		g.handled[e.sequence] = true
	}
}

// shut keeps what the worker begins from now on waiting.
func (g *guard) shut(worker string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gates[worker] = make(chan struct{})
}

// open lets everything of the worker go.
func (g *guard) open(worker string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if gate := g.gates[worker]; gate != nil {
		close(gate)
		delete(g.gates, worker)
		maps.DeleteFunc(g.waiting, func(_ string, e entry) bool { return e.worker == worker })
	}
}

// inHand returns what waits at the worker's gate, by partition.
func (g *guard) inHand(worker string) map[string]entry {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := maps.Clone(g.waiting)
	maps.DeleteFunc(all, func(_ string, e entry) bool { return e.worker != worker })
	return all
}

// owned returns the partitions whose last message the worker began.
func (g *guard) owned(worker string) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []string
	for partition, e := range g.owners {
		if e.worker == worker {
			all = append(all, partition)
		}
	}
	slices.Sort(all)
	return all
}

// owner returns who began the last message of the partition.
func (g *guard) owner(partition string) entry {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.owners[partition]
}

// count returns how many messages were handled.
func (g *guard) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.handled)
}

// entries returns the log.
func (g *guard) entries() []entry {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.log)
}

// of returns the entries of that kind.
func of(log []entry, w what) []entry {
	return slices.DeleteFunc(slices.Clone(log), func(e entry) bool { return e.what != w })
}

// after returns the first entry of another worker for the partition with a token
// above that of e.
func (g *guard) after(e entry, w what) (entry, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.IndexFunc(g.log, func(next entry) bool {
		return next.what == w && next.partition == e.partition && next.worker != e.worker && next.token > e.token
	})
	if i < 0 {
		return entry{}, false
	}
	return g.log[i], true
}

// Excuses are the workers that something was done to.
type excuses struct {
	crashed   []string // killed: what was in hand may be handled again
	frozen    []string // stopped for longer than the TTL: their late writes are refused
	forgotten []string // killed with the server that knew their acknowledgements: what followed the saved position may be handled again
}

// checkLog fails the test for everything in the log that breaks what a group of
// workers promises of a stream:
//
//   - A partition is held by one worker at a time, and every hold has a larger
//     token than those before.
//   - A worker that hands a partition over has finished what it had begun.
//   - Within a hold messages are handled in their order, and for the first time
//     in their order over all holds.
//   - A message is handled once. The one that is in hand when its worker crashes
//     may be handled once more.
//   - Writes are refused to those that were frozen, and to nobody else.
func checkLog(t *testing.T, log []entry, excused excuses) {
	t.Helper()
	c := &checker{
		excused: excused,
		holds:   make(map[string]entry), open: make(map[string]map[uint64]entry), tokens: make(map[uint64]entry),
		last: make(map[string]entry), first: make(map[string]entry), keys: make(map[string]entry), back: make(map[uint64]bool),
	}
	for _, e := range log {
		if violation := c.next(e); violation != "" {
			t.Errorf("%s: %s", e, violation)
		}
	}
	t.Logf("guard: %d begun, %d accepted (%d of them for the second time), %d refused, %d broken off, %d take-overs",
		len(of(log, begun)), len(of(log, accepted)), c.again, len(of(log, refused)), len(of(log, broken)), c.moves)
}

// A checker reads a guard's log from the beginning.
type checker struct {
	excused excuses
	holds   map[string]entry            // by partition: the first entry of the present hold
	open    map[string]map[uint64]entry // by partition and token: what was begun and has not ended
	tokens  map[uint64]entry            // whose each token is
	last    map[string]entry            // by partition: the last accepted
	first   map[string]entry            // by partition: the last accepted for the first time
	keys    map[string]entry            // by key: the same
	back    map[uint64]bool             // tokens of holds that began at an earlier position
	moves   int                         // holds after the first ones
	again   int                         // messages that were handled before
}

// next returns what is wrong with e after all entries before it.
func (c *checker) next(e entry) string {
	if owner, known := c.tokens[e.token]; !known {
		c.tokens[e.token] = e
	} else if owner.worker != e.worker || owner.partition != e.partition {
		return "the token is that of " + owner.String()
	}
	if e.what == begun {
		return c.begin(e)
	}
	delete(c.open[e.partition], e.token)
	switch {
	case e.what == accepted:
		return c.accept(e)
	case e.what == refused && !slices.Contains(c.excused.frozen, e.worker):
		return "refused, though the worker was never frozen"
	}
	return ""
}

func (c *checker) begin(e entry) string {
	hold := c.holds[e.partition]
	running := c.open[e.partition]
	if running == nil {
		running = make(map[uint64]entry)
		c.open[e.partition] = running
	}
	other, same := running[e.token]
	running[e.token] = e
	switch {
	case e.token == 0:
		return "no token"
	case e.token < hold.token:
		return "begun under a token that others have taken over from: " + hold.String()
	case same:
		return "begun while the same hold had not ended " + other.String()
	case e.token == hold.token:
		return ""
	}
	c.holds[e.partition] = e
	if hold.token != 0 {
		c.moves++
	}
	for _, other := range running {
		ended := slices.Contains(c.excused.crashed, other.worker) || slices.Contains(c.excused.frozen, other.worker)
		if other.token != e.token && !ended {
			return "taken over while the worker before had not ended " + other.String()
		}
	}
	return ""
}

func (c *checker) accept(e entry) string {
	last, first, key := c.last[e.partition], c.first[e.partition], c.keys[e.key]
	c.last[e.partition] = e
	taken := e.token != last.token // this is the first write of its hold
	if taken && slices.Contains(c.excused.forgotten, last.worker) {
		c.back[e.token] = true
	}
	switch hold := c.holds[e.partition]; {
	case e.token < hold.token:
		return "accepted after others had taken over: " + hold.String()
	case !taken && e.sequence <= last.sequence:
		return "not in the order of the partition, after " + last.String()
	case e.sequence > first.sequence:
		c.first[e.partition], c.keys[e.key] = e, e
		if e.sequence <= key.sequence {
			return "not in the order of the key, after " + key.String()
		}
	default:
		c.again++
		inHand := taken && e.sequence == last.sequence && slices.Contains(c.excused.crashed, last.worker)
		if !inHand && !c.back[e.token] {
			return "handled again, after " + last.String()
		}
	}
	return ""
}
