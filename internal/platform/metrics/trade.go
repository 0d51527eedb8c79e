package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Trade is what a peer sells and buys now, and did since its start.
type Trade struct {
	Given, Held  int                  // live grants
	Units        uint64               // granted
	Refused      map[[2]string]uint64 // by kind of error and field, of which the program has few
	Sold, Bought carried
}

// carried is what the connections of holders carry, in bytes.
type carried = struct{ Open, Sent, Received uint64 }

// RegisterTrade adds the metrics of grants. Each scrape calls now.
func RegisterTrade(reg prometheus.Registerer, now func() Trade) error {
	f := &factory{reg: reg, prefix: "blackhole_trade_"}
	const refused = "Refused requests and connections of buyers, by kind of error and field; conflict, units: too few are free."
	counter, level := prometheus.CounterValue, prometheus.GaugeValue
	f.scrape([]family{
		{"grants", "Live grants, given by this peer or held.", level, []string{"side"}},
		{"units_granted_total", "Units of own offers that this peer granted.", counter, nil},
		{"refused_total", refused, counter, []string{"reason", "field"}},
		{"connections", "Open connections to what was granted, by grants that this peer gave or holds.", level, []string{"side"}},
		{"bytes_total", "Bytes of these connections, sent or received by the holder.", counter, []string{"side", "direction"}},
	}, func(set setter) {
		t := now()
		set("grants", float64(t.Given), "given")
		set("grants", float64(t.Held), "held")
		set("units_granted_total", float64(t.Units))
		for r, n := range t.Refused {
			set("refused_total", float64(n), r[0], r[1])
		}
		for side, c := range map[string]carried{"given": t.Sold, "held": t.Bought} {
			set("connections", float64(c.Open), side)
			set("bytes_total", float64(c.Sent), side, "sent")
			set("bytes_total", float64(c.Received), side, "received")
		}
	})
	return fault.As("metrics.RegisterTrade", fault.Exists, f.err)
}
