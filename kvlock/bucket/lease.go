package bucket

import (
	"fmt"
	"time"
)

// Limits and defaults of a [Lease].
const (
	MinTTL          = 2 * time.Second  // the server counts whole seconds
	DefaultTTL      = 15 * time.Second // a server can be without a leader for 5 to 10 s
	DefaultRenewals = 3                // one lost reply does not cost the lease
	maxAttempt      = time.Second
)

// A Lease is the set of durations by which a hold is kept. Make it with
// [NewLease], which checks how they relate.
type Lease struct {
	TTL     time.Duration // how long the server keeps the key after a write
	Margin  time.Duration // by how much the holder stops before that
	Every   time.Duration // from one renewal to the next
	Attempt time.Duration // the longest time one write may take
}

// NewLease returns the lease with the given TTL, which is rounded up to whole
// seconds and at least [MinTTL]. A margin of 0 means the default of
// max(500 ms, TTL/10), which is also the least: it has to cover the clock skew
// of the servers, the drift of the client's clock over one TTL and the lateness
// of timers, together. Renewals is how many renewals start within one TTL, at
// least 2. A value that does not fit is a [*TTLError].
func NewLease(ttl, margin time.Duration, renewals int) (Lease, error) {
	if ttl <= 0 {
		return Lease{}, &TTLError{Setting: "TTL", Have: ttl, Want: fmt.Sprintf("at least %v", MinTTL)}
	}
	whole := (ttl + time.Second - 1).Truncate(time.Second)
	if whole < MinTTL {
		return Lease{}, &TTLError{Setting: "TTL", Have: ttl, Want: fmt.Sprintf("at least %v", MinTTL)}
	}
	least := max(500*time.Millisecond, whole/10)
	if margin == 0 {
		margin = least
	}
	if margin < least {
		return Lease{}, &TTLError{Setting: "margin", Have: margin, Want: fmt.Sprintf("at least %v for a TTL of %v", least, whole)}
	}
	if renewals < 2 {
		return Lease{}, fmt.Errorf("renewals per TTL: have %d, want at least 2: %w", renewals, ErrTTL)
	}
	l := Lease{TTL: whole, Margin: margin, Every: whole / time.Duration(renewals), Attempt: min(maxAttempt, whole/6)}
	if need := l.Every + 2*l.Attempt + l.Margin; need > l.TTL {
		return Lease{}, &TTLError{
			Setting: fmt.Sprintf("renewal interval %v + 2 × attempt %v + margin %v", l.Every, l.Attempt, l.Margin),
			Have:    need,
			Want:    fmt.Sprintf("at most the TTL of %v", l.TTL),
		}
	}
	return l, nil
}

// Trust returns how long a hold may be believed in after a write that was sent
// at the given time, as read with [time.Now] before sending, and confirmed.
func (l Lease) Trust(sent time.Time) Trust {
	return Trust{until: sent.Add(l.TTL - l.Margin)}
}

// Timeout returns how long the next write of a hold may take: the lease's
// attempt, or half of what is left of trust if that is less.
func (l Lease) Timeout(t Trust) time.Duration {
	return max(min(l.Attempt, t.Left()/2), time.Millisecond)
}

// Trust is the point in time at which belief in a hold ends. The zero Trust is
// over.
type Trust struct{ until time.Time }

// Until returns the trust that ends at the given time if that comes first. The zero time
// is none.
func (t Trust) Until(end time.Time) Trust {
	if end.IsZero() || t.until.Before(end) {
		return t
	}
	return Trust{until: end}
}

// Left returns how much of the trust is left; it is over when that is zero or
// less. Both clocks are asked and the one that says less is taken: the
// monotonic clock is not moved by anybody, but stands still while the machine
// is suspended, and the wall clock goes on.
func (t Trust) Left() time.Duration {
	if t.until.IsZero() {
		return 0
	}
	now := time.Now()
	return min(t.until.Sub(now), t.until.Round(0).Sub(now.Round(0)))
}

// Over reports whether the trust has ended.
func (t Trust) Over() bool { return t.Left() <= 0 }
