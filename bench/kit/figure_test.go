package kit

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestQuantile(t *testing.T) {
	given := []time.Duration{5, 1, 4, 2, 3}
	all := slices.Clone(given)
	for q, want := range map[float64]time.Duration{0: 1, 0.2: 2, 0.5: 3, 0.99: 5, 1: 5} {
		require.Equal(t, want, Quantile(all, q), "%v", q)
	}
	require.Equal(t, given, all, "it stays in its order")
	require.Zero(t, Quantile(nil, 0.5))
}

func TestMedian(t *testing.T) {
	require.Equal(t, 2, Median([]int{3, 1, 2}))
	require.Equal(t, 3.0, Median([]float64{4, 1, 3, 2}))
	require.Equal(t, "a", Median([]string{"a"}))
}

func TestUnits(t *testing.T) {
	require.Equal(t, 1.5, Ms(1500*time.Microsecond))
	require.Equal(t, 2.0, PerOp(4*time.Microsecond, 2))
	require.Equal(t, 4.0, PerOp(4*time.Microsecond, 0))
}
