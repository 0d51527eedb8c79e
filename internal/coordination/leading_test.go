package coordination_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// leads returns the leader according to a peer.
func (p *node) leads() string {
	_, leader, _ := p.Leading()
	return leader
}

// agree reports whether every running peer names this leader.
func (w *testCluster) agree(leader string) bool {
	for _, p := range w.peers {
		if p.Seat != nil && p.leads() != leader {
			return false
		}
	}
	return true
}

// TestLeading: idle members and clients know the leader, report each change, and terms rise.
func TestLeading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 4, 3)
		old := w.leader()
		w.await("all know", func() bool { return w.agree(w.peers[old].id()) })
		client := w.peers[3]
		before, _, changed := client.Leading()
		require.NotZero(t, before)

		at := w.peers[(old+1)%3]
		_, _, moved := at.Leading()
		w.peers[old].stop(t)
		<-moved
		w.await("another leads", func() bool { return at.leads() != "" && at.leads() != w.peers[old].id() })
		<-changed
		w.await("all know", func() bool { return w.agree(at.leads()) })
		after, _, _ := client.Leading()
		require.Greater(t, after, before)
	})
}

// TestLeadingNobody: a member without a majority names no leader, not even itself, and names the next leader
// after its election.
func TestLeadingNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 3, 3)
		old := w.leader()
		left := w.peers[old]
		w.await("it knows", func() bool { return left.leads() == left.id() })
		term, _, changed := left.Leading()
		w.peers[(old+1)%3].stop(t)
		w.peers[(old+2)%3].stop(t)
		<-changed
		_, leader, changed := left.Leading()
		require.Empty(t, leader)
		time.Sleep(10 * time.Second)
		require.Empty(t, left.leads())
		w.start((old+1)%3, w.listed(3))
		<-changed
		w.await("all agree", func() bool { return left.leads() != "" && w.agree(left.leads()) })
		after, _, _ := left.Leading()
		require.Greater(t, after, term)
	})
}
