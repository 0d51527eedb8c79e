package sample_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/testnet/sample"
)

func TestQuantile(t *testing.T) {
	var hundred []time.Duration
	for i := 100; i > 0; i-- {
		hundred = append(hundred, time.Duration(i))
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.001: 1, 0.5: 50, 0.95: 95, 0.99: 99, 0.995: 100, 1: 100, 2: 100} {
		require.Equal(t, want, sample.Quantile(hundred, q), "%v", q)
	}
	require.Equal(t, time.Duration(100), hundred[0], "left as they were")
	require.Equal(t, time.Duration(2), sample.Quantile([]time.Duration{3, 1, 2}, 0.5))
	require.Zero(t, sample.Quantile(nil, 0.5))
}
