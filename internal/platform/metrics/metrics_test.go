package metrics_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/metrics"
	"github.com/blackhole/blackhole/internal/platform/metrics/metricstest"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestSpecifiedNames checks every name of the U06 Service Discovery Protocol, section 7.
func TestSpecifiedNames(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := metrics.NewDiscovery(reg)
	require.NoError(t, err)
	require.NoError(t, metrics.RegisterHealthGauges(reg, func() (int, int) { return 3, 1 }))
	m.Registered("compute", 1)
	m.Registered("compute", 1)
	m.Registered("compute", -1)
	m.Refreshed(2)
	m.Queried("cache", time.Microsecond, 4)
	m.Queried("network", time.Second, 0)
	m.Operation("store", time.Second, context.DeadlineExceeded)
	m.Failed("discovery.Query", fault.Invalidf("type", "", "is required"))
	m.Checked()

	values, names := metricstest.Values(t, reg), map[string]bool{}
	for series, value := range values {
		name, labels, _ := strings.Cut(strings.TrimPrefix(series, "blackhole_discovery_"), "{")
		names[name] = true
		values[name+"{"+labels] = value
	}
	for _, name := range []string{
		"services_registered_total", "services_unregistered_total", "services_refreshed_total", "services_active",
		"queries_total", "query_duration_seconds", "results_returned", "cache_hits_total", "cache_misses_total",
		"dht_operations_total", "dht_latency_seconds", "health_checks_total", "healthy_services", "unhealthy_services",
		"errors_total",
	} {
		require.True(t, names[name], "blackhole_discovery_%s is missing", name)
	}
	require.Equal(t, 1.0, values["services_active{compute}"])
	require.Equal(t, 1.0, values["errors_total{discovery_invalid}"])
	require.Equal(t, 1.0, values["errors_total{store_timeout}"])
	require.Equal(t, 3.0, values["healthy_services{}"])
	require.Equal(t, 1.0, values["cache_hits_total{}"])
	require.Equal(t, 1.0, values["cache_misses_total{}"])
}

// Nil records nothing, so that tests and tools need no registry.
// TestFromZero: a rate sees the first refusal, because its counter was there before.
func TestFromZero(t *testing.T) {
	reg := prometheus.NewRegistry()
	_, err := metrics.NewDiscovery(reg)
	require.NoError(t, err)
	_, err = metrics.NewCoordination(reg, func() metrics.GroupStats { return metrics.GroupStats{} })
	require.NoError(t, err)
	values := metricstest.Values(t, reg)
	for _, series := range []string{
		`blackhole_connections_refused_total{full}`, `blackhole_discovery_refused_total{rate}`,
		`blackhole_coordination_snapshots_total{out,failed}`, `blackhole_coordination_state_comparisons_total{odd}`,
	} {
		value, ok := values[series]
		require.True(t, ok, "%s of %v", series, values)
		require.Zero(t, value)
	}
}

func TestNilRecordsNothing(t *testing.T) {
	var m *metrics.Discovery
	m.Registered("compute", 1)
	m.Refreshed(1)
	m.Outdated()
	m.Queried("cache", 0, 0)
	m.Failed("op", nil)
	m.Operation("store", 0, nil)
	m.Refused("busy")
	m.Distrusted("busy")
	m.Lacking("field")
	m.Checked()
	m.ConnectionRefused("full")
	m.PlaceRefused("watches", "full")
	m.Received("new")
	var c *metrics.Coordination
	c.Sent("append", 1, 1)
	c.Received("append", 1, 1)
	c.Dropped("append", "full", 1)
	c.Committed(0)
	c.Synced(0)
	c.Led()
	c.Compared("equal")
	c.Refused("busy")
	c.Snapshot("in", nil)
}

func TestTwiceIsAnError(t *testing.T) {
	reg := prometheus.NewRegistry()
	_, err := metrics.NewDiscovery(reg)
	require.NoError(t, err)
	_, err = metrics.NewDiscovery(reg)
	require.ErrorIs(t, err, fault.Exists)
}
