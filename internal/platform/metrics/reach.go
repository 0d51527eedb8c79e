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
	Remembered         int // peers whose addresses are known
}

// RegisterReach adds the metrics of NAT traversal. Each scrape calls now. states are all values of Reach.State.
func RegisterReach(reg prometheus.Registerer, states []string, now func() Reach) error {
	f := &factory{reg: reg, prefix: "blackhole_"}
	f.scrape([]family{
		{"reach", "1 for the way in which strangers reach this peer.", prometheus.GaugeValue, []string{"state"}},
		{"connections", "Open connections, direct or through a relay.", prometheus.GaugeValue, []string{"path"}},
		{"remembered_peers", "Peers whose addresses this peer knows.", prometheus.GaugeValue, nil},
		{"hole_punches_total", "Finished hole punches, by outcome.", prometheus.CounterValue, []string{"outcome"}},
	}, func(set setter) {
		r := now()
		for _, s := range states {
			set("reach", flag(s == r.State), s)
		}
		set("connections", float64(r.Direct), "direct")
		set("connections", float64(r.Relayed), "relayed")
		set("remembered_peers", float64(r.Remembered))
		set("hole_punches_total", float64(r.Punched), "success")
		set("hole_punches_total", float64(r.Unpunched), "failure")
	})
	return fault.As("metrics.RegisterReach", fault.Exists, f.err)
}
