package coordination_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestCandidatesAreDialled: a peer becomes a member once the leader can dial it. A peer that is no server of the DHT does not
// offer itself. An operator can insist on either.
func TestCandidatesAreDialled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 4)
		w.connect()
		var open, serves atomic.Bool
		hidden := w.peers[1].host.ID()
		dial := func(_ context.Context, id peer.ID) error {
			if id == hidden && !open.Load() {
				return fault.New("dial", fault.Unavailable, "no route")
			}
			return nil
		}
		w.peers[0].policy, w.peers[0].dial = first(), dial
		w.start(0, unlisted())
		for i := 1; i < 3; i++ {
			w.peers[i].policy, w.peers[i].dial = joiner(), dial
			w.start(i, unlisted())
		}
		w.await("one learner", func() bool { return len(w.state().Learners) == 1 })
		time.Sleep(2 * time.Minute)
		s := w.state()
		require.Len(t, s.Voters, 1)
		require.Equal(t, w.peers[2].id(), s.Learners[0].Peer)
		add := coord.MemberChange{Action: coord.AddMember, Peer: w.peers[1].id(), DryRun: true}
		_, err := w.peers[0].ChangeMembers(t.Context(), add)
		require.ErrorIs(t, err, fault.Conflict)
		require.ErrorContains(t, err, "cannot connect to it")
		add.Force = true
		_, err = w.peers[0].ChangeMembers(t.Context(), add)
		require.NoError(t, err)

		w.peers[3].policy, w.peers[3].serves = joiner(), serves.Load
		w.start(3, unlisted())
		time.Sleep(time.Minute)
		require.Len(t, w.state().Voters, 1)
		require.Equal(t, "client", w.phase(w.peers[3]))
		_, err = w.peers[0].ChangeMembers(t.Context(), coord.MemberChange{Action: coord.AddMember, Peer: w.peers[3].id()})
		require.ErrorIs(t, err, fault.NotFound)

		serves.Store(true)
		w.await("three voters without the hidden one", func() bool { return len(w.state().Voters) == 3 })
		require.Empty(t, w.state().NameOf(w.peers[1].id()))
		open.Store(true)
		w.await("the hidden one can be dialled, and is a learner", func() bool { return w.state().NameOf(w.peers[1].id()) != "" })
	})
}
