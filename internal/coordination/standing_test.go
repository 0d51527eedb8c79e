package coordination_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
)

// TestStanding: every peer says how many failures the group survives, and names beside ids.
func TestStanding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 4, 3)
		told := func(text string, failures, silent int) func() bool {
			return func() bool {
				for _, p := range w.peers {
					if p.Seat == nil {
						continue
					}
					if s := p.Standing(); s.Tolerance != text || s.Survives != failures {
						return false
					}
					if f := p.Stats(); f.FailuresSurvived != failures || !f.HasLeader || f.Voters != 3 || f.SilentVoters != silent {
						return false
					}
				}
				return true
			}
		}
		w.await("one failure is survived", told("3 of 3 voters: 1 failure", 1, 0))
		lead := w.leader()
		off := (lead + 1) % 3
		w.peers[off].stop(t)
		w.await("none is survived", told("2 of 3 voters: no failure", 0, 1))

		s := w.state()
		require.Equal(t, "2 of 3 voters: no failure", s.Tolerance)
		for _, m := range s.Voters {
			at := -1
			for i, p := range w.peers {
				if p.id() == m.Peer {
					at = i
				}
			}
			require.Equal(t, []string{"host-0", "host-1", "host-2"}[at], m.Name)
			require.Equal(t, at == off, !m.Active)
			require.NotEmpty(t, m.Address)
			if at != off {
				require.Less(t, m.Silent, time.Second.Milliseconds())
			}
		}
		time.Sleep(5 * time.Second) // virtual
		silent := func(s coord.GroupState) (ms int64) {
			for _, m := range s.Voters {
				ms = max(ms, m.Silent)
			}
			return ms
		}
		require.Greater(t, silent(w.state()), int64(4000))

		w.peers[lead].stop(t)
		last := w.peers[3-lead-off]
		w.await("the leader is lost", func() bool { return last.Standing().Missing != "" })
		require.Contains(t, last.Standing().Missing, "host-")
		require.Zero(t, last.Stats().FailuresSurvived)

		seen, err := last.Group(context.Background())
		require.NoError(t, err)
		for _, s := range []coord.GroupState{seen, last.Standing()} { // without a majority it stays a member
			require.Equal(t, "member", s.Phase)
			require.Len(t, s.Voters, 3)
			require.NotEmpty(t, s.Missing)
		}
	})
}

// TestNobodyNamesALostLeader: without a quorum no peer names a leader, a voter, a learner or a client.
func TestNobodyNamesALostLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 5, 5)
		w.await("a learner", func() bool { return len(w.state().Learners) == 1 && len(w.state().Voters) == 3 })
		var voters []*node
		for _, m := range w.state().Voters {
			voters = append(voters, w.peers[slices.IndexFunc(w.peers, func(p *node) bool { return p.id() == m.Peer })])
		}
		voters[0].stop(t)
		voters[1].stop(t)
		time.Sleep(30 * time.Second) // virtual
		for _, p := range w.peers {
			if p.Seat == nil {
				continue
			}
			seen, err := p.Group(t.Context())
			require.NoError(t, err)
			for _, s := range []coord.GroupState{seen, p.Standing()} {
				require.Empty(t, s.Leader, s.Phase)
				require.Contains(t, s.Missing, "host-", s.Phase)
			}
			require.False(t, p.Stats().HasLeader)
		}
	})
}
