package cli_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tenure/kvlock/bucket"
)

// commands are the commands there are.
var commands = []string{
	"break", "elect", "init", "lock", "locks", "server", "status", "version", "work",
	"group resize", "group pin", "group unpin", "group pause", "group resume", "group cordon", "group uncordon",
	"group drain", "group move", "group weigh", "group policy", "group explain", "group plan",
}

func TestServerMakesTheBucketFreshOnAnEmptyStoreOnly(t *testing.T) {
	t.Parallel()
	store := t.TempDir()
	first, url := startServer(t, "--store", store)
	b := open(t, url)
	if got := b.Quarantine(); got != 0 {
		t.Errorf("quarantine = %v, want 0s", got)
	}
	first.signal(syscall.SIGTERM)
	if code := first.code(); code != 0 {
		t.Errorf("exit code %d, want 0; stderr %s", code, first.err.String())
	}

	second, url := startServer(t, "--store", store)
	if got, want := open(t, url).Created(), b.Created(); !got.Equal(want) {
		t.Errorf("bucket of %v after a restart, want that of %v", got, want)
	}
	if err := connect(t, url).DeleteStream(t.Context(), "KV_tenure"); err != nil {
		t.Fatal(err)
	}
	second.signal(syscall.SIGINT)
	if code := second.code(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}

	_, url = startServer(t, "--store", store)
	code, out, _ := tenure(t, "init", "--server", url)
	if code != 0 || !strings.Contains(out, "tenure (made)\n") || strings.Contains(out, "quarantine  none") {
		t.Errorf("init = %d, %q, want a bucket made anew under quarantine", code, out)
	}
}

func TestStoreInUseIsAnError(t *testing.T) {
	t.Parallel()
	store := t.TempDir()
	startServer(t, "--store", store)
	code, out, stderr := tenure(t, "server", "--listen", "127.0.0.1:0", "--store", store)
	if code != 1 || out != "" {
		t.Errorf("exit code %d, stdout %q, want 1, nothing", code, out)
	}
	want := `embedded: start: store directory "` + store + `" is in use by another server; give this one another --store`
	if got := message(t, stderr); got != want {
		t.Errorf("message = %s, want %s", got, want)
	}
}

func TestPortInUseIsAnError(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	code, out, stderr := tenure(t, "server", "--listen", strings.TrimPrefix(url, "nats://"), "--store", t.TempDir())
	if code != 1 || out != "" || !strings.Contains(message(t, stderr), "address already in use") {
		t.Errorf("exit code %d, stdout %q, stderr %s, want 1, nothing, the reason", code, out, stderr)
	}
}

func TestServerCluster(t *testing.T) {
	t.Parallel()
	server, url := startServer(t, "--cluster", "3", "--store", t.TempDir())
	if got := strings.Count(url, "nats://127.0.0.1:"); got != 3 || strings.Count(url, ",") != 2 {
		t.Errorf("address = %s, want a list of three", url)
	}
	code, out, stderr := tenure(t, "init", "--server", url, "--replicas", "3")
	if code != 0 || !strings.Contains(out, "replicas    3\n") {
		t.Errorf("init = %d, %q, %q, want the bucket with three replicas", code, out, stderr)
	}
	server.signal(syscall.SIGTERM)
	if code := server.code(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestInitMakesAndVerifies(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	tests := []struct {
		args []string
		code int
		want string // in stdout, or the message
	}{
		{[]string{"--bucket", "b", "--max-ttl", "30s", "--storage", "memory", "--fresh"}, 0, "b (made)\n"},
		{[]string{"--bucket", "b"}, 0, "b (found)\n"},
		{[]string{"--bucket", "b"}, 0, "max TTL     30s\nquarantine  none\n"},
		{[]string{"--bucket", "b", "--max-ttl", "30s", "--storage", "memory", "--replicas", "1"}, 0, "storage     memory\n"},
		{[]string{"--bucket", "b", "--storage", "file"}, 1, `bucket "b": storage: have Memory, want File`},
		{[]string{"--bucket", "b", "--replicas", "3"}, 1, `bucket "b": replicas: have 1, want 3`},
		{[]string{"--bucket", "c"}, 0, "quarantine  another 1m0s, until "},
	}
	for _, tt := range tests {
		code, out, stderr := tenure(t, append([]string{"init", "--server", url}, tt.args...)...)
		if code != tt.code {
			t.Errorf("init %q = %d, want %d", tt.args, code, tt.code)
		}
		if code != 0 {
			out = message(t, stderr)
		}
		if !strings.Contains(strings.ReplaceAll(out, "another 59s", "another 1m0s"), tt.want) {
			t.Errorf("init %q prints %q, want %q in it", tt.args, out, tt.want)
		}
	}
}

func TestNobodyReachableEndsAfterTheConnectTimeout(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	code, out, stderr := tenure(t, "init", "--server", "nats://127.0.0.1:1", "--connect-timeout", "700ms")
	if took := time.Since(begun); code != 69 || out != "" || took < 500*time.Millisecond || took > 10*time.Second {
		t.Errorf("exit code %d, stdout %q after %v, want 69, nothing, about 700 ms", code, out, took)
	}
	const want = "no NATS server at nats://127.0.0.1:1 within 700ms: nats: no servers available for connection; start one with `tenure server` or name yours with --server"
	if got := message(t, stderr); got != want {
		t.Errorf("message = %s, want %s", got, want)
	}
}

func TestSignalEndsAWaitForTheServer(t *testing.T) {
	t.Parallel()
	p := begin(t, nil, "init", "--server", "nats://127.0.0.1:1", "--connect-timeout", "1m")
	time.Sleep(300 * time.Millisecond)
	p.signal(syscall.SIGTERM)
	if code := p.code(); code != 128+15 {
		t.Errorf("exit code %d, want 143; stderr %s", code, p.err.String())
	}
}

// connect returns JetStream at url.
func connect(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url, bucket.ConnOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// open opens the default bucket, which has to be there.
func open(t *testing.T, url string) *bucket.Bucket {
	t.Helper()
	b, err := bucket.Open(t.Context(), connect(t, url), bucket.AttachOnly())
	if err != nil {
		t.Fatal(err)
	}
	return b
}
