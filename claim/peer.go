package claim

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"tenure/kvlock/bucket"
)

// Workers talk to each other over core NATS. Every message is a hint: losing all
// of them costs time, never safety, and none is believed without reading or
// writing the claim itself.

const (
	offerWait = 250 * time.Millisecond // silence for so long means: do not move
	offerSoon = 100 * time.Millisecond // after that the offer is made again, later and later
	pollPause = time.Second            // how often a claim that should come is looked at without a hint
)

// Kinds of messages.
const (
	opPing  = "ping"  // are messages allowed and delivered? answered
	opOffer = "offer" // may I hand this partition to you? answered
	opYours = "yours" // the claim names you since this revision
	opYield = "yield" // the plan gives me a partition whose claim names you
	opLook  = "look"  // somebody else has written over the claim that named you
)

type message struct {
	Op        string `json:"op"`
	Partition string `json:"partition"`
	Revision  uint64 `json:"revision,omitempty"` // of the claim; in an offer, of the plan
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

// offerPause returns the pause after so many offers that were not answered before.
func offerPause(silent int) time.Duration {
	return min(offerSoon<<min(silent, 10), pollPause)
}

// listen serves the messages of other workers until the returned function is
// called. It makes sure, by a message to itself, that the server does not deny them:
// nothing would ever move.
func (c *Claimer) listen(sess *session) (stop func(), err error) {
	subject, err := c.subject(c.id, sess.epoch)
	if err != nil {
		return nil, err
	}
	sub, err := c.bucket.JetStream().Conn().Subscribe(subject, func(m *nats.Msg) { c.hear(sess, m) })
	if err != nil {
		return nil, err
	}
	stop = func() { _ = sub.Unsubscribe() } // fails only if the connection is gone
	for range 3 {                           // the server may not know the subscription yet, or is being restarted
		ctx, cancel := context.WithTimeout(sess.ctx, offerWait)
		_, err := c.bucket.JetStream().Conn().RequestWithContext(ctx, subject, encode(message{Op: opPing}))
		cancel()
		if err == nil {
			break
		}
		if denied := denied(c.bucket.JetStream().Conn(), subject); denied != nil {
			stop()
			return nil, denied
		}
	}
	return stop, nil
}

// denied returns a permission error if the server's last complaint was about the
// subject, on either side, or about an inbox, where answers go.
func denied(nc *nats.Conn, subject string) error {
	err := nc.LastError()
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return nil
	}
	_, said, _ := strings.Cut(err.Error(), `"`)
	said, _, _ = strings.Cut(said, `"`)
	if said == subject || strings.HasPrefix(said, nc.Opts.InboxPrefix+".") || strings.HasPrefix(said, nats.InboxPrefix) {
		return &bucket.PermissionError{Subject: said, Err: err}
	}
	return nil
}

func (c *Claimer) hear(sess *session, m *nats.Msg) {
	var msg message
	if err := json.Unmarshal(m.Data, &msg); err != nil {
		c.log.WarnContext(sess.ctx, "message that is none of ours", slog.String("subject", m.Subject), slog.Any("err", err))
		return
	}
	switch msg.Op {
	case opPing:
		_ = m.Respond([]byte("pong")) // if it gets lost, it is asked again
	case opOffer:
		answer := "yes"
		if stopping, _ := c.stopping(); stopping || sess.over() || c.isBusy(msg.Partition) {
			answer = "no"
		} else {
			c.prepare(sess, msg.Partition, msg.Revision)
		}
		_ = m.Respond([]byte(answer)) // if it gets lost, it is asked again
	case opYours, opYield:
		c.hint(msg.Partition, msg.Revision)
	case opLook:
		c.mu.Lock()
		s := c.slots[msg.Partition]
		c.mu.Unlock()
		if s == nil {
			return
		}
		if h := s.holding.Load(); h != nil && h.looks.CompareAndSwap(false, true) {
			go h.look()
		}
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
	_, plan, _ := c.followed(partition)
	m, err := c.bucket.JetStream().Conn().RequestWithContext(ctx, subject, encode(message{Op: opOffer, Partition: partition, Revision: plan}))
	if err != nil && !errors.Is(err, nats.ErrNoResponders) && !errors.Is(err, context.DeadlineExceeded) {
		c.log.DebugContext(ctx, "offer", slog.String("partition", partition), slog.Any("err", err))
	}
	return err == nil && string(m.Data) == "yes"
}

// announce tells a session that it is about to be handed a partition, without asking.
func (c *Claimer) announce(worker string, epoch uint64, partition string) {
	_, plan, _ := c.followed(partition)
	c.tell(worker, epoch, message{Op: opOffer, Partition: partition, Revision: plan})
}

// tell sends a hint.
func (c *Claimer) tell(worker string, epoch uint64, msg message) {
	if subject, err := c.subject(worker, epoch); err == nil {
		_ = c.bucket.JetStream().Conn().Publish(subject, encode(msg)) // a hint may get lost
	}
}
