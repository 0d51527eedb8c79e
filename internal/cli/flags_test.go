package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/query"
)

func ptr[T any](v T) *T { return &v }

// ask runs a query command and returns the query that reached the peer.
func ask(t *testing.T, f *fake, args ...string) query.Query {
	var out, errs bytes.Buffer
	args = append([]string{"offer", "find", "-o", "json", "--grpc", serve(t, f)}, args...)
	require.Zero(t, testApp(nil, &out, &errs, nil).Execute(context.Background(), args), errs.String())
	f.mu.Lock()
	defer f.mu.Unlock()
	q, err := queries.FromProto(f.asked)
	require.NoError(t, err)
	return q
}

func TestQueryFlags(t *testing.T) {
	near := func(lat, lon float64, km *float64) query.Query {
		return query.Query{Type: "x", Near: &query.Near{Latitude: lat, Longitude: lon, RadiusKM: km}}
	}
	cases := []struct {
		args []string
		want query.Query
	}{
		{nil, query.Query{Type: "x"}},
		{[]string{"--subtype", "ssd"}, query.Query{Type: "x", Subtype: "ssd"}},
		{[]string{"--near", "52.52,13.405"}, near(52.52, 13.405, nil)},
		{[]string{"--near", "52.52, 13.405"}, near(52.52, 13.405, nil)},
		{[]string{"--near=-17.7,178"}, near(-17.7, 178, nil)},
		{[]string{"--near", "-17.7,-178"}, near(-17.7, -178, nil)},
		{[]string{"--near", "0,0"}, near(0, 0, nil)}, // (0, 0) is a place
		{[]string{"--near", "1,2", "--radius", "100"}, near(1, 2, ptr(100.0))},
		{[]string{"--near", "1,2", "--radius", "100km"}, near(1, 2, ptr(100.0))},
		{[]string{"--near", "1,2", "--radius", "1.5 KM"}, near(1, 2, ptr(1.5))},
		{[]string{"--near", "1,2", "--radius", "500m"}, near(1, 2, ptr(0.5))},
		{[]string{"--near", "1,2", "--radius", "10mi"}, near(1, 2, ptr(16.09344))},
		{[]string{"--country", "DE,NO", "--country", "FR"}, query.Query{Type: "x", Countries: []string{"DE", "NO", "FR"}}},
		{[]string{"--region", "Berlin, Mitte", "--region", "Oslo"}, query.Query{Type: "x", Regions: []string{"Berlin, Mitte", "Oslo"}}},
		{
			[]string{"--min-cpu", "8", "--min-memory-mb", "16000", "--gpu", "--min-storage-gb", "5", "--min-bandwidth-mbps", "100"},
			query.Query{Type: "x", Capacity: query.Capacity{MinCPUCores: 8, MinMemoryMB: 16000, RequireGPU: true, MinStorageGB: 5, MinBandwidthMbps: 100}},
		},
		{
			[]string{"--max-price", "0", "--currency", "EUR", "--price-unit", "per-day"}, // free is a price
			query.Query{Type: "x", Price: query.Price{MaxPrice: ptr(0.0), Currency: "EUR", PriceUnit: "per-day"}},
		},
		{
			[]string{"--min-uptime", "0", "--max-error-rate", "0", "--health", "healthy"},
			query.Query{Type: "x", Quality: query.Quality{MinUptime: ptr(0.0), MaxErrorRate: ptr(uint32(0)), Health: query.HealthHealthy}},
		},
		{[]string{"--provider", provider}, query.Query{Type: "x", ProviderID: provider}},
		{[]string{"--attr", "tier=gold", "--attr", "eq=a=b,c", "--attr", "empty="}, query.Query{Type: "x", Attributes: map[string]string{"tier": "gold", "eq": "a=b,c", "empty": ""}}},
		{[]string{"--sort", "random", "--seed", "9", "--limit", "10", "--explain", "--exact-total"}, query.Query{Type: "x", Sort: query.SortRandom, Seed: 9, Limit: 10, Explain: true, ExactTotal: true}},
		{
			[]string{"--where", "compute.cpu_cores>=8", "--where", "!location.isp", "--gpu-model", "H100,A100", "--gpus", "8"},
			query.Query{Type: "x", Where: []query.Clause{
				{Field: "compute.cpu_cores", Op: query.OpRange, Min: ptr(8.0)}, {Field: "location.isp", Op: query.OpStated, Not: true},
				{Field: "compute.gpus.model", Op: query.OpPrefix, Values: []string{"H100", "A100"}},
				{Field: "compute.gpus.count", Op: query.OpRange, Min: ptr(8.0)},
			}},
		},
		{[]string{"--sort", "price", "--price-unit", "u", "--volume", "50"}, query.Query{Type: "x", Sort: query.SortPrice, Price: query.Price{PriceUnit: "u", Volume: ptr(50.0)}}},
		{[]string{"--sort", "response_time"}, query.Query{Type: "x", Sort: query.SortResponseTime}},
	}
	for _, c := range cases {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			require.Equal(t, c.want, ask(t, new(fake), append([]string{"--type", "x"}, c.args...)...))
		})
	}
}

// TestTimeoutReachesThePeer expects the peer to see the deadline of --timeout.
func TestTimeoutReachesThePeer(t *testing.T) {
	f := new(fake)
	ask(t, f, "--type", "x")
	require.True(t, f.bound)
	ask(t, f, "--type", "x", "--timeout", "0")
	require.False(t, f.bound)
}
