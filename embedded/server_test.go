package embedded_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"tenure/embedded"
)

func TestX(t *testing.T) {
	for _, opts := range [][]embedded.Option{nil, {embedded.Listen("127.0.0.1:0")}, {embedded.Store(t.TempDir())}, {embedded.Listen("127.0.0.1:0"), embedded.Cluster(3)}} {
		s, err := embedded.Start(opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(s.URL())
		nc, err := s.Connect()
		if err != nil {
			t.Fatal(err)
		}
		js, _ := jetstream.New(nc)
		if _, err := js.AccountInfo(t.Context()); err != nil {
			t.Fatal(err)
		}
		nc.Close()
		s.Stop()
		s.Stop()
	}
}
