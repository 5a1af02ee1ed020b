package bucket

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Keys of the stream's metadata.
const (
	metaFormat     = "tenure-format"
	metaMaxTTL     = "tenure-max-ttl"
	metaQuarantine = "tenure-quarantine"

	format = "1"
)

// maxClockLag is by how much a bucket's first sequence may lie before its
// creation, both in microseconds of the Unix epoch.
const maxClockLag = 60 * time.Second

// backdate is by how much it does lie before it, by the creator's clock. So a bucket
// that is older than the difference of the two, and has had less than a million
// writes per second, has no revision that a bucket made from now on could have, and
// [Bucket.Same] can tell them apart by looking at the number.
const backdate = maxClockLag - time.Second

// wanted returns the configuration that a new bucket is made with.
func wanted(s settings, now time.Time) jetstream.StreamConfig {
	largest := s.maxTTL
	if largest == 0 {
		largest = DefaultMaxTTL
	}
	quarantine := largest
	if s.fresh {
		quarantine = 0
	}
	return jetstream.StreamConfig{
		Name:               "KV_" + s.name,
		Description:        "locks and claims of tenure",
		Subjects:           []string{"$KV." + s.name + ".>"},
		Storage:            s.storage,
		Replicas:           max(1, s.replicas),
		Placement:          s.placement,
		MaxMsgsPerSubject:  1,
		MaxMsgs:            -1,
		MaxBytes:           -1,
		MaxConsumers:       1_000_000, // -1 would mean the server's default of 1,000
		Discard:            jetstream.DiscardNew,
		Duplicates:         2 * time.Minute,
		FirstSeq:           uint64(now.Add(-backdate).UnixMicro()),
		AllowRollup:        true,
		AllowMsgTTL:        true,
		AllowAtomicPublish: true,
		AllowDirect:        false, // reads come from the leader
		Metadata: map[string]string{
			metaFormat:     format,
			metaMaxTTL:     largest.String(),
			metaQuarantine: quarantine.String(),
		},
	}
}

// verify checks every setting that leases depend on and returns the length of
// the quarantine. Limit markers (SubjectDeleteMarkerTTL) are not needed but do
// no harm.
func verify(info *jetstream.StreamInfo, s settings) (quarantine time.Duration, err error) {
	c := info.Config
	wrong := func(setting, have, want string) error {
		return &SettingError{Bucket: s.name, Setting: setting, Have: have, Want: want}
	}
	subject := "$KV." + s.name + ".>"
	checks := []struct{ setting, have, want string }{
		{"subjects", strings.Join(c.Subjects, ","), subject},
		{"history", strconv.FormatInt(c.MaxMsgsPerSubject, 10), "1"},
		{"TTL per message (allow_msg_ttl)", strconv.FormatBool(c.AllowMsgTTL), "true"},
		{"atomic batches (allow_atomic)", strconv.FormatBool(c.AllowAtomicPublish), "true"},
		{"rollup (allow_rollup_hdrs)", strconv.FormatBool(c.AllowRollup), "true"},
		{"direct reads (allow_direct)", strconv.FormatBool(c.AllowDirect), "false"},
		{"discard", c.Discard.String(), jetstream.DiscardNew.String()},
		{"retention", c.Retention.String(), jetstream.LimitsPolicy.String()},
		{"max age", c.MaxAge.String(), "0s"},
		{"max messages", strconv.FormatInt(max(-1, c.MaxMsgs), 10), "-1"},
		{"max bytes", strconv.FormatInt(max(-1, c.MaxBytes), 10), "-1"},
		{"sealed", strconv.FormatBool(c.Sealed), "false"},
		{"mirror", strconv.FormatBool(c.Mirror != nil), "false"},
		{"sources", strconv.Itoa(len(c.Sources)), "0"},
		{"format (metadata " + metaFormat + ")", text(c.Metadata[metaFormat]), text(format)},
	}
	if s.replicas != 0 {
		checks = append(checks, struct{ setting, have, want string }{"replicas", strconv.Itoa(c.Replicas), strconv.Itoa(s.replicas)})
	}
	if s.hasStorage {
		checks = append(checks, struct{ setting, have, want string }{"storage", c.Storage.String(), s.storage.String()})
	}
	for _, check := range checks {
		if check.have != check.want {
			return 0, wrong(check.setting, check.have, check.want)
		}
	}
	largest, err := maxTTL(info)
	if err != nil {
		return 0, wrong("largest TTL (metadata "+metaMaxTTL+")", text(c.Metadata[metaMaxTTL]), "whole seconds, at least "+MinTTL.String())
	}
	if s.maxTTL != 0 && s.maxTTL != largest {
		return 0, wrong("largest TTL (metadata "+metaMaxTTL+")", largest.String(), s.maxTTL.String())
	}
	quarantine, err = time.ParseDuration(c.Metadata[metaQuarantine])
	if err != nil || quarantine < 0 || quarantine != 0 && quarantine < largest {
		return 0, wrong("quarantine (metadata "+metaQuarantine+")", text(c.Metadata[metaQuarantine]), "0s or at least "+largest.String())
	}
	return quarantine, verifyFirstSeq(info, s.name)
}

// verifyFirstSeq checks that the revisions of the bucket lie above those of
// every bucket of the name before it.
func verifyFirstSeq(info *jetstream.StreamInfo, name string) error {
	least := uint64(info.Created.Add(-maxClockLag).UnixMicro())
	if info.Config.FirstSeq >= least {
		return nil
	}
	return &SettingError{
		Bucket:  name,
		Setting: "first sequence (first_seq)",
		Have:    strconv.FormatUint(info.Config.FirstSeq, 10),
		Want:    fmt.Sprintf("at least %d, its creation in microseconds less %v", least, maxClockLag),
	}
}

func maxTTL(info *jetstream.StreamInfo) (time.Duration, error) {
	d, err := time.ParseDuration(info.Config.Metadata[metaMaxTTL])
	if err == nil && (d < MinTTL || d%time.Second != 0) {
		err = ErrTTL
	}
	return d, err
}

func text(s string) string {
	if s == "" {
		return "none"
	}
	return strconv.Quote(s)
}

// Server versions: per-message TTLs came with 2.11, atomic batches with 2.12;
// 2.14.0 to 2.14.3 can latch a write error on streams with history 1 and TTLs.
const minServer = "2.12.0"

// checkServer refuses a server that is too old.
func (b *Bucket) checkServer(ctx context.Context) error {
	version := b.nc.ConnectedServerVersion()
	if version == "" {
		return nil // not connected yet: the API calls that follow say so
	}
	major, minor, patch := parseVersion(version)
	if major < 2 || major == 2 && minor < 12 {
		return fmt.Errorf("%w: version: have %s, want at least %s", ErrServer, version, minServer)
	}
	if major == 2 && minor == 14 && patch <= 3 {
		b.log.WarnContext(ctx, "this server version can get stuck refusing writes of keys with TTLs: use 2.14.4 or newer", "version", version)
	}
	return nil
}

func parseVersion(v string) (major, minor, patch int) {
	v, _, _ = strings.Cut(strings.TrimPrefix(v, "v"), "-")
	parts := strings.SplitN(v, ".", 3)
	for i, p := range []*int{&major, &minor, &patch} {
		if i < len(parts) {
			*p, _ = strconv.Atoi(parts[i]) // 0 for what is no number
		}
	}
	return major, minor, patch
}
