package bucket_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"tenure/embedded/natstest"
	"tenure/kvlock/bucket"
)

// oldServer is as much of a server as a client needs to connect to one of a version.
type oldServer string

func (v oldServer) InProcessConn() (net.Conn, error) {
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		fmt.Fprintf(server, `INFO {"server_id":"x","version":%q,"proto":1,"headers":true,"max_payload":1048576}`+"\r\n", string(v))
		for lines := bufio.NewScanner(server); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "PING") {
				fmt.Fprint(server, "PONG\r\n")
			}
		}
	}()
	return client, nil
}

// K83: what the guards rest on came with certain versions of the server.
func TestServerThatIsTooOldIsRefused(t *testing.T) {
	for _, version := range []string{"2.9.25", "2.10.29", "2.11.9", "2.11.0-RC.3", "1.4.1"} {
		nc, err := nats.Connect("", nats.InProcessServer(oldServer(version)))
		if err != nil {
			t.Fatal(err)
		}
		_, err = bucket.Open(t.Context(), natstest.JetStream(t, nc))
		if want := "version: have " + version + ", want at least 2.12.0"; !errors.Is(err, bucket.ErrServer) || !strings.Contains(err.Error(), want) {
			t.Errorf("Open = %v, want %v: %s", err, bucket.ErrServer, want)
		}
		nc.Close()
	}
}
