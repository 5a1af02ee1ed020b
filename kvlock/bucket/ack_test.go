package bucket_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tenure/embedded/natstest"
)

// However an acknowledgement is written, it says the same as its JSON does.
func TestAcknowledgementsAreReadAsTheirJSON(t *testing.T) {
	s := natstest.Server(t)
	b := open(t, client(t, s))
	for _, tt := range []struct {
		data string
		seq  uint64
		code int
		bad  bool
	}{
		{data: `{"stream":"KV_tenure","seq":12}`, seq: 12},
		{data: `{"stream":"KV_tenure", "seq":12}`, seq: 12},
		{data: `{"stream":"KV_tenure","domain":"hub","seq":18446744073709551615}`, seq: 1<<64 - 1},
		{data: `{"seq":12,"stream":"KV_tenure"}`, seq: 12},
		{data: `{"stream":"KV_tenure","seq":12,"duplicate":true}`, seq: 12},
		{data: `{"stream":"KV_tenure","seq":12,"batch":"id","count":2}`, seq: 12},
		{data: `{"stream":"KV_other","seq":12}`, seq: 12},
		{data: `{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 7"},"stream":"KV_tenure","seq":0}`, code: 10071},
		{data: `{"stream":"KV_tenure","error":{"code":400,"err_code":10071},"seq":12}`, seq: 12, code: 10071},
		{data: `{"stream":"KV_tenure","seq":12`, bad: true},
		{data: `{"stream":"KV_tenure","seq":}`, bad: true},
		{data: `{"stream":"KV_tenure","seq":-1}`, bad: true},
		{data: `+OK`, bad: true},
	} {
		seq, code, err := b.ParseAck([]byte(tt.data))
		if (err != nil) != tt.bad || !tt.bad && (seq != tt.seq || code != tt.code) {
			t.Errorf("ParseAck(%s) = %d, %d, %v, want %d, %d, error %v", tt.data, seq, code, err, tt.seq, tt.code, tt.bad)
		}
	}
}

// The server's own way of writing is the one that is read without JSON.
func TestAcknowledgementOfThisServerIsReadWithoutJSON(t *testing.T) {
	s := natstest.Server(t)
	js := client(t, s)
	b := open(t, js)
	m, err := js.Conn().RequestMsg(&nats.Msg{Subject: b.Subject("data.x"), Data: []byte("x")}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { _, _, _ = b.ParseAck(m.Data) }); n > 1 {
		t.Errorf("allocations for %s = %v, want 1 at most", m.Data, n)
	}
}
