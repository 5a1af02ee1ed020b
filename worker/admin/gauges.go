package admin

import (
	"context"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tenure/claim"
)

// scrapeTimeout is how long a scrape waits for what only the bucket knows, and
// scrapeEvery how old that may be.
const (
	scrapeTimeout = 2 * time.Second
	scrapeEvery   = 5 * time.Second
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("tenure_"+name, help, labels, nil)
}

var (
	descBuild      = desc("build_info", "Always 1; the labels say what runs.", "version")
	descConnected  = desc("nats_connected", "1 while the connection to NATS is there.")
	descReconnects = desc("nats_reconnects_total", "Reconnects to NATS.")
	descHeld       = desc("partitions_held", "Partitions whose handler runs in this process.", "group")
	descWorkers    = desc("workers", "Workers of this process.", "group")
	descReady      = desc("workers_ready", "Workers of this process that are ready, as /readyz has it.", "group")
	descLeads      = desc("leader", "1 if a worker of this process leads the group.", "group")

	// Only the leader's process has these, so that their sum over processes is right.
	descPartitions   = desc("group_partitions", "Partitions of the group by state; from the leader's process only.", "group", "state")
	descGroupWorkers = desc("group_workers", "Workers of the group; from the leader's process only.", "group")
	descMoving       = desc("group_moving", "Partitions that are not where the plan wants them; from the leader's process only.", "group")
)

// states are all states of a partition.
var states = []string{
	claim.StateRunning, claim.StateStalled, claim.StateDraining, claim.StateMoving,
	claim.StateOrphan, claim.StatePaused, claim.StateQuarantined, claim.StateUnassigned,
}

// gauges are what is read of a pool when somebody scrapes.
type gauges struct {
	server *Server

	mu   sync.Mutex
	last map[string]reading // by group
}

// A reading is the status of a group, and when it was read.
type reading struct {
	at     time.Time
	status claim.Status
	ok     bool
}

// Describe implements [prometheus.Collector].
func (g *gauges) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descBuild, descConnected, descReconnects, descHeld, descWorkers, descReady, descLeads,
		descPartitions, descGroupWorkers, descMoving,
	} {
		out <- d
	}
}

// Collect implements [prometheus.Collector].
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(descBuild, 1, version())
	pool := g.server.pool.Load()
	if pool == nil {
		gauge(descConnected, 0)
		return
	}
	nc := pool.Bucket.JetStream().Conn()
	gauge(descConnected, number(nc.IsConnected()))
	out <- prometheus.MustNewConstMetric(descReconnects, prometheus.CounterValue, float64(nc.Stats().Reconnects))
	for _, group := range pool.groups() {
		held, workers, ready, leads := 0, 0, 0, false
		for _, c := range pool.Claimers {
			if c.Group() != group {
				continue
			}
			workers++
			for range c.Held() {
				held++
			}
			if c.Ready() == nil {
				ready++
			}
			leads = leads || c.Leads()
		}
		gauge(descHeld, float64(held), group)
		gauge(descWorkers, float64(workers), group)
		gauge(descReady, float64(ready), group)
		gauge(descLeads, number(leads), group)
		if !leads {
			continue
		}
		if s, ok := g.read(pool, group); ok {
			count := make(map[string]int)
			for _, p := range s.Partitions {
				count[p.State]++
			}
			for _, state := range states {
				gauge(descPartitions, float64(count[state]), group, state)
			}
			gauge(descGroupWorkers, float64(len(s.Workers)), group)
			gauge(descMoving, float64(s.Plan.Moving), group)
		}
	}
}

// read returns the status of a group, which may have been read for somebody else a
// moment ago.
func (g *gauges) read(pool *Pool, group string) (claim.Status, bool) {
	g.mu.Lock() // one reading serves all who ask meanwhile
	defer g.mu.Unlock()
	r, ok := g.last[group]
	if !ok || time.Since(r.at) >= scrapeEvery {
		ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout) // a Collector has none
		defer cancel()
		s, err := claim.ReadStatus(ctx, pool.Bucket, group)
		r = reading{time.Now(), s, err == nil}
		if g.last == nil {
			g.last = make(map[string]reading)
		}
		g.last[group] = r
	}
	return r.status, r.ok
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// version returns the version of the program.
var version = sync.OnceValue(func() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
})

// groups returns the groups of the pool, in the order of its claimers.
func (p *Pool) groups() []string {
	var all []string
	for _, c := range p.Claimers {
		if !slices.Contains(all, c.Group()) {
			all = append(all, c.Group())
		}
	}
	return all
}
