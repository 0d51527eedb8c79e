package metrics_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/metrics"
	"github.com/blackhole/blackhole/internal/platform/metrics/metricstest"
)

func TestReach(t *testing.T) {
	reg := prometheus.NewRegistry()
	states := []string{"public", "relayed"}
	require.NoError(t, metrics.RegisterReach(reg, states, func() metrics.Reach {
		return metrics.Reach{State: "relayed", Direct: 3, Relayed: 1, Punched: 4, Unpunched: 2, Remembered: 5}
	}))
	require.Equal(t, map[string]float64{
		"blackhole_reach{public}": 0, "blackhole_reach{relayed}": 1,
		"blackhole_connections{direct}": 3, "blackhole_connections{relayed}": 1,
		"blackhole_remembered_peers{}": 5, "blackhole_hole_punches_total{success}": 4, "blackhole_hole_punches_total{failure}": 2,
	}, metricstest.Values(t, reg))
	require.Error(t, metrics.RegisterReach(reg, states, nil), "registered twice")
}
