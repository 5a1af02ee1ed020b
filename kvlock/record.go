package kvlock

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"tenure/kvlock/bucket"
)

// What a record says of itself.
const (
	recordVersion = 1
	recordTTLMax  = 24 * time.Hour
)

// A kind says what a record is of.
type kind string

const (
	kindLock      kind = "lock"
	kindPermit    kind = "permit" // of a semaphore
	kindGate      kind = "rw"     // the writer's part of a lock for readers and writers
	kindReader    kind = "reader"
	kindSemaphore kind = "semaphore" // its limit
)

var kinds = []kind{kindLock, kindPermit, kindGate, kindReader, kindSemaphore}

// slotLine ends the line of a semaphore, which so is none of a lock.
const slotLine = ".slot"

// keyOf returns the key of a hold, given its line and its part: the number of a
// slot, the id of a reader, or nothing for a lock or a gate.
func keyOf(enc, part string) string {
	name, slots := strings.CutSuffix(enc, slotLine)
	switch {
	case slots:
		return "slot." + name + "." + part
	case part != "":
		return "read." + enc + "." + part
	default:
		return "lock." + enc
	}
}

// ticketKey returns the key of a place in line.
func ticketKey(enc, nonce string) string { return "wait." + enc + "." + nonce }

// A state is what a record in the place of a lock means.
type state string

const (
	stateHeld    state = ""        // somebody holds it
	stateRevoked state = "revoked" // an operator ended the hold; barred until its holder has stopped
	stateResting state = "resting" // released before its minimum hold was over; barred until then
)

var states = []state{stateHeld, stateRevoked, stateResting}

// A record is the value of the key of a lock, of a ticket, or of the limit of a
// semaphore. Who wrote which one is told by the nonce: every attempt to write has its
// own. A ticket is a record, too: of what its writer waits for.
type record struct {
	Version int       `json:"v"`
	Kind    kind      `json:"kind"`
	State   state     `json:"state,omitempty"`
	Owner   string    `json:"owner"`
	Process string    `json:"process"`         // of the holder or waiter: requests go to it
	Nonce   string    `json:"nonce"`           // of this attempt; of a ticket also the last token of its key
	Prev    string    `json:"prev,omitempty"`  // nonce of the record that this one replaced
	Since   time.Time `json:"since"`           // when it was gained, by the holder's clock; for people
	TTL     int64     `json:"ttl"`             // seconds
	Token   uint64    `json:"token,omitempty"` // 0: this record's own revision
	Note    string    `json:"note,omitempty"`
	Value   string    `json:"value,omitempty"`  // of a leader, for all to read
	Reason  string    `json:"reason,omitempty"` // of the revocation
	Limit   int       `json:"limit,omitempty"`  // of a semaphore

	entry bucket.Entry // that it was read from
}

// newRecord returns a record of this Locker.
func (l *Locker) newRecord(k kind, nonce string, since time.Time, ttl time.Duration) record {
	return record{
		Version: recordVersion,
		Kind:    k,
		Owner:   l.owner,
		Process: l.id,
		Nonce:   nonce,
		Since:   since.UTC(),
		TTL:     int64(ttl / time.Second),
		Note:    l.note,
	}
}

func (r *record) encode() []byte {
	b, err := json.Marshal(r)
	if err != nil {
		panic("kvlock: encode a record: " + err.Error()) // a year outside of 0 to 9999
	}
	return b
}

// token returns the fencing token of the hold.
func (r *record) token() uint64 {
	if r.Token == 0 {
		return r.entry.Revision
	}
	return r.Token
}

// parse reads the value of a key, which anybody may have written.
func parse(e bucket.Entry) (*record, error) {
	r := record{entry: e}
	wrong := func(field string, have any, want string) error {
		return &RecordError{Key: e.Key, Field: field, Have: fmt.Sprintf("%#v", have), Want: want}
	}
	if err := json.Unmarshal(e.Value, &r); err != nil {
		text := string(e.Value)
		return nil, wrong("value", text[:min(len(text), 32)], "a JSON object")
	}
	const id = "1 to 64 letters and digits"
	for _, field := range []struct {
		name string
		have any
		ok   bool
		want string
	}{
		{"version", r.Version, r.Version == recordVersion, fmt.Sprint(recordVersion)},
		{"kind", r.Kind, slices.Contains(kinds, r.Kind), fmt.Sprintf("one of %q", kinds)},
		{"state", r.State, slices.Contains(states, r.State), fmt.Sprintf("one of %q", states)},
		{"nonce", r.Nonce, isID(r.Nonce), id},
		{"process", r.Process, isID(r.Process), id},
		{"ttl", r.TTL, r.TTL >= 1 && r.TTL <= int64(recordTTLMax/time.Second), fmt.Sprintf("1 to %d", recordTTLMax/time.Second)},
		{"token", int64(r.Token), r.token() <= e.Revision, fmt.Sprintf("at most its revision %d", e.Revision)},
		{"limit", r.Limit, r.Kind != kindSemaphore || checkLimit(r.Limit) == nil, fmt.Sprintf("1 to %d", MaxPermits)},
	} {
		if !field.ok {
			return nil, wrong(field.name, field.have, field.want)
		}
	}
	return &r, nil
}

// isID reports whether s may be one token of a subject: other people's records
// decide where requests go.
func isID(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 64
}
