package coordination

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
)

// TestStanding: lock tells its holders, and its place in line.
func TestStanding(t *testing.T) {
	claim := func(lease coord.LeaseID, holder, application string, age time.Duration) ClaimState {
		return ClaimState{Holder: holder, Lease: lease, Application: application, AgeMs: age.Milliseconds()}
	}
	l := LockState{
		Holding: []ClaimState{claim(1, "a", "backup", 12*time.Second), claim(2, "b", "", 0)},
		Waiting: []ClaimState{claim(3, "c", "", 0), claim(4, "d", "", 0)},
	}
	require.Equal(t, "held by backup of a for 12s, b; next in line", standing(l, 3))
	require.Equal(t, "held by backup of a for 12s, b; 1 before this one", standing(l, 4))
	l.Holding = nil
	require.Equal(t, "nobody holds it; next in line", standing(l, 3))
}

// TestClaimJSON: a claim has the names of the API's messages, and no id that the caller may not learn.
func TestClaimJSON(t *testing.T) {
	got, err := json.Marshal(ClaimState{Mode: coord.Permit, Permits: 3, Lease: coord.HiddenLease, Token: 9, AgeMs: 1500})
	require.NoError(t, err)
	require.Equal(t, `{"holder_id":"","mode":"permit","permits":3,"count":0,"key":"","lease_id":"hidden","fencing_token":9,"mod_revision":0,"version":0,"age_ms":1500}`, string(got))
}
