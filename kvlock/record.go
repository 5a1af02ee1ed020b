package kvlock

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"tenure/kvlock/bucket"
)

// What a record says of itself.
const (
	recordVersion = 1
	recordTTLMax  = 24 * time.Hour
)

// A kind says what a hold is of.
type kind string

const (
	kindLock   kind = "lock"
	kindPermit kind = "permit" // of a semaphore
	kindGate   kind = "rw"     // the writer's part of a lock for readers and writers
	kindReader kind = "reader"
)

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

// A state is what a record in the place of a lock means.
type state string

const (
	stateHeld    state = ""        // somebody holds it
	stateRevoked state = "revoked" // an operator ended the hold; barred until its holder has stopped
	stateResting state = "resting" // released before its minimum hold was over; barred until then
)

// A record is the value of the key of a lock. Who wrote which one is told by the
// nonce: every attempt to write has its own.
type record struct {
	Version int       `json:"v"`
	Kind    kind      `json:"kind"`
	State   state     `json:"state,omitempty"`
	Owner   string    `json:"owner"`
	Process string    `json:"process"`         // of the holder: requests go to it
	Nonce   string    `json:"nonce"`           // of this attempt
	Prev    string    `json:"prev,omitempty"`  // nonce of the record that this one replaced
	Since   time.Time `json:"since"`           // when it was gained, by the holder's clock; for people
	TTL     int64     `json:"ttl"`             // seconds
	Token   uint64    `json:"token,omitempty"` // 0: this record's own revision
	Note    string    `json:"note,omitempty"`
	Value   string    `json:"value,omitempty"`  // of a leader, for all to read
	Reason  string    `json:"reason,omitempty"` // of the revocation
}

// A ticket is the value of a place in line, and the revision it stands at.
type ticket struct {
	Version int    `json:"v"`
	Process string `json:"process"` // of the waiter
	Nonce   string `json:"nonce"`   // also the last token of the key
	Owner   string `json:"owner"`
	TTL     int64  `json:"ttl"` // seconds
	Read    bool   `json:"read,omitempty"`

	revision uint64
}

func (r *record) encode() []byte {
	r.Version = recordVersion
	b, err := json.Marshal(r)
	if err != nil {
		panic("kvlock: encode a record: " + err.Error()) // a year outside of 0 to 9999
	}
	return b
}

func (t *ticket) encode() []byte {
	t.Version = recordVersion
	b, err := json.Marshal(t)
	if err != nil {
		panic("kvlock: encode a ticket: " + err.Error())
	}
	return b
}

// token returns the fencing token of the hold, given the record's revision.
func (r *record) token(revision uint64) uint64 {
	if r.Token == 0 {
		return revision
	}
	return r.Token
}

// parseRecord reads the value of a lock's key, which anybody may have written.
func parseRecord(e bucket.Entry) (*record, error) {
	var r record
	if err := json.Unmarshal(e.Value, &r); err != nil {
		return nil, &RecordError{Key: e.Key, Field: "value", Have: excerpt(e.Value), Want: "a JSON object"}
	}
	wrong := func(field, have, want string) (*record, error) {
		return nil, &RecordError{Key: e.Key, Field: field, Have: have, Want: want}
	}
	switch {
	case r.Version != recordVersion:
		return wrong("version", strconv.Itoa(r.Version), strconv.Itoa(recordVersion))
	case r.Kind != kindLock && r.Kind != kindPermit && r.Kind != kindGate && r.Kind != kindReader:
		return wrong("kind", strconv.Quote(string(r.Kind)), fmt.Sprintf("%q, %q, %q or %q", kindLock, kindPermit, kindGate, kindReader))
	case r.State != stateHeld && r.State != stateRevoked && r.State != stateResting:
		return wrong("state", strconv.Quote(string(r.State)), fmt.Sprintf("none, %q or %q", stateRevoked, stateResting))
	case !isID(r.Nonce):
		return wrong("nonce", strconv.Quote(r.Nonce), "1 to 64 letters and digits")
	case !isID(r.Process):
		return wrong("process", strconv.Quote(r.Process), "1 to 64 letters and digits")
	case r.TTL < 1 || r.TTL > int64(recordTTLMax/time.Second):
		return wrong("ttl", strconv.FormatInt(r.TTL, 10), fmt.Sprintf("1 to %d", recordTTLMax/time.Second))
	case r.token(e.Revision) > e.Revision:
		return wrong("token", strconv.FormatUint(r.Token, 10), fmt.Sprintf("at most its revision %d", e.Revision))
	}
	return &r, nil
}

// parseTicket reads the value of a ticket's key.
func parseTicket(e bucket.Entry) (ticket, error) {
	t := ticket{revision: e.Revision}
	if err := json.Unmarshal(e.Value, &t); err != nil {
		return ticket{}, &RecordError{Key: e.Key, Field: "value", Have: excerpt(e.Value), Want: "a JSON object"}
	}
	switch {
	case t.Version != recordVersion:
		return ticket{}, &RecordError{Key: e.Key, Field: "version", Have: strconv.Itoa(t.Version), Want: strconv.Itoa(recordVersion)}
	case !isID(t.Nonce):
		return ticket{}, &RecordError{Key: e.Key, Field: "nonce", Have: strconv.Quote(t.Nonce), Want: "1 to 64 letters and digits"}
	case !isID(t.Process):
		return ticket{}, &RecordError{Key: e.Key, Field: "process", Have: strconv.Quote(t.Process), Want: "1 to 64 letters and digits"}
	}
	return t, nil
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

func excerpt(b []byte) string {
	if len(b) > 32 {
		return strconv.Quote(string(b[:32])) + "..."
	}
	return strconv.Quote(string(b))
}
