package admin_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tenure/claim"
	"tenure/embedded/natstest"
	"tenure/worker/admin"
)

// pipes is a listener within the bubble.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// serve serves the pool to the returned client until stop is called.
func (p *pool) serve(t *testing.T) (client *http.Client, ln *pipes, stop func() (took time.Duration)) {
	ln = newPipes()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- p.admin.Serve(ctx, ln) }()
	transport := &http.Transport{DialContext: ln.dial}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
	})
	return &http.Client{Transport: transport}, ln, func() time.Duration {
		began := time.Now()
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve = %v, want nil", err)
		}
		return time.Since(began)
	}
}

// An event is what comes over the stream: the HTML of blocks by their ids.
type event map[string]string

// stream opens the stream of events. What comes is sent to the channel, which is
// closed at the end.
func stream(t *testing.T, client *http.Client) (events <-chan event, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", "http://127.0.0.1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != 200 || answer.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("/events = %d, %v, want a stream", answer.StatusCode, answer.Header)
	}
	out := make(chan event, 1000)
	go func() {
		defer close(out)
		defer func() { _ = answer.Body.Close() }()
		lines := bufio.NewReader(answer.Body)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			var data struct{ Blocks [][2]string }
			if text, ok := strings.CutPrefix(line, "data: "); ok && json.Unmarshal([]byte(text), &data) == nil {
				e := make(event)
				for _, block := range data.Blocks {
					e[block[0]] = block[1]
				}
				out <- e
			}
		}
	}()
	return out, cancel
}

// take returns what has come, the last of each block.
func take(events <-chan event) event {
	synctest.Wait()
	all := make(event)
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return all
			}
			maps.Copy(all, e)
		default:
			return all
		}
	}
}

// The first event is the whole page, and a later one has what has changed and no more.
// The bucket is read only while somebody looks.
func TestEventsBringWhatHasChangedAndNothingElse(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := &site{t, natstest.Server(t)}
		p := s.pool("a", nil)
		p.show()
		client, _, stop := p.serve(t)
		time.Sleep(2 * time.Second)
		before := p.consumers(t)
		events, end := stream(t, client)
		time.Sleep(time.Second)
		if all := take(events); len(all) != 5 || !strings.Contains(all["partitions"], `<tr id="p3">`) || !strings.Contains(all["workers"], `<article id="w0"`) {
			t.Errorf("first event has %d blocks, want all 5 sections with what is in them", len(all))
		}
		if got := p.consumers(t); got != before+1 {
			t.Errorf("consumers while somebody looks = %d, want %d", got, before+1)
		}
		more, endMore := stream(t, client)
		time.Sleep(10 * time.Minute) // longer than every time limit of the server
		if got := p.consumers(t); got != before+1 {
			t.Errorf("consumers while two look = %d, want %d", got, before+1)
		}
		if got := take(events); len(got) != 0 {
			t.Errorf("events while nothing changes = %v, want none", got)
		}
		take(more)
		endMore()
		admin, err := claim.NewAdmin(t.Context(), p.bucket, "orders")
		if err != nil {
			t.Fatal(err)
		}
		if err := admin.Pause(t.Context(), []string{"2"}, claim.Wait()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		got := take(events)
		for _, id := range []string{"p2", "w0", "nobody", "summary", "moves"} {
			if got[id] == "" {
				t.Errorf("no event for %s after a pause of partition 2", id)
			}
			delete(got, id)
		}
		if len(got) != 0 || strings.Contains(got["p2"], "running") {
			t.Errorf("other events after a pause of partition 2 = %v, want none", got)
		}
		end()
		time.Sleep(time.Second)
		if got := p.consumers(t); got != before {
			t.Errorf("consumers when nobody looks any more = %d, want %d", got, before)
		}
		stop()
	})
}

// consumers returns how many consumers the bucket has.
func (p *pool) consumers(t *testing.T) int {
	t.Helper()
	synctest.Wait()
	s, err := p.bucket.JetStream().Stream(t.Context(), p.bucket.Stream())
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().State.Consumers
}

// What stands in the bucket was written by anybody.
func TestPageShowsWhateverStandsInTheBucketAsText(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := &site{t, natstest.Server(t)}
		const hostile = `"'><script>alert(1)</script><img src=x onerror=alert(1)>{{.}}`
		p := s.pool(hostile, func(ctx context.Context, p *claim.Partition) error {
			if p.Name() == "0" {
				return errors.New("<b>no</b> luck")
			}
			return idle(ctx, p)
		})
		p.show()
		client, _, stop := p.serve(t)
		time.Sleep(3 * time.Second)
		events, end := stream(t, client)
		time.Sleep(time.Second)
		var text strings.Builder
		text.WriteString(get(p.admin.Handler(), "/").Body.String())
		for _, html := range take(events) {
			text.WriteString(html)
		}
		for _, bad := range []string{"<script>alert", "<img", "<b>no"} {
			if strings.Contains(text.String(), bad) {
				t.Errorf("page has %q in it", bad)
			}
		}
		if n := strings.Count(text.String(), "&lt;script&gt;alert(1)"); n < 10 {
			t.Errorf("the worker stands %d times on the page, want it in every row", n)
		}
		if !strings.Contains(text.String(), "&lt;b&gt;no&lt;/b&gt; luck") {
			t.Error("the failure does not stand on the page")
		}
		end()
		stop()
	})
}

// Without a server the page says so, and it comes back by itself.
func TestPageSaysWhenTheBucketCannotBeRead(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := &site{t, natstest.Server(t)}
		p := s.pool("a", nil)
		if got := get(p.admin.Handler(), "/"); got.Code != 503 || got.Header().Get("Refresh") == "" {
			t.Errorf("/ before there is a pool = %d, want 503 and another try", got.Code)
		}
		p.show()
		time.Sleep(2 * time.Second)
		if got := get(p.admin.Handler(), "/"); got.Code != 200 {
			t.Errorf("/ = %d, want 200", got.Code)
		}
		if got := get(p.admin.Handler(), "/?group=other"); got.Code != 404 {
			t.Errorf("/ of another group = %d, want 404", got.Code)
		}
		p.link.Cut()
		began := time.Now()
		got := get(p.admin.Handler(), "/")
		if got.Code != 503 || !strings.Contains(got.Body.String(), "The group cannot be read: ") {
			t.Errorf("/ without a server = %d, %s, want 503 and why", got.Code, got.Body)
		}
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("/ without a server took %v, want 5 s at most", took)
		}
		p.link.Mend()
		time.Sleep(20 * time.Second)
		if got := get(p.admin.Handler(), "/"); got.Code != 200 {
			t.Errorf("/ after an outage = %d, want 200", got.Code)
		}
	})
}

// Many can look, but not any number. Whoever leaves makes room.
func TestNumberOfViewersIsLimited(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := &site{t, natstest.Server(t)}
		p := s.pool("a", nil)
		p.show()
		client, _, stop := p.serve(t)
		var ends []func()
		for range 100 {
			_, end := stream(t, client)
			ends = append(ends, end)
		}
		if got := get(p.admin.Handler(), "/events"); got.Code != 503 {
			t.Errorf("/events as the 101st = %d, want 503", got.Code)
		}
		ends[0]()
		time.Sleep(time.Second)
		_, end := stream(t, client)
		for _, end := range append(ends[1:], end) {
			end()
		}
		stop()
	})
}

// A client that does not finish its request is cut off, and the end waits for nobody
// for long: neither for streams nor for those who do not read.
func TestNobodyHoldsTheServerUp(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := &site{t, natstest.Server(t)}
		p := s.pool("a", nil)
		p.show()
		client, ln, stop := p.serve(t)
		slow, err := ln.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := io.WriteString(slow, "GET / HTTP/1.1\r\nHost: localhost\r\nX: "); err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, slow) // until it is cut off
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("half a request is cut off after %v, want 10 s", took)
		}
		deaf, err := ln.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = deaf.Close() }()
		if _, err := fmt.Fprint(deaf, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		events, _ := stream(t, client)
		time.Sleep(5 * time.Second)
		take(events)
		if took := stop(); took > time.Second {
			t.Errorf("Serve took %v to end, want a second at most", took)
		}
		for range events { // closed by the end of the stream
		}
	})
}

// The probes of a program that serves HTTP itself.
var _ http.Handler = admin.New().Handler()
