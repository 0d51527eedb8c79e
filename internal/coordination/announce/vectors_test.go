package announce

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/pkg/network"
)

// TestVectors: announcements must never change, because peers of all versions verify them. Another program
// computed the vectors, from docs/wire.md.
func TestVectors(t *testing.T) {
	text, err := os.ReadFile("testdata/announcements.json")
	require.NoError(t, err)
	var vectors []struct {
		Network, Seed, Info, Announcement string
		Founders                          []string
		Sequence                          uint64
		DHTKey                            string `json:"dht_key"`
	}
	require.NoError(t, json.Unmarshal(text, &vectors))
	require.NotEmpty(t, vectors)
	for _, v := range vectors {
		n := bootstrap.Network{Name: network.Name(v.Network)}
		for _, text := range v.Founders {
			id, err := peer.Decode(text)
			require.NoError(t, err)
			n.Founders = append(n.Founders, id)
		}
		require.Equal(t, v.DHTKey, Key(n))
		data, err := hex.DecodeString(v.Announcement)
		require.NoError(t, err)
		said, err := verify(n, data)
		require.NoError(t, err)
		require.Equal(t, v.Sequence, said.sequence)
		require.Equal(t, v.Founders[0], said.from.String())
		info, err := proto.MarshalOptions{Deterministic: true}.Marshal(said.info)
		require.NoError(t, err)
		require.Equal(t, v.Info, hex.EncodeToString(info))

		seed, err := hex.DecodeString(v.Seed)
		require.NoError(t, err)
		key, _, err := crypto.GenerateEd25519Key(bytes.NewReader(seed))
		require.NoError(t, err)
		again, err := sign(key, n, v.Sequence, said.info)
		require.NoError(t, err)
		require.Equal(t, v.Announcement, hex.EncodeToString(again))
	}
}
