package bootstrap

import (
	"encoding/hex"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
)

// The files of a peer are stable: a later program must understand those of an earlier one.
func TestFilesAreGolden(t *testing.T) {
	fs := vfs.NewMem()
	network := unlisted()
	s, err := OpenStore(fs, testPlace(), peer.ID("\x00\x01p"), network)
	require.NoError(t, err)
	require.NoError(t, s.Save(State{
		Group: &Membership{Voters: []Voter{{peer.ID("\x00\x01p"), 7}}, Nonce: []byte{1}}, Left: []GroupID{{2}}, Floor: 3, Drop: true,
	}))
	b, err := readFile(fs, s.path)
	require.NoError(t, err)
	require.Equal(t, "67726f7570206f66207468697320706565722c20666f726d617420310abae9b4c80a03000170122e0a20000000000000000000000000000000000000000000000000000000000000000012070a0300017010071a01011a20020000000000000000000000000000000000000000000000000000000000000020032801", hex.EncodeToString(b))
	require.Equal(t, "/var/data/group/group", s.path)
	mark, err := readFile(fs, fs.PathJoin(testPlace().Marks, markPrefix+network.ID().String()+markSuffix))
	require.NoError(t, err)
	require.Equal(t, "mark of a vote in the group bootstrap, format 1\n17M\n", string(mark))
	require.NoError(t, s.Close())
}
