package claim

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"tenure/kvlock/bucket"
)

// Workers talk to each other over core NATS. Every message is a hint: losing all
// of them costs time, never safety, and none is believed without reading or
// writing the claim itself.

const (
	offerWait = 250 * time.Millisecond // silence for so long means: do not move
	pollPause = time.Second            // how often a claim that should come is looked at without a hint
)

// Kinds of messages.
const (
	opOffer = "offer" // may I hand this partition to you? answered
	opYours = "yours" // the claim names you since this revision
	opYield = "yield" // the plan gives me a partition whose claim names you
)

type message struct {
	Op        string `json:"op"`
	Partition string `json:"partition"`
	Revision  uint64 `json:"revision,omitempty"`
}

// subject is where the session with the given epoch listens. It names the epoch,
// so that nobody speaks to a later life of a worker by mistake.
func (c *Claimer) subject(worker string, epoch uint64) (string, error) {
	id, err := bucket.EncodeName(worker)
	if err != nil {
		return "", err
	}
	return "_tenure." + c.bucket.Name() + ".claim." + c.g + "." + id + "." + strconv.FormatUint(epoch, 10), nil
}

// listen serves the messages of other workers until the returned function is
// called.
func (c *Claimer) listen(sess *session) (stop func(), err error) {
	subject, err := c.subject(c.id, sess.epoch)
	if err != nil {
		return nil, err
	}
	sub, err := c.bucket.JetStream().Conn().Subscribe(subject, func(m *nats.Msg) { c.hear(sess, m) })
	if err != nil {
		return nil, err
	}
	return func() { _ = sub.Unsubscribe() }, nil // fails only if the connection is gone
}

func (c *Claimer) hear(sess *session, m *nats.Msg) {
	var msg message
	if err := json.Unmarshal(m.Data, &msg); err != nil {
		c.log.WarnContext(sess.ctx, "message that is none of ours", slog.String("subject", m.Subject), slog.Any("err", err))
		return
	}
	switch msg.Op {
	case opOffer:
		answer := "yes"
		if stopping, _ := c.stopping(); stopping || sess.over() {
			answer = "no"
		}
		_ = m.Respond([]byte(answer)) // if it gets lost, it is asked again
	case opYours, opYield:
		c.hint(msg.Partition, msg.Revision)
	}
}

// offer asks a session whether it is there to take a partition (rule C4).
func (c *Claimer) offer(ctx context.Context, worker string, epoch uint64, partition string) bool {
	subject, err := c.subject(worker, epoch)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, offerWait)
	defer cancel()
	m, err := c.bucket.JetStream().Conn().RequestWithContext(ctx, subject, encode(message{Op: opOffer, Partition: partition}))
	if err != nil && !errors.Is(err, nats.ErrNoResponders) && !errors.Is(err, context.DeadlineExceeded) {
		c.log.DebugContext(ctx, "offer", slog.String("partition", partition), slog.Any("err", err))
	}
	return err == nil && string(m.Data) == "yes"
}

// tell sends a hint.
func (c *Claimer) tell(worker string, epoch uint64, msg message) {
	if subject, err := c.subject(worker, epoch); err == nil {
		_ = c.bucket.JetStream().Conn().Publish(subject, encode(msg)) // a hint may get lost
	}
}
