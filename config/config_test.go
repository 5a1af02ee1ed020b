package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tenure/config"
)

func TestFlagsBeatEnvironmentBeatsFileBeatsDefaults(t *testing.T) {
	t.Parallel()
	file := write(t, "ttl: 20s\nlog-level: debug\nbucket: from-file\nworkers: 3\n")
	environ := []string{"TENURE_TTL=30s", "TENURE_LOG_LEVEL=error", "TENURE_BUCKET=from-env", "TENURE_RESTART="}
	var c config.Config
	c.TTL = 40 * time.Second
	err := c.Load(config.Sources{
		Flags:   func(name string) bool { return name == "ttl" },
		Environ: environ,
		File:    file,
	})
	if err != nil {
		t.Fatalf("Load = %v, want nil", err)
	}
	got := fmt.Sprintln(c.TTL, c.Level, c.Bucket, c.Workers, c.Restart, c.Format)
	if want := fmt.Sprintln(40*time.Second, "error", "from-env", 3, "always", "auto"); got != want {
		t.Errorf("Load gives %s, want %s", got, want)
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	c := load(t, "")
	got := fmt.Sprintln(c.Server, c.Bucket, c.ConnectTimeout, c.TTL, c.LeaseMargin(), c.Renewals,
		c.DrainTimeout, c.ChildGrace(), c.Workers, c.Restart, c.Mode, c.Level, c.Format)
	want := fmt.Sprintln("", "tenure", "10s", "15s", "1.5s", 3, "30s", "10s", 1, "always", "ack", "info", "auto")
	if got != want {
		t.Errorf("defaults are %s, want %s", got, want)
	}
}

func TestConnectionHasTheVariablesOfNatscli(t *testing.T) {
	t.Parallel()
	tests := []struct {
		variable string
		got      func(config.Config) string
	}{
		{"NATS_CREDS", func(c config.Config) string { return c.Creds }},
		{"NATS_NKEY", func(c config.Config) string { return c.NKey }},
		{"NATS_USER", func(c config.Config) string { return c.User }},
		{"NATS_TOKEN", func(c config.Config) string { return c.Token.Reveal() }},
		{"NATS_URL", func(c config.Config) string { return c.Server.Reveal() }},
		{"NATS_CA", func(c config.Config) string { return c.TLSCA }},
	}
	for _, tt := range tests {
		var c config.Config
		if err := c.Load(config.Sources{Environ: []string{tt.variable + "=x"}}); err != nil {
			t.Errorf("Load with %s = %v, want nil", tt.variable, err)
		}
		if got := tt.got(c); got != "x" {
			t.Errorf("%s=x gives %q, want x", tt.variable, got)
		}
	}
}

func TestFileErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		text string
		want string // after the path
	}{
		{"unknown key", "ttl: 15s\ncolour: red\n", `:2: unknown key "colour"`},
		{"unknown key near a setting", "drain_timout: 3s\n", `:1: unknown key "drain_timout", did you mean "drain-timeout"?`},
		{"camel case", "logLevel: debug\n", `:1: unknown key "logLevel", did you mean "log-level"?`},
		{"nested", "nats:\n  server: a\n", `:1: unknown key "nats"`},
		{"twice", "ttl: 15s\nttl: 16s\n", `:2: mapping key "ttl" already defined at [1:1]`},
		{"no value", "ttl:\n", ":1: ttl: have nothing, want a plain value, or no such line for the default"},
		{"empty value", `ttl: ""`, `:1: ttl: have "", want a plain value, or no such line for the default`},
		{"mapping as value", "\nttl: {a: b}\n", ":2: ttl: have a YAML mapping, want a plain value, or no such line for the default"},
		{"alias as value", "bucket: &a x\nid: *a\n", ":1: bucket: have a YAML anchor, want a plain value, or no such line for the default"},
		{"empty list", "partitions: []", ":1: partitions: have an empty list, want a plain value, or no such line for the default"},
		{"number without unit", "ttl: 15", `:1: ttl: have "15", want a duration such as 15s`},
		{"fraction", "ttl: 2500ms", ":1: ttl: have 2.5s, want whole seconds, at least 2s"},
		{"no build", "build: -1", `:1: build: have "-1", want a whole number, 0 or more`},
		{"no weight", "weight: 0", `:1: weight: have 0, want 1 to 65536`},
		{"no number", "workers: many", `:1: workers: have "many", want a whole number`},
		{"list at the top", "- ttl", ":1: have a YAML sequence, want lines of the form name: value"},
		{"two documents", "ttl: 15s\n---\nttl: 16s\n", ": have 2 YAML documents, want one"},
		{"no YAML", "ttl: 15s\n\tx", ":2: found character '\t' that cannot start any token"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			file := write(t, tt.text)
			err := new(config.Config).Load(config.Sources{File: file})
			if !errors.Is(err, config.ErrInvalid) {
				t.Fatalf("Load = %v, want %v", err, config.ErrInvalid)
			}
			got := strings.TrimPrefix(err.Error(), config.ErrInvalid.Error()+": ")
			if got != file+tt.want {
				t.Errorf("Load = %s, want %s", got, file+tt.want)
			}
		})
	}
}

func TestMissingFileIsAnError(t *testing.T) {
	t.Parallel()
	err := new(config.Config).Load(config.Sources{File: filepath.Join(t.TempDir(), "none.yaml")})
	if !errors.Is(err, config.ErrInvalid) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Load = %v, want %v and %v", err, config.ErrInvalid, os.ErrNotExist)
	}
}

func TestUnknownKeyErrorCarriesThePlace(t *testing.T) {
	t.Parallel()
	file := write(t, "# comment\n\nbuckets: x\n")
	err := new(config.Config).Load(config.Sources{File: file})
	unknown, ok := errors.AsType[*config.UnknownKeyError](err)
	if !ok || *unknown != (config.UnknownKeyError{File: file, Line: 3, Key: "buckets", Near: "bucket"}) {
		t.Errorf("Load = %#v, want the place of buckets", err)
	}
}

func TestListsInTheFile(t *testing.T) {
	t.Parallel()
	tests := []struct {
		text string
		want []string
	}{
		{"partitions: 3", []string{"0", "1", "2"}},
		{"partitions: [eu, us]", []string{"eu", "us"}},
		{"partitions:\n- eu\n- us\n", []string{"eu", "us"}},
		{"partitions: ['5']", []string{"5"}},
		{"partitions: 'a, b'", []string{"a", "b"}},
		{"partitions: ä b", []string{"ä b"}},
	}
	for _, tt := range tests {
		c := load(t, tt.text)
		if got, err := c.Names(); err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("Names of %q = %q, %v, want %q", tt.text, got, err, tt.want)
		}
	}
	c := load(t, "server: [nats://a:1, nats://b:2]\n")
	if got, want := c.Server.Reveal(), "nats://a:1,nats://b:2"; got != want {
		t.Errorf("server = %s, want %s", got, want)
	}
}

func TestSettingErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		environ string
		want    string
	}{
		{"TENURE_TTL=0s", "TENURE_TTL: have 0s, want whole seconds, at least 2s"},
		{"TENURE_TTL=0", "TENURE_TTL: have 0s, want whole seconds, at least 2s"},
		{"TENURE_TTL=-15s", "TENURE_TTL: have -15s, want whole seconds, at least 2s"},
		{"TENURE_TTL=500ms", "TENURE_TTL: have 500ms, want whole seconds, at least 2s"},
		{"TENURE_TTL=1.5s", "TENURE_TTL: have 1.5s, want whole seconds, at least 2s"},
		{"TENURE_TTL=1s", "TENURE_TTL: have 1s, want whole seconds, at least 2s"},
		{"TENURE_TTL=soon", `TENURE_TTL: have "soon", want a duration such as 15s`},
		{"TENURE_RENEWALS=1", "TENURE_RENEWALS: have 1, want at least 2"},
		{"TENURE_MARGIN=-1s", "TENURE_MARGIN: have -1s, want more than 0s"},
		{"TENURE_CONNECT_TIMEOUT=0s", "TENURE_CONNECT_TIMEOUT: have 0s, want more than 0s"},
		{"TENURE_DRAIN_TIMEOUT=0s", "TENURE_DRAIN_TIMEOUT: have 0s, want more than 0s"},
		{"TENURE_BUCKET=a.b", `TENURE_BUCKET: have "a.b", want 1 to 200 letters, digits, '-' and '_'`},
		{"TENURE_LOG_LEVEL=loud", `TENURE_LOG_LEVEL: have "loud", want debug, info, warn or error`},
		{"TENURE_LOG_FORMAT=xml", `TENURE_LOG_FORMAT: have "xml", want auto, text or json`},
		{"TENURE_RESTART=maybe", `TENURE_RESTART: have "maybe", want always, on-failure or never`},
		{"TENURE_MODE=both", `TENURE_MODE: have "both", want ack or offset`},
		{"TENURE_STREAM=ORDERS", "TENURE_STREAM: have one of the two, want stream and filter together"},
		{"TENURE_WORKERS=0", "TENURE_WORKERS: have 0, want 1 to 10000"},
		{"TENURE_PARTITIONS=0", "TENURE_PARTITIONS: have 0, want a number from 1 to 1000000, or names separated by commas"},
		{"TENURE_PARTITIONS=-3", "TENURE_PARTITIONS: have -3, want a number from 1 to 1000000, or names separated by commas"},
		{"TENURE_PARTITIONS=999999999", "TENURE_PARTITIONS: have 999999999, want a number from 1 to 1000000, or names separated by commas"},
		{"TENURE_PARTITIONS=a,,b", `TENURE_PARTITIONS: have an empty name in "a,,b", want a number from 1 to 1000000, or names separated by commas`},
		{"TENURE_PARTITIONS=a,b,a", `TENURE_PARTITIONS: have "a" twice, want names that differ`},
		{"NATS_URL=http://x", `NATS_URL: have scheme http in "http://x", want URLs such as nats://127.0.0.1:4222, separated by commas`},
		{"NATS_URL=nats://a:1,,", `NATS_URL: have no host in "", want URLs such as nats://127.0.0.1:4222, separated by commas`},
		{"NATS_PASSWORD=x", "NATS_PASSWORD: have a password alone, want a user with it"},
		{"NATS_CERT=x", "NATS_CERT: have one of the two, want tlscert and tlskey together"},
		{"TENURE_JS_DOMAIN=a.b", `TENURE_JS_DOMAIN: have "a.b", want one word without dots and wildcards`},
		{"TENURE_JS_API_PREFIX=$JS.*", `TENURE_JS_API_PREFIX: have "$JS.*", want a subject without wildcards, such as $JS.hub.API`},
		{"TENURE_INBOX_PREFIX=_INBOX.", `TENURE_INBOX_PREFIX: have "_INBOX.", want a subject without wildcards, such as _INBOX_app`},
	}
	for _, tt := range tests {
		t.Run(tt.environ, func(t *testing.T) {
			t.Parallel()
			err := new(config.Config).Load(config.Sources{Environ: []string{tt.environ}})
			if _, ok := errors.AsType[*config.SettingError](err); !ok || err.Error() != tt.want {
				t.Errorf("Load = %v, want %s", err, tt.want)
			}
			if !errors.Is(err, config.ErrInvalid) {
				t.Errorf("Load = %v, want it to match %v", err, config.ErrInvalid)
			}
		})
	}
}

func TestRelationsPrintTheInequality(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		environ []string
		want    string
	}{
		{
			"margin too small",
			[]string{"TENURE_MARGIN=1s"},
			"margin >= max(500ms, ttl/10) does not hold: have 1s < max(500ms, 1.5s), want margin of at least 1.5s (TENURE_MARGIN)",
		},
		{
			"margin too large",
			[]string{"TENURE_TTL=3s", "TENURE_MARGIN=2s"},
			"ttl/renewals + 2*min(1s, ttl/6) + margin <= ttl does not hold: have 1s + 2*500ms + 2s > 3s, want a larger ttl, more renewals or a smaller margin (TENURE_TTL, TENURE_MARGIN)",
		},
		{
			"grace longer than the drain",
			[]string{"TENURE_GRACE=31s"},
			"grace <= drain-timeout does not hold: have 31s > 30s, want grace of at most 30s (TENURE_GRACE)",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := new(config.Config).Load(config.Sources{Environ: tt.environ})
			if _, ok := errors.AsType[*config.RelationError](err); !ok || err.Error() != tt.want {
				t.Errorf("Load = %v, want %s", err, tt.want)
			}
		})
	}
}

func TestExclusiveSettings(t *testing.T) {
	t.Parallel()
	tests := []struct {
		environ []string
		want    string
	}{
		{[]string{"NATS_CREDS=a", "NATS_TOKEN=b"}, "NATS_CREDS: have NATS_CREDS and NATS_TOKEN, want one way to authenticate"},
		{[]string{"TENURE_JS_DOMAIN=a", "TENURE_JS_API_PREFIX=b"}, "TENURE_JS_DOMAIN: have TENURE_JS_DOMAIN and TENURE_JS_API_PREFIX, want one of the two"},
		{[]string{"TENURE_STREAM=S", "TENURE_FILTER=a.>"}, `TENURE_FILTER: have "a.>", want {partition} in it, such as orders.{partition}.>`},
	}
	for _, tt := range tests {
		if err := new(config.Config).Load(config.Sources{Environ: tt.environ}); err == nil || err.Error() != tt.want {
			t.Errorf("Load of %q = %v, want %s", tt.environ, err, tt.want)
		}
	}
}

// Every way a value is usually shown, with a secret in every place for one.
func TestSecretsDoNotShow(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	var c config.Config
	err := c.Load(config.Sources{Environ: []string{
		"NATS_USER=joe", "NATS_PASSWORD=" + secret, "NATS_URL=nats://joe:" + secret + "@h:1, nats://" + secret + "@i",
	}})
	if err != nil {
		t.Fatalf("Load = %v, want nil", err)
	}
	if c.Password.Reveal() != secret || !strings.Contains(c.Server.Reveal(), secret) {
		t.Error("Reveal hides the secret, want it")
	}
	if got, want := c.Server.String(), "nats://***@h:1,nats://***@i"; got != want {
		t.Errorf("String = %s, want %s", got, want)
	}
	var logged strings.Builder
	log := slog.New(slog.NewJSONHandler(&logged, nil))
	log.Info("x", slog.Any("password", c.Password), slog.Any("server", c.Server), slog.Any("config", c))
	marshalled, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{
		fmt.Sprint(c), fmt.Sprintf("%+v %#v", c, c), fmt.Sprintf("%s %q %v %x", c.Password, c.Password, &c.Password, c.Password),
		logged.String(), string(marshalled),
	} {
		if strings.Contains(shown, secret) || strings.Contains(shown, fmt.Sprintf("%x", secret)) {
			t.Errorf("shown as %s, want no secret in it", shown)
		}
	}
}

func TestErrorsDoNotShowSecrets(t *testing.T) {
	t.Parallel()
	tests := []config.Sources{
		{Environ: []string{"NATS_URL=nats://joe:hunter2@:bad"}},
		{Environ: []string{"NATS_URL=http://hunter2@h"}},
		{File: write(t, "password: [hunter2]\n")},
		{File: write(t, "password: 'hunter2\n")},
		{File: write(t, "token: {hunter2: x}\n")},
		{File: write(t, "password: hunter2\n\tx: y\n")},
	}
	for _, from := range tests {
		err := new(config.Config).Load(from)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Load = %v, want an error without the secret", err)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("Load = %q, want one line", err)
		}
	}
}

func FuzzFile(f *testing.F) {
	f.Add("ttl: 15s\npartitions: [a, b]\n")
	f.Add("server: |\n  nats://x\n")
	f.Add("? a\n: b\n")
	f.Add("<<: {ttl: 2s}\n")
	f.Add("\"ttl\": 3s\n---\n")
	path := filepath.Join(f.TempDir(), "f.yaml")
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := new(config.Config).Load(config.Sources{File: path})
		if err != nil && (!errors.Is(err, config.ErrInvalid) || strings.ContainsAny(err.Error(), "\n\x00")) {
			t.Errorf("Load = %q, want one line that matches %v", err, config.ErrInvalid)
		}
	})
}

func load(t *testing.T, text string) config.Config {
	t.Helper()
	var c config.Config
	if err := c.Load(config.Sources{File: write(t, text)}); err != nil {
		t.Fatalf("Load of %q = %v, want nil", text, err)
	}
	return c
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tenure.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// What a process hands on to another is what it has itself, secrets included, and
// nothing that stands in the environment before counts.
func TestSettingsGoThroughTheEnvironment(t *testing.T) {
	t.Parallel()
	var c config.Config
	err := c.Load(config.Sources{
		Environ: []string{"NATS_URL=nats://a:b@x:1", "NATS_USER=joe", "NATS_PASSWORD=hunter2", "TENURE_TTL=7s", "TENURE_DRAIN_TIMEOUT=9s", "TENURE_CAPACITY=5"},
		File:    write(t, "bucket: other\nfilter: 'o.{partition}.>'\nstream: O\n"),
	})
	if err != nil {
		t.Fatal(err)
	}
	var got config.Config
	environ := append([]string{"NATS_CREDS=/no/such/file", "TENURE_CONFIG=/no/such/file", "TENURE_ZONE=z"}, c.Environ()...)
	if err := got.Load(config.Sources{Environ: environ}); err != nil {
		t.Fatalf("Load = %v, want nil", err)
	}
	if got.Connection != c.Connection || got.Lease != c.Lease || got.Pool != c.Pool || got.Log != c.Log {
		t.Errorf("Load of Environ gives %+v, want %+v", got, c)
	}
	if got.Password.Reveal() != "hunter2" || got.Bucket != "other" {
		t.Errorf("password and bucket = %q, %q, want what was given", got.Password.Reveal(), got.Bucket)
	}
}
