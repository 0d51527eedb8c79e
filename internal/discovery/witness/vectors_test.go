package witness

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/network"
)

// TestVectors: a statement must never change, because peers of all versions verify it. Another program computed
// the vectors, from docs/wire.md.
func TestVectors(t *testing.T) {
	text, err := os.ReadFile("testdata/findings.json")
	require.NoError(t, err)
	var vectors []struct {
		Network, Seed, By, Statement string
		Now                          int64 `json:"now_ms"`
		Findings                     []struct {
			Provider, State string
			RoundTrip       int64 `json:"round_trip_us"`
			Checked         int64 `json:"checked_ms"`
		}
	}
	require.NoError(t, json.Unmarshal(text, &vectors))
	require.NotEmpty(t, vectors)
	for i, v := range vectors {
		data, err := hex.DecodeString(v.Statement)
		require.NoError(t, err)
		s, err := Open(network.Name(v.Network), data, time.UnixMilli(v.Now))
		require.NoError(t, err)
		require.Equal(t, v.By, s.By.String())
		require.Len(t, s.Findings, len(v.Findings))
		for i, f := range s.Findings {
			w := v.Findings[i]
			require.Equal(t, w.Provider, f.Provider.String())
			require.Equal(t, w.State, string(f.State))
			require.Equal(t, w.RoundTrip, f.RoundTrip.Microseconds())
			require.Equal(t, w.Checked, f.CheckedAt.UnixMilli())
		}
		_, err = Open("another", data, time.UnixMilli(v.Now))
		require.Error(t, err)

		if i == len(vectors)-1 {
			continue // it has findings that Sign does not make, and Open leaves out
		}
		seed, err := hex.DecodeString(v.Seed)
		require.NoError(t, err)
		key, _, err := crypto.GenerateEd25519Key(bytes.NewReader(seed))
		require.NoError(t, err)
		raw, err := key.Raw()
		require.NoError(t, err)
		require.Equal(t, seed, raw[:ed25519.SeedSize])
		again, err := Sign(network.Name(v.Network), key, s.Findings)
		require.NoError(t, err)
		require.Equal(t, v.Statement, hex.EncodeToString(again))
	}
}
