package bootstrap

import (
	"encoding/hex"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
)

// The files of an acceptor are stable: a later program must understand the promises of an earlier one.
func TestFilesAreGolden(t *testing.T) {
	fs := vfs.NewMem()
	network := Network{Name: "test", Mode: Unlisted, Expect: 1}
	s, err := OpenStore(fs, testPlace(), peer.ID("\x00\x01p"), network)
	require.NoError(t, err)
	require.NoError(t, s.Save(State{Promised: Ballot{Round: 7, Peer: peer.ID("\x00\x01q")}}))
	b, err := readFile(fs, s.path)
	require.NoError(t, err)
	require.Equal(t, "70726f6d69736573206f66207468652067726f757020626f6f7473747261702c20666f726d617420310a55f6b7f50a030001701220e3e789898cf4e1581226a833625bcf5f409934dae13c8891e5c420b3ce32eedb1a0708071203000171", hex.EncodeToString(b))
	require.Equal(t, "/var/data/group/bootstrap-e3e789898cf4e1581226a833625bcf5f409934dae13c8891e5c420b3ce32eedb.state", s.path)
	mark, err := readFile(fs, fs.PathJoin(testPlace().Marks, filePrefix+network.ID().String()+markSuffix))
	require.NoError(t, err)
	require.Equal(t, "mark of a vote in the group bootstrap, format 1\n17M\n", string(mark))
	require.NoError(t, s.Close())
}
