package coordination_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/store/storetest"
)

// TestTwinOfAMember: a second process on a copy of a living member's data directory never takes its place. It stops with the
// reason, and the member, follower or leader, goes on.
func TestTwinOfAMember(t *testing.T) {
	for name, follows := range map[string]int{"of the leader": 0, "of a follower": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, 3)
				for i, p := range w.peers {
					p.fs = vfs.NewCrashableMem()
					w.start(i, w.listed(3))
				}
				w.await("a leader of three", func() bool { return w.leader() >= 0 && len(w.state().Voters) == 3 })
				lead := w.leader()
				first := w.peers[(lead+follows)%3]
				token := locked(t, first, "n")

				twin := &node{key: first.key, fs: storetest.Copy(first.fs.(*vfs.MemFS))}
				twin.door = &door{cut: &twin.cut}
				twin.host = w.host(3, twin)
				for _, p := range w.peers {
					if p != first {
						twin.host.Peerstore().AddAddrs(p.host.ID(), p.host.Addrs(), peerstore.PermanentAddrTTL)
					}
				}
				w.peers = append(w.peers, twin)
				w.start(3, w.listed(3))

				w.await("the copy stops", func() bool { return w.phase(twin) == "stopped" })
				require.Contains(t, twin.conditions.ActiveNames(), "member_stopped")
				twin.stop(t)
				w.peers = w.peers[:3]
				time.Sleep(time.Minute)
				require.Equal(t, "member", w.phase(first))
				require.Empty(t, first.conditions.ActiveNames())
				require.Equal(t, lead, w.leader(), "the copy disturbs nobody")
				require.Greater(t, locked(t, first, "n"), token)
			})
		})
	}
}
