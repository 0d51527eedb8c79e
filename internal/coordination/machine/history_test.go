package machine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
)

// TestHistoryLetsGo: dropped events with large values do not stay in memory until their chunk is empty, and a clone keeps its own.
func TestHistoryLetsGo(t *testing.T) {
	value := make([]byte, 1<<20)
	var h history
	push := func(revision coord.Revision) {
		h.push(coord.Event{Revision: revision, KV: &coord.KeyValue{Key: "k", Value: value}})
	}
	for n := range coord.Revision(100) {
		push(n + 1)
	}
	old := h.clone()
	for n := range coord.Revision(300) {
		h.drop(n + 50)
		push(n + 101)
		held := int64(0)
		for i := range h.off {
			if e := &h.chunks[0][i]; e.KV != nil {
				held += eventSize(e)
			}
		}
		require.LessOrEqual(t, held, int64(maxWaste))
		require.Equal(t, n+51, h.at(0).Revision)
		require.Equal(t, n+101, h.at(h.n-1).Revision)
	}
	for n := range old.n {
		require.Equal(t, coord.Revision(n+1), old.at(n).Revision)
		require.NotNil(t, old.at(n).KV)
	}
}
