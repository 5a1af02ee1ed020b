package bucket_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"tenure/kvlock/bucket"
)

// N89: different names have different keys, and what cannot be a name is an error.
func TestNamesAreOneTokenAndComeBack(t *testing.T) {
	seen := make(map[string]string)
	for _, name := range []string{"a", "A", "a.b", "a b", "ä", "*", ">", "..", "=2E", "a/b", "-_", "\xff", "\xfe", strings.Repeat("x", bucket.MaxName)} {
		token, err := bucket.EncodeName(name)
		if err != nil {
			t.Errorf("EncodeName(%q) = %v, want nil", name, err)
			continue
		}
		if strings.ContainsAny(token, ".*> ") || seen[token] != "" {
			t.Errorf("EncodeName(%q) = %q, want one token that no other name has", name, token)
		}
		seen[token] = name
		if back, err := bucket.DecodeName(token); err != nil || back != name {
			t.Errorf("DecodeName(%q) = %q, %v, want %q", token, back, err, name)
		}
	}
	for _, name := range []string{"", strings.Repeat("x", bucket.MaxName+1)} {
		if _, err := bucket.EncodeName(name); !errors.Is(err, bucket.ErrName) {
			t.Errorf("EncodeName of %d bytes = %v, want %v", len(name), err, bucket.ErrName)
		}
	}
}

func FuzzDecodeName(f *testing.F) {
	for _, seed := range []string{"a", "=2E", "=2e", "=41", "=", "=F", "a.b", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		name, err := bucket.DecodeName(token)
		if err != nil {
			return
		}
		if back, err := bucket.EncodeName(name); err != nil || back != token {
			t.Errorf("EncodeName(DecodeName(%q)) = %q, %v", token, back, err)
		}
	})
}

// N95, K68, K81, H20: a TTL is rounded up once, and durations that do not fit are
// errors with have and want.
func TestLeaseDurations(t *testing.T) {
	tests := []struct {
		ttl, margin time.Duration
		renewals    int
		want        time.Duration // of the TTL; 0 for an error
		err         string
	}{
		{15 * time.Second, 0, 3, 15 * time.Second, ""},
		{2 * time.Second, 0, 3, 2 * time.Second, ""},
		{1500 * time.Millisecond, 0, 3, 2 * time.Second, ""},
		{10*time.Second + 1, 0, 3, 11 * time.Second, ""},
		{0, 0, 3, 0, "TTL: have 0s, want at least 2s"},
		{-time.Second, 0, 3, 0, "TTL: have -1s, want at least 2s"},
		{500 * time.Millisecond, 0, 3, 0, "TTL: have 500ms, want at least 2s"},
		{10 * time.Second, 200 * time.Millisecond, 3, 0, "margin: have 200ms, want at least 1s for a TTL of 10s"},
		{10 * time.Second, 0, 1, 0, "renewals per TTL: have 1, want at least 2: lease durations cannot be used"},
		{10 * time.Second, 6 * time.Second, 2, 0, "renewal interval 5s + 2 × attempt 1s + margin 6s: have 13s, want at most the TTL of 10s"},
	}
	for _, tt := range tests {
		lease, err := bucket.NewLease(tt.ttl, tt.margin, tt.renewals)
		switch {
		case tt.want != 0 && (err != nil || lease.TTL != tt.want):
			t.Errorf("NewLease(%v, %v, %d) = %v, %v, want TTL %v", tt.ttl, tt.margin, tt.renewals, lease, err, tt.want)
		case tt.want == 0 && (err == nil || err.Error() != tt.err || !errors.Is(err, bucket.ErrTTL)):
			t.Errorf("NewLease(%v, %v, %d) = %v, want %s", tt.ttl, tt.margin, tt.renewals, err, tt.err)
		}
	}
}
