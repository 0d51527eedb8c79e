package membership_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/membership"
)

func TestTolerance(t *testing.T) {
	for _, c := range []struct {
		voters, heard, failures int
		text                    string
	}{
		{0, 0, 0, ""},
		{1, 1, 0, "1 of 1 voter: no failure"},
		{2, 2, 0, "2 of 2 voters: no failure"},
		{3, 3, 1, "3 of 3 voters: 1 failure"},
		{3, 2, 0, "2 of 3 voters: no failure"},
		{3, 1, 0, "1 of 3 voters: no majority"},
		{5, 5, 2, "5 of 5 voters: 2 failures"},
		{5, 3, 0, "3 of 5 voters: no failure"},
	} {
		all := []membership.Progress{{Peer: peer(9), Active: true}} // a learner counts for nothing
		for i := range c.voters {
			all = append(all, membership.Progress{Peer: peer(uint64(i + 1)), Voter: true, Active: i < c.heard})
		}
		got := membership.ToleranceOf(all)
		require.Equal(t, membership.Tolerance{Voters: c.voters, Active: c.heard}, got)
		require.Equal(t, c.failures, got.Failures(), c.text)
		require.Equal(t, c.text, got.String())
	}
}
