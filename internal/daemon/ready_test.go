package daemon

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

// TestReadyWaitsForTheFirstElection, and no longer than five seconds after the start.
func TestReadyWaitsForTheFirstElection(t *testing.T) {
	require.ErrorIs(t, unelected(true, 0), fault.Unavailable)
	require.ErrorIs(t, unelected(true, firstElection-1), fault.Unavailable)
	require.NoError(t, unelected(true, firstElection), "without a majority the peer serves what needs none")
	require.NoError(t, unelected(false, 0))
	require.LessOrEqual(t, firstElection, 5*time.Second)
}
