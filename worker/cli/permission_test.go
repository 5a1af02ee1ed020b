package cli_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"tenure/embedded"
)

// The least that a user needs for locks, and for work, in a bucket that is there.
// Inboxes have a prefix of their own.
var (
	publishLocks = []string{
		"$KV.tenure.>",
		"$JS.API.STREAM.INFO.KV_tenure",
		"$JS.API.STREAM.MSG.GET.KV_tenure",
		"_tenure.tenure.>",
	}
	publishWork = slices.Concat(publishLocks, []string{
		"$JS.API.CONSUMER.CREATE.KV_tenure.>",
		"$JS.API.CONSUMER.MSG.NEXT.KV_tenure.>",
	})
	subscribeAll = []string{"_INBOX_app.>", "_tenure.tenure.>"}
)

// N91
func TestLeastPrivilegeIsEnoughAndEachLackIsNamed(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		args    []string
		code    int // with the least
		publish []string
	}{
		// The lock is held by another, so that all of it is needed.
		{"lock", []string{"lock", "job", "--wait", "1s", "--", "true"}, 75, publishLocks},
		// It is told to end by its own command.
		{"work", []string{"work", "orders", "--partitions", "1", "--no-create", "--", "sh", "-c", "kill -TERM $PPID; exec sleep 1000"}, 0, publishWork},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			users := []*server.User{{Username: "admin"}, user("joe", tt.publish, subscribeAll)}
			lacking := slices.Concat(tt.publish, subscribeAll)
			for i := range lacking {
				publish, subscribe := slices.Clone(tt.publish), slices.Clone(subscribeAll)
				if i < len(publish) {
					publish = slices.Delete(publish, i, i+1)
				} else {
					subscribe = slices.Delete(subscribe, i-len(publish), i-len(publish)+1)
				}
				users = append(users, user(strconv.Itoa(i), publish, subscribe))
			}
			s, err := embedded.Start(embedded.Listen("127.0.0.1:0"), embedded.Tune(func(o *server.Options) { o.Users = users }))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Stop)
			as := func(user string, args []string) []string {
				return append([]string{args[0], "--server", s.URL(), "--user", user, "--inbox-prefix", "_INBOX_app"}, args[1:]...)
			}
			if code, _, stderr := tenure(t, as("admin", []string{"init", "--fresh"})...); code != 0 {
				t.Fatalf("init = %d, %s, want 0", code, stderr)
			}
			_, lines := runLines(t, as("joe", []string{"lock", "job", "--", "sh", "-c", "echo ready; exec sleep 1000"})...)
			nextLine(t, lines)
			if code, _, stderr := tenure(t, as("joe", tt.args)...); code != tt.code {
				t.Errorf("%s with the least = %d, want %d; stderr %s", tt.name, code, tt.code, stderr)
			}
			for i, subject := range lacking {
				begun := time.Now()
				code, _, stderr := tenure(t, as(strconv.Itoa(i), tt.args)...)
				stderr = strings.TrimSpace(stderr)
				last := stderr[strings.LastIndexByte(stderr, '\n')+1:]
				if code != 77 || !strings.Contains(last, `\"`+strings.TrimSuffix(subject, ">")) {
					t.Errorf("%s without %s = %d after %v, want 77 and its name; stderr %s", tt.name, subject, code, time.Since(begun), last)
				}
			}
		})
	}
}

func user(name string, publish, subscribe []string) *server.User {
	return &server.User{Username: name, Permissions: &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: publish},
		Subscribe: &server.SubjectPermission{Allow: subscribe},
		Response:  &server.ResponsePermission{MaxMsgs: 1, Expires: time.Minute},
	}}
}
