package discovery_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/discovery"
)

func TestAccepted(t *testing.T) {
	refused := errors.New("refused")
	double := func(in []int) (out []int, _ error) {
		for _, n := range in {
			out = append(out, 2*n)
		}
		return out, nil
	}
	got, err := discovery.Accepted([]int{1, 2, 3, 4}, []error{refused, nil, refused, nil}, double)
	require.NoError(t, err)
	require.Equal(t, []int{0, 4, 0, 8}, got)

	_, err = discovery.Accepted([]int{1}, []error{nil}, func([]int) ([]int, error) { return nil, refused })
	require.ErrorIs(t, err, refused)

	got, err = discovery.Accepted([]int{1}, []error{refused}, func([]int) ([]int, error) { panic("called with zero items") })
	require.NoError(t, err)
	require.Equal(t, []int{0}, got)
}
