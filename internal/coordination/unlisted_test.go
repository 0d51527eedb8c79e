package coordination_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/formation"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/fault"
)

// unlisted is a network whose first peer founds.
func unlisted() bootstrap.Network {
	return bootstrap.Network{Name: "test"}
}

// joiner has a way into the network.
func joiner() formation.Policy {
	return formation.Policy{Members: formation.TrustedMembers}
}

// first may be the first peer of the network.
func first() formation.Policy {
	return formation.Policy{Members: formation.TrustedMembers, Founds: true, Settle: 2 * time.Second}
}

// keyed gives the first n peers a key that the others lack: only holders of the key trust each other.
func (w *testCluster) keyed(n int) {
	for i, p := range w.peers {
		p.trusts = func(_ context.Context, id peer.ID) error {
			held := slices.ContainsFunc(w.peers[:n], func(o *node) bool { return o.host.ID() == id })
			if i < n && held {
				return nil
			}
			return fault.New("keyed", fault.Forbidden, "no key")
		}
	}
}

// groups returns the ids of the peers' groups.
func (w *testCluster) groups() (ids []string) {
	for _, p := range w.peers {
		if p.Seat != nil && !slices.Contains(ids, p.ID()) {
			ids = append(ids, p.ID())
		}
	}
	return ids
}

// TestJoinersFoundNothing: peers that join a network wait for its group, say so, and use it within seconds. Three voters
// survive the end of any one. A peer without the key gets no group.
func TestJoinersFoundNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 4)
		w.keyed(3)
		w.connect()
		for i := 1; i < 4; i++ {
			w.peers[i].policy = joiner()
			w.start(i, unlisted())
		}
		time.Sleep(10 * time.Second)
		require.Equal(t, []string{""}, w.groups(), "nobody founds")
		require.Equal(t, []string{string(condition.NoGroup)}, w.peers[1].conditions.ActiveNames())
		began := time.Now()
		_, _, err := ops.Of(w.peers[1]).Do(t.Context(), ops.Command{Owner: w.peers[1].id(), Op: &ops.LeaseGrant{TTL: 10_000}})
		require.ErrorIs(t, err, fault.Unavailable)
		require.ErrorContains(t, err, "none of 1 connected peers with the key shows one")
		require.LessOrEqual(t, time.Since(began), 5*time.Second)

		w.peers[0].policy = first()
		w.start(0, unlisted())
		began = time.Now()
		w.await("the joiners use the group", func() bool {
			return w.peers[1].ID() != "" && w.peers[2].ID() == w.peers[1].ID() && w.peers[0].ID() == w.peers[1].ID()
		})
		require.Less(t, time.Since(began), 5*time.Second)
		locked(t, w.peers[1], "a")
		w.await("the condition ends", func() bool { return len(w.peers[1].conditions.ActiveNames()) == 0 })
		w.await("three voters", func() bool { s, err := w.peers[0].Group(t.Context()); return err == nil && len(s.Voters) == 3 })
		require.Less(t, time.Since(began), 15*time.Second)

		stranger := w.peers[3]
		require.Empty(t, stranger.ID())
		require.Equal(t, []string{string(condition.NoGroup)}, stranger.conditions.ActiveNames())
		stranger.stop(t)
		w.peers[0].stop(t)
		locked(t, w.peers[2], "b")
	})
}

// TestNeighboursFoundOne: peers that start at once and may all found settle, and found one group.
func TestNeighboursFoundOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 5)
		for i, p := range w.peers {
			p.policy = first()
			w.start(i, unlisted())
		}
		time.Sleep(500 * time.Millisecond) // multicast DNS takes its time
		w.connect()
		began := time.Now()
		w.await("three voters", func() bool { s, err := w.peers[0].Group(t.Context()); return err == nil && len(s.Voters) == 3 })
		require.Less(t, time.Since(began), 15*time.Second)
		w.await("one group", func() bool { g := w.groups(); return len(g) == 1 && g[0] != "" })
		w.await("a leader", func() bool { return w.leader() >= 0 })
		w.peers[w.leader()].stop(t)
		w.await("another leader", func() bool { return w.leader() >= 0 })
	})
}

// TestFoundersChange: a changed list of founders stops no peer and founds no second group. An added founder joins, a
// removed one leaves.
func TestFoundersChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 4)
		for i := range 3 {
			w.start(i, w.listed(3))
		}
		w.await("a leader", func() bool { return w.leader() >= 0 })
		group := w.peers[0].ID()
		changed := w.listed(4)
		changed.Founders = changed.Founders[1:]
		for i := range 3 {
			w.peers[i].stop(t)
			w.start(i, changed)
		}
		w.start(3, changed)
		w.await("the added founder votes for the removed one", func() bool {
			lead := w.leader()
			if lead < 0 {
				return false
			}
			s, err := w.peers[lead].Group(t.Context())
			return err == nil && len(s.Voters) == 3 && among(s.Voters, w.peers[3]) && !among(s.Voters, w.peers[0])
		})
		require.Equal(t, []string{group}, w.groups())
		locked(t, w.peers[0], "a")
	})
}

// TestLostDisk: a listed founder that lost its data does not vote again with the raft id of the list. It finds the group, and comes
// back under another one, as etcd's members of an existing cluster do.
func TestLostDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 3, 3)
		s := w.state()
		lost := (w.leader() + 1) % 3
		id := func(s coord.GroupState) (id uint64) {
			for _, m := range append(s.Voters, s.Learners...) {
				if m.Peer == w.peers[lost].id() {
					id = m.ID
				}
			}
			return id
		}
		before := id(s)
		require.NotZero(t, before)
		w.peers[lost].stop(t)
		require.NoError(t, w.peers[lost].fs.RemoveAll("data"))
		w.start(lost, w.listed(3))
		w.await("it votes again, as a new member", func() bool {
			s := w.state()
			return len(s.Voters) == 3 && among(s.Voters, w.peers[lost]) && id(s) != before
		})
		locked(t, w.peers[lost], "a")
		for _, p := range w.peers { // all data lost: nobody founds a second group
			p.stop(t)
			require.NoError(t, p.fs.RemoveAll("data"))
		}
		for i := range w.peers {
			w.start(i, w.listed(3))
		}
		time.Sleep(time.Minute)
		require.Equal(t, []string{""}, w.groups())
		_, _, err := ops.Of(w.peers[0]).Do(t.Context(), ops.Command{Owner: w.peers[0].id(), Op: &ops.LeaseGrant{TTL: 10_000}})
		require.ErrorContains(t, err, "it may have voted and forgot")
	})
}
