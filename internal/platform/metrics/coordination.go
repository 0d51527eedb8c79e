package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Coordination are the instruments of the coordination plane of one peer. Nil records nothing. A lane is "control", "append",
// "snapshot", or "question" between peers outside the log.
type Coordination struct {
	messages  *prometheus.CounterVec
	bytes     *prometheus.CounterVec
	dropped   *prometheus.CounterVec
	refused   *prometheus.CounterVec
	snapshots *prometheus.CounterVec
	compared  *prometheus.CounterVec
	led       prometheus.Counter
	steps     *prometheus.HistogramVec
}

// GroupStats is this peer's view of the group.
type GroupStats struct {
	Term, Revision       uint64
	Leads, HasLeader     bool
	Voters               int
	SilentVoters         int // not heard by the leader within an election timeout, as it said last
	FailuresSurvived     int // of voters, now
	Leases, Locks, Keys  int
	PoolsUsed            map[string]float64 // share of what each pool has for applications; see machine.Pool
	OldestOverdueSeconds float64            // age of the oldest expired lease that has not ended; only on the leader
}

// NewCoordination registers the instruments, and gauges of what stats returns at each scrape.
// Errors: Exists if the registry has them already.
func NewCoordination(reg prometheus.Registerer, stats func() GroupStats) (*Coordination, error) {
	f := &factory{reg: reg, prefix: "blackhole_coordination_"}
	c := &Coordination{
		messages: register(f, f.counters("messages_total", "Messages between members, by direction and lane.", "direction", "lane")),
		bytes:    register(f, f.counters("message_bytes_total", "Bytes of messages between members, by direction and lane.", "direction", "lane")),
		dropped:  register(f, f.counters("messages_dropped_total", "Unsent messages to members, by lane and reason.", "lane", "reason")),
		refused:  register(f, f.counters("streams_refused_total", "Refused streams, by reason.", "reason")),
		snapshots: register(f, fromZero(f.counters("snapshots_total", "Sent and received snapshots, by direction and outcome.", "direction", "outcome"),
			[]string{"in", "out"}, []string{"ok", "failed"})),
		compared: register(f, fromZero(f.counters("state_comparisons_total", "Comparisons of the members' states at this leader, by outcome: equal, odd, split, missing.", "outcome"),
			[]string{"equal", "odd", "split", "missing"})),
		led: register(f, f.counter("leader_changes_total", "Leaders that this peer followed.")),
		steps: register(f, prometheus.NewHistogramVec(f.histogram("step_seconds",
			"Duration of a commit at the leader, from the proposal to the result, and of an fsync of the log.",
			prometheus.ExponentialBuckets(0.0002, 2, 16)), []string{"step"})),
	}
	type group = GroupStats
	gauges(f, stats,
		gauge[group]{"term", "Raft term.", func(s group) float64 { return float64(s.Term) }},
		gauge[group]{"revision", "Revision of the key space.", func(s group) float64 { return float64(s.Revision) }},
		gauge[group]{"is_leader", "1 if this peer leads the group.", func(s group) float64 { return flag(s.Leads) }},
		gauge[group]{"has_leader", "1 if this peer knows the leader of the group.", func(s group) float64 { return flag(s.HasLeader) }},
		gauge[group]{"voters", "Voters of the group.", func(s group) float64 { return float64(s.Voters) }},
		gauge[group]{"silent_voters", "Voters that the leader has not heard within an election timeout; 0 without a known leader.", func(s group) float64 { return float64(s.SilentVoters) }},
		gauge[group]{"failures_survived", "Voters that may fail now without a loss of the majority; 0 without a known leader.", func(s group) float64 { return float64(s.FailuresSurvived) }},
		gauge[group]{"leases", "Leases of the group.", func(s group) float64 { return float64(s.Leases) }},
		gauge[group]{"locks", "Locks with holders or waiters.", func(s group) float64 { return float64(s.Locks) }},
		gauge[group]{"keys", "Keys of the group, with the keys of locks.", func(s group) float64 { return float64(s.Keys) }},
		gauge[group]{"oldest_overdue_seconds", "Delay of the oldest expired lease that has not ended; on the leader.", func(s group) float64 { return s.OldestOverdueSeconds }},
	)
	f.scrape([]family{{"pool_used_ratio", "Used share of a pool of the group; above 1 the reserve of the peers is in use.", prometheus.GaugeValue, []string{"pool"}}},
		func(set setter) {
			for pool, used := range stats().PoolsUsed {
				set("pool_used_ratio", used, pool)
			}
		})
	return c, fault.As("metrics.NewCoordination", fault.Exists, f.err)
}

// Sent counts sent messages and their bytes.
func (c *Coordination) Sent(lane string, messages, bytes int) {
	c.count("out", lane, messages, bytes)
}

// Received counts received messages and their bytes.
func (c *Coordination) Received(lane string, messages, bytes int) {
	c.count("in", lane, messages, bytes)
}

func (c *Coordination) count(direction, lane string, messages, bytes int) {
	if c != nil {
		c.messages.WithLabelValues(direction, lane).Add(float64(messages))
		c.bytes.WithLabelValues(direction, lane).Add(float64(bytes))
	}
}

// Dropped counts unsent messages: "full", "unreachable", "unknown", "unfit", "busy", "closed", "failed".
func (c *Coordination) Dropped(lane, reason string, messages int) {
	if c != nil {
		c.dropped.WithLabelValues(lane, reason).Add(float64(messages))
	}
}

// Committed records the duration from a proposal at the leader to its result.
func (c *Coordination) Committed(d time.Duration) { c.took("commit", d) }

// Synced records the duration of one sync of the log.
func (c *Coordination) Synced(d time.Duration) { c.took("fsync", d) }

func (c *Coordination) took(step string, d time.Duration) {
	if c != nil {
		c.steps.WithLabelValues(step).Observe(d.Seconds())
	}
}

// Led counts a leader that this peer had not followed before.
func (c *Coordination) Led() {
	if c != nil {
		c.led.Inc()
	}
}

// Compared counts a comparison of the members' states at this leader: "equal", "odd", "split", or "missing", when a
// member gave no hash and the others agree.
func (c *Coordination) Compared(outcome string) {
	if c != nil {
		c.compared.WithLabelValues(outcome).Inc()
	}
}

// Refused counts a refused stream or question, by handshake result or fault: "busy" is one without a free place.
func (c *Coordination) Refused(reason string) {
	if c != nil {
		c.refused.WithLabelValues(reason).Inc()
	}
}

// Snapshot counts a snapshot that was sent ("out") or received ("in").
func (c *Coordination) Snapshot(direction string, err error) {
	if c == nil {
		return
	}
	outcome := "ok"
	if err != nil {
		outcome = "failed"
	}
	c.snapshots.WithLabelValues(direction, outcome).Inc()
}
