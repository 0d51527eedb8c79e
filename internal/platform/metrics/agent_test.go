package metrics_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/metrics"
	"github.com/blackhole/blackhole/internal/platform/metrics/metricstest"
	"github.com/blackhole/blackhole/pkg/fault"
)

// clock is a fake clock.
type clock struct{ time.Time }

func (c *clock) now() time.Time { return c.Time }

func newAgent(t testing.TB, c *clock) (*metrics.Agent, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	a, err := metrics.NewAgent(reg, nil, func() map[string]int { return map[string]int{"up": 4, "unhealthy": 1} }, c.now)
	require.NoError(t, err)
	return a, reg
}

// TestRegistryNames checks every name of the SAP-044 Registry, endpoint 7.
func TestRegistryNames(t *testing.T) {
	a, reg := newAgent(t, &clock{time.Unix(1e9, 0)})
	a.Requested("/services", "GET", 200)
	a.Requested("/services", "GET", 200)
	a.Requested("/heartbeat", "PUT", 204)
	a.Took("/services", "GET", 3*time.Millisecond)
	a.Stored("put", nil)
	a.Stored("put", errors.New("full"))
	a.Beaten(999, 1)
	require.Equal(t, map[string]float64{
		"manifest_services_total{up}": 4, "manifest_services_total{unhealthy}": 1, "manifest_services_total{down}": 0, "manifest_services_total{unknown}": 0,
		"manifest_http_requests_total{/services,GET,200}": 2, "manifest_http_requests_total{/heartbeat,PUT,204}": 1,
		"manifest_http_request_duration_seconds{/services,GET}": 1,
		"manifest_storage_operations_total{put,success}":        1, "manifest_storage_operations_total{put,error}": 1,
		"manifest_heartbeat_success_rate{}": 0.999,
	}, metricstest.Values(t, reg))

	_, err := metrics.NewAgent(reg, nil, nil, nil)
	require.ErrorIs(t, err, fault.Exists)
}

// TestHeartbeatsOfAMinute expects heartbeats older than a minute not to count.
func TestHeartbeatsOfAMinute(t *testing.T) {
	c := &clock{time.Unix(1e9, 0)}
	a, reg := newAgent(t, c)
	rate := func() float64 { return metricstest.Values(t, reg)["manifest_heartbeat_success_rate{}"] }
	require.Equal(t, 1.0, rate())
	a.Beaten(1, 3)
	require.Equal(t, 0.25, rate())
	c.Time = c.Add(30 * time.Second)
	a.Beaten(4, 0)
	require.Equal(t, 0.625, rate())
	c.Time = c.Add(35 * time.Second)
	require.Equal(t, 1.0, rate(), "the first heartbeats are over a minute old")
	c.Time = c.Add(time.Hour)
	require.Equal(t, 1.0, rate())
	a.Beaten(1, 1)
	require.Equal(t, 0.5, rate(), "an old slot is reset before reuse")
}

func TestAgentIsSafeForConcurrentUse(t *testing.T) {
	a, reg := newAgent(t, &clock{time.Unix(1e9, 0)})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 1000 {
				a.Requested("/services", "GET", 200)
				a.Took("/services", "GET", time.Millisecond)
				a.Beaten(1, 0)
			}
		})
	}
	all.Wait()
	require.Equal(t, 8000.0, metricstest.Values(t, reg)["manifest_http_requests_total{/services,GET,200}"])
	require.Equal(t, 8000.0, metricstest.Values(t, reg)["manifest_http_request_duration_seconds{/services,GET}"])
}

func BenchmarkRequested(b *testing.B) {
	a, _ := newAgent(b, &clock{time.Unix(1e9, 0)})
	b.ReportAllocs()
	for b.Loop() {
		a.Requested("/services/{service}/instances", "GET", 200)
		a.Took("/services/{service}/instances", "GET", time.Millisecond)
	}
}
