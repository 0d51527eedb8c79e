package metrics_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/metrics"
)

func TestReach(t *testing.T) {
	reg := prometheus.NewRegistry()
	states := []string{"public", "relayed"}
	require.NoError(t, metrics.RegisterReach(reg, states, func() metrics.Reach {
		return metrics.Reach{State: "relayed", Direct: 3, Relayed: 1, Punched: 4, Unpunched: 2}
	}))
	families, err := reg.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			values[f.GetName()+" "+m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	require.Equal(t, map[string]float64{
		"blackhole_reach public": 0, "blackhole_reach relayed": 1,
		"blackhole_connections direct": 3, "blackhole_connections relayed": 1,
		"blackhole_hole_punches_total success": 4, "blackhole_hole_punches_total failure": 2,
	}, values)
	require.Error(t, metrics.RegisterReach(reg, states, nil), "registered twice")
}
