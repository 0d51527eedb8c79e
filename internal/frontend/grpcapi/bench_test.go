package grpcapi_test

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/pkg/query"
)

// BenchmarkQueryCached asks over loopback what is in the cache, one call at a time on one
// connection. The client's share is in it.
func BenchmarkQueryCached(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("results=%d", n), func(b *testing.B) {
			h := discoverytest.New(b)
			for i := range n {
				h.Foreign(b, discoverytest.Offer(fmt.Sprint("s", i)))
			}
			s := grpcapi.New(grpcapi.Config{Registrar: h, Finder: h, Node: h.Node})
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(b, err)
			done := make(chan error, 1)
			go func() { done <- s.Serve(l) }()
			b.Cleanup(func() { s.Close(); require.NoError(b, <-done) })
			c := dial(b, l.Addr().String())
			km := 100.0
			q := query.Query{Type: "compute", Near: &query.Near{Latitude: 52.5, Longitude: 13.4, RadiusKM: &km}}
			_, err = c.Offers().Query(b.Context(), q)
			require.NoError(b, err)
			var took []time.Duration
			for b.Loop() {
				start := time.Now()
				a, err := c.Offers().Query(b.Context(), q)
				require.NoError(b, err)
				require.Equal(b, query.SourceCache, a.Source)
				require.Len(b, a.Results, n)
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
		})
	}
}
