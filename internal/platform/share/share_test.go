package share_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/share"
)

// TestFits: what each greedy one of a row gets, one place at a time and many at once, and what is left.
func TestFits(t *testing.T) {
	for _, step := range []uint64{1, 4} {
		free := uint64(1024)
		var got []uint64
		for range 5 {
			own := uint64(0)
			for share.Fits(own, step, free) {
				own, free = own+step, free-step
			}
			got = append(got, own)
		}
		if step == 1 {
			require.Equal(t, []uint64{768, 192, 48, 12, 3}, got)
			require.Equal(t, uint64(1), free)
		}
		require.NotZero(t, free)
	}
	require.True(t, share.Fits(0, 1, 1))
	require.False(t, share.Fits(0, 1, 0))
	require.False(t, share.Fits(3, 1, 1))
	require.False(t, share.Fits(0, 2, 1))
}
