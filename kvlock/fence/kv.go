package fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// magic begins every value. The whole first line is "tenure-fence 1 <mark>" or
// "tenure-fence 1 <mark> deleted"; the data is what follows it, as it is.
const magic = "tenure-fence 1 "

// KV guards keys of a KV bucket, which may be on any NATS system: the mark is kept
// with the value, and both are written at once. Its methods may be called
// concurrently, and by any number of processes.
type KV struct{ kv jetstream.KeyValue }

// A Value is what a key holds.
type Value struct {
	Data     []byte
	Mark     uint64 // the highest token seen
	Revision uint64 // of the key in its bucket
}

// NewKV guards the keys of kv. Write them through the KV only. The bucket must have no
// TTL and no limit that drops old keys: the marks would go with them.
func NewKV(kv jetstream.KeyValue) *KV { return &KV{kv} }

// Get returns the value of key. The error matches [jetstream.ErrKeyNotFound] if
// there is none or it was deleted, [ErrFormat] if it was written otherwise, and
// [ErrInput] if KV buckets do not take such a key; any other is of the connection or of
// ctx. Get blocks until the server has answered or ctx is done. What it returns may be a
// moment old.
func (k *KV) Get(ctx context.Context, key string) (Value, error) {
	s, err := k.read(ctx, key)
	switch {
	case err != nil:
		return Value{}, err
	case s.revision == 0 || s.deleted:
		return Value{}, fmt.Errorf("fence: get %q: %w", key, jetstream.ErrKeyNotFound)
	}
	return Value{Data: s.data, Mark: s.mark, Revision: s.revision}, nil
}

// Put stores data under key and raises the mark to token, and returns the revision of the
// key in its bucket.
//
// If the mark is higher than token, nothing is changed and the error is a [*StaleError],
// as it is for the token 0. A key that KV buckets do not take is an [*InputError], and a
// value that was written otherwise a [*FormatError].
//
// Put blocks while other writes come in between, until the server has answered or ctx is
// done. If the answer to a write is lost, the error leaves open whether it was stored; to
// call Put again with the same token is right.
func (k *KV) Put(ctx context.Context, key string, token uint64, data []byte) (revision uint64, err error) {
	return k.update(ctx, "put", key, token, func(s *stored) { s.data, s.deleted = data, false })
}

// Delete removes the data of key. The mark stays for ever, so that a late write is
// still refused. It fails as [KV.Put] does.
func (k *KV) Delete(ctx context.Context, key string, token uint64) error {
	_, err := k.update(ctx, "delete", key, token, func(s *stored) { s.data, s.deleted = nil, true })
	return err
}

// Raise raises the mark to token and leaves the data as it is. From then on no lower
// token is accepted: call it when a hold begins, before its first write. It fails as
// [KV.Put] does.
func (k *KV) Raise(ctx context.Context, key string, token uint64) error {
	_, err := k.update(ctx, "raise", key, token, nil)
	return err
}

// update changes what is stored if token is not stale. It is the only writer.
func (k *KV) update(ctx context.Context, verb, key string, token uint64, change func(*stored)) (uint64, error) {
	for fails := 0; ; fails++ {
		s, err := k.read(ctx, key)
		if err != nil {
			return 0, err
		}
		if err := stale(key, token, s.mark); err != nil {
			return 0, err
		}
		if change == nil && s.mark == token {
			return s.revision, nil
		}
		s.mark = token
		if change != nil {
			change(&s)
		} else if s.revision == 0 {
			s.deleted = true // there is no data to raise the mark of
		}
		var revision uint64
		if s.revision == 0 {
			revision, err = k.kv.Create(ctx, key, s.encode())
		} else {
			revision, err = k.kv.Update(ctx, key, s.encode(), s.revision)
		}
		if err == nil {
			return revision, nil
		}
		if !conflict(err) {
			return 0, fmt.Errorf("fence: %s %q: %w", verb, key, err)
		}
		// Another write came first, or is in flight.
		pause := time.NewTimer(rand.N(time.Millisecond << min(fails, 5)))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return 0, fmt.Errorf("fence: %s %q: %w", verb, key, context.Cause(ctx))
		}
	}
}

// codeInFlight is the server's refusal of a write while another one of the same key
// is in flight; the KV API does not map it everywhere.
const codeInFlight jetstream.ErrorCode = 10164

func conflict(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, jetstream.ErrKeyExists) || ok && api.ErrorCode == codeInFlight
}

// stored is what a key holds.
type stored struct {
	mark     uint64
	deleted  bool
	data     []byte
	revision uint64 // 0: nothing is there, or a marker of somebody else
}

func (k *KV) read(ctx context.Context, key string) (stored, error) {
	e, err := k.kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return stored{}, nil
	}
	if errors.Is(err, jetstream.ErrInvalidKey) {
		return stored{}, &InputError{Input: "key", Have: fmt.Sprintf("%q", shorten(key)), Want: "a key of the KV API"}
	}
	if err != nil {
		return stored{}, fmt.Errorf("fence: read %q: %w", key, err)
	}
	s, err := decode(key, e.Value())
	s.revision = e.Revision()
	return s, err
}

func (s *stored) encode() []byte {
	b := strconv.AppendUint([]byte(magic), s.mark, 10)
	if s.deleted {
		b = append(b, " deleted"...)
	}
	b = append(b, '\n')
	return append(b, s.data...)
}

func decode(key string, value []byte) (stored, error) {
	line, data, ok := bytes.Cut(value, []byte("\n"))
	text, found := bytes.CutPrefix(line, []byte(magic))
	number, deleted := bytes.CutSuffix(text, []byte(" deleted"))
	mark, err := strconv.ParseUint(string(number), 10, 64)
	if !ok || !found || err != nil {
		return stored{}, &FormatError{Key: key, Have: string(value[:min(len(value), 32)])}
	}
	return stored{mark: mark, deleted: deleted, data: data}, nil
}
