package cli_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"tenure/claim"
	"tenure/embedded"
)

func TestPoolIsAServiceOnNATSIfAsked(t *testing.T) {
	t.Parallel()
	_, url := startServer(t)
	nc := connect(t, url).Conn()
	ask := func(subject string, answer any) error {
		t.Helper()
		m, err := nc.Request(subject, nil, 5*time.Second)
		if err == nil {
			err = json.Unmarshal(m.Data, answer)
		}
		return err
	}
	silent := begin(t, nil, "work", "orders", "--server", url, "--partitions", "2", "--id", "b c", "--", "sleep", "1000")
	awaitOwners(t, url, "orders", "b c")
	if err := ask("$SRV.PING.tenure", new(any)); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("$SRV.PING of a pool that is no service = %v, want %v", err, nats.ErrNoResponders)
	}

	p := begin(t, nil, "work", "orders", "--server", url, "--partitions", "2", "--id", "a.1", "--service", "--", "sleep", "1000")
	awaitOwners(t, url, "orders", "b c", "a.1")
	var info struct {
		Metadata  map[string]string
		Endpoints []struct{ Name, Subject string }
	}
	if err := ask("$SRV.INFO.tenure", &info); err != nil || info.Metadata["group"] != "orders" || info.Metadata["id"] != "a.1" || len(info.Endpoints) != 2 ||
		info.Endpoints[0].Subject != "tenure.tenure.orders.status" || info.Endpoints[1].Subject != "tenure.tenure.orders.drain.a=2E1" {
		t.Errorf("info = %+v, %v, want the group, the id and two endpoints", info, err)
	}
	var status claim.Status
	if err := ask("tenure.tenure.orders.status", &status); err != nil || status.Group != "orders" || len(status.Partitions) != 2 || len(status.Workers) != 2 {
		t.Errorf("status = %+v, %v, want that of the group", status, err)
	}
	var stats struct {
		Endpoints []struct {
			Name        string
			NumRequests int `json:"num_requests"`
		}
	}
	if err := ask("$SRV.STATS.tenure", &stats); err != nil || len(stats.Endpoints) != 2 || stats.Endpoints[0].NumRequests != 1 {
		t.Errorf("stats = %+v, %v, want one request for the status", stats, err)
	}
	if err := ask("tenure.tenure.orders.drain.b c", new(any)); err == nil {
		t.Error("a pool that is no service has answered a drain")
	}
	var drain struct{ Draining bool }
	if err := ask("tenure.tenure.orders.drain.a=2E1", &drain); err != nil || !drain.Draining {
		t.Errorf("drain = %+v, %v, want it to be on its way", drain, err)
	}
	if code := p.code(); code != 0 {
		t.Errorf("work that was asked to drain = %d, want 0; stderr %s", code, p.err.String())
	}
	awaitOwners(t, url, "orders", "b c")
	select {
	case <-silent.done:
		t.Error("the drain of one pool has ended another")
	default:
	}
}

func TestServiceWithoutPermissionNamesTheSubject(t *testing.T) {
	t.Parallel()
	least := append([]string{"$SRV.>", "tenure.tenure.>"}, subscribeAll...)
	s, err := embedded.Start(embedded.Listen("127.0.0.1:0"), embedded.Tune(func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "admin"},
			user("all", publishWork, least),
			user("no-srv", publishWork, least[1:]), user("no-endpoint", publishWork, append([]string{"$SRV.>"}, subscribeAll...)),
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	if code, _, stderr := tenure(t, "init", "--fresh", "--server", s.URL(), "--user", "admin"); code != 0 {
		t.Fatal(stderr)
	}
	for who, want := range map[string]string{"all": "", "no-srv": `\"$SRV.`, "no-endpoint": `\"tenure.tenure.orders.`} {
		p := begin(t, nil, "work", "orders", "--server", s.URL(), "--user", who, "--inbox-prefix", "_INBOX_app", "--partitions", "1", "--no-create", "--service",
			"--", "sh", "-c", "kill -TERM $PPID; exec sleep 1000")
		code := p.code()
		if want == "" && code != 0 || want != "" && (code != 77 || !strings.Contains(p.err.String(), want)) {
			t.Errorf("work as %s = %d, %s, want 77 and %s, or 0", who, code, p.err.String(), want)
		}
	}
}
