package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Coordination are the instruments of the coordination plane of one peer.
type Coordination struct {
	messages  *prometheus.CounterVec
	bytes     *prometheus.CounterVec
	dropped   *prometheus.CounterVec
	refused   *prometheus.CounterVec
	snapshots *prometheus.CounterVec
}

// GroupStats is how the group stands as this peer sees it.
type GroupStats struct {
	Term, Revision       uint64
	Leads, HasLeader     bool
	Voters               int
	Leases, Locks, Keys  int
	OldestOverdueSeconds float64 // of the leases that should have ended; of the leader
}

// NewCoordination registers the instruments, and gauges that ask for their values at each scrape.
// It fails with Exists when the registry has them already.
func NewCoordination(reg prometheus.Registerer, figures func() GroupStats) (*Coordination, error) {
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "blackhole_coordination_" + name, Help: help}, labels)
	}
	c := &Coordination{
		messages:  counters("messages_total", "Messages between members, by direction and lane.", "direction", "lane"),
		bytes:     counters("message_bytes_total", "Bytes of messages between members, by direction and lane.", "direction", "lane"),
		dropped:   counters("messages_dropped_total", "Messages to members that were not sent, by lane and reason.", "lane", "reason"),
		refused:   counters("streams_refused_total", "Streams that were not served, by reason.", "reason"),
		snapshots: counters("snapshots_total", "Snapshots sent and received, by direction and outcome.", "direction", "outcome"),
	}
	for _, one := range append(gauges(figures), c.messages, c.bytes, c.dropped, c.refused, c.snapshots) {
		if err := reg.Register(one); err != nil {
			return nil, fault.As("metrics.NewCoordination", fault.Exists, err)
		}
	}
	return c, nil
}

func gauges(figures func() GroupStats) []prometheus.Collector {
	gauge := func(name, help string, of func(GroupStats) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "blackhole_coordination_" + name, Help: help},
			func() float64 { return of(figures()) })
	}
	flag := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	return []prometheus.Collector{
		gauge("term", "Raft's term.", func(f GroupStats) float64 { return float64(f.Term) }),
		gauge("revision", "Revision of the keyspace.", func(f GroupStats) float64 { return float64(f.Revision) }),
		gauge("is_leader", "Whether this peer leads the group.", func(f GroupStats) float64 { return flag(f.Leads) }),
		gauge("has_leader", "Whether this peer knows who leads the group.", func(f GroupStats) float64 { return flag(f.HasLeader) }),
		gauge("voters", "Voters of the group.", func(f GroupStats) float64 { return float64(f.Voters) }),
		gauge("leases", "Leases.", func(f GroupStats) float64 { return float64(f.Leases) }),
		gauge("locks", "Locks that somebody claims.", func(f GroupStats) float64 { return float64(f.Locks) }),
		gauge("keys", "Keys, those of locks included.", func(f GroupStats) float64 { return float64(f.Keys) }),
		gauge("oldest_overdue_seconds", "How late the oldest lease is that should have ended; of the leader.",
			func(f GroupStats) float64 { return f.OldestOverdueSeconds }),
	}
}

// Sent counts messages that left, and their bytes.
func (c *Coordination) Sent(lane string, messages, bytes int) {
	c.carried("out", lane, messages, bytes)
}

// Received counts messages that came, and their bytes.
func (c *Coordination) Received(lane string, messages, bytes int) {
	c.carried("in", lane, messages, bytes)
}

func (c *Coordination) carried(direction, lane string, messages, bytes int) {
	c.messages.WithLabelValues(direction, lane).Add(float64(messages))
	c.bytes.WithLabelValues(direction, lane).Add(float64(bytes))
}

// Dropped counts messages that were not sent, for a reason.
func (c *Coordination) Dropped(lane, reason string, messages int) {
	c.dropped.WithLabelValues(lane, reason).Add(float64(messages))
}

// Refused counts a stream that was not served.
func (c *Coordination) Refused(reason string) { c.refused.WithLabelValues(reason).Inc() }

// Snapshot counts a state sent ("out") or received ("in").
func (c *Coordination) Snapshot(direction string, _ int64, err error) {
	outcome := "ok"
	if err != nil {
		outcome = "failed"
	}
	c.snapshots.WithLabelValues(direction, outcome).Inc()
}
