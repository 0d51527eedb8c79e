package daemon

import (
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/p2p"
)

// TestLabelNamesThePeer: others read the label of a peer as its id.
func TestLabelNamesThePeer(t *testing.T) {
	for range 20 {
		key, err := p2p.LoadIdentity(t.TempDir() + "/identity")
		require.NoError(t, err)
		id, err := peer.IDFromPrivateKey(key)
		require.NoError(t, err)
		got, err := peer.Decode(label(id))
		require.NoError(t, err)
		require.Equal(t, id, got)
		require.Less(t, len(label(id)), 64, "a label of the DNS")
	}
}
