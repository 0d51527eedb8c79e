package metrics_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/metrics"
	"github.com/blackhole/blackhole/internal/platform/metrics/metricstest"
)

func TestTrade(t *testing.T) {
	reg := prometheus.NewRegistry()
	now := metrics.Trade{Given: 2, Held: 1, Units: 9, Refused: map[[2]string]uint64{{"conflict", "units"}: 3}}
	now.Sold.Open, now.Sold.Sent, now.Bought.Received = 4, 5, 6
	require.NoError(t, metrics.RegisterTrade(reg, func() metrics.Trade { return now }))
	require.Equal(t, map[string]float64{
		"blackhole_trade_grants{given}": 2, "blackhole_trade_grants{held}": 1, "blackhole_trade_units_granted_total{}": 9,
		"blackhole_trade_refused_total{units,conflict}": 3, "blackhole_trade_connections{given}": 4, "blackhole_trade_connections{held}": 0,
		"blackhole_trade_bytes_total{sent,given}": 5, "blackhole_trade_bytes_total{received,given}": 0,
		"blackhole_trade_bytes_total{sent,held}": 0, "blackhole_trade_bytes_total{received,held}": 6,
	}, metricstest.Values(t, reg))
	require.Error(t, metrics.RegisterTrade(reg, nil), "registered twice")
}
