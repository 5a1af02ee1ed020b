package worker

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

// A Message is one message of a stream, handed to the handler of a [Stream].
type Message struct {
	Subject   string
	Sequence  uint64 // in the stream
	Delivered int    // attempts of this hold to handle it, this one included
	Header    nats.Header
	Data      []byte
	Time      time.Time // when it was stored
}

// errNotStarted reports that a command was not started for a message, since the
// partition is to be handed over.
var errNotStarted = errors.New("worker: not started, the partition drains")

// CommandHandler returns a handler that runs c once per message. The payload is
// its standard input, and it is told TENURE_SUBJECT, TENURE_SEQ, TENURE_DELIVERED
// and the headers as TENURE_HEADER_<NAME> (upper case, anything but letters and
// digits replaced by "_"), beside what every [Command] is told.
//
// Exit code 0 acknowledges the message; after anything else it is handled again.
// On a drain a running command may finish, as long as the hold's context lasts.
// The fields of c that are about restarting are not used.
func CommandHandler(c *Command) func(ctx context.Context, p Partition, m *Message) error {
	return func(ctx context.Context, p Partition, m *Message) error {
		trust := &vigil{p: p, grace: c.grace()}
		if !trust.await(ctx) {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return errNotStarted
		}
		end, err := c.once(ctx, trust, nil, bytes.NewReader(m.Data), messageEnviron(m))
		if end == endOrder {
			return context.Cause(ctx)
		}
		return err
	}
}
