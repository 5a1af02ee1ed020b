package cli_test

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tenure/claim"
	"tenure/worker/cli"
)

// deaf listens and never says a word.
func deaf(t *testing.T) (address string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() }) // the backlog accepts
	return ln.Addr().String()
}

// A gate passes on what a client and a server say to each other, until the client says
// a word: from there on nothing, in either direction.
type gate struct {
	url     string
	reached chan struct{} // closed when the word was said
}

func newGate(t *testing.T, server, word string) *gate {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{url: "nats://" + ln.Addr().String(), reached: make(chan struct{})}
	shut := sync.OnceFunc(func() { close(g.reached) })
	var passing sync.WaitGroup
	var mu sync.Mutex
	conns := []io.Closer{ln}
	pass := func(from, to net.Conn, word []byte) {
		buffer := make([]byte, 64<<10)
		for {
			n, err := from.Read(buffer)
			if word != nil && bytes.Contains(buffer[:n], word) {
				shut()
			}
			if err != nil {
				return
			}
			select {
			case <-g.reached:
				continue // it was read, and goes nowhere
			default:
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
	passing.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", strings.TrimPrefix(server, "nats://"))
			if err != nil {
				_ = in.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, in, out)
			mu.Unlock()
			passing.Go(func() { pass(in, out, []byte(word)) })
			passing.Go(func() { pass(out, in, nil) })
		}
	})
	t.Cleanup(func() {
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		passing.Wait()
	})
	return g
}

// sleeper is a command that ends with SIGTERM.
var sleeper = []string{"--", "sleep", "1000"}

// pool begins `tenure work orders` with two partitions.
func pool(t *testing.T, url string, args ...string) *process {
	t.Helper()
	all := append([]string{"work", "orders", "--partitions", "2", "--server", url}, args...)
	if !strings.Contains(strings.Join(args, " "), "-- ") {
		all = append(all, sleeper...)
	}
	return begin(t, nil, all...)
}

// logged waits for a text in the log.
func (p *process) logged(text string) {
	p.t.Helper()
	eventually(p.t, "the log says "+text, func() bool { return strings.Contains(p.err.String(), text) })
}

// A server that is not there, or does not answer, keeps nobody waiting for longer than was
// said, however many are named.
func TestStartWaitsForNoServerLongerThanItWasTold(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	silent := newGate(t, url, "$JS.API.STREAM.INFO")
	half := newGate(t, url, "group.orders")
	tests := []struct {
		name, server, want string
	}{
		{"nobody listens", "nats://127.0.0.1:1", "no NATS server at nats://127.0.0.1:1 within 1s: nats: no servers available for connection; start one with `tenure server` or name yours with --server"},
		{"one that never says a word", "nats://" + deaf(t), "within 1s: no answer; start one"},
		{"three of those", "nats://" + deaf(t) + ",nats://" + deaf(t) + ",nats://" + deaf(t), "within 1s: no answer; start one"},
		{"JetStream does not answer", silent.url, "the server did not answer within 1s: bucket"},
		{"it stops answering after that", half.url, `the server did not answer within 1s: claim: group "orders"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			begun := time.Now()
			p := pool(t, tt.server, "--connect-timeout", "1s")
			code, took := p.code(), time.Since(begun)
			if got := message(t, p.err.String()); code != 69 || !strings.Contains(got, tt.want) {
				t.Errorf("work = %d, %s, want 69, %s", code, got, tt.want)
			}
			if took < time.Second || took > most(3*time.Second) {
				t.Errorf("it ended after %v, want 1s", took)
			}
		})
	}
}

// At every stage the first SIGTERM ends the pool with 0, and soon, since nothing is held
// that takes time to give back.
func TestTermEndsThePoolAtEveryStage(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	none := func(*testing.T, *process) {}
	tests := []struct {
		name    string
		begin   func(t *testing.T) *process
		reached func(t *testing.T, p *process)
	}{
		{"while nobody listens", func(t *testing.T) *process {
			return pool(t, "nats://127.0.0.1:1", "--admin", ":0")
		}, func(t *testing.T, p *process) { adminURL(t, p) }},
		{"while the server says nothing", func(t *testing.T) *process {
			return pool(t, "nats://"+deaf(t)+",nats://"+deaf(t), "--admin", ":0")
		}, func(t *testing.T, p *process) { adminURL(t, p); time.Sleep(300 * time.Millisecond) }},
		{"while JetStream says nothing", func(t *testing.T) *process {
			g := newGate(t, url, "$JS.API.STREAM.INFO")
			p := pool(t, g.url)
			<-g.reached
			return p
		}, none},
		{"while the group is read", func(t *testing.T) *process {
			g := newGate(t, url, "group.orders")
			p := pool(t, g.url)
			<-g.reached
			return p
		}, none},
		{"in the quarantine of a new bucket", func(t *testing.T) *process {
			return pool(t, url, "--bucket", "another")
		}, func(_ *testing.T, p *process) { p.logged("nobody may hold anything in it yet") }},
		{"while the server of this process starts", func(t *testing.T) *process {
			return begin(t, nil, append([]string{"work", "orders", "--partitions", "2"}, sleeper...)...)
		}, func(_ *testing.T, p *process) { p.logged("no server is named") }},
		{"while the worker joins", func(t *testing.T) *process {
			g := newGate(t, url, "member.orders.joins")
			p := pool(t, g.url, "--id", "joins")
			<-g.reached
			return p
		}, none},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := tt.begin(t)
			tt.reached(t, p)
			p.signal(syscall.SIGTERM)
			begun := time.Now()
			code := p.code()
			if took := time.Since(begun); code != 0 || took > most(2*time.Second) {
				t.Errorf("work = %d after %v, want 0 at once; stderr %s", code, took, p.err.String())
			}
		})
	}
}

// N26, N27: three processes with one id are one worker and two who wait for its end, and
// who end with 0 themselves when they are asked to. The next one comes in by itself.
func TestOfThreePoolsWithOneIDOneWorksAndTheOthersWait(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	first := pool(t, url, "--id", "w")
	awaitOwners(t, url, "orders", "w")
	epoch := readStatus(t, url, "orders").Workers[0].Epoch
	second, third := pool(t, url, "--id", "w"), pool(t, url, "--id", "w")
	for _, p := range []*process{second, third} {
		p.logged("waiting for the worker that has this id to end")
		if strings.Contains(p.err.String(), "partition gained") {
			t.Errorf("log %s, want no partition for who waits", p.err.String())
		}
	}
	if status := readStatus(t, url, "orders"); len(status.Workers) != 1 || status.Workers[0].Epoch != epoch {
		t.Errorf("workers = %+v, want the first one alone", status.Workers)
	}
	third.signal(syscall.SIGTERM)
	if code := third.code(); code != 0 {
		t.Errorf("one that waits = %d, want 0; stderr %s", code, third.err.String())
	}
	first.signal(syscall.SIGTERM)
	if code := first.code(); code != 0 {
		t.Errorf("the worker = %d, want 0; stderr %s", code, first.err.String())
	}
	second.logged("partition gained")
	if status := readStatus(t, url, "orders"); len(status.Workers) != 1 || status.Workers[0].Epoch <= epoch {
		t.Errorf("workers = %+v, want the second with an epoch above %d", status.Workers, epoch)
	}
	second.signal(syscall.SIGTERM)
	if code := second.code(); code != 0 {
		t.Errorf("the next worker = %d, want 0; stderr %s", code, second.err.String())
	}
}

// N18: everything is free before the exit, and with another pool in under 2 s.
func TestEightPartitionsAreElsewhereWithinTwoSecondsOfTerm(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	work := func(id string) *process {
		return begin(t, nil, append([]string{"work", "orders", "--partitions", "8", "--id", id, "--server", url}, sleeper...)...)
	}
	first := work("a")
	awaitOwners(t, url, "orders", "a")
	second := work("b")
	awaitOwners(t, url, "orders", "a", "b")
	begun := time.Now()
	first.signal(syscall.SIGTERM)
	code := first.code()
	for _, p := range readStatus(t, url, "orders").Partitions {
		if p.Worker == "a" {
			t.Errorf("partition %s is a's after its end", p.Name)
		}
	}
	awaitOwners(t, url, "orders", "b")
	if took := time.Since(begun); code != 0 || took > most(2*time.Second) {
		t.Errorf("work = %d, others own everything after %v, want 0 and at most 2s", code, took)
	}
	second.signal(syscall.SIGTERM)
	if code := second.code(); code != 0 {
		t.Errorf("work = %d, want 0", code)
	}
}

// N19: the command takes three times the TTL to end, and the session is renewed until it
// has: nobody else has its partition meanwhile, and it is handed over in the end.
func TestSessionIsRenewedUntilTheLastCommandHasEnded(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	slow := begin(t, nil, "work", "orders", "--partitions", "1", "--id", "a", "--ttl", "2s", "--grace", "20s", "--server", url, "--",
		"sh", "-c", `trap 'sleep 6; exit' TERM; echo ready; sleep 1000 & wait`)
	awaitOwners(t, url, "orders", "a")
	eventually(t, "trap is set", func() bool { return strings.Contains(slow.out.String(), "ready") })
	token := readStatus(t, url, "orders").Partitions[0].Token
	next := begin(t, nil, append([]string{"work", "orders", "--partitions", "1", "--id", "b", "--ttl", "2s", "--server", url}, sleeper...)...)
	next.logged("worker joined")
	begun := time.Now()
	slow.signal(syscall.SIGTERM)
	for ended := false; !ended; {
		select {
		case <-slow.done:
			ended = true
		default:
			if p := readStatus(t, url, "orders").Partitions[0]; p.Token != token && time.Since(begun) < 5*time.Second {
				t.Fatalf("partition = %+v while the command of token %d runs; stderr %s", p, token, slow.err.String())
			}
		}
	}
	if code, took := slow.code(), time.Since(begun); code != 0 || took < 6*time.Second {
		t.Errorf("work = %d after %v, want 0 after 6s; stderr %s", code, took, slow.err.String())
	}
	awaitOwners(t, url, "orders", "b")
	next.signal(syscall.SIGTERM)
	next.code()
}

// A drain that could not hand over, because the server had gone, is not called a success.
func TestDrainThatCannotHandOverEndsWith76(t *testing.T) {
	t.Parallel()
	server, url := startServer(t)
	p := pool(t, url, "--ttl", "2s")
	awaitOwners(t, url, "orders", readStatus(t, url, "orders").Workers[0].ID)
	server.signal(syscall.SIGKILL)
	<-server.done
	p.signal(syscall.SIGTERM)
	begun := time.Now()
	code := p.code()
	if took := time.Since(begun); code != 76 || took > most(6*time.Second) {
		t.Errorf("work = %d after %v, want 76 when trust has ended", code, took)
	}
	if want := "the session was lost during the drain, with 2 partitions: others have them within the TTL"; !strings.Contains(p.err.String(), want) {
		t.Errorf("log %s, want %s", p.err.String(), want)
	}
}

// Commands that have ended for good leave the pool idle, and an idle pool does not end.
func TestPoolWhoseCommandsHaveEndedGoesOn(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	p, lines := runLines(t, "work", "orders", "--partitions", "2", "--restart", "never", "--server", url, "--", "echo", "{partition}")
	nextLine(t, lines)
	nextLine(t, lines)
	awaitOwners(t, url, "orders", readStatus(t, url, "orders").Workers[0].ID)
	select {
	case <-p.done:
		t.Fatalf("work = %d, want it to go on; stderr %s", p.code(), p.err.String())
	case <-time.After(500 * time.Millisecond): // nothing that could be waited for
	}
	p.signal(syscall.SIGTERM)
	if code := p.code(); code != 0 {
		t.Errorf("work = %d, want 0", code)
	}
}

// Without a server the drain goes on until trust has ended; a second signal does not wait
// for that.
func TestSecondTermDoesNotWaitForAServerThatIsAway(t *testing.T) {
	t.Parallel()
	server, url := startServer(t)
	p := pool(t, url)
	awaitOwners(t, url, "orders", readStatus(t, url, "orders").Workers[0].ID)
	server.signal(syscall.SIGKILL)
	<-server.done
	p.signal(syscall.SIGTERM)
	p.logged("work is drained")
	p.signal(syscall.SIGTERM)
	begun := time.Now()
	code := p.code()
	if took := time.Since(begun); code != 128+15 || took > 10*time.Second {
		t.Errorf("work = %d after %v, want 143 within 3s, and long before the 13.5s of trust; stderr %s", code, took, p.err.String())
	}
}

// N72: killed, and started again at once under its id: the partitions are its own again
// within the TTL and a second, and nobody else's meanwhile.
func TestKilledPoolThatIsBackAtOnceHasItsPartitions(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	first := pool(t, url, "--id", "a", "--ttl", "3s")
	awaitOwners(t, url, "orders", "a")
	before := readStatus(t, url, "orders")
	first.signal(syscall.SIGKILL)
	<-first.done
	begun := time.Now()
	second := pool(t, url, "--id", "a", "--ttl", "3s")
	eventually(t, "every partition is a's again, under a later token", func() bool {
		for _, p := range readStatus(t, url, "orders").Partitions {
			if p.Worker != "a" || p.State != claim.StateRunning || p.Token <= before.Partitions[1].Token {
				return false
			}
		}
		return true
	})
	if took := time.Since(begun); took > most(4*time.Second) {
		t.Errorf("it took %v, want at most the TTL of 3s and 1s", took)
	}
	second.signal(syscall.SIGTERM)
	if code := second.code(); code != 0 {
		t.Errorf("work = %d, want 0; stderr %s", code, second.err.String())
	}
}

// N50, N52: a pool that was stopped for longer than its TTL does not end by that: its
// commands do, before anything new is begun, and it has its share again.
func TestPoolThatWasStoppedForTooLongJoinsAgain(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	first, lines := runLines(t, "work", "orders", "--partitions", "2", "--id", "a", "--ttl", "2s", "--server", url, "--",
		"sh", "-c", `echo $$; exec sleep 1000`)
	old := []int{atoi(t, nextLine(t, lines)), atoi(t, nextLine(t, lines))}
	awaitOwners(t, url, "orders", "a")
	first.signal(syscall.SIGSTOP)
	second := pool(t, url, "--id", "b", "--ttl", "2s")
	awaitOwners(t, url, "orders", "b")
	first.signal(syscall.SIGCONT)
	first.logged("partition lost")
	begun := atoi(t, nextLine(t, lines)) // a command of its new share
	for _, pid := range old {
		eventually(t, "a command of before has ended", func() bool { return syscall.Kill(pid, 0) != nil })
	}
	awaitOwners(t, url, "orders", "a", "b")
	if syscall.Kill(begun, 0) != nil {
		t.Error("the command of the new share does not run")
	}
	for _, p := range []*process{first, second} {
		p.signal(syscall.SIGTERM)
		if code := p.code(); code != 0 {
			t.Errorf("work = %d, want 0; stderr %s", code, p.err.String())
		}
	}
}

// There is no way to it today: the claimers of a pool end because they are asked to, or
// with an error.
func TestPoolThatEndsUnaskedIsNoSuccess(t *testing.T) {
	for _, err := range []error{nil, io.EOF} {
		if code := cli.UnaskedEnd(err); code != 1 {
			t.Errorf("the end with %v = %d, want 1", err, code)
		}
	}
}
