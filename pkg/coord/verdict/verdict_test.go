package verdict_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/coord/director"
	"github.com/blackhole/blackhole/pkg/coord/verdict"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

func TestEncode(t *testing.T) {
	s := director.Status{Requirement: coord.Requirement{Name: "n", Min: 3}, Available: 2, Since: 7}
	v := verdict.From(s, 5)
	require.Equal(t, `{"state":"insufficient_nodes","needed":3,"available":2,"revision":7,"of":5}`, string(v.Encode()))
	s.Available = 3
	require.Equal(t, verdict.Satisfied, verdict.From(s, 5).State)
	s.Problem = errors.New("why")
	v = verdict.From(s, 5)
	require.Equal(t, []any{verdict.Insufficient, "why"}, []any{v.State, v.Problem})
	got, err := verdict.Decode(v.Encode())
	require.NoError(t, err)
	require.Equal(t, v, got)
	for _, bad := range []string{"", "{}", `{"state":"pending"}`, `{"state":"satisfied","needed":"3"}`, "[]"} {
		_, err := verdict.Decode([]byte(bad))
		require.ErrorIs(t, err, fault.Invalid, bad)
	}
	other := v
	other.Revision++
	require.True(t, v.Same(other))
	other.Of++
	require.False(t, v.Same(other))
}

// TestList: by name, over several pages, and only verdicts on what the requirement is now count.
func TestList(t *testing.T) {
	solo := coordtest.New(coordtest.Config{})
	do := func(op coord.Op) coord.Revision {
		r, _, err := solo.Do(t.Context(), coord.Command{Owner: "a", Op: op})
		require.NoError(t, err)
		return r.Revision
	}
	const n = 600
	for i := range n {
		r := coord.Requirement{Name: fmt.Sprintf("r%03d", i), Service: instance.Name{Namespace: "default", Service: "s"}, Min: 1}
		of := do(&coord.SetRequirement{Requirement: r})
		said := verdict.Verdict{State: verdict.Satisfied, Needed: 1, Available: i, Of: of - coord.Revision(i%2)}
		do(&coord.Write{Then: []coord.Change{{Put: &coord.Put{Key: verdict.Key(r.Name), Value: said.Encode()}}}})
	}
	all, h, err := verdict.List(t.Context(), solo)
	require.NoError(t, err)
	require.EqualValues(t, 2*n, h.Revision)
	require.Len(t, all, n)
	for i, s := range all {
		require.Equal(t, fmt.Sprintf("r%03d", i), s.Name)
		want := verdict.Satisfied
		if i%2 == 1 {
			want = verdict.Pending
		}
		require.Equal(t, want, s.State)
		one, _, err := verdict.Get(t.Context(), solo, s.Name)
		require.NoError(t, err)
		require.Equal(t, s, one)
	}
	_, _, err = verdict.Get(t.Context(), solo, "none")
	require.ErrorIs(t, err, fault.NotFound)
	require.Equal(t, "name", fault.FieldOf(err))
}
