package kvlock

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"tenure/kvlock/bucket"
)

// maxText is the largest length of an owner, a note or a reason in bytes.
const maxText = 1000

// An Option sets how [New] makes a [Locker]. New checks the values.
type Option func(*settings)

// settings are what the options say.
type settings struct {
	bucket     *bucket.Bucket
	hasBucket  bool
	bucketOpts []bucket.Option
	ttl        time.Duration
	margin     time.Duration
	renewals   int
	owner      string
	note       string
	minHold    time.Duration
	maxHold    time.Duration
	barging    bool
	trace      Trace
	log        *slog.Logger
}

func newSettings(opts []Option) (settings, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	s := settings{
		ttl:      bucket.DefaultTTL,
		renewals: bucket.DefaultRenewals,
		owner:    host + "/" + strconv.Itoa(os.Getpid()),
		log:      slog.New(slog.DiscardHandler),
	}
	for _, opt := range opts {
		opt(&s)
	}
	wrong := func(option, have, want string) (settings, error) {
		return s, &OptionError{Option: option, Have: have, Want: want}
	}
	switch {
	case s.owner == "":
		return wrong("owner", "none", "a name")
	case s.log == nil:
		return wrong("logger", "nil", "a logger")
	case s.hasBucket && s.bucket == nil:
		return wrong("bucket", "nil", "an open bucket")
	case s.hasBucket && s.bucketOpts != nil:
		return wrong("bucket", "an open bucket and options to open one", "one of them")
	case s.minHold < 0 || s.minHold > recordTTLMax:
		return wrong("minimum hold", s.minHold.String(), "0s to 24h")
	case s.maxHold < 0 || s.maxHold > recordTTLMax:
		return wrong("maximum hold", s.maxHold.String(), "0s to 24h")
	case s.maxHold > 0 && s.minHold > s.maxHold:
		return wrong("minimum hold", s.minHold.String(), fmt.Sprintf("at most the maximum of %v", s.maxHold))
	}
	return s, cmp.Or(checkText("owner", s.owner, maxText), checkText("note", s.note, maxText))
}

// WithBucket makes the locks live in b, which others may use too, in place of a
// bucket that New opens.
func WithBucket(b *bucket.Bucket) Option {
	return func(s *settings) { s.bucket, s.hasBucket = b, true }
}

// WithBucketOptions sets how New opens or makes the bucket. The default is the
// bucket named [bucket.DefaultName].
func WithBucketOptions(opts ...bucket.Option) Option {
	return func(s *settings) { s.bucketOpts = append(s.bucketOpts, opts...) }
}

// WithTTL sets how long a hold outlives the last renewal, and so how long a lock
// stays barred after its holder has crashed. It is rounded up to whole seconds,
// at least [bucket.MinTTL] and at most the largest TTL of the bucket. The default
// is 15 s, since JetStream can be without a leader for 5 to 10 s.
func WithTTL(d time.Duration) Option { return func(s *settings) { s.ttl = d } }

// WithRenewals sets how many renewals start within one TTL, at least 2. The
// default is 3: one lost reply does not cost the lock.
func WithRenewals(n int) Option { return func(s *settings) { s.renewals = n } }

// WithMargin sets by how much a holder stops believing in its hold before the
// server ends it. It has to cover clock skew between the servers, drift of this
// machine's clock over one TTL, and late timers, together. The default, 0s, is the
// larger of 500 ms and a tenth of the TTL, which is also the least.
func WithMargin(d time.Duration) Option { return func(s *settings) { s.margin = d } }

// WithOwner sets a name for people to read, of 1 to 1,000 bytes. It need not be unique
// and decides nothing. The default is the name of the host and the number of the process.
func WithOwner(name string) Option { return func(s *settings) { s.owner = name } }

// WithNote sets a text of up to 1,000 bytes that is shown with the holder.
func WithNote(text string) Option { return func(s *settings) { s.note = text } }

// WithMinHold sets for how long a lock stays barred at least, from when it was gained,
// also if it is released before: a short job whose other starters are a little late
// then runs once. The default is 0s; the most is 24h.
//
// A lock that is released early is kept by the server for what is left, in whole
// seconds rounded up; while its Locker is open, that ends it on time. So in a schedule
// it should be 2 s shorter than the period at least, or the next run may find the lock
// held. No client's clock decides over a grant. A hold that was lost, or revoked, has no
// minimum, nor has a reader.
func WithMinHold(d time.Duration) Option { return func(s *settings) { s.minHold = d } }

// WithMaxHold sets for how long a lock is held at most, from when it was gained. Who
// holds it then has lost it, with the reason [Overrun], and it is free at once: its
// context is done, but a function that does not care may still be running beside that
// of the next holder. The default, 0s, sets no limit; the most is 24h.
func WithMaxHold(d time.Duration) Option { return func(s *settings) { s.maxHold = d } }

// WithBarging lets the calls of this Locker take a lock that they find free while
// others stand in line for it, who then go on waiting. The default is fair: a lock that
// was released is kept for the first in line for 2 s.
func WithBarging() Option { return func(s *settings) { s.barging = true } }

// WithTrace sets who is told what happens. The default, nil, is nobody.
func WithTrace(t *Trace) Option {
	return func(s *settings) {
		if t != nil {
			s.trace = *t
		}
	}
}

// WithLogger sets where the Locker logs. The default discards everything.
func WithLogger(l *slog.Logger) Option { return func(s *settings) { s.log = l } }

func checkText(what, text string, most int) error {
	if len(text) > most {
		return &OptionError{Option: what, Have: fmt.Sprintf("%d bytes", len(text)), Want: fmt.Sprintf("at most %d", most)}
	}
	return nil
}
