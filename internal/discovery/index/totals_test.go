package index_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// TestTotalIsExactWhereItSaysSo: AtLeast yields a lower bound only if an exact total needs extra
// work.
func TestTotalIsExactWhereItSaysSo(t *testing.T) {
	const services = 2000
	x, key := index.New(index.Config{MaxPerProvider: services}), keyOf(t, 1)
	for i := range services {
		o := cdn(fmt.Sprint("s", i))
		o.Location = &records.Location{Latitude: ptr(float64(i%80) / 2), Longitude: ptr(float64(i % 90))}
		_, err := x.Put(sign(t, key, o, stamp(1, 0, time.Hour)), epoch())
		require.NoError(t, err)
	}
	near := &query.Near{Latitude: 20, Longitude: 45}
	for _, c := range []struct {
		name  string
		q     query.Query
		exact bool
	}{
		{"nearest", query.Query{Type: "cdn", Near: near, Limit: 5}, false},
		{"fewer than asked for", query.Query{Type: "cdn", Near: near, Limit: 1000, Capacity: query.Capacity{MinBandwidthMbps: 101}}, true},
		{"within a radius", query.Query{Type: "cdn", Near: &query.Near{Latitude: 20, Longitude: 45, RadiusKM: ptr(2000.0)}, Limit: 5}, false},
		{"within a radius that hardly more are in", query.Query{Type: "cdn", Near: &query.Near{Latitude: 20, Longitude: 45, RadiusKM: ptr(200.0)}, Limit: 5}, true},
		{"within a radius, by uptime", query.Query{Type: "cdn", Near: &query.Near{Latitude: 20, Longitude: 45, RadiusKM: ptr(2000.0)}, Sort: query.SortUptime, Limit: 5}, true},
		{"by uptime", query.Query{Type: "cdn", Sort: query.SortUptime, Limit: 5}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := plan(t, c.q)
			exact := x.Search(p, index.SearchOptions{Now: epoch()})
			require.True(t, exact.Exact)
			quick := x.Search(p, index.SearchOptions{Now: epoch(), AtLeast: true})
			require.Equal(t, c.exact, quick.Exact)
			if c.exact {
				require.Equal(t, exact.Total, quick.Total)
			} else {
				require.Less(t, quick.Total, exact.Total)
				require.Greater(t, quick.Total, len(quick.Hits))
			}
		})
	}
}
