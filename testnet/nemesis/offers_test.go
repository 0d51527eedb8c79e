package nemesis

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/records"
)

// TestEverybody: an attacker that takes a change does not stand for a peer that did not.
func TestEverybody(t *testing.T) {
	require.True(t, everybody(records.Stored{On: 8, Of: 8}, 8))
	require.False(t, everybody(records.Stored{On: 7, Of: 8}, 8))
	require.False(t, everybody(records.Stored{On: 7, Of: 7}, 8))
	require.False(t, everybody(records.Stored{On: 8, Of: 12}, 8), "four of the others may be honest")
}
