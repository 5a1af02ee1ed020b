package config

import (
	"log/slog"
	"net/url"
	"strings"
)

// redacted is what is shown of a secret.
const redacted = "***"

// A Secret is a text that does not show itself: it prints, logs and marshals as
// "***", or as nothing if it is empty.
type Secret string

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString hides the secret from %#v.
func (s Secret) GoString() string { return s.String() }

// LogValue hides the secret from slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText hides the secret from JSON, YAML and the like.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Servers is a list of NATS URLs separated by commas. Since a URL can carry a
// password or a token, it shows itself without them.
type Servers string

// Reveal returns the list with all it carries, for connecting.
func (s Servers) Reveal() string { return string(s) }

func (s Servers) String() string {
	list := strings.Split(string(s), ",")
	for i, server := range list {
		list[i] = redactURL(strings.TrimSpace(server))
	}
	return strings.Join(list, ",")
}

// GoString hides what String hides from %#v.
func (s Servers) GoString() string { return s.String() }

// LogValue hides what String hides from slog.
func (s Servers) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText hides what String hides from JSON, YAML and the like.
func (s Servers) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// redactURL hides everything before the last '@' of the authority, also of a
// text that does not parse: a user alone is a token.
func redactURL(server string) string {
	scheme, rest, ok := strings.Cut(server, "://")
	if !ok {
		scheme, rest = "", server
	} else {
		scheme += "://"
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		rest = redacted + rest[at:]
	}
	return scheme + rest
}

// checkServer returns what is wrong with one URL, or nothing.
func checkServer(server string) string {
	if !strings.Contains(server, "://") {
		server = "nats://" + server
	}
	u, err := url.Parse(server)
	switch {
	case err != nil:
		return "no URL" // the error of the parser would show a password
	case u.Scheme != "nats" && u.Scheme != "tls" && u.Scheme != "ws" && u.Scheme != "wss":
		return "scheme " + u.Scheme
	case u.Hostname() == "":
		return "no host"
	}
	return ""
}
