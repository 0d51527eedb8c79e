package client

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/agent/agenttest"
)

// BenchmarkDiscover repeats a query that a watch keeps in the cache.
func BenchmarkDiscover(b *testing.B) {
	h := newHost(b)
	for i := range 100 {
		h.put(fmt.Sprint("i", i))
	}
	s := h.client().Services()
	q := agenttest.Up()
	q.Tags = []string{"v1"}
	_, err := s.Discover(b.Context(), q)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Discover(b.Context(), q); err != nil {
			b.Fatal(err)
		}
	}
}
