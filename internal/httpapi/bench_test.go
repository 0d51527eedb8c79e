package httpapi

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/discovery/discoverytest"
)

// BenchmarkQueryCached asks over loopback what is in the cache, one request at a time on
// one connection. The client's share is in it.
func BenchmarkQueryCached(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("results=%d", n), func(b *testing.B) {
			a, url := listening(b)
			for i := range n {
				a.Foreign(b, discoverytest.Offer(fmt.Sprint("s", i)))
			}
			question := []byte(`{"type":"compute","near":{"latitude":52.5,"longitude":13.4,"radius_km":100}}`)
			a.ok(b, 200, "POST", ask, string(question))
			c := &http.Client{Transport: &http.Transport{}}
			defer c.CloseIdleConnections()
			var took []time.Duration
			for b.Loop() {
				start := time.Now()
				resp, err := c.Post(url+ask, "application/json", bytes.NewReader(question))
				require.NoError(b, err)
				_, err = io.Copy(io.Discard, resp.Body)
				require.NoError(b, err)
				resp.Body.Close()
				took = append(took, time.Since(start))
			}
			again := a.ok(b, 200, "POST", ask, string(question))
			require.Equal(b, "cache", again["source"])
			require.Len(b, again["results"], n)
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
		})
	}
}
