package requirements_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/requirements"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

func TestRequirementStatusEncoding(t *testing.T) {
	s := requirements.Status{State: requirements.Insufficient, Needed: 3, Available: 2, Revision: 7, Of: 5}
	require.Equal(t, `{"state":"insufficient_nodes","needed":3,"available":2,"revision":7,"of":5}`, string(s.Encode()))
	s.Problem = "why"
	got, err := requirements.DecodeStatus(s.Encode())
	require.NoError(t, err)
	require.Equal(t, s, got)
	for _, bad := range []string{"", "{}", `{"state":"pending"}`, `{"state":"satisfied","needed":"3"}`, "[]"} {
		_, err := requirements.DecodeStatus([]byte(bad))
		require.ErrorIs(t, err, fault.Invalid, bad)
	}
}

// TestListRequirements reads several pages. Only the status of the present
// version of a requirement counts.
func TestListRequirements(t *testing.T) {
	solo := coordtest.New(coordtest.Config{})
	do := func(request proto.Message) *coordv1.Result {
		r, err := solo.Execute(t.Context(), coord.CommandOf("a", request))
		require.NoError(t, err)
		return r
	}
	const n = 600
	for i := range n {
		name := fmt.Sprintf("r%03d", i)
		of := do(&apiv1.SetRequirementRequest{Name: name, Min: 1}).GetSetRequirement().GetHeader().GetRevision()
		s := requirements.Status{State: requirements.Satisfied, Needed: 1, Available: i, Of: coord.Revision(of) - coord.Revision(i%2)}
		do(&apiv1.TxnRequest{Then: []*apiv1.TxnStep{coord.PutStep(requirements.StatusKey(name), s.Encode(), 0)}})
	}
	all, h, err := requirements.List(t.Context(), solo)
	require.NoError(t, err)
	require.EqualValues(t, 1+2*n, h.GetRevision())
	require.Len(t, all, n)
	for i, e := range all {
		require.Equal(t, fmt.Sprintf("r%03d", i), e.Name)
		want := requirements.Satisfied
		if i%2 == 1 {
			want = requirements.Pending
		}
		require.Equal(t, want, e.State)
		one, _, err := requirements.Get(t.Context(), solo, e.Name)
		require.NoError(t, err)
		require.Equal(t, e, one)
	}
	_, _, err = requirements.Get(t.Context(), solo, "none")
	require.ErrorIs(t, err, fault.NotFound)
	require.Equal(t, "name", fault.FieldOf(err))
}
