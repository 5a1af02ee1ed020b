package worker

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// recovery is how long to wait before a consumer that cannot be looked at or
// made is tried again.
var recovery = Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}

// read handles messages until the partition drains or the hold ends.
func (h *hold) read(ctx, soft context.Context) error {
	for {
		from := h.readOwn
		if h.seat != nil {
			from = h.readShared
		}
		if err := from(ctx, soft); err != nil {
			return err
		}
	}
}

// readShared handles messages as long as the partition has a seat in a shared
// consumer.
func (h *hold) readShared(ctx, soft context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	moving := h.seat.share.moving
	for h.seat != nil {
		h.saveIfDue(soft)
		wait := time.Hour
		if h.floor != h.saved {
			wait = time.Until(h.savedAt.Add(h.saveEvery))
		}
		timer.Reset(max(wait, 0))
		var ready <-chan struct{}
		if h.next != nil {
			ready = h.next.share.ready
		}
		select {
		case <-soft.Done():
			return context.Cause(soft)
		case <-timer.C:
		case <-moving:
			moving = nil
			h.next = h.s.hub.join(soft, h)
		case <-ready:
			if h.next.share.err != nil {
				h.leaveNext()
			} else if err := h.change(soft); err != nil && soft.Err() == nil {
				h.log.WarnContext(ctx, "stays with the consumer it has", slog.Any("err", err))
			} else if err == nil {
				moving = h.seat.share.moving
			}
		case <-h.seat.full:
			h.log.DebugContext(ctx, "too slow for the shared consumer", slog.Uint64("position", h.floor))
			h.lone = true
			if err := h.regain(ctx, soft); err != nil {
				return err
			}
		case <-h.seat.share.ended:
			h.brief = true
			if err := h.regain(ctx, soft); err != nil {
				return err
			}
			if h.seat != nil {
				moving = h.seat.share.moving
			}
		case l := <-h.seat.msgs:
			h.seat.took()
			if soft.Err() != nil {
				return context.Cause(soft)
			}
			if l.m == nil {
				h.pass(l.quiet)
			} else if err := h.deliver(ctx, soft, l.m, l.meta); err != nil {
				return err
			}
			h.seat.at.Store(h.floor)
		}
	}
	return nil
}

// pass takes notice that there is nothing for the partition up to the sequence. It
// is not worth a save by itself.
func (h *hold) pass(sequence uint64) {
	if sequence <= h.floor {
		return
	}
	if h.floor == h.saved {
		h.saved = sequence
	}
	h.floor = sequence
}

// regain reads on from the floor elsewhere, however often it takes.
func (h *hold) regain(ctx, soft context.Context) error {
	for {
		err := h.renew(soft)
		if err == nil {
			h.fails, h.brief = 0, false
			return nil
		}
		if soft.Err() != nil {
			return context.Cause(soft)
		}
		h.fails++
		wait := recovery.after(h.fails)
		h.log.WarnContext(ctx, "cannot read on", slog.Duration("again_in", wait), slog.Any("err", err))
		if !pause(ctx, h.p, wait) {
			return stopped(ctx)
		}
	}
}

// readOwn handles messages as long as the partition has a consumer of its own.
func (h *hold) readOwn(ctx, soft context.Context) error {
	nc := h.s.JS.Conn()
	connected := nc.StatusChanged(nats.CONNECTED)
	defer nc.RemoveStatusListener(connected)
	timer := time.NewTimer(0)
	defer timer.Stop()

	for h.seat == nil {
		if soft.Err() != nil {
			return context.Cause(soft)
		}
		if h.doubt && len(h.feed.msgs) == 0 && time.Until(h.after) <= 0 {
			h.examine(soft)
			continue
		}
		if !h.doubt {
			if err := h.feed.ask(); err != nil {
				h.suspect(recovery.Min) // not connected; if nothing else, time will tell
			}
		}
		h.saveIfDue(soft)
		timer.Reset(h.nextLook())

		select {
		case <-soft.Done():
		case <-timer.C:
			if !h.doubt && h.feed.silent() && len(h.feed.msgs) == 0 {
				h.suspect(0)
			}
		case <-connected:
			// What was on its way when the connection broke is lost, and nothing
			// may follow that would show it.
			h.fails = 0
			h.suspect(0)
		case m := <-h.feed.msgs:
			if soft.Err() != nil {
				return context.Cause(soft)
			}
			if err := h.receive(ctx, soft, m); err != nil {
				return err
			}
		}
	}
	return nil
}

// nextLook returns how long read may sleep if nothing happens.
func (h *hold) nextLook() time.Duration {
	next := time.Hour
	if h.doubt { // silence says nothing new
		next = min(next, time.Until(h.after))
	} else if at, ok := h.feed.silentUntil(); ok {
		next = min(next, time.Until(at))
	}
	if h.floor != h.saved {
		next = min(next, time.Until(h.savedAt.Add(h.saveEvery)))
	}
	return max(next, 0)
}

// suspect has the consumer looked at, after a while.
func (h *hold) suspect(wait time.Duration) {
	h.doubt, h.after = true, time.Now().Add(wait)
}

// receive does what the message from the server asks for.
func (h *hold) receive(ctx, soft context.Context, m *nats.Msg) error {
	what, meta, err := h.feed.take(m)
	switch what {
	case eventNothing:
		return nil
	case eventMessage:
		if err := h.deliver(ctx, soft, m, meta); err != nil {
			return err
		}
		if meta.NumPending == 0 && time.Since(h.loneAt) > loneWait && h.s.hub.wants(h) {
			h.lone = false
			h.reopen(soft)
		}
	case eventGap:
		h.log.WarnContext(ctx, "message lost on the way, reading again from the position",
			slog.Uint64("position", h.floor), slog.Uint64("sequence", meta.Sequence.Stream))
		h.reopen(soft)
	case eventGone:
		h.log.WarnContext(ctx, "consumer is gone, reading again from the position", slog.Uint64("position", h.floor))
		h.reopen(soft)
	case eventDoubt:
		h.suspect(0)
	case eventPause:
		h.log.DebugContext(ctx, "server sends no messages", slog.Any("err", err))
		h.suspect(time.Second)
	}
	return nil
}

// deliver handles the next message of the partition, however often it takes.
func (h *hold) deliver(ctx, soft context.Context, m *nats.Msg, meta *nats.MsgMetadata) error {
	if meta.Sequence.Stream <= h.floor {
		h.acknowledge(ctx, m) // a copy
		return nil
	}
	retry := h.s.Retry.or(retryWaitMin, retryWaitMax)
	message := Message{
		Subject: m.Subject, Sequence: meta.Sequence.Stream, Header: m.Header, Data: m.Data, Time: meta.Timestamp,
	}
	for {
		for h.p.Remaining() <= 0 { // not ours to start, unless a renewal still comes
			if !pause(ctx, h.p, trustLook) {
				return stopped(ctx)
			}
		}
		message.Delivered++
		given := message // the handler may keep and change it
		err := h.s.Handle(ctx, h.p, &given)
		if err == nil {
			break
		}
		if soft.Err() != nil {
			return context.Cause(soft)
		}
		wait := retry.after(message.Delivered)
		h.log.WarnContext(ctx, "message not handled", slog.Uint64("sequence", message.Sequence),
			slog.Int("delivered", message.Delivered), slog.Duration("again_in", wait), slog.Any("err", err))
		if !pause(ctx, h.p, wait) {
			return stopped(ctx)
		}
	}
	h.floor = message.Sequence
	h.unsaved++
	h.acknowledge(ctx, m)
	return nil
}

// stopped returns why a wait was given up.
func stopped(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errDraining
}

// saveIfDue saves the position when it is time to. If it cannot, it will be tried
// again later; if that is since the hold has ended, the context says so.
func (h *hold) saveIfDue(ctx context.Context) {
	if h.floor == h.saved || h.unsaved < h.saveAfter && time.Since(h.savedAt) < h.saveEvery {
		return
	}
	if h.p.Remaining() <= 0 {
		h.savedAt, h.unsaved = time.Now(), 0
		return
	}
	saving, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	if err := h.save(saving, h.consumer()); err != nil && ctx.Err() == nil {
		h.log.WarnContext(ctx, "position not saved", slog.Uint64("position", h.floor), slog.Any("err", err))
	}
}

// examine looks whether the consumer is there and has sent nothing that did not
// come here, and makes it anew otherwise.
func (h *hold) examine(ctx context.Context) {
	if h.adrift {
		h.reopen(ctx)
		return
	}
	info, err := h.consumerInfo(ctx, h.name, glance)
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		h.log.WarnContext(ctx, "consumer is gone, reading again from the position", slog.Uint64("position", h.floor))
		h.reopen(ctx)
	case err != nil:
		if h.lostWithServer(ctx) {
			h.log.WarnContext(ctx, "consumer does not answer, reading again from the position",
				slog.Uint64("position", h.floor), slog.Any("err", err))
			h.brief = true
			h.reopen(ctx)
			return
		}
		h.fails++
		h.log.DebugContext(ctx, "consumer does not answer", slog.Int("times", h.fails), slog.Any("err", err))
		h.suspect(recovery.after(h.fails))
	case info.Delivered.Consumer == h.feed.last:
		h.doubt, h.fails = false, 0
		h.feed.forget()
	case info.Delivered.Consumer == h.seen:
		h.log.WarnContext(ctx, "messages lost on the way, reading again from the position", slog.Uint64("position", h.floor))
		h.reopen(ctx)
	default: // perhaps still on the way
		h.seen = info.Delivered.Consumer
		h.suspect(lateness)
	}
}

// reopen makes the consumer anew and reads on from the floor. If it cannot, it
// will be tried again.
func (h *hold) reopen(ctx context.Context) {
	err := h.renew(ctx)
	if err == nil {
		h.fails, h.brief = 0, false
		return
	}
	if ctx.Err() == nil {
		h.fails++
		wait := recovery.after(h.fails)
		if h.brief = h.brief && h.fails < 6; h.brief {
			wait = recovery.after(1)
		}
		h.log.WarnContext(ctx, "cannot read on", slog.Duration("again_in", wait), slog.Any("err", err))
		h.suspect(wait)
	}
}

// renew begins again, in a stream that may have been made anew.
func (h *hold) renew(ctx context.Context) error {
	if h.feed != nil {
		h.feed.drop()
	}
	h.adrift = true
	if h.p.Remaining() <= 0 {
		return errors.New("hold cannot be trusted")
	}
	info, err := h.s.look(ctx)
	if err != nil {
		return err
	}
	if made(info.Created) != h.made {
		h.log.WarnContext(ctx, "stream was made anew, partition begins anew")
		h.made, h.floor = made(info.Created), 0
	}
	h.clamp(ctx, info)
	return h.begin(ctx)
}
