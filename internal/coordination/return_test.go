package coordination_test

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/formation"
)

// TestRemovedComesBack: a voter that was replaced during its absence notices this after its return, in spite
// of its own log, and becomes the group's learner.
func TestRemovedComesBack(t *testing.T) {
	for name, of := range map[string]func(*testCluster) bootstrap.Network{
		"listed": func(w *testCluster) bootstrap.Network { return w.listed(3) },
		"unlisted": func(*testCluster) bootstrap.Network {
			return bootstrap.Network{Name: "home"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, 4)
				w.connect()
				for i := range w.peers {
					w.peers[i].policy = formation.Policy{Members: formation.TrustedMembers, Founds: true}
					w.start(i, of(w))
				}
				w.await("three voters and a learner", func() bool { return len(w.state().Voters) == 3 && len(w.state().Learners) == 1 })
				gone := w.leader()
				w.peers[gone].stop(t)
				w.await("all others vote", func() bool { s := w.state(); return len(s.Voters) == 3 && !among(s.Voters, w.peers[gone]) })
				w.start(gone, of(w))
				w.await("it learns", func() bool { return among(w.state().Learners, w.peers[gone]) })

				next := w.leader()
				w.peers[next].stop(t)
				w.await("it votes", func() bool { return among(w.state().Voters, w.peers[gone]) })
				locked(t, w.peers[gone], "n")
			})
		})
	}
}

func among(members []coord.Member, p *node) bool {
	return slices.ContainsFunc(members, func(m coord.Member) bool { return m.Peer == p.id() })
}

// connect connects all peers.
func (w *testCluster) connect() {
	for i, a := range w.peers {
		for _, b := range w.peers[:i] {
			_, err := a.host.Network().DialPeer(network.WithDialPeerTimeout(w.t.Context(), 1e9), b.host.ID())
			require.NoError(w.t, err)
		}
	}
}
