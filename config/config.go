package config

import (
	"strconv"
	"strings"
	"time"
)

// A Config holds every setting of the program. Fill it with [Config.Load], which
// also validates it.
//
// The sections are what commands pick their flags from. A Config may be copied,
// and must not be changed while it is in use.
type Config struct {
	Connection
	Log
	Lease
	Pool
	Admin

	// origins says by setting where its value stands, for errors.
	origins map[string]string
}

// Connection says which NATS to talk to, as whom, and which bucket to use.
type Connection struct {
	Server         Servers       `name:"server" environ:"NATS_URL" group:"Connection:" placeholder:"URL" help:"NATS servers, separated by commas; nats://127.0.0.1:4222 if none is named."`
	Creds          string        `name:"creds" environ:"NATS_CREDS" group:"Connection:" placeholder:"FILE" help:"Credentials file."`
	NKey           string        `name:"nkey" environ:"NATS_NKEY" group:"Connection:" placeholder:"FILE" help:"NKey seed file."`
	User           string        `name:"user" environ:"NATS_USER" group:"Connection:" placeholder:"NAME" help:"User name."`
	Password       Secret        `name:"password" environ:"NATS_PASSWORD" group:"Connection:" placeholder:"TEXT" help:"Password of the user."`
	Token          Secret        `name:"token" environ:"NATS_TOKEN" group:"Connection:" placeholder:"TEXT" help:"Authentication token."`
	TLSCA          string        `name:"tlsca" environ:"NATS_CA" group:"Connection:" placeholder:"FILE" help:"Certificate authority that the server's certificate must come from."`
	TLSCert        string        `name:"tlscert" environ:"NATS_CERT" group:"Connection:" placeholder:"FILE" help:"Client certificate."`
	TLSKey         string        `name:"tlskey" environ:"NATS_KEY" group:"Connection:" placeholder:"FILE" help:"Private key of the client certificate."`
	JSDomain       string        `name:"js-domain" environ:"TENURE_JS_DOMAIN" group:"Connection:" placeholder:"NAME" help:"JetStream domain."`
	JSAPIPrefix    string        `name:"js-api-prefix" environ:"TENURE_JS_API_PREFIX" group:"Connection:" placeholder:"SUBJECT" help:"Subject prefix of the JetStream API."`
	InboxPrefix    string        `name:"inbox-prefix" environ:"TENURE_INBOX_PREFIX" group:"Connection:" placeholder:"SUBJECT" help:"Subject prefix of inboxes."`
	ConnectTimeout time.Duration `name:"connect-timeout" environ:"TENURE_CONNECT_TIMEOUT" group:"Connection:" default:"10s" placeholder:"DURATION" help:"How long to try to reach a server."`
	Bucket         string        `name:"bucket" environ:"TENURE_BUCKET" group:"Connection:" default:"tenure" placeholder:"NAME" help:"KV bucket that everything is kept in."`
}

// Log says what is logged and how.
type Log struct {
	Level  string `name:"log-level" environ:"TENURE_LOG_LEVEL" group:"Logging:" default:"info" placeholder:"LEVEL" help:"Least level that is logged: debug, info, warn or error."`
	Format string `name:"log-format" environ:"TENURE_LOG_FORMAT" group:"Logging:" default:"auto" placeholder:"FORMAT" help:"text, json, or auto: text on a terminal, JSON elsewhere."`

	// NoColor is set by a NO_COLOR in the environment that is not empty.
	NoColor bool `kong:"-"`
}

// Lease says how holds are kept.
type Lease struct {
	TTL      time.Duration `name:"ttl" environ:"TENURE_TTL" group:"Lease:" default:"15s" placeholder:"DURATION" help:"After what time a dead holder's hold is free: whole seconds, at least 2s."`
	Margin   time.Duration `name:"margin" environ:"TENURE_MARGIN" group:"Lease:" placeholder:"DURATION" help:"How long before the server a holder stops believing; 500ms or a tenth of the TTL, the larger, if not given."`
	Renewals int           `name:"renewals" environ:"TENURE_RENEWALS" group:"Lease:" default:"3" placeholder:"N" help:"Renewals within one TTL, at least 2."`
}

// Pool says what a pool of workers runs.
type Pool struct {
	Partitions   string        `name:"partitions" environ:"TENURE_PARTITIONS" group:"Pool:" placeholder:"N" help:"Number of partitions, or their names separated by commas."`
	ID           string        `name:"id" environ:"TENURE_ID" group:"Pool:" placeholder:"ID" help:"Name of this worker, stable over restarts; made up if not given."`
	Workers      int           `name:"workers" environ:"TENURE_WORKERS" group:"Pool:" default:"1" placeholder:"K" help:"Workers in this process."`
	Capacity     int           `name:"capacity" environ:"TENURE_CAPACITY" group:"Pool:" placeholder:"N" help:"Most partitions of a worker; no limit if not given."`
	Weight       int           `name:"weight" environ:"TENURE_WEIGHT" group:"Pool:" default:"1" placeholder:"N" help:"A worker's share beside others."`
	Zone         string        `name:"zone" environ:"TENURE_ZONE" group:"Pool:" placeholder:"NAME" help:"Zone that the workers are in; see tenure group policy."`
	Build        uint64        `name:"build" environ:"TENURE_BUILD" group:"Pool:" placeholder:"N" help:"Number of the build, larger for a newer one; see tenure group policy."`
	DrainTimeout time.Duration `name:"drain-timeout" environ:"TENURE_DRAIN_TIMEOUT" group:"Pool:" default:"30s" placeholder:"DURATION" help:"How long a partition may take to finish when it has to go."`
	Grace        time.Duration `name:"grace" environ:"TENURE_GRACE" group:"Pool:" placeholder:"DURATION" help:"From SIGTERM to SIGKILL for a child; 10s or half of the drain timeout, the smaller, if not given."`
	Restart      string        `name:"restart" environ:"TENURE_RESTART" group:"Pool:" default:"always" placeholder:"WHEN" help:"When an ended command is started again: always, on-failure or never."`
	Stream       string        `name:"stream" environ:"TENURE_STREAM" group:"Pool:" placeholder:"STREAM" help:"Run the command once per message of this stream."`
	Filter       string        `name:"filter" environ:"TENURE_FILTER" group:"Pool:" placeholder:"SUBJECT" help:"Subjects of a partition, with {partition} in it."`
	Mode         string        `name:"mode" environ:"TENURE_MODE" group:"Pool:" default:"ack" placeholder:"MODE" help:"How the position in the stream is kept: ack or offset."`
	Store        string        `name:"store" environ:"TENURE_STORE" group:"Pool:" placeholder:"DIR" help:"Store of the embedded server that runs if no server is named."`
}

// maxPartitions bounds what is expanded here; it is also what a group can have.
const maxPartitions = 1_000_000

// Names returns the names of the partitions: 0 to n-1 for a number n, else those
// of the list.
func (p *Pool) Names() ([]string, error) {
	names, err := p.names()
	if err != nil {
		return nil, err
	}
	return names, nil
}

func (p *Pool) names() ([]string, *SettingError) {
	invalid := func(have, want string) ([]string, *SettingError) {
		return nil, &SettingError{Setting: "partitions", Have: have, Want: want}
	}
	const number = "a number from 1 to 1000000, or names separated by commas"
	if n, err := strconv.Atoi(p.Partitions); err == nil {
		if n < 1 || n > maxPartitions {
			return invalid(p.Partitions, number)
		}
		names := make([]string, n)
		for i := range names {
			names[i] = strconv.Itoa(i)
		}
		return names, nil
	}
	if p.Partitions == "" {
		return invalid("none", number)
	}
	// One comma at the end makes a list of a single name that is a number.
	names := strings.Split(strings.TrimSuffix(p.Partitions, ","), ",")
	if len(names) > maxPartitions {
		return invalid(strconv.Itoa(len(names))+" names", number)
	}
	seen := make(map[string]bool, len(names))
	for i, name := range names {
		name = strings.TrimSpace(name)
		if name == "" {
			return invalid("an empty name in "+strconv.Quote(short(p.Partitions)), number)
		}
		if seen[name] {
			return invalid(strconv.Quote(name)+" twice", "names that differ")
		}
		seen[name], names[i] = true, name
	}
	return names, nil
}

// Login returns a setting that is given and makes sense only with a server of
// one's own, as it is called where it stands, empty if there is none.
func (c *Config) Login() string {
	for _, s := range []struct {
		name, value string
	}{
		{"creds", c.Creds},
		{"nkey", c.NKey},
		{"user", c.User},
		{"token", c.Token.Reveal()},
		{"tlsca", c.TLSCA},
		{"tlscert", c.TLSCert},
		{"js-domain", c.JSDomain},
		{"js-api-prefix", c.JSAPIPrefix},
	} {
		if s.value != "" {
			return c.place(s.name)
		}
	}
	return ""
}

// ChildGrace returns how long a child has from SIGTERM to SIGKILL.
func (p *Pool) ChildGrace() time.Duration {
	if p.Grace != 0 {
		return p.Grace
	}
	return min(10*time.Second, p.DrainTimeout/2)
}

// LeaseMargin returns how long before the server a holder stops believing.
func (l *Lease) LeaseMargin() time.Duration {
	if l.Margin != 0 {
		return l.Margin
	}
	return l.leastMargin()
}

func (l *Lease) leastMargin() time.Duration { return max(500*time.Millisecond, l.TTL/10) }

// short returns a text that fits into an error of one line.
func short(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
