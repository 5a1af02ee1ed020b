package bucket

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// DefaultName is the bucket used when none is named.
const DefaultName = "tenure"

// DefaultMaxTTL is the largest TTL of a bucket made without [MaxTTL], and so
// how long it is under quarantine.
const DefaultMaxTTL = 60 * time.Second

// An Option sets how [Open] finds or makes the bucket.
type Option func(*settings) error

// settings are what the options say; a zero field was not asked for.
type settings struct {
	name       string
	replicas   int
	storage    jetstream.StorageType
	hasStorage bool
	maxTTL     time.Duration
	placement  *jetstream.Placement
	fresh      bool
	attachOnly bool
	log        *slog.Logger
}

// Name sets the name of the bucket: letters, digits, '-' and '_'.
// The default is [DefaultName].
func Name(name string) Option {
	return func(s *settings) error {
		for i := range len(name) {
			if c := name[i]; !plain(c) || c == '/' {
				return &NameError{Name: name, Have: fmt.Sprintf("%q", c), Want: "letters, digits, '-' and '_'"}
			}
		}
		if name == "" || len(name) > MaxName {
			return &NameError{Name: name[:min(len(name), 32)], Have: fmt.Sprintf("%d bytes", len(name)), Want: fmt.Sprintf("1 to %d bytes", MaxName)}
		}
		s.name = name
		return nil
	}
}

// Replicas sets the number of replicas, 1 to 5. A new bucket has 1 by default;
// an existing one must agree if the option is given.
func Replicas(n int) Option {
	return func(s *settings) error {
		if n < 1 || n > 5 {
			return fmt.Errorf("replicas: have %d, want 1 to 5: %w", n, ErrBucket)
		}
		s.replicas = n
		return nil
	}
}

// Storage sets where the bucket is kept. A new bucket is on file by default; an
// existing one must agree if the option is given.
func Storage(t jetstream.StorageType) Option {
	return func(s *settings) error {
		s.storage, s.hasStorage = t, true
		return nil
	}
}

// MaxTTL sets the largest TTL that a lease in the bucket may have, in whole
// seconds from [MinTTL] up; it is also the length of the quarantine. A new
// bucket has [DefaultMaxTTL]; an existing one must agree if the option is given.
func MaxTTL(d time.Duration) Option {
	return func(s *settings) error {
		if d < MinTTL || d%time.Second != 0 {
			return &TTLError{Setting: "largest TTL", Have: d, Want: fmt.Sprintf("whole seconds, at least %v", MinTTL)}
		}
		s.maxTTL = d
		return nil
	}
}

// Placement sets where a new bucket is placed. It is not compared with an
// existing one.
func Placement(p jetstream.Placement) Option {
	return func(s *settings) error {
		s.placement = &p
		return nil
	}
}

// Fresh makes a missing bucket without quarantine. It asserts that no bucket of
// this name was lost while somebody still trusts a lease in it: right for tests
// and for a server on an empty store, wrong after a loss.
func Fresh() Option {
	return func(s *settings) error {
		s.fresh = true
		return nil
	}
}

// AttachOnly forbids making the bucket: a missing one is [ErrBucket].
func AttachOnly() Option {
	return func(s *settings) error {
		s.attachOnly = true
		return nil
	}
}

// Logger sets where warnings go. The default discards them.
func Logger(l *slog.Logger) Option {
	return func(s *settings) error {
		s.log = l
		return nil
	}
}

// A Bucket is an open bucket. Its methods may be called concurrently.
type Bucket struct {
	js      jetstream.JetStream
	nc      *nats.Conn
	stream  jetstream.Stream
	name    string
	prefix  string // of the subject of a key when read or filtered
	publish string // of the subject of a key when written
	api     string // prefix of the JetStream API

	ackStart string // how most acknowledgements begin
	log      *slog.Logger

	created time.Time
	opens   time.Time // end of the quarantine by the local monotonic clock
	maxTTL  time.Duration
	single  bool // one replica: a lower last sequence is a fact

	high  atomic.Uint64 // the highest revision acknowledged to this process
	clock atomic.Pointer[reading]
	gone  atomic.Bool // known not to be the one that was opened any more

	marksOnly atomic.Bool // entries cannot be removed without a trace
}

// A reading is the server's clock as it was when it was heard of.
type reading struct{ server, heard time.Time }

// Open attaches to the bucket, or makes it if it is missing.
//
// Every setting of an existing bucket that leases depend on is verified; a wrong
// one is a [*SettingError] and nothing is changed. A server older than 2.12 is
// [ErrServer], a denied subject a [*PermissionError]. Open does not wait for the
// end of a quarantine: see [Bucket.AwaitQuarantine]. It blocks until the server
// has answered or ctx is done, at most 10 s if ctx has no deadline.
func Open(ctx context.Context, js jetstream.JetStream, opts ...Option) (*Bucket, error) {
	s := settings{name: DefaultName, log: slog.New(slog.DiscardHandler)}
	for _, opt := range opts {
		if err := opt(&s); err != nil {
			return nil, err
		}
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
	}
	b := &Bucket{js: js, nc: js.Conn(), name: s.name, prefix: "$KV." + s.name + ".", log: s.log}
	b.publish, b.api = b.prefix, jetstream.DefaultAPIPrefix
	b.ackStart = fmt.Sprintf(`{"stream":%q,"seq":`, b.streamName())
	if o := js.Options(); o.Domain != "" {
		b.api = "$JS." + o.Domain + ".API."
	} else if o.APIPrefix != "" && o.APIPrefix != jetstream.DefaultAPIPrefix {
		b.api = o.APIPrefix
	}
	if b.api != jetstream.DefaultAPIPrefix {
		b.publish = b.api + b.prefix // as every KV client does across a domain
	}
	if err := b.checkServer(ctx); err != nil {
		return nil, err
	}

	err := b.attach(ctx, s)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if s.attachOnly {
			return nil, fmt.Errorf("bucket %q: %w: it does not exist", s.name, ErrBucket)
		}
		if err = b.create(ctx, s); err == nil {
			err = b.attach(ctx, s)
		}
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// attach reads the stream's settings and verifies them.
func (b *Bucket) attach(ctx context.Context, s settings) error {
	subject := b.api + "STREAM.INFO." + b.streamName()
	var stream jetstream.Stream
	err := b.retry(ctx, subject, func(ctx context.Context) (err error) {
		stream, err = b.js.Stream(ctx, b.streamName())
		return err
	})
	if err != nil {
		return err
	}
	heard, info := time.Now(), stream.CachedInfo()
	quarantine, err := verify(info, s)
	if err != nil {
		return err
	}
	b.stream, b.created = stream, info.Created
	b.clock.Store(&reading{info.TimeStamp, heard})
	b.maxTTL, _ = maxTTL(info)
	b.opens = heard.Add(quarantine - info.TimeStamp.Sub(info.Created))
	b.marksOnly.Store(info.Config.DenyDelete)
	b.single = info.Config.Replicas == 1
	return nil
}

// create makes the stream by hand: the KV API cannot make one with TTLs per key
// but no limit markers, with a first sequence, or with reads from the leader.
func (b *Bucket) create(ctx context.Context, s settings) error {
	subject := b.api + "STREAM.CREATE." + b.streamName()
	for now, corrected := time.Now(), false; ; corrected = true {
		var stream jetstream.Stream
		cfg := wanted(s, now)
		err := b.retry(ctx, subject, func(ctx context.Context) (err error) {
			stream, err = b.js.CreateStream(ctx, cfg)
			if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
				return nil // another process was faster, or an earlier try of ours was
			}
			return err
		})
		if err != nil || stream == nil {
			return err
		}
		info := stream.CachedInfo()
		wrong := verifyFirstSeq(info, s.name)
		if wrong == nil {
			return nil
		}
		// This machine's clock is behind the server's. Nobody has used the bucket,
		// since it does not pass anybody's verification.
		if err := b.js.DeleteStream(ctx, b.streamName()); err != nil || corrected {
			return fmt.Errorf("the clock of this machine is behind the server's: %w", errors.Join(wrong, err))
		}
		now = info.Created.Add(time.Second)
	}
}

// retry calls the JetStream API until it answers: a server that has just started
// or is electing a leader does not.
func (b *Bucket) retry(ctx context.Context, subject string, call func(context.Context) error) error {
	for {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := call(try)
		cancel()
		if err == nil || errors.Is(err, jetstream.ErrStreamNotFound) {
			return err
		}
		err = b.classify(subject, "", 0, err)
		if !errors.Is(err, ErrBusy) && !errors.Is(err, ErrDoubt) || errors.Is(err, nats.ErrConnectionClosed) {
			return fmt.Errorf("bucket %q: %w", b.name, err)
		}
		wait := time.NewTimer(100 * time.Millisecond)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return fmt.Errorf("bucket %q: %w (%w)", b.name, context.Cause(ctx), err)
		}
	}
}

func (b *Bucket) streamName() string { return "KV_" + b.name }

// Name returns the bucket's name.
func (b *Bucket) Name() string { return b.name }

// Created returns when the server made the bucket, by the server's clock. It
// identifies one life of the bucket.
func (b *Bucket) Created() time.Time { return b.created }

// MaxTTL returns the largest TTL that a lease in this bucket may have.
func (b *Bucket) MaxTTL() time.Duration { return b.maxTTL }

// JetStream returns what the bucket was opened with.
func (b *Bucket) JetStream() jetstream.JetStream { return b.js }

// Subject returns the subject that key is stored under.
func (b *Bucket) Subject(key string) string { return b.prefix + key }

// Stream returns the name of the stream behind the bucket.
func (b *Bucket) Stream() string { return b.streamName() }

// Quarantine returns how long nobody may begin a lease in this bucket yet, 0 if
// it is open for use.
func (b *Bucket) Quarantine() time.Duration { return max(0, time.Until(b.opens)) }

// AwaitQuarantine blocks until the quarantine is over or ctx is done, in which
// case it returns ctx's cause. Whoever waits is told so by a warning.
func (b *Bucket) AwaitQuarantine(ctx context.Context) error {
	left := b.Quarantine()
	if left == 0 {
		return nil
	}
	b.log.WarnContext(ctx, "bucket was made anew: nobody may hold anything in it yet; make it with `tenure init --fresh` if none existed before",
		slog.String("bucket", b.name), slog.Duration("wait", left.Round(time.Millisecond)), slog.Time("until", time.Now().Add(left)))
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("bucket %q is under quarantine for another %v: %w", b.name, b.Quarantine().Round(time.Millisecond), context.Cause(ctx))
	}
}

// Nonce returns a text that nobody else has: 128 random bits.
func Nonce() string {
	var r [16]byte
	_, _ = rand.Read(r[:]) // never fails
	const digits = "0123456789abcdefghijklmnopqrstuv"
	out := make([]byte, 26)
	acc, bits, n := uint(0), 0, 0
	for _, c := range r {
		acc, bits = acc<<8|uint(c), bits+8
		for bits >= 5 {
			bits -= 5
			out[n] = digits[acc>>bits&31]
			n++
		}
	}
	out[n] = digits[acc<<(5-bits)&31]
	return string(out)
}

func parseSeconds(s string) (time.Duration, error) {
	if n, err := strconv.ParseInt(s, 10, 32); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	return time.ParseDuration(s)
}
