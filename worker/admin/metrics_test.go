package admin_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tenure/claim"
	"tenure/embedded/natstest"
	"tenure/kvlock"
)

// slowly returns a handler that takes a while to drain.
func slowly(d time.Duration) claim.Handler {
	return func(ctx context.Context, p *claim.Partition) error {
		err := idle(ctx, p)
		if err == nil {
			time.Sleep(d)
		}
		return err
	}
}

// scrape returns the samples of the pool by their name and labels.
func (p *pool) scrape(t *testing.T) map[string]string {
	t.Helper()
	synctest.Wait()
	got := get(p.admin.Handler(), "/metrics")
	if got.Code != 200 {
		t.Fatalf("/metrics = %d, %s", got.Code, got.Body)
	}
	samples := make(map[string]string)
	for line := range strings.Lines(got.Body.String()) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.HasPrefix(name, "tenure_") {
			samples[name] = value
		}
	}
	return samples
}

func want(t *testing.T, when string, have map[string]string, samples ...string) {
	t.Helper()
	for _, s := range samples {
		name, value, _ := strings.Cut(s, " ")
		got, ok := have[name]
		if value == "none" && !ok {
			continue
		}
		if got != value {
			t.Errorf("%s: %s = %q, want %q", when, name, got, value)
		}
	}
}

func TestMetricsCountWhatHappensToClaims(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := &site{t, natstest.Server(t)}
		failed := false
		a := s.pool("a", func(ctx context.Context, p *claim.Partition) error {
			if p.Name() == "0" && !failed {
				failed = true
				return errors.New("no luck")
			}
			return slowly(300*time.Millisecond)(ctx, p)
		})
		want(t, "before there is a pool", a.scrape(t), "tenure_nats_connected 0", `tenure_partitions_gained_total{group="orders"} 0`)
		a.show()
		time.Sleep(5 * time.Second)
		want(t, "alone", a.scrape(t),
			`tenure_nats_connected 1`, `tenure_nats_reconnects_total 0`,
			`tenure_partitions_held{group="orders"} 4`, `tenure_workers{group="orders"} 1`, `tenure_workers_ready{group="orders"} 1`,
			`tenure_leader{group="orders"} 1`, `tenure_group_workers{group="orders"} 1`, `tenure_group_moving{group="orders"} 0`,
			`tenure_group_partitions{group="orders",state="running"} 4`, `tenure_group_partitions{group="orders",state="orphan"} 0`,
			`tenure_sessions_total{group="orders"} 1`, `tenure_handler_failures_total{group="orders"} 1`,
			`tenure_partitions_gained_total{group="orders"} 4`, `tenure_partitions_handed_over_total{group="orders"} 0`,
			`tenure_partition_move_gap_seconds_count{group="orders"} 0`)
		b := s.pool("b", nil)
		b.show()
		time.Sleep(5 * time.Second)
		want(t, "a with b", a.scrape(t), `tenure_partitions_held{group="orders"} 2`, `tenure_partitions_handed_over_total{group="orders"} 2`,
			`tenure_partition_drain_seconds_count{group="orders"} 2`, `tenure_partition_drain_seconds_bucket{group="orders",le="0.25"} 0`,
			`tenure_partition_drain_seconds_bucket{group="orders",le="0.5"} 2`)
		want(t, "b with a", b.scrape(t), `tenure_partitions_held{group="orders"} 2`, `tenure_partition_move_gap_seconds_count{group="orders"} 2`,
			`tenure_partition_move_gap_seconds_bucket{group="orders",le="0.1"} 2`,
			`tenure_leader{group="orders"} 0`, `tenure_group_workers{group="orders"} none`, `tenure_group_partitions{group="orders",state="running"} none`)
		a.link.Cut()
		time.Sleep(25 * time.Second)
		gone := a.scrape(t)
		want(t, "a, cut off", gone, `tenure_nats_connected 0`, `tenure_workers_ready{group="orders"} 0`, `tenure_partitions_held{group="orders"} 0`,
			`tenure_partitions_lost_total{cause="session",group="orders"} 2`, `tenure_sessions_lost_total{cause="silence",group="orders"} 1`,
			`tenure_group_workers{group="orders"} none`)
		if n := gone[`tenure_session_renewals_total{group="orders",result="failed"}`]; n == "0" || n == "" {
			t.Errorf("failed renewals of a = %q, want some", n)
		}
		want(t, "b, alone", b.scrape(t), `tenure_leader{group="orders"} 1`, `tenure_group_workers{group="orders"} 1`)
		a.link.Mend()
	})
}

// N96 among them: how long a lock was waited for.
func TestMetricsCountWhatHappensToLocks(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := &site{t, natstest.Server(t)}
		p := s.pool("a", nil)
		link := natstest.NewLink(t, s.server)
		locker := func(trace *kvlock.Trace, link *natstest.Link) *kvlock.Locker {
			l, err := kvlock.New(t.Context(), natstest.JetStream(t, link.Connect()), kvlock.WithTrace(trace), kvlock.WithTTL(10*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				_ = l.Close(ctx) // cut off at the end
			})
			return l
		}
		l, other := locker(p.metrics.Locks(), link), locker(nil, natstest.NewLink(t, s.server))
		lock := func(l *kvlock.Locker) *kvlock.Lock {
			k, err := l.Lock(t.Context(), "job")
			if err != nil {
				t.Fatal(err)
			}
			return k
		}
		before := lock(other)
		done := make(chan *kvlock.Lock)
		go func() { done <- lock(l) }()
		time.Sleep(2 * time.Second)
		if err := before.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		k := <-done
		time.Sleep(7 * time.Second)
		want(t, "held", p.scrape(t), "tenure_locks_held 1", "tenure_lock_waits_total 1", "tenure_lock_wait_seconds_count 1",
			`tenure_lock_wait_seconds_bucket{le="1"} 0`, `tenure_lock_wait_seconds_bucket{le="2.5"} 1`, `tenure_lock_renewals_total{result="ok"} 2`)
		if err := k.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		k = lock(l)
		link.Cut()
		<-k.Context().Done()
		want(t, "lost", p.scrape(t), "tenure_locks_held 0", `tenure_locks_released_total{result="ok"} 1`, `tenure_lock_hold_seconds_count 1`,
			`tenure_locks_lost_total{cause="silence"} 1`, `tenure_locks_lost_total{cause="taken"} 0`)
	})
}

// documented are the lines of the tables of docs/operations.md.
var documented = regexp.MustCompile("(?m)^\\| `(tenure_[a-z_]+)` \\| (counter|gauge|histogram) \\| ([^|]*) \\|")

// Every metric stands in the docs with its type and its labels, and none that is not
// there; and no label but those whose values are bounded.
func TestMetricsAreThoseOfTheDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	var have, docs []string
	for _, m := range documented.FindAllStringSubmatch(string(text), -1) {
		docs = append(docs, fmt.Sprintf("%s %s %s", m[1], m[2], strings.ReplaceAll(strings.ReplaceAll(m[3], "`", ""), "–", "")))
	}
	natstest.Bubble(t, func(t *testing.T) {
		s := &site{t, natstest.Server(t)}
		p := s.pool("a", nil)
		p.metrics.Locks()
		p.show()
		time.Sleep(2 * time.Second)
		labels := make(map[string]map[string]bool)
		kinds := make(map[string]string)
		body := get(p.admin.Handler(), "/metrics").Body.String()
		for line := range strings.Lines(body) {
			var name, kind string
			if n, _ := fmt.Sscanf(line, "# TYPE %s %s", &name, &kind); n == 2 && strings.HasPrefix(name, "tenure_") {
				kinds[name], labels[name] = kind, make(map[string]bool)
			}
		}
		sample := regexp.MustCompile(`(?m)^(tenure_[a-z_]+?)(_bucket|_sum|_count)?(?:\{(.*)\})? `)
		for _, m := range sample.FindAllStringSubmatch(body, -1) {
			name := m[1]
			if kinds[name] == "" {
				name += m[2]
			}
			for label := range strings.SplitSeq(m[3], ",") {
				if key, _, _ := strings.Cut(label, "="); key != "" && key != "le" {
					labels[name][key] = true
				}
			}
		}
		for name, kind := range kinds {
			var keys []string
			for key := range labels[name] {
				if !slices.Contains([]string{"group", "cause", "result", "state", "version"}, key) {
					t.Errorf("%s has the label %s, which may have no bounds", name, key)
				}
				keys = append(keys, key)
			}
			slices.Sort(keys)
			have = append(have, fmt.Sprintf("%s %s %s", name, kind, strings.Join(keys, ", ")))
		}
	})
	slices.Sort(have)
	slices.Sort(docs)
	if !slices.Equal(have, docs) {
		t.Errorf("metrics are\n%s\nwant those of the docs\n%s", strings.Join(have, "\n"), strings.Join(docs, "\n"))
	}
}
