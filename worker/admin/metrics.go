package admin

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tenure/claim"
	"tenure/kvlock"
)

// Metrics count what happens to claims and locks. They are a [prometheus.Collector]:
// register them, or let a [Server] serve them. docs/operations.md lists them all.
//
// No label is without bounds: a group is what the program was configured with, all
// others are from a fixed list. No metric has the name of a lock, a partition or a
// worker.
type Metrics struct {
	all []prometheus.Collector

	gained, handedOver, failures, stalled, stuck, overrun, quarantined, sessions *prometheus.CounterVec

	partitionsLost, sessionsLost, heartbeats *prometheus.CounterVec

	gap, drain, heartbeat *prometheus.HistogramVec
	degraded              *prometheus.GaugeVec

	waits, fencedRefused                  prometheus.Counter
	locksHeld                             prometheus.Gauge
	lockRenewals, locksLost, locksEnded   *prometheus.CounterVec
	lockWait, lockHold, renewal, handover prometheus.Histogram
}

// Buckets of histograms, in seconds.
var (
	quick = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}                // a write to the server
	slow  = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900} // what people wait for
)

// NewMetrics returns metrics of which nothing has been counted.
func NewMetrics() *Metrics {
	m := &Metrics{}
	group := []string{"group"}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tenure_" + name, Help: help}, labels)
		m.all = append(m.all, v)
		return v
	}
	counter := func(name, help string) prometheus.Counter {
		v := prometheus.NewCounter(prometheus.CounterOpts{Name: "tenure_" + name, Help: help})
		m.all = append(m.all, v)
		return v
	}
	times := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tenure_" + name, Help: help, Buckets: buckets}, group)
		m.all = append(m.all, v)
		return v
	}
	clock := func(name, help string, buckets []float64) prometheus.Histogram {
		v := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tenure_" + name, Help: help, Buckets: buckets})
		m.all = append(m.all, v)
		return v
	}

	m.gained = counters("partitions_gained_total", "Partitions that workers of this process have gained.", group...)
	m.handedOver = counters("partitions_handed_over_total", "Partitions that workers of this process have given away.", group...)
	m.partitionsLost = counters("partitions_lost_total", "Partitions that workers of this process have lost otherwise.", "group", "cause")
	m.gap = times("partition_move_gap_seconds", "How long nobody ran a partition that was handed over to this process.", slow)
	m.drain = times("partition_drain_seconds", "From the request to drain to the hand-over.", slow)
	m.failures = counters("handler_failures_total", "Failures of handlers.", group...)
	m.stalled = counters("handlers_stalled_total", "Handlers that made no progress for too long.", group...)
	m.stuck = counters("handler_stuck_reports_total", "Reports, one every 10 s, of handlers that do not return though they have to.", group...)
	m.overrun = counters("handlers_overrun_total", "Handlers that ran on while their partition was given away.", group...)
	m.quarantined = counters("partitions_quarantined_total", "Partitions that this process has put into quarantine.", group...)

	m.sessions = counters("sessions_total", "Sessions that workers of this process have begun.", group...)
	m.sessionsLost = counters("sessions_lost_total", "Sessions that they have lost.", "group", "cause")
	m.heartbeats = counters("session_renewals_total", "Heartbeats of sessions.", "group", "result")
	m.heartbeat = times("session_renewal_seconds", "From sending a heartbeat to its confirmation.", quick)
	m.degraded = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tenure_session_degraded", Help: "1 while handlers run on though the store is away."}, group)
	m.all = append(m.all, m.degraded)

	m.locksHeld = prometheus.NewGauge(prometheus.GaugeOpts{Name: "tenure_locks_held", Help: "Locks that this process holds."})
	m.all = append(m.all, m.locksHeld)
	m.waits = counter("lock_waits_total", "Calls that had to stand in line.")
	m.lockWait = clock("lock_wait_seconds", "From the call to the hold, with or without a line.", slow)
	m.lockHold = clock("lock_hold_seconds", "How long locks that were released were held.", slow)
	m.handover = clock("lock_handover_seconds", "From the begin of a release until the next in line takes the lock.", quick)
	m.renewal = clock("lock_renewal_seconds", "From sending a renewal to its confirmation.", quick)
	m.lockRenewals = counters("lock_renewals_total", "Renewals of locks.", "result")
	m.locksEnded = counters("locks_released_total", "Locks that were released; expires means that the end was left to the TTL.", "result")
	m.locksLost = counters("locks_lost_total", "Locks that were lost.", "cause")
	m.fencedRefused = counter("fenced_writes_refused_total", "Fenced writes that found their hold ended.")
	return m
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, c := range m.all {
		c.Describe(out)
	}
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range m.all {
		c.Collect(out)
	}
}

// Results and causes: every value that a label can have.
const (
	resultOK      = "ok"
	resultFailed  = "failed"
	resultExpires = "expires"

	causeSession = "session" // the session was lost
	causeFenced  = "fenced"  // another worker's claim was found
	causeSilence = "silence" // no renewal was confirmed in time
	causeRevoked = "revoked" // by an operator
	causeTaken   = "taken"   // by another holder
	causeRemoved = "removed" // somebody removed the key
	causeBucket  = "bucket"  // it is gone or was made anew
	causeDenied  = "denied"  // a permission is missing
	causeClosed  = "closed"  // the connection was closed
	causeOverrun = "overrun" // the maximum hold is over
	causeOther   = "other"
)

// Claims returns the trace of a claimer of the group; give it to [claim.WithTrace].
func (m *Metrics) Claims(group string) *claim.Trace {
	m.begin(group)
	renewed, failed := m.heartbeats.WithLabelValues(group, resultOK), m.heartbeats.WithLabelValues(group, resultFailed)
	return &claim.Trace{
		Joined:      func(uint64) { m.sessions.WithLabelValues(group).Inc() },
		SessionLost: func(err error) { m.sessionsLost.WithLabelValues(group, sessionCause(err)).Inc() },
		Renewed: func(took time.Duration) {
			renewed.Inc()
			m.heartbeat.WithLabelValues(group).Observe(took.Seconds())
		},
		RenewFailed: func(time.Duration) { failed.Inc() },
		Gained:      func(string, uint64) { m.gained.WithLabelValues(group).Inc() },
		Moved: func(_ string, _ uint64, gap time.Duration) {
			m.gap.WithLabelValues(group).Observe(gap.Seconds())
		},
		HandedOver: func(_ string, _ uint64, _ string, took time.Duration) {
			m.handedOver.WithLabelValues(group).Inc()
			if took > 0 {
				m.drain.WithLabelValues(group).Observe(took.Seconds())
			}
		},
		Lost: func(_ string, _ uint64, cause error) {
			m.partitionsLost.WithLabelValues(group, partitionCause(cause)).Inc()
		},
		Failed: func(string, uint64, error, int, time.Duration) { m.failures.WithLabelValues(group).Inc() },
		Stalled: func(string, uint64, time.Duration) {
			m.stalled.WithLabelValues(group).Inc()
		},
		Stuck:       func(string, uint64, error) { m.stuck.WithLabelValues(group).Inc() },
		Overrun:     func(string, uint64) { m.overrun.WithLabelValues(group).Inc() },
		Quarantined: func(string, int, error) { m.quarantined.WithLabelValues(group).Inc() },
		Degraded: func(is bool) {
			value := 0.0
			if is {
				value = 1
			}
			m.degraded.WithLabelValues(group).Set(value)
		},
	}
}

// begin makes the metrics of a group be there before something happens: a rate needs
// the 0 that came before the 1.
func (m *Metrics) begin(group string) {
	for _, v := range []*prometheus.CounterVec{m.gained, m.handedOver, m.failures, m.stalled, m.stuck, m.overrun, m.quarantined, m.sessions} {
		v.WithLabelValues(group)
	}
	for _, v := range []*prometheus.HistogramVec{m.gap, m.drain, m.heartbeat} {
		v.WithLabelValues(group)
	}
	m.degraded.WithLabelValues(group)
	for _, cause := range []string{causeSession, causeFenced, causeRevoked, causeBucket, causeDenied, causeOther} {
		m.partitionsLost.WithLabelValues(group, cause)
	}
	for _, cause := range []string{causeSilence, causeRevoked, causeBucket, causeDenied} {
		m.sessionsLost.WithLabelValues(group, cause)
	}
}

func partitionCause(err error) string {
	switch {
	case errors.Is(err, claim.ErrRevoked):
		return causeRevoked
	case errors.Is(err, claim.ErrBucket):
		return causeBucket
	case errors.Is(err, claim.ErrPermission):
		return causeDenied
	case errors.Is(err, claim.ErrSessionLost):
		return causeSession
	case errors.Is(err, claim.ErrFenced):
		return causeFenced
	}
	return causeOther
}

// sessionCause classifies the end of a session. That others could prove it dead is
// what comes of its silence.
func sessionCause(err error) string {
	if cause := partitionCause(err); cause != causeSession && cause != causeOther {
		return cause
	}
	return causeSilence
}

// Locks returns the trace of a [kvlock.Locker]; give it to [kvlock.WithTrace].
func (m *Metrics) Locks() *kvlock.Trace {
	for _, result := range []string{resultOK, resultFailed} {
		m.lockRenewals.WithLabelValues(result)
	}
	for _, result := range []string{resultOK, resultExpires} {
		m.locksEnded.WithLabelValues(result)
	}
	for _, cause := range lockCauses {
		m.locksLost.WithLabelValues(cause)
	}
	return &kvlock.Trace{
		Waiting: func(string) { m.waits.Inc() },
		Acquired: func(_ string, _ uint64, waited time.Duration) {
			m.locksHeld.Inc()
			m.lockWait.Observe(waited.Seconds())
		},
		Renewed: func(_ string, _ uint64, took time.Duration) {
			m.lockRenewals.WithLabelValues(resultOK).Inc()
			m.renewal.Observe(took.Seconds())
		},
		RenewFailed: func(string, uint64, time.Duration, error) {
			m.lockRenewals.WithLabelValues(resultFailed).Inc()
		},
		Lost: func(err *kvlock.LostError) {
			m.locksHeld.Dec()
			cause, ok := lockCauses[err.Reason]
			if !ok {
				cause = causeOther
			}
			m.locksLost.WithLabelValues(cause).Inc()
		},
		Released: func(_ string, _ uint64, held time.Duration, err error) {
			m.locksHeld.Dec()
			m.lockHold.Observe(held.Seconds())
			result := resultOK
			if err != nil {
				result = resultExpires
			}
			m.locksEnded.WithLabelValues(result).Inc()
		},
		HandedOver:    func(_ string, _ uint64, took time.Duration) { m.handover.Observe(took.Seconds()) },
		FencedRefused: func(string, uint64, error) { m.fencedRefused.Inc() },
	}
}

// lockCauses are the causes by the reasons of losses.
var lockCauses = map[kvlock.Reason]string{
	kvlock.Expired: causeSilence, kvlock.Taken: causeTaken, kvlock.Revoked: causeRevoked, kvlock.Removed: causeRemoved,
	kvlock.Gone: causeBucket, kvlock.Closed: causeClosed, kvlock.Overrun: causeOverrun,
}
