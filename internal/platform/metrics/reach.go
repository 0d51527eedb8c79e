package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Reach is how strangers reach this peer.
type Reach struct {
	State              string
	Direct, Relayed    int // open connections
	Punched, Unpunched int // hole punches since the start
}

// RegisterReach adds the metrics of NAT traversal. Each scrape calls now. states are all values of Reach.State.
func RegisterReach(reg prometheus.Registerer, states []string, now func() Reach) error {
	return fault.As("metrics.RegisterReach", fault.Exists, reg.Register(reachMetrics{
		states: states, now: now,
		state:       prometheus.NewDesc("blackhole_reach", "1 for the way in which strangers reach this peer.", []string{"state"}, nil),
		connections: prometheus.NewDesc("blackhole_connections", "Open connections, direct or through a relay.", []string{"path"}, nil),
		punches:     prometheus.NewDesc("blackhole_hole_punches_total", "Finished hole punches, by outcome.", []string{"outcome"}, nil),
	}))
}

type reachMetrics struct {
	states                      []string
	now                         func() Reach
	state, connections, punches *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (m reachMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.state
	out <- m.connections
	out <- m.punches
}

// Collect implements prometheus.Collector.
func (m reachMetrics) Collect(out chan<- prometheus.Metric) {
	r := m.now()
	for _, s := range m.states {
		value := 0.0
		if s == r.State {
			value = 1
		}
		out <- prometheus.MustNewConstMetric(m.state, prometheus.GaugeValue, value, s)
	}
	out <- prometheus.MustNewConstMetric(m.connections, prometheus.GaugeValue, float64(r.Direct), "direct")
	out <- prometheus.MustNewConstMetric(m.connections, prometheus.GaugeValue, float64(r.Relayed), "relayed")
	out <- prometheus.MustNewConstMetric(m.punches, prometheus.CounterValue, float64(r.Punched), "success")
	out <- prometheus.MustNewConstMetric(m.punches, prometheus.CounterValue, float64(r.Unpunched), "failure")
}
