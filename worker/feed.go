package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	minHeartbeat = 100 * time.Millisecond
	pullExpires  = 30 * time.Second
)

// A feed takes the messages of one consumer as the server sends them, and asks
// for more. It sees everything that can go wrong on the way and says so; what to
// do about it is the hold's affair.
//
// It speaks the pull protocol itself, since the reader wants to wait for messages,
// the drain, the connection and its timers in one place, in one goroutine, for a
// thousand partitions.
type feed struct {
	nc        *nats.Conn
	consumer  string
	subject   string // of pull requests
	batch     int    // messages asked for ahead, at most
	heartbeat time.Duration

	sub  *nats.Subscription
	msgs chan *nats.Msg

	queued int // messages taken from here that wait elsewhere

	last  uint64    // consumer sequence of the last message seen
	want  int       // asked for and not sent yet
	heard time.Time // when something last came
}

// An event is what a message from the server means.
type event int

const (
	eventNothing event = iota // a heartbeat, or the end of a request
	eventMessage              // the next message of the partition
	eventGap                  // a message, but not the next one: something was lost
	eventGone                 // the consumer is deleted
	eventDoubt                // something happened to the consumer: look at it
	eventPause                // the server cannot, for now
)

// openFeed begins to read the consumer, which must be new.
func openFeed(js jetstream.JetStream, stream, consumer string, batch int, heartbeat time.Duration) (*feed, error) {
	f := &feed{
		nc:        js.Conn(),
		consumer:  consumer,
		subject:   apiPrefix(js) + "CONSUMER.MSG.NEXT." + stream + "." + consumer,
		batch:     batch,
		heartbeat: heartbeat,
		heard:     time.Now(),
		// Everything that may be under way at once: what was asked for, twice in
		// case the server forgot the first request, and signs of life.
		msgs: make(chan *nats.Msg, 2*batch+64),
	}
	sub, err := f.nc.ChanSubscribe(f.nc.NewInbox(), f.msgs)
	if err != nil {
		return nil, fmt.Errorf("worker: read consumer %q: %w", consumer, err)
	}
	f.sub = sub
	return f, nil
}

func (f *feed) close() {
	_ = f.sub.Unsubscribe() // fails only if the connection is closed, with the same result
}

// ask keeps enough requests with the server that messages flow, and never more
// than can be kept here. It reports an error when the connection does not take it.
func (f *feed) ask() error {
	n := f.batch - f.want - f.queued - len(f.msgs)
	if n < (f.batch+1)/2 {
		return nil
	}
	request, err := json.Marshal(struct {
		Batch     int           `json:"batch"`
		Expires   time.Duration `json:"expires"`
		Heartbeat time.Duration `json:"idle_heartbeat"`
	}{n, max(pullExpires, 3*f.heartbeat), f.heartbeat})
	if err != nil {
		return err
	}
	if err := f.nc.PublishRequest(f.subject, f.sub.Subject, request); err != nil {
		return err
	}
	if f.want == 0 {
		f.heard = time.Now()
	}
	f.want += n
	return nil
}

// silentUntil returns when the silence of the server becomes suspicious; ok is
// false if nothing was asked for.
func (f *feed) silentUntil() (at time.Time, ok bool) {
	return f.heard.Add(2*f.heartbeat + f.heartbeat/4), f.want > 0
}

// silent reports whether the server's silence is suspicious.
func (f *feed) silent() bool {
	at, ok := f.silentUntil()
	return ok && time.Until(at) <= 0
}

// forget takes all requests for lost, so that the next ask repeats them.
func (f *feed) forget() {
	f.want = 0
	f.heard = time.Now()
}

// take says what m means. meta is set if it is a message of the stream.
func (f *feed) take(m *nats.Msg) (event, *nats.MsgMetadata, error) {
	f.heard = time.Now()
	if status := m.Header.Get("Status"); status != "" && len(m.Data) == 0 && !strings.HasPrefix(m.Reply, "$JS.ACK") {
		return f.status(status, m)
	}
	meta, err := m.Metadata()
	if err != nil {
		return eventNothing, nil, nil // not from the server's JetStream
	}
	f.want = max(f.want-1, 0)
	if meta.Sequence.Consumer != f.last+1 {
		return eventGap, meta, nil
	}
	f.last++
	return eventMessage, meta, nil
}

// status says what a message without content means.
func (f *feed) status(code string, m *nats.Msg) (event, *nats.MsgMetadata, error) {
	text := m.Header.Get("Description")
	switch {
	case code == "100": // heartbeat
		return eventNothing, nil, nil
	case code == "404", code == "408", strings.Contains(text, "Batch Completed"), strings.Contains(text, "MaxBytes"):
		left, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages"))
		if err != nil {
			left = f.want
		}
		f.want = max(f.want-left, 0)
		return eventNothing, nil, nil
	case strings.Contains(text, "Consumer Deleted"):
		return eventGone, nil, nil
	case strings.Contains(text, "Leadership Change"), strings.Contains(text, "Server Shutdown"), code == "503":
		f.want = 0
		return eventDoubt, nil, nil
	default:
		f.want = 0
		return eventPause, nil, errors.New("pull refused: " + code + " " + text)
	}
}

// apiPrefix returns what the subjects of js's requests begin with.
func apiPrefix(js jetstream.JetStream) string {
	options := js.Options()
	switch {
	case options.Domain != "":
		return "$JS." + options.Domain + ".API."
	case options.APIPrefix != "":
		return strings.TrimSuffix(options.APIPrefix, ".") + "."
	}
	return jetstream.DefaultAPIPrefix
}

// drop forgets what came and was not taken: the reading begins again elsewhere.
// What still comes on this way shows a gap.
func (f *feed) drop() {
	for len(f.msgs) > 0 {
		<-f.msgs
	}
	f.want, f.last = 0, 1<<63
}
