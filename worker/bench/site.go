package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded"
	"tenure/kvlock"
	"tenure/kvlock/bucket"
)

// Names of sites that results have beside those in siteKinds.
const (
	userSite = "user"
	noSite   = "none" // it needs no server
)

const fileSite = "r1-file-tcp"

// A siteKind says how a server is run.
type siteKind struct {
	name     string
	storage  jetstream.StorageType
	replicas int
	opts     []embedded.Option
}

// siteKinds lists the sites. The files are synced as a NATS server does by itself,
// every two minutes: what a disk takes to sync is not tenure's.
func siteKinds() []siteKind {
	tcp, lazy := embedded.Listen("127.0.0.1:0"), embedded.SyncEvery(2*time.Minute)
	return []siteKind{
		{"inproc-memory", jetstream.MemoryStorage, 1, nil},
		{"r1-memory-tcp", jetstream.MemoryStorage, 1, []embedded.Option{tcp}},
		{fileSite, jetstream.FileStorage, 1, []embedded.Option{tcp, lazy}},
		{"r3-file-tcp", jetstream.FileStorage, 3, []embedded.Option{tcp, lazy, embedded.Cluster(3)}},
	}
}

// Sites returns the names that [Config] may have in On.
func Sites() []string {
	var names []string
	for _, k := range siteKinds() {
		names = append(names, k.name)
	}
	return names
}

// A Server is a user's own NATS. A bucket with a name of its own is made there and
// deleted at the end.
type Server struct {
	Connect  func(context.Context) (*nats.Conn, jetstream.JetStream, error)
	Replicas int // of the bucket
}

// A site is a server to measure at, with a bucket that nobody else uses.
type site struct {
	name   string
	bucket string
	opts   []bucket.Option
	server *embedded.Server // nil if it is the user's

	storage  jetstream.StorageType // of the bucket, and of other streams
	replicas int

	dial    func(context.Context) (*nats.Conn, jetstream.JetStream, error)
	conns   []*nats.Conn
	lockers []*kvlock.Locker
	raw     *rawWriter
	report  func(Result)
}

// openSite starts the named server, or takes the user's, and makes the bucket.
func openSite(ctx context.Context, name string, user *Server) (*site, error) {
	s := &site{name: name, bucket: "tenure-bench-" + bucket.Nonce()}
	s.opts = []bucket.Option{bucket.Name(s.bucket), bucket.Fresh()}
	if user != nil {
		s.dial, s.replicas = user.Connect, max(1, user.Replicas)
		s.opts = append(s.opts, bucket.Replicas(s.replicas))
	} else if err := s.start(); err != nil {
		return nil, err
	}
	l, err := s.locker(ctx)
	if err != nil {
		s.close(ctx)
		return nil, err
	}
	s.raw = &rawWriter{from: []*bucket.Bucket{l.Bucket()}}
	time.Sleep(bucketAge)
	return s, nil
}

// bucketAge is the age that the bucket gets before it is measured: while it is
// younger than a second, a write that makes a key costs a request more.
const bucketAge = 1100 * time.Millisecond

func (s *site) start() error {
	for _, k := range siteKinds() {
		if k.name != s.name {
			continue
		}
		server, err := embedded.Start(k.opts...)
		if err != nil {
			return err
		}
		s.server, s.storage, s.replicas = server, k.storage, k.replicas
		s.opts = append(s.opts, bucket.Storage(k.storage), bucket.Replicas(k.replicas))
		s.dial = func(context.Context) (*nats.Conn, jetstream.JetStream, error) {
			nc, err := dial(server)
			if err != nil {
				return nil, nil, err
			}
			js, err := jetstream.New(nc)
			return nc, js, err
		}
		return nil
	}
	return &NameError{What: "site", Have: s.name, Want: Sites()}
}

func dial(server *embedded.Server) (*nats.Conn, error) {
	if url := server.URL(); url != "" {
		return nats.Connect(url, bucket.ConnOptions()...)
	}
	return server.Connect(bucket.ConnOptions()...)
}

// connect makes a connection of its own.
func (s *site) connect(ctx context.Context) (*nats.Conn, jetstream.JetStream, error) {
	nc, js, err := s.dial(ctx)
	if nc != nil {
		s.conns = append(s.conns, nc)
	}
	return nc, js, err
}

// open opens the bucket on a connection of its own.
func (s *site) open(ctx context.Context) (*bucket.Bucket, error) {
	_, js, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	return bucket.Open(ctx, js, s.opts...)
}

// locker returns a Locker on a connection of its own: it is what another process
// would be.
func (s *site) locker(ctx context.Context, opts ...kvlock.Option) (*kvlock.Locker, error) {
	b, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	l, err := kvlock.New(ctx, b.JetStream(), append([]kvlock.Option{kvlock.WithBucket(b)}, opts...)...)
	if err == nil {
		s.lockers = append(s.lockers, l)
	}
	return l, err
}

// processes returns the first n Lockers, and makes those that are missing.
func (s *site) processes(ctx context.Context, n int) ([]*kvlock.Locker, error) {
	for len(s.lockers) < n {
		if _, err := s.locker(ctx); err != nil {
			return nil, err
		}
	}
	return s.lockers[:n], nil
}

// close deletes the bucket, and stops what was started.
func (s *site) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for _, l := range s.lockers {
		_ = l.Close(ctx) // what is left goes with the bucket
	}
	if s.server == nil && len(s.lockers) > 0 {
		b := s.lockers[0].Bucket()
		_ = b.JetStream().DeleteStream(ctx, b.Stream()) // the user can see what is left
	}
	for _, nc := range s.conns {
		nc.Close()
	}
	if s.server != nil {
		s.server.Stop()
	}
}

// result reports what was measured.
func (s *site) result(name string, figures ...Figure) {
	s.report(Result{Name: name, Server: s.name, Figures: figures})
}

// A rawWriter publishes as a lock is taken, with an expected revision and a TTL, and
// nothing else. It is measured in turn with what is compared with it.
type rawWriter struct {
	from []*bucket.Bucket // the connections that it publishes on, in turn
	took samples
}

// rawSize is about what the record of a lock takes.
const rawSize = 250

func (r *rawWriter) message(key string, last uint64) *nats.Msg {
	return &nats.Msg{Subject: r.from[0].Subject("raw." + key), Data: make([]byte, rawSize), Header: nats.Header{
		"Nats-Expected-Last-Subject-Sequence": {fmt.Sprint(last)},
		"Nats-TTL":                            {"30s"},
	}}
}

func (r *rawWriter) write(ctx context.Context) error {
	m, js := r.message(bucket.Nonce(), 0), r.from[len(r.took)%len(r.from)].JetStream()
	began := time.Now()
	if _, err := js.PublishMsg(ctx, m); err != nil {
		return fmt.Errorf("raw publish: %w", err)
	}
	r.took = append(r.took, time.Since(began))
	return nil
}

// batch publishes n messages without any expectation in one atomic batch, and returns
// how long that took.
func (r *rawWriter) batch(ctx context.Context, n int) (time.Duration, error) {
	js, id := r.from[0].JetStream(), bucket.Nonce()
	began := time.Now()
	for i := range n {
		m := &nats.Msg{Subject: r.from[0].Subject("raw." + bucket.Nonce()), Data: make([]byte, rawSize), Header: nats.Header{
			"Nats-Batch-Id":       {id},
			"Nats-Batch-Sequence": {strconv.Itoa(i + 1)},
		}}
		if i < n-1 {
			if err := js.Conn().PublishMsg(m); err != nil {
				return 0, fmt.Errorf("raw batch: %w", err)
			}
			continue
		}
		m.Header.Set("Nats-Batch-Commit", "1")
		if _, err := js.PublishMsg(ctx, m); err != nil {
			return 0, fmt.Errorf("raw batch: %w", err)
		}
	}
	return time.Since(began), nil
}

// taken returns what was measured since the last call.
func (r *rawWriter) taken() samples {
	took := r.took
	r.took = nil
	return took
}
