package bootstrap

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"strconv"
	"testing"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/network"
)

// TestVectors: memberships and recovery records must never change, because peers of all versions
// verify them. Another program computed the vectors, from docs/wire.md.
func TestVectors(t *testing.T) {
	text, err := os.ReadFile("testdata/group.json")
	require.NoError(t, err)
	var vectors []struct {
		Network, Membership string
		Seeds, Founders     []string
		NetworkID           string `json:"network_id"`
		GroupID             string `json:"group_id"`
		ProtocolID          string `json:"protocol_id"`
		Recovery            struct {
			Incarnation uint64
			RaftID      string `json:"raft_id"`
			Record      string
			ProtocolID  string `json:"protocol_id"`
		}
	}
	require.NoError(t, json.Unmarshal(text, &vectors))
	require.NotEmpty(t, vectors)
	unhex := func(s string) []byte {
		b, err := hex.DecodeString(s)
		require.NoError(t, err)
		return b
	}
	for _, v := range vectors {
		n := Network{Name: network.Name(v.Network)}
		var keys []crypto.PrivKey
		for i, text := range v.Founders {
			key, _, err := crypto.GenerateEd25519Key(bytes.NewReader(unhex(v.Seeds[i])))
			require.NoError(t, err)
			id, err := peer.IDFromPrivateKey(key)
			require.NoError(t, err)
			require.Equal(t, text, id.String())
			n.Founders, keys = append(n.Founders, id), append(keys, key)
		}
		require.Equal(t, v.NetworkID, n.ID().String())

		m, err := n.Open(unhex(v.Membership))
		require.NoError(t, err)
		require.Equal(t, v.Membership, hex.EncodeToString(m.Encode()))
		require.Equal(t, m, n.Membership())
		require.Equal(t, v.GroupID, m.GroupID().String())
		require.Equal(t, v.ProtocolID, v.GroupID[:16])
		other := n
		other.Name = "another"
		_, err = other.Recognize(m.Encode())
		require.Error(t, err, "a membership of another network")

		record := unhex(v.Recovery.Record)
		r, err := DecodeRecovery(record)
		require.NoError(t, err)
		require.Equal(t, v.Recovery.Incarnation, r.Incarnation)
		require.Equal(t, v.Recovery.RaftID, strconv.FormatUint(r.Member, 10))
		require.Equal(t, m.GroupID(), r.Group)
		again, err := NewRecovery(keys[len(keys)-1], r.Group, r.Incarnation, r.Member)
		require.NoError(t, err)
		require.Equal(t, record, again.Encode())
		sum := sha256.Sum256(record)
		require.Equal(t, v.Recovery.ProtocolID, hex.EncodeToString(sum[:8]))
	}
}
