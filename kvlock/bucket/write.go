package bucket

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A Write is one guarded write of a key.
type Write struct {
	Key   string
	Value []byte

	// Last is the expected last revision of Key, 0 for no entry, or that of
	// the key Fence if Fence is not empty.
	Last  uint64
	Fence string

	// TTL is how long the entry lives on the server, in whole seconds; 0 means
	// for ever.
	TTL time.Duration

	// Purge leaves a marker in place of a value.
	Purge bool
}

const (
	hdrLast        = "Nats-Expected-Last-Subject-Sequence"
	hdrLastSubject = "Nats-Expected-Last-Subject-Sequence-Subject"
	hdrTTL         = "Nats-TTL"
	hdrRollup      = "Nats-Rollup"
	hdrOperation   = "KV-Operation"
	hdrReason      = "Nats-Marker-Reason"
	hdrBatch       = "Nats-Batch-Id"
	hdrBatchSeq    = "Nats-Batch-Sequence"
	hdrBatchCommit = "Nats-Batch-Commit"
)

func (b *Bucket) message(w Write) *nats.Msg {
	m := &nats.Msg{Subject: b.publish + w.Key, Data: w.Value, Header: nats.Header{
		hdrLast: {strconv.FormatUint(w.Last, 10)},
	}}
	if w.Fence != "" {
		m.Header[hdrLastSubject] = []string{b.prefix + w.Fence}
	}
	if w.TTL > 0 {
		m.Header[hdrTTL] = []string{strconv.FormatInt(int64(w.TTL/time.Second), 10) + "s"}
	}
	if w.Purge {
		m.Header[hdrOperation] = []string{"PURGE"}
		m.Header[hdrRollup] = []string{"sub"}
		m.Data = nil
	}
	return m
}

// Write makes one attempt to store w and returns its revision. It blocks until
// the server has answered or ctx is done; give ctx the deadline of one attempt.
//
// [ErrConflict], [ErrBusy], [ErrFull] and [ErrName], of a key with a wildcard, say
// that nothing was stored. Any other error leaves it open, also when ctx ended: read
// back before you decide.
func (b *Bucket) Write(ctx context.Context, w Write) (revision uint64, err error) {
	if err := literal(w.Key); err != nil {
		return 0, err
	}
	if err := context.Cause(ctx); err != nil {
		return 0, fmt.Errorf("key %q: %w: %w", w.Key, ErrBusy, err) // nothing was sent
	}
	if b.gone.Load() {
		return 0, fmt.Errorf("bucket %q: %w", b.name, ErrGone)
	}
	return b.send(ctx, b.message(w), w, w.Last == 0)
}

// Batch stores all writes or none, in one atomic batch of at most 1,000, and
// returns the revision of the last; the revisions are consecutive. Errors are
// those of [Bucket.Write]; a conflict does not say which write it was about.
// A fence has to come before a write of the fencing key itself.
func (b *Bucket) Batch(ctx context.Context, ws []Write) (last uint64, err error) {
	if len(ws) == 1 {
		return b.Write(ctx, ws[0])
	}
	for _, w := range ws {
		if err := literal(w.Key); err != nil {
			return 0, err
		}
	}
	if err := context.Cause(ctx); err != nil {
		return 0, fmt.Errorf("batch: %w: %w", ErrBusy, err)
	}
	if b.gone.Load() {
		return 0, fmt.Errorf("bucket %q: %w", b.name, ErrGone)
	}
	id, creates := Nonce(), false
	for i, w := range ws {
		creates = creates || w.Last == 0
		m := b.message(w)
		m.Header[hdrBatch] = []string{id}
		m.Header[hdrBatchSeq] = []string{strconv.Itoa(i + 1)}
		if i == len(ws)-1 {
			m.Header[hdrBatchCommit] = []string{"1"}
			return b.send(ctx, m, w, creates)
		}
		if err := b.nc.PublishMsg(m); err != nil {
			return 0, b.classify(m.Subject, w.Key, w.Last, err) // without its commit a batch is dropped
		}
	}
	return 0, fmt.Errorf("batch: have 0 writes, want 1 to 1,000")
}

// literal refuses a key with a wildcard. The server would store it, and a purge of
// "lock.>" would remove every lock.
func literal(key string) error {
	if strings.ContainsAny(key, "*> ") {
		return &NameError{Name: key[:min(len(key), 3*MaxName)], Have: "a wildcard or a space", Want: "one key"}
	}
	return nil
}

// Remove removes the entry of key that has the revision, without a trace if the
// bucket and the server's permissions allow that, and else leaving a marker that
// lives for a second. It is for keys that nobody watches. If the entry is gone that
// is no error. Others are those of [Bucket.Write]; to try again is always right.
func (b *Bucket) Remove(ctx context.Context, key string, revision uint64) error {
	if b.marksOnly.Load() {
		_, err := b.Write(ctx, Write{Key: key, Last: revision, Purge: true, TTL: time.Second})
		if errors.Is(err, ErrConflict) {
			return nil
		}
		return err
	}
	subject := b.api + "STREAM.MSG.DELETE." + b.streamName()
	request := fmt.Appendf(nil, `{"seq":%d,"no_erase":true}`, revision)
	reply, err := b.nc.RequestWithContext(ctx, subject, request)
	if err != nil {
		err = b.classify(subject, key, revision, err)
		if errors.Is(err, ErrPermission) {
			b.marksOnly.Store(true)
		}
		return err
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return fmt.Errorf("key %q: %w: %w", key, ErrDoubt, err)
	}
	if answer.Error == nil || answer.Error.ErrorCode == codeNoSequence || answer.Error.ErrorCode == codeDeleteFailed {
		return nil
	}
	return b.classify(subject, key, revision, answer.Error)
}

// send publishes m and waits for the acknowledgement. creates says that it, or
// another message of its batch, expects that there is no entry.
func (b *Bucket) send(ctx context.Context, m *nats.Msg, w Write, creates bool) (uint64, error) {
	before := b.high.Load()
	reply, err := b.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return 0, b.classify(m.Subject, w.Key, w.Last, err)
	}
	ack, err := b.parseAck(reply.Data)
	if err != nil {
		return 0, fmt.Errorf("key %q: %w: answer is not an acknowledgement: %w", w.Key, ErrDoubt, err)
	}
	if ack.Error != nil {
		guard := w.Key
		if w.Fence != "" {
			guard = w.Fence
		}
		return 0, b.classify(m.Subject, guard, w.Last, ack.Error)
	}
	if ack.Sequence == 0 {
		return 0, fmt.Errorf("key %q: %w: acknowledgement without a sequence", w.Key, ErrDoubt)
	}
	// Acknowledged writes are linearizable: one that got a lower revision than
	// a write acknowledged before it was sent is in another history.
	if ack.Sequence <= before {
		return 0, fmt.Errorf("key %q: %w: revision %d came after %d", w.Key, ErrGone, ack.Sequence, before)
	}
	if creates {
		if err := b.Same(ctx, ack.Sequence); errors.Is(err, ErrGone) {
			return 0, err
		} else if err != nil {
			return 0, fmt.Errorf("key %q: %w: stored, but not known in which bucket: %w", w.Key, ErrDoubt, err)
		}
	}
	b.saw(ack.Sequence)
	return ack.Sequence, nil
}

// An ack is the server's answer to a write.
type ack struct {
	Error    *jetstream.APIError `json:"error"`
	Sequence uint64              `json:"seq"`
}

// parseAck reads an acknowledgement. The usual one is what servers write by hand, and
// is read so: JSON takes longer than all else here, and a larger stack than the
// goroutines of thousands of holds should have.
func (b *Bucket) parseAck(data []byte) (ack, error) {
	if rest, ok := strings.CutPrefix(string(data), b.ackStart); ok {
		// Nothing more may follow, as in those of batches and duplicates.
		digits, ends := strings.CutSuffix(rest, "}")
		if seq, err := strconv.ParseUint(digits, 10, 64); ends && err == nil {
			return ack{Sequence: seq}, nil
		}
	}
	var a ack
	err := json.Unmarshal(data, &a)
	return a, err
}

// saw raises the highest revision known to be stored.
func (b *Bucket) saw(revision uint64) {
	for {
		high := b.high.Load()
		if revision <= high || b.high.CompareAndSwap(high, revision) {
			return
		}
	}
}

// Error codes of the server (nats-server, errors.json).
const (
	codeWrongLast     jetstream.ErrorCode = 10071
	codeWrongInFlight jetstream.ErrorCode = 10164
	codeNoQuorum      jetstream.ErrorCode = 10008
	codeOverrun       jetstream.ErrorCode = 10167
	codeNotReady      jetstream.ErrorCode = 10074
	codeStreamGone    jetstream.ErrorCode = 10059
	codeTTLOff        jetstream.ErrorCode = 10166
	codeBatchOff      jetstream.ErrorCode = 10174
	codeStoreFailed   jetstream.ErrorCode = 10077
	codeNoResources   jetstream.ErrorCode = 10023
	codeNoStorage     jetstream.ErrorCode = 10047
	codeTooLarge      jetstream.ErrorCode = 10054
	codeIncomplete    jetstream.ErrorCode = 10176 // a message of a batch was lost
	codeManyBatches   jetstream.ErrorCode = 10210
	codeNoSequence    jetstream.ErrorCode = 10043
	codeDeleteFailed  jetstream.ErrorCode = 10057 // not there, since deletes are allowed
)

// classify says what is known after an operation on subject failed with err.
func (b *Bucket) classify(subject, key string, last uint64, err error) error {
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api):
		switch api.ErrorCode {
		case codeWrongLast:
			have, _ := strconv.ParseUint(api.Description[strings.LastIndexByte(api.Description, ' ')+1:], 10, 64)
			return &ConflictError{Key: key, Want: last, Last: have}
		case codeWrongInFlight, codeNoQuorum, codeOverrun, codeNotReady, codeIncomplete, codeManyBatches:
			return fmt.Errorf("key %q: %w: %w", key, ErrBusy, err)
		case codeStoreFailed, codeNoResources, codeNoStorage, codeTooLarge:
			return fmt.Errorf("key %q: %w: %w", key, ErrFull, err)
		case codeStreamGone:
			return fmt.Errorf("bucket %q: %w", b.name, ErrGone)
		case codeTTLOff:
			return &SettingError{Bucket: b.name, Setting: "TTL per message (allow_msg_ttl)", Have: "false", Want: "true"}
		case codeBatchOff:
			return &SettingError{Bucket: b.name, Setting: "atomic batches (allow_atomic)", Have: "false", Want: "true"}
		}
		return err
	case errors.Is(err, nats.ErrMaxPayload):
		return fmt.Errorf("key %q: %w: %w", key, ErrFull, err)
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrReconnectBufExceeded):
		return fmt.Errorf("key %q: %w: %w", key, ErrBusy, err)
	}
	if denied := b.denied(subject); denied != nil {
		return denied
	}
	return fmt.Errorf("key %q: %w: %w", key, ErrDoubt, err)
}

// denied returns a [*PermissionError] if the server's last complaint was about
// subject or about the inbox that answers come to. The server does not answer a
// denied request; its complaint comes beside it.
func (b *Bucket) denied(subject string) error {
	err := b.nc.LastError()
	if err == nil || !errors.Is(err, nats.ErrPermissionViolation) {
		return nil
	}
	said := err.Error()
	if strings.Contains(said, `"`+subject+`"`) {
		return &PermissionError{Subject: subject, Err: err}
	}
	if _, inbox, ok := strings.Cut(said, `Subscription to "`); ok {
		inbox, _, _ = strings.Cut(inbox, `"`)
		if strings.HasPrefix(inbox, b.nc.Opts.InboxPrefix) || strings.HasPrefix(inbox, nats.InboxPrefix) {
			return &PermissionError{Subject: inbox, Err: err}
		}
	}
	return nil
}
