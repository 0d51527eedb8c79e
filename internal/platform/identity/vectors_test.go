package identity_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/pkg/network"
)

// TestKeyVectors: proofs and private-network keys must never change, because peers of all versions compare them.
// Another program computed the vectors, from docs/wire.md.
func TestKeyVectors(t *testing.T) {
	text, err := os.ReadFile("testdata/key_proofs.json")
	require.NoError(t, err)
	var vectors []struct {
		Network, Key, Verifier, Prover, Asked, Answered, Proof string
		Private                                                string `json:"private_network_key"`
	}
	require.NoError(t, json.Unmarshal(text, &vectors))
	require.NotEmpty(t, vectors)
	for _, v := range vectors {
		key, err := identity.NewKey(bytes.NewReader(unhex(t, v.Key)))
		require.NoError(t, err)
		c := identity.Challenge{
			Network: network.Name(v.Network), Verifier: peer.ID(unhex(t, v.Verifier)), Prover: peer.ID(unhex(t, v.Prover)),
			Asked: unhex(t, v.Asked), Answered: unhex(t, v.Answered),
		}
		require.Equal(t, v.Proof, hex.EncodeToString(c.Prove(key)))
		private, err := key.Private(c.Network)
		require.NoError(t, err)
		require.Equal(t, v.Private, hex.EncodeToString(private))
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}
