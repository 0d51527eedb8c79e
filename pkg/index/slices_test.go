package index

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTranspose(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var a, b [64]uint64
	for i := range a {
		a[i] = rng.Uint64()
	}
	b = a
	transpose(&b)
	for i := range 64 {
		for j := range 64 {
			require.Equal(t, a[i]>>j&1, b[j]>>i&1)
		}
	}
}
