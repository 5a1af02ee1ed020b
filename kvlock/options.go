package kvlock

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"tenure/kvlock/bucket"
)

// maxText is the largest length of an owner, a note or a reason in bytes.
const maxText = 1000

// An Option sets how [New] makes a [Locker].
type Option func(*settings) error

// settings are what the options say.
type settings struct {
	bucket     *bucket.Bucket
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

func defaults() settings {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return settings{
		ttl:      bucket.DefaultTTL,
		renewals: bucket.DefaultRenewals,
		owner:    host + "/" + strconv.Itoa(os.Getpid()),
		log:      slog.New(slog.DiscardHandler),
	}
}

// WithBucket makes the locks live in b, which others may use too, in place of a
// bucket that New opens.
func WithBucket(b *bucket.Bucket) Option {
	return func(s *settings) error {
		if b == nil {
			return &OptionError{Option: "bucket", Have: "nil", Want: "an open bucket"}
		}
		s.bucket = b
		return nil
	}
}

// WithBucketOptions sets how New opens or makes the bucket. The default is the
// bucket named [bucket.DefaultName].
func WithBucketOptions(opts ...bucket.Option) Option {
	return func(s *settings) error {
		s.bucketOpts = append(s.bucketOpts, opts...)
		return nil
	}
}

// WithTTL sets how long a hold outlives the last renewal, and so how long a lock
// stays barred after its holder has crashed. It is rounded up to whole seconds,
// at least [bucket.MinTTL] and at most the largest TTL of the bucket. The default
// is 15 s, since JetStream can be without a leader for 5 to 10 s.
func WithTTL(d time.Duration) Option {
	return func(s *settings) error {
		s.ttl = d
		return nil
	}
}

// WithRenewals sets how many renewals start within one TTL, at least 2. The
// default is 3: one lost reply does not cost the lock.
func WithRenewals(n int) Option {
	return func(s *settings) error {
		s.renewals = n
		return nil
	}
}

// WithMargin sets by how much a holder stops believing in its hold before the
// server ends it. It has to cover clock skew between the servers, drift of this
// machine's clock over one TTL, and late timers, together. The default is the
// larger of 500 ms and a tenth of the TTL, which is also the least.
func WithMargin(d time.Duration) Option {
	return func(s *settings) error {
		if d <= 0 {
			return &bucket.TTLError{Setting: "margin", Have: d, Want: "more than 0s"}
		}
		s.margin = d
		return nil
	}
}

// WithOwner sets a name for people to read. It need not be unique and decides
// nothing. The default is the name of the host and the number of the process.
func WithOwner(name string) Option {
	return func(s *settings) error {
		if err := checkText("owner", name); err != nil {
			return err
		}
		if name == "" {
			return &OptionError{Option: "owner", Have: "none", Want: "a name"}
		}
		s.owner = name
		return nil
	}
}

// WithNote sets a text that is shown with the holder.
func WithNote(text string) Option {
	return func(s *settings) error {
		s.note = text
		return checkText("note", text)
	}
}

// WithMinHold sets for how long a lock stays barred at least, from when it was gained,
// also if it is released before: a short job whose other starters are a little late
// then runs once. The default is 0s; the most is 24h.
//
// A lock that is released early is kept by the server for what is left, in whole
// seconds rounded up; while its Locker is open, that ends it on time. So in a schedule
// it should be 2 s shorter than the period at least, or the next run may find the lock
// held. No client's clock decides over a grant. A hold that was lost, or revoked, has no
// minimum, nor has a reader.
func WithMinHold(d time.Duration) Option {
	return func(s *settings) error {
		s.minHold = d
		return checkHold("minimum hold", d)
	}
}

// WithMaxHold sets for how long a lock is held at most, from when it was gained. Who
// holds it then has lost it, with the reason [Overrun], and it is free at once: its
// context is done, but a function that does not care may still be running beside that
// of the next holder. The default, 0s, sets no limit; the most is 24h.
func WithMaxHold(d time.Duration) Option {
	return func(s *settings) error {
		s.maxHold = d
		return checkHold("maximum hold", d)
	}
}

func checkHold(what string, d time.Duration) error {
	if d < 0 || d > recordTTLMax {
		return &OptionError{Option: what, Have: d.String(), Want: "0s to 24h"}
	}
	return nil
}

// WithBarging lets the calls of this Locker take a lock that they find free while
// others stand in line for it, who then go on waiting. The default is fair: a lock that
// was released is kept for the first in line for 2 s.
func WithBarging() Option {
	return func(s *settings) error {
		s.barging = true
		return nil
	}
}

// WithLogger sets where the Locker logs. The default discards everything.
func WithLogger(l *slog.Logger) Option {
	return func(s *settings) error {
		if l == nil {
			return &OptionError{Option: "logger", Have: "nil", Want: "a logger"}
		}
		s.log = l
		return nil
	}
}

func checkText(what, text string) error {
	if len(text) > maxText {
		return &OptionError{Option: what, Have: fmt.Sprintf("%d bytes", len(text)), Want: fmt.Sprintf("at most %d", maxText)}
	}
	return nil
}
