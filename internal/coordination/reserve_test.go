package coordination_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/condition"
)

// TestNoReserve: after the loss of a voter, the leader or another one, every member says that the next loss stops the group,
// until the voter is back. A client does not know.
func TestNoReserve(t *testing.T) {
	for _, loses := range []string{"leader", "follower"} {
		t.Run(loses, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := startCluster(t, 4, 3)
				time.Sleep(30 * time.Second)
				for _, p := range w.peers {
					require.Empty(t, p.conditions.ActiveNames())
				}
				lost := w.leader()
				if loses == "follower" {
					lost = (lost + 1) % 3
				}
				w.peers[lost].stop(t)
				others := []*node{w.peers[(lost+1)%3], w.peers[(lost+2)%3]}
				w.await("both say so", func() bool {
					return others[0].troubled(condition.NoReserve) && others[1].troubled(condition.NoReserve)
				})
				lead := w.peers[w.leader()]
				require.Contains(t, lead.message(condition.NoReserve), "2 of 3 voters")
				require.Contains(t, lead.message(condition.NoReserve), fmt.Sprintf("host-%d", lost))
				require.False(t, w.peers[3].troubled(condition.NoReserve))
				w.start(lost, w.listed(3))
				w.await("the reserve is back", func() bool {
					return !others[0].troubled(condition.NoReserve) && !others[1].troubled(condition.NoReserve)
				})
			})
		})
	}
}

// TestReserveIsNeverBackBeforeTheQuorumIsLost: between the loss of the reserve and that of the quorum no member says that
// something got better.
func TestReserveIsNeverBackBeforeTheQuorumIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 3, 3)
		lead := w.leader()
		second, last := w.peers[(lead+1)%3], w.peers[(lead+2)%3]
		second.stop(t)
		w.await("the reserve is lost", func() bool { return last.troubled(condition.NoReserve) })
		w.peers[lead].stop(t)
		w.await("the quorum is lost", func() bool {
			require.NotEmpty(t, last.conditions.ActiveNames())
			return last.troubled(condition.NoQuorum)
		})
		require.False(t, last.troubled(condition.NoReserve))
	})
}
