package config_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

// specified is the example of the U06 Service Discovery Protocol, section 5.
const specified = `
discovery:
  record_ttl: 12h
  refresh_interval: 3h
  cache: {size: 500, ttl: 2m}
  health: {check_interval: 30s, check_timeout: 5s}
  geo: {precision: 5}
  limits: {services_per_provider: 50}
  query: {max_results: 20, default_radius_km: 50}
`

func write(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestDefaultsAreValid(t *testing.T) {
	c, origin, err := config.Load(config.Source{})
	require.NoError(t, err)
	require.Equal(t, config.Default(), c)
	require.Equal(t, "default", origin["discovery.cache.size"])
}

func TestSpecifiedFile(t *testing.T) {
	c, _, err := config.Load(config.Source{File: write(t, specified)})
	require.NoError(t, err)
	require.Equal(t, config.Discovery{
		RecordTTL: 12 * time.Hour, RefreshInterval: 3 * time.Hour,
		Cache:  config.Cache{Size: 500, TTL: 2 * time.Minute},
		Health: config.Health{CheckInterval: 30 * time.Second, CheckTimeout: 5 * time.Second},
		Geo:    config.Geo{Precision: 5},
		Limits: config.Limits{ServicesPerProvider: 50, IndexRecords: 1 << 20},
		Query:  config.Query{MaxResults: 20, DefaultRadiusKM: 50},
	}, c.Discovery)
}

func TestSpecifiedEnvironment(t *testing.T) {
	c, origin, err := config.Load(config.Source{File: write(t, specified), Environ: []string{
		"BLACKHOLE_DISCOVERY_RECORD_TTL=20h", "BLACKHOLE_DISCOVERY_REFRESH_INTERVAL=4h",
		"BLACKHOLE_DISCOVERY_CACHE_SIZE=700", "BLACKHOLE_DISCOVERY_CACHE_TTL=1m",
		"BLACKHOLE_DISCOVERY_GEO_PRECISION=7", "BLACKHOLE_DISCOVERY_MAX_SERVICES=9",
		"BLACKHOLE_BOOTSTRAP=/ip4/127.0.0.1/tcp/1,/ip4/127.0.0.1/tcp/2", "UNRELATED=1",
	}})
	require.NoError(t, err)
	require.Equal(t, 20*time.Hour, c.Discovery.RecordTTL)
	require.Equal(t, 4*time.Hour, c.Discovery.RefreshInterval)
	require.Equal(t, config.Cache{Size: 700, TTL: time.Minute}, c.Discovery.Cache)
	require.Equal(t, 7, c.Discovery.Geo.Precision)
	require.Equal(t, 9, c.Discovery.Limits.ServicesPerProvider)
	require.Equal(t, []string{"/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/2"}, c.Bootstrap)
	require.Contains(t, origin["discovery.geo.precision"], "BLACKHOLE_DISCOVERY_GEO_PRECISION")
	require.Contains(t, origin["discovery.query.max_results"], "file ")
}

func TestFlagsWin(t *testing.T) {
	c, origin, err := config.Load(config.Source{
		Environ: []string{"BLACKHOLE_HTTP=127.0.0.1:1"},
		Flags:   map[string]any{"http": "127.0.0.1:2", "listen": []string{"/ip4/127.0.0.1/tcp/0"}},
	})
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:2", c.HTTP)
	require.Equal(t, []string{"/ip4/127.0.0.1/tcp/0"}, c.Listen)
	require.Equal(t, "flag --http", origin["http"])
}

// TestErrorsNameTheKey has a case for every rule.
func TestErrorsNameTheKey(t *testing.T) {
	cases := []struct{ yaml, key string }{
		{"discovery: {record_tll: 1h}", "discovery.record_tll"},
		{"discovery: {record_ttl: soon}", "discovery.record_ttl"},
		{"discovery: {record_ttl: 59m}", "discovery.record_ttl"},
		{"discovery: {record_ttl: 49h}", "discovery.record_ttl"},
		{"discovery: {refresh_interval: 12h}", "discovery.refresh_interval"},
		{"discovery: {refresh_interval: 59s}", "discovery.refresh_interval"},
		{"discovery: {cache: {size: 99}}", "discovery.cache.size"},
		{"discovery: {cache: {size: many}}", "discovery.cache.size"},
		{"discovery: {cache: {ttl: 2h}}", "discovery.cache.ttl"},
		{"discovery: {health: {check_interval: 0s}}", "discovery.health.check_interval"},
		{"discovery: {health: {check_timeout: 2m}}", "discovery.health.check_timeout"},
		{"discovery: {geo: {precision: 3}}", "discovery.geo.precision"},
		{"discovery: {geo: {publish_precision: 13}}", "discovery.geo.publish_precision"},
		{"discovery: {limits: {services_per_provider: 0}}", "discovery.limits.services_per_provider"},
		{"discovery: {limits: {index_records: 1}}", "discovery.limits.index_records"},
		{"discovery: {query: {max_results: 1001}}", "discovery.query.max_results"},
		{"discovery: {query: {default_radius_km: .nan}}", "discovery.query.default_radius_km"},
		{"profile: moon", "profile"},
		{"data: ''", "data"},
		{"http: 0.0.0.0:8500", "http"},
		{"grpc: nowhere", "grpc"},
		{"log: {level: loud}", "log.level"},
		{"log: {format: xml}", "log.format"},
		{"profile: [", "config"},
	}
	for _, c := range cases {
		t.Run(c.yaml, func(t *testing.T) {
			_, _, err := config.Load(config.Source{File: write(t, c.yaml)})
			require.ErrorIs(t, err, fault.Invalid)
			require.Equal(t, c.key, fault.FieldOf(err), "%v", err)
		})
	}
	_, _, err := config.Load(config.Source{Environ: []string{"BLACKHOLE_DISCOVERY_CASH_SIZE=1"}})
	require.ErrorIs(t, err, fault.Invalid)
	require.ErrorContains(t, err, "BLACKHOLE_DISCOVERY_CASH_SIZE")
}
