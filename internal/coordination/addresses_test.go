package coordination_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/store/storetest"
)

// crash ends all peers at one moment: each disk keeps what its peer wrote, and each peer forgets where the others are.
func (w *testCluster) crash() {
	w.t.Helper()
	for _, p := range w.peers {
		left := storetest.Copy(p.fs.(*vfs.MemFS))
		p.stop(w.t)
		p.fs = left
	}
	for _, a := range w.peers {
		for _, b := range w.peers {
			if a != b {
				require.NoError(w.t, a.host.Network().ClosePeer(b.host.ID()))
				a.host.Peerstore().ClearAddrs(b.host.ID())
			}
		}
	}
}

// TestMembersFindEachOther: all members of a young group crash. A majority finds itself again by the addresses in the
// state of the group, without any other peer, and without the one that the group began with.
func TestMembersFindEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3)
		for i, p := range w.peers {
			p.fs, p.policy = vfs.NewCrashableMem(), joiner()
			if i == 0 {
				p.policy = first()
			}
		}
		w.connect()
		for i := range w.peers {
			w.start(i, unlisted())
		}
		w.await("three voters", func() bool { return w.leader() >= 0 && len(w.state().Voters) == 3 })
		token := locked(t, w.peers[0], "n")

		w.crash()
		w.start(1, unlisted())
		w.await("it says what it lacks", func() bool { return strings.Contains(w.peers[1].Standing().Missing, "has no contact to") })
		require.Contains(t, w.peers[1].Standing().Missing, "Start those that are down, and check the network to those that run")
		w.start(2, unlisted())
		w.await("two of them elect", func() bool { return w.leader() > 0 })
		require.Greater(t, locked(t, w.peers[1], "n"), token)
	})
}
