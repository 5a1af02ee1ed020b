package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of settings.
const (
	minTTL     = 2 * time.Second
	maxName    = 200
	maxWorkers = 10_000
	maxWeight  = 1 << 16
)

// Validate checks every setting and how the settings relate. It returns the
// first thing that is wrong, which matches [ErrInvalid].
func (c *Config) Validate() error {
	for _, check := range []func() error{c.checkConnection, c.checkLog, c.checkLease, c.checkPool, c.checkAdmin} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) checkConnection() error {
	for server := range strings.SplitSeq(strings.TrimSuffix(c.Server.Reveal(), ","), ",") {
		server = strings.TrimSpace(server)
		if server == "" && c.Server == "" {
			continue
		}
		if wrong := checkServer(server); wrong != "" {
			return c.wrong("server", fmt.Sprintf("%s in %q", wrong, redactURL(server)), "URLs such as nats://127.0.0.1:4222, separated by commas")
		}
	}
	var ways []string
	for _, way := range []struct {
		name  string
		given bool
	}{{"creds", c.Creds != ""}, {"nkey", c.NKey != ""}, {"user", c.User != ""}, {"token", c.Token != ""}} {
		if way.given {
			ways = append(ways, c.place(way.name))
		}
	}
	if len(ways) > 1 {
		return c.wrong("creds", strings.Join(ways, " and "), "one way to authenticate")
	}
	if c.Password != "" && c.User == "" {
		return c.wrong("password", "a password alone", "a user with it")
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		given := "tlscert"
		if c.TLSCert == "" {
			given = "tlskey"
		}
		return c.wrong(given, "one of the two", "tlscert and tlskey together")
	}
	if c.JSDomain != "" && c.JSAPIPrefix != "" {
		return c.wrong("js-domain", c.place("js-domain")+" and "+c.place("js-api-prefix"), "one of the two")
	}
	if c.JSDomain != "" && !isSubject(c.JSDomain) || strings.Contains(c.JSDomain, ".") {
		return c.wrong("js-domain", strconv.Quote(short(c.JSDomain)), "one word without dots and wildcards")
	}
	if c.JSAPIPrefix != "" && !isSubject(c.JSAPIPrefix) {
		return c.wrong("js-api-prefix", strconv.Quote(short(c.JSAPIPrefix)), "a subject without wildcards, such as $JS.hub.API")
	}
	if c.InboxPrefix != "" && !isSubject(c.InboxPrefix) {
		return c.wrong("inbox-prefix", strconv.Quote(short(c.InboxPrefix)), "a subject without wildcards, such as _INBOX_app")
	}
	if c.ConnectTimeout <= 0 {
		return c.wrong("connect-timeout", c.ConnectTimeout.String(), "more than 0s")
	}
	if !isWord(c.Bucket) || len(c.Bucket) > maxName {
		return c.wrong("bucket", strconv.Quote(short(c.Bucket)), "1 to 200 letters, digits, '-' and '_'")
	}
	return nil
}

func (c *Config) checkLog() error {
	if err := c.oneOf("log-level", c.Level, "debug", "info", "warn", "error"); err != nil {
		return err
	}
	return c.oneOf("log-format", c.Format, "auto", "text", "json")
}

func (c *Config) checkLease() error {
	if c.TTL < minTTL || c.TTL%time.Second != 0 {
		return c.wrong("ttl", c.TTL.String(), "whole seconds, at least 2s")
	}
	if c.Renewals < 2 {
		return c.wrong("renewals", strconv.Itoa(c.Renewals), "at least 2")
	}
	if c.Margin < 0 {
		return c.wrong("margin", c.Margin.String(), "more than 0s")
	}
	margin, least := c.LeaseMargin(), c.leastMargin()
	if margin < least {
		return c.relation("margin >= max(500ms, ttl/10)",
			fmt.Sprintf("%v < max(500ms, %v)", margin, c.TTL/10), fmt.Sprintf("margin of at least %v", least), "margin", "ttl")
	}
	every, attempt := c.TTL/time.Duration(c.Renewals), min(time.Second, c.TTL/6)
	if every+2*attempt+margin > c.TTL {
		return c.relation("ttl/renewals + 2*min(1s, ttl/6) + margin <= ttl",
			fmt.Sprintf("%v + 2*%v + %v > %v", round(every), round(attempt), margin, c.TTL),
			"a larger ttl, more renewals or a smaller margin", "ttl", "renewals", "margin")
	}
	return nil
}

func (c *Config) checkPool() error {
	if c.Partitions != "" {
		if _, err := c.names(); err != nil {
			err.Origin = c.origins["partitions"]
			return err
		}
	}
	if len(c.ID) > maxName {
		return c.wrong("id", strconv.Itoa(len(c.ID))+" bytes", "at most 200")
	}
	if c.Workers < 1 || c.Workers > maxWorkers {
		return c.wrong("workers", strconv.Itoa(c.Workers), "1 to "+strconv.Itoa(maxWorkers))
	}
	if c.Capacity < 0 {
		return c.wrong("capacity", strconv.Itoa(c.Capacity), "0 for no limit, or more")
	}
	if c.Weight < 1 || c.Weight > maxWeight {
		return c.wrong("weight", strconv.Itoa(c.Weight), fmt.Sprintf("1 to %d", maxWeight))
	}
	if len(c.Zone) > maxName || !utf8.ValidString(c.Zone) {
		return c.wrong("zone", fmt.Sprintf("%d bytes", len(c.Zone)), fmt.Sprintf("at most %d of UTF-8", maxName))
	}
	if c.DrainTimeout <= 0 {
		return c.wrong("drain-timeout", c.DrainTimeout.String(), "more than 0s")
	}
	if c.Grace < 0 {
		return c.wrong("grace", c.Grace.String(), "more than 0s")
	}
	if c.ChildGrace() > c.DrainTimeout {
		return c.relation("grace <= drain-timeout", fmt.Sprintf("%v > %v", c.Grace, c.DrainTimeout),
			fmt.Sprintf("grace of at most %v", c.DrainTimeout), "grace", "drain-timeout")
	}
	if err := c.oneOf("restart", c.Restart, "always", "on-failure", "never"); err != nil {
		return err
	}
	if (c.Stream == "") != (c.Filter == "") {
		given := "stream"
		if c.Stream == "" {
			given = "filter"
		}
		return c.wrong(given, "one of the two", "stream and filter together")
	}
	if c.Filter != "" && !strings.Contains(c.Filter, "{partition}") {
		return c.wrong("filter", strconv.Quote(short(c.Filter)), "{partition} in it, such as orders.{partition}.>")
	}
	return c.oneOf("mode", c.Mode, "ack", "offset")
}

// place returns where the value of a setting stands, as people look for it.
func (c *Config) place(name string) string {
	if origin := c.origins[name]; origin != "" {
		return origin
	}
	return name
}

func (c *Config) wrong(name, have, want string) error {
	return &SettingError{Setting: name, Origin: c.origins[name], Have: have, Want: want}
}

func (c *Config) oneOf(name, have string, want ...string) error {
	if slices.Contains(want, have) {
		return nil
	}
	last := len(want) - 1
	return c.wrong(name, strconv.Quote(short(have)), strings.Join(want[:last], ", ")+" or "+want[last])
}

// relation returns the error of a relation that does not hold. Settings that
// stand nowhere have their default, which is no place to look at.
func (c *Config) relation(rule, have, want string, settings ...string) error {
	var places []string
	for _, name := range settings {
		if origin := c.origins[name]; origin != "" {
			places = append(places, origin)
		}
	}
	if places == nil {
		places = settings
	}
	return &RelationError{Rule: rule, Have: have, Want: want, Settings: places}
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// isWord reports whether s is a name of letters, digits, '-' and '_'.
func isWord(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return s != ""
}

// isSubject reports whether s is a subject without wildcards.
func isSubject(s string) bool {
	for token := range strings.SplitSeq(s, ".") {
		if token == "" || strings.ContainsAny(token, "*> \t\r\n") {
			return false
		}
	}
	return true
}
