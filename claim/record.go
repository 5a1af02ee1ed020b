package claim

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"tenure/claim/plan"
	"tenure/kvlock/bucket"
)

// Every record says its version; another one is refused, never guessed at.
const recordVersion = 1

var errRecord = errors.New("not a record of this version")

// Keys of a group. All parts are encoded names.
func memberKey(group, worker string) string   { return "member." + group + "." + worker }
func claimKey(group, partition string) string { return "claim." + group + "." + partition }
func checkKey(group, partition string) string { return "check." + group + "." + partition }
func planKey(group string) string             { return "plan." + group }
func groupKey(group string) string            { return "group." + group }

// memberState is what a member record stands for.
type memberState string

const (
	joining  memberState = "joining"  // alive, not to be planned for yet
	ready    memberState = "ready"    // takes partitions, may lead
	draining memberState = "draining" // gives everything away, then leaves
	dead     memberState = "dead"     // a certificate: every epoch before this record has ended
	revoked  memberState = "revoked"  // an operator asks the session to end; no proof that it has
)

// member is a worker's session, re-armed by every heartbeat, or what ended it.
type member struct {
	Version  int         `json:"v"`
	State    memberState `json:"state"`
	Nonce    string      `json:"nonce"` // of the session; in a certificate, of the attempt
	Epoch    uint64      `json:"epoch"` // 0 means this record's own revision
	TTL      int64       `json:"ttl"`   // in seconds
	Capacity int         `json:"capacity,omitempty"`
	Weight   int         `json:"weight,omitempty"`
	Zone     string      `json:"zone,omitempty"`
	Build    uint64      `json:"build,omitempty"`
	Host     string      `json:"host,omitempty"`
	PID      int         `json:"pid,omitempty"`
	Machine  string      `json:"machine,omitempty"` // see process
	Start    string      `json:"start,omitempty"`   // of the process, in the units of its machine
	Rejoin   int64       `json:"rejoin,omitempty"`  // for how long, in ms, the worker is waited for when it has gone
	Beat     uint64      `json:"beat"`              // counts the heartbeats; identifies an attempt
	By       string      `json:"by,omitempty"`      // who wrote a certificate
}

// epoch returns the session that a record at the given revision belongs to.
func (m member) epoch(revision uint64) uint64 {
	if m.Epoch == 0 {
		return revision
	}
	return m.Epoch
}

// session reports whether the record is a session and not the end of one.
func (m member) session() bool {
	return m.State == joining || m.State == ready || m.State == draining
}

// rejoin returns the worker's rejoin delay.
func (m member) rejoin() time.Duration { return time.Duration(m.Rejoin) * time.Millisecond }

func parseMember(e bucket.Entry) (member, error) {
	m, err := parse[member](e)
	if err != nil {
		return m, err
	}
	switch m.State {
	case joining, ready, draining:
		if m.TTL < int64(bucket.MinTTL/time.Second) || m.TTL > 1<<31 || m.Epoch > e.Revision {
			err = errRecord
		}
	case dead, revoked:
	default:
		err = errRecord
	}
	if err != nil || m.Version != recordVersion || m.Nonce == "" {
		return m, fmt.Errorf("key %q: %w", e.Key, errRecord)
	}
	return m, nil
}

// record is a claim: who owns a partition. An empty owner owns nothing.
type record struct {
	Version  int    `json:"v"`
	Owner    string `json:"owner"`
	Epoch    uint64 `json:"epoch"`
	Token    uint64 `json:"token"`            // 0 means this record's own revision
	Nonce    string `json:"nonce"`            // of the attempt
	Prev     string `json:"prev"`             // nonce of the record it replaced
	By       string `json:"by"`               // who wrote it
	Check    uint64 `json:"check"`            // revision of the last checkpoint its writer knew, 0 for none
	Batch    bool   `json:"batch,omitempty"`  // a checkpoint was stored right before, in the same batch
	Plan     uint64 `json:"plan,omitempty"`   // revision of the plan that its writer followed
	Layout   uint64 `json:"layout,omitempty"` // revision of the list of partitions that its writer knew when the owner changed
	Attempts int    `json:"attempts,omitempty"`

	Stalled     bool   `json:"stalled,omitempty"`     // the owner's handler makes no progress
	Quarantined bool   `json:"quarantined,omitempty"` // nobody owns it, nor may
	Avoid       string `json:"avoid,omitempty"`       // worker that has given it up: it shall go to another
	Error       string `json:"error,omitempty"`       // of the last failure, for people
	Idle        *int64 `json:"idle,omitempty"`        // how long before the hand-over its handler had returned, in µs

	// For people: since when the owner has it, why, and who had it before.
	At  int64       `json:"at,omitempty"` // in milliseconds since 1970, by the clock of the writer
	Why plan.Reason `json:"why,omitempty"`
	Log []past      `json:"log,omitempty"` // the newest last
}

// token returns the fencing token of a claim stored at the given revision.
func (r record) token(revision uint64) uint64 {
	if r.Token == 0 {
		return revision
	}
	return r.Token
}

// check returns the revision of the newest checkpoint that a record stored at
// the given revision speaks of.
func (r record) check(revision uint64) uint64 {
	if r.Batch {
		return revision - 1
	}
	return r.Check
}

func parseRecord(e bucket.Entry) (record, error) {
	r, err := parse[record](e)
	if err != nil || r.Version != recordVersion || r.Nonce == "" || (r.Owner == "") != (r.Epoch == 0) ||
		r.Token > e.Revision || r.Epoch > e.Revision || r.Attempts < 0 || r.Quarantined && r.Owner != "" || len(r.Log) > maxLog {
		return r, fmt.Errorf("key %q: %w", e.Key, errRecord)
	}
	return r, nil
}

func parse[T any](e bucket.Entry) (T, error) {
	var v T
	if e.Marker {
		return v, errRecord
	}
	return v, json.Unmarshal(e.Value, &v)
}

// encode renders a record. Its types cannot fail to marshal.
func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic("claim: " + err.Error())
	}
	return data
}
