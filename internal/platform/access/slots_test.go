package access

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

func TestSlots(t *testing.T) {
	s := make(Slots, 2)
	release, err := s.Take("op", "watches")
	require.NoError(t, err)
	_, err = s.Take("op", "watches")
	require.NoError(t, err)
	_, err = s.Take("op", "watches")
	require.ErrorIs(t, err, fault.LimitReached)
	require.Equal(t, "all 2 watches are in use: close one or retry later", fault.Message(err))
	release()
	_, err = s.Take("op", "watches")
	require.NoError(t, err)
}
