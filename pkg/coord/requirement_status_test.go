package coord_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

func TestRequirementStatusEncoding(t *testing.T) {
	s := coord.RequirementStatus{State: coord.RequirementInsufficient, Needed: 3, Available: 2, Revision: 7, Of: 5}
	require.Equal(t, `{"state":"insufficient_nodes","needed":3,"available":2,"revision":7,"of":5}`, string(s.Encode()))
	s.Problem = "why"
	got, err := coord.DecodeRequirementStatus(s.Encode())
	require.NoError(t, err)
	require.Equal(t, s, got)
	for _, bad := range []string{"", "{}", `{"state":"pending"}`, `{"state":"satisfied","needed":"3"}`, "[]"} {
		_, err := coord.DecodeRequirementStatus([]byte(bad))
		require.ErrorIs(t, err, fault.Invalid, bad)
	}
}

// TestListRequirements reads several pages. Only the status of the present
// version of a requirement counts.
func TestListRequirements(t *testing.T) {
	solo := coordtest.New(coordtest.Config{})
	do := func(op coord.Op) coord.Revision {
		r, _, err := coord.OpsOf(solo).Do(t.Context(), coord.Command{Owner: "a", Op: op})
		require.NoError(t, err)
		return r.Revision
	}
	const n = 600
	for i := range n {
		r := coord.Requirement{Name: fmt.Sprintf("r%03d", i), Min: 1}
		of := do(&coord.SetRequirement{Requirement: r})
		s := coord.RequirementStatus{State: coord.RequirementSatisfied, Needed: 1, Available: i, Of: of - coord.Revision(i%2)}
		do(&coord.Txn{Then: []coord.Step{{Put: &coord.Put{Key: coord.RequirementStatusKey(r.Name), Value: s.Encode()}}}})
	}
	all, h, err := coord.ListRequirements(t.Context(), solo)
	require.NoError(t, err)
	require.EqualValues(t, 1+2*n, h.Revision)
	require.Len(t, all, n)
	for i, e := range all {
		require.Equal(t, fmt.Sprintf("r%03d", i), e.Name)
		want := coord.RequirementSatisfied
		if i%2 == 1 {
			want = coord.RequirementPending
		}
		require.Equal(t, want, e.State)
		one, _, err := coord.GetRequirement(t.Context(), solo, e.Name)
		require.NoError(t, err)
		require.Equal(t, e, one)
	}
	_, _, err = coord.GetRequirement(t.Context(), solo, "none")
	require.ErrorIs(t, err, fault.NotFound)
	require.Equal(t, "name", fault.FieldOf(err))
}
