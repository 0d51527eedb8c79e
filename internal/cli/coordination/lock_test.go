package coordination

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/coord"
)

// TestStanding: lock tells its holders, and its place in line.
func TestStanding(t *testing.T) {
	claim := func(lease coord.LeaseID, holder, application string, age time.Duration) coord.ClaimState {
		return coord.ClaimState{Claim: coord.Claim{Holder: holder}, Lease: lease, Application: application, Age: age}
	}
	l := coord.LockState{
		Holding: []coord.ClaimState{claim(1, "a", "backup", 12*time.Second), claim(2, "b", "", 0)},
		Waiting: []coord.ClaimState{claim(3, "c", "", 0), claim(4, "d", "", 0)},
	}
	require.Equal(t, "held by backup of a for 12s, b; next in line", standing(l, 3))
	require.Equal(t, "held by backup of a for 12s, b; 1 before this one", standing(l, 4))
	l.Holding = nil
	require.Equal(t, "nobody holds it; next in line", standing(l, 3))
}
