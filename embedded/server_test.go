package embedded_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded"
	"tenure/embedded/natstest"
)

// start starts a server that is stopped when the test ends.
func start(t *testing.T, opts ...embedded.Option) *embedded.Server {
	t.Helper()
	s, err := embedded.Start(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// wantJetStream checks that JetStream answers over nc.
func wantJetStream(t *testing.T, nc *nats.Conn) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.AccountInfo(t.Context()); err != nil {
		t.Errorf("AccountInfo = %v, want no error", err)
	}
}

func TestServerIsReadyAfterStart(t *testing.T) {
	tests := []struct {
		name string
		opts []embedded.Option
		urls int
	}{
		{"in the process", nil, 0},
		{"listening", []embedded.Option{embedded.Listen("127.0.0.1:0")}, 1},
		{"with a store", []embedded.Option{embedded.Store(t.TempDir())}, 0},
		{"cluster", []embedded.Option{embedded.Listen("127.0.0.1:0"), embedded.Cluster(3)}, 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := start(t, tt.opts...)
			inside, err := s.Connect()
			if err != nil {
				t.Fatal(err)
			}
			defer inside.Close()
			wantJetStream(t, inside)

			urls := strings.FieldsFunc(s.URL(), func(r rune) bool { return r == ',' })
			if len(urls) != tt.urls {
				t.Errorf("URL = %q, want %d addresses", s.URL(), tt.urls)
			}
			for _, u := range urls {
				nc, err := nats.Connect(u)
				if err != nil {
					t.Fatal(err)
				}
				defer nc.Close()
				wantJetStream(t, nc)
			}
		})
	}
}

func TestClusterStoresThreeReplicasAtOnce(t *testing.T) {
	s := start(t, embedded.Listen("127.0.0.1:0"), embedded.Cluster(3))
	nc, err := nats.Connect(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "b", Replicas: 3})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.PutString(t.Context(), "k", "v"); err != nil {
		t.Errorf("Put = %v, want no error", err)
	}
	if got := len(s.Servers()); got != 3 {
		t.Errorf("Servers = %d, want 3", got)
	}
}

func TestOptionErrors(t *testing.T) {
	tests := []struct {
		name string
		opts []embedded.Option
		want string
	}{
		{
			"no port",
			[]embedded.Option{embedded.Listen("localhost")},
			`embedded: option Listen: have "localhost", want "host:port" with a port from 0 to 65535`,
		},
		{
			"port too large",
			[]embedded.Option{embedded.Listen("localhost:65536")},
			`embedded: option Listen: have "localhost:65536", want "host:port" with a port from 0 to 65535`,
		},
		{
			"negative port",
			[]embedded.Option{embedded.Listen("localhost:-1")},
			`embedded: option Listen: have "localhost:-1", want "host:port" with a port from 0 to 65535`,
		},
		{
			"empty address",
			[]embedded.Option{embedded.Listen("")},
			`embedded: option Listen: have "", want "host:port" with a port from 0 to 65535`,
		},
		{
			"no directory",
			[]embedded.Option{embedded.Store("")},
			`embedded: option Store: have "", want a directory`,
		},
		{
			"two servers",
			[]embedded.Option{embedded.Listen("127.0.0.1:0"), embedded.Cluster(2)},
			`embedded: option Cluster: have 2, want 1 or 3`,
		},
		{
			"cluster without network",
			[]embedded.Option{embedded.Cluster(3)},
			`embedded: option Cluster: have 3 without Listen, want an address to listen at`,
		},
		{
			"sync before the write",
			[]embedded.Option{embedded.SyncEvery(-time.Second)},
			`embedded: option SyncEvery: have -1s, want 0 (every write) or longer`,
		},
		{
			"no logger",
			[]embedded.Option{embedded.Logger(nil)},
			`embedded: option Logger: have nil, want a logger`,
		},
		{
			"no function",
			[]embedded.Option{embedded.Tune(nil)},
			`embedded: option Tune: have nil, want a function`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			_, err := embedded.Start(append([]embedded.Option{embedded.Store(dir)}, tt.opts...)...)
			if err == nil || err.Error() != tt.want {
				t.Errorf("Start = %v, want %s", err, tt.want)
			}
			if !errors.Is(err, embedded.ErrOption) {
				t.Errorf("Start = %v, want a match of %v", err, embedded.ErrOption)
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("store directory after the error: %v, want none", err)
			}
		})
	}
}

func TestAddressInUseIsRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s, err := embedded.Start(embedded.Listen(l.Addr().String()))
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("Start = %v, want %v", err, syscall.EADDRINUSE)
		s.Stop()
	}
}

// The NATS server calls this fatal, goes on and reports JetStream as enabled.
func TestStartFailsWithoutJetStream(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "jetstream"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first leaves the directory free for the second
		_, err := embedded.Start(embedded.Store(dir))
		failed, ok := errors.AsType[*embedded.StartError](err)
		if !ok || !errors.Is(err, embedded.ErrStart) {
			t.Fatalf("Start = %v, want a %T", err, failed)
		}
		if !strings.Contains(failed.Reason, "JetStream") {
			t.Errorf("reason = %q, want JetStream in it", failed.Reason)
		}
	}
}

func TestStartFailsWithOptionsThatTheServerRefuses(t *testing.T) {
	_, err := embedded.Start(embedded.Tune(func(o *server.Options) { o.MaxPayload = 1 << 30; o.MaxPending = 1 }))
	if !errors.Is(err, embedded.ErrStart) {
		t.Errorf("Start = %v, want %v", err, embedded.ErrStart)
	}
}

func TestTuneHasTheLastWord(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := start(t, embedded.Tune(func(o *server.Options) {
			o.Users = []*server.User{{Username: "u", Password: "p"}}
		}))
		if _, err := nats.Connect("", nats.InProcessServer(natstest.NewLink(t, s))); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("Connect without a user = %v, want %v", err, nats.ErrAuthorization)
		}
		nc, err := s.Connect(nats.UserInfo("u", "p"))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		wantJetStream(t, nc)
	})
}

func TestStopIsIdempotentAndLeavesNothing(t *testing.T) {
	tests := []struct {
		name string
		opts []embedded.Option
	}{
		{"single", []embedded.Option{embedded.Listen("127.0.0.1:0")}},
		{"cluster", []embedded.Option{embedded.Listen("127.0.0.1:0"), embedded.Cluster(3)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var dirs []string
			tune := embedded.Tune(func(o *server.Options) { dirs = append(dirs, o.StoreDir) })
			before := runtime.NumGoroutine()
			s := start(t, append(tt.opts, tune)...)
			nc, err := s.Connect()
			if err != nil {
				t.Fatal(err)
			}
			wantJetStream(t, nc)
			nc.Close()
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(s.Stop)
			}
			wg.Wait()

			// Timers that have fired and closed clients may still be on their way out.
			for i := 0; runtime.NumGoroutine() > before && i < 1000; i++ {
				time.Sleep(time.Millisecond)
			}
			if got := runtime.NumGoroutine(); got > before {
				buf := make([]byte, 1<<20)
				t.Errorf("goroutines = %d, want %d:\n%s", got, before, buf[:runtime.Stack(buf, true)])
			}
			for _, dir := range dirs {
				if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("store directory %s after Stop: %v, want none", dir, err)
				}
			}
			if _, err := s.Connect(); !errors.Is(err, embedded.ErrStopped) {
				t.Errorf("Connect after Stop = %v, want %v", err, embedded.ErrStopped)
			}
			if err := s.StartServer(0); !errors.Is(err, embedded.ErrStopped) {
				t.Errorf("StartServer after Stop = %v, want %v", err, embedded.ErrStopped)
			}
		})
	}
}

// The bubble fails if a goroutine is left.
func TestStopInABubbleLeavesNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s, err := embedded.Start()
		if err != nil {
			t.Fatal(err)
		}
		nc, err := s.Connect()
		if err != nil {
			t.Fatal(err)
		}
		wantJetStream(t, nc)
		s.StopServer(0)
		s.StopServer(0)
		nc.Close()
		s.Stop()
	})
}

func TestServerComesBackAtItsAddress(t *testing.T) {
	s := start(t, embedded.Listen("127.0.0.1:0"))
	url, old := s.URL(), s.Server()
	s.StopServer(0)
	if err := s.StartServer(0); err != nil {
		t.Fatal(err)
	}
	if err := s.StartServer(0); err != nil {
		t.Errorf("StartServer of a running server = %v, want no error", err)
	}
	if got := s.URL(); got != url {
		t.Errorf("URL = %q, want %q as before", got, url)
	}
	if s.Server() == old {
		t.Error("Server = the stopped one, want a new one")
	}
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	wantJetStream(t, nc)
}

func TestStoreIsFreshOnce(t *testing.T) {
	dir := t.TempDir()
	for _, want := range []bool{true, false} {
		s := start(t, embedded.Store(dir))
		if got := s.Fresh(); got != want {
			t.Errorf("Fresh = %v, want %v", got, want)
		}
		s.Stop()
	}
	if s := start(t); !s.Fresh() {
		t.Error("Fresh = false, want true for a temporary store")
	}
}

func TestStoreIsSyncedAlwaysByDefault(t *testing.T) {
	tests := []struct {
		name     string
		opts     []embedded.Option
		always   bool
		interval time.Duration
	}{
		{"store", []embedded.Option{embedded.Store(t.TempDir())}, true, 0},
		{"store, lazily", []embedded.Option{embedded.Store(t.TempDir()), embedded.SyncEvery(time.Minute)}, false, time.Minute},
		{"temporary", nil, false, 0},
		{"temporary, always", []embedded.Option{embedded.SyncEvery(0)}, true, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got server.Options
			start(t, append(tt.opts, embedded.Tune(func(o *server.Options) { got = server.Options{SyncAlways: o.SyncAlways, SyncInterval: o.SyncInterval} }))...)
			if got.SyncAlways != tt.always || got.SyncInterval != tt.interval {
				t.Errorf("sync = %v, %v, want %v, %v", got.SyncAlways, got.SyncInterval, tt.always, tt.interval)
			}
		})
	}
}

func TestStoreOfAnotherClusterSizeIsRefused(t *testing.T) {
	single, cluster := t.TempDir(), t.TempDir()
	start(t, embedded.Store(single)).Stop()
	start(t, embedded.Store(cluster), embedded.Listen("127.0.0.1:0"), embedded.Cluster(3)).Stop()

	if _, err := embedded.Start(embedded.Store(cluster)); !errors.Is(err, embedded.ErrOption) {
		t.Errorf("Start of one on the data of three = %v, want %v", err, embedded.ErrOption)
	}
	_, err := embedded.Start(embedded.Store(single), embedded.Listen("127.0.0.1:0"), embedded.Cluster(3))
	if !errors.Is(err, embedded.ErrOption) {
		t.Errorf("Start of three on the data of one = %v, want %v", err, embedded.ErrOption)
	}
}

func TestStoreInUseIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "store")
	s := start(t, embedded.Store(dir))
	_, err := embedded.Start(embedded.Store(dir))
	used, ok := errors.AsType[*embedded.StoreInUseError](err)
	if !ok || !errors.Is(err, embedded.ErrStoreInUse) {
		t.Fatalf("Start = %v, want %v", err, embedded.ErrStoreInUse)
	}
	if used.Dir != dir {
		t.Errorf("Dir = %q, want %q", used.Dir, dir)
	}
	if got := child(t, dir); got != used.Error() {
		t.Errorf("Start in another process = %q, want %q", got, used.Error())
	}

	s.StopServer(0) // still owns the directory
	if _, err := embedded.Start(embedded.Store(dir)); !errors.Is(err, embedded.ErrStoreInUse) {
		t.Errorf("Start while the other is down = %v, want %v", err, embedded.ErrStoreInUse)
	}
	s.Stop()
	if got := child(t, dir); got != "" {
		t.Errorf("Start in another process after Stop = %q, want no error", got)
	}
	start(t, embedded.Store(dir))
}

// storeEnv gives a child process the store directory to start a server on.
const storeEnv = "TENURE_TEST_STORE"

// child starts a server on dir in another process and returns what its error says
// of the store, empty if there is none.
func child(t *testing.T, dir string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$")
	cmd.Env = append(os.Environ(), storeEnv+"="+dir)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("child: %v", err)
	}
	text, _, _ := strings.Cut(string(out), "\n")
	return text
}

// TestChild is what runs in a child process.
func TestChild(t *testing.T) {
	dir := os.Getenv(storeEnv)
	if dir == "" {
		t.Skip("not a child")
	}
	s, err := embedded.Start(embedded.Store(dir))
	if used, ok := errors.AsType[*embedded.StoreInUseError](err); ok {
		os.Stdout.WriteString(used.Error() + "\n")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	s.Stop()
	os.Stdout.WriteString("\n")
}
