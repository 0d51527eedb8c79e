package digest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestVectors: entries, sums and roots must never change, because peers of all versions compare them. Another
// program computed the vectors, from docs/wire.md.
func TestVectors(t *testing.T) {
	text, err := os.ReadFile("testdata/digests.json")
	require.NoError(t, err)
	var vectors []struct {
		Records []struct {
			Name, Payload string
			Sequence      uint64
		}
		Entries []string
		Sums    map[string]string
		Root    string
	}
	require.NoError(t, json.Unmarshal(text, &vectors))
	require.NotEmpty(t, vectors)
	for _, v := range vectors {
		var entries []Entry
		for _, r := range v.Records {
			payload, err := hex.DecodeString(r.Payload)
			require.NoError(t, err)
			entries = append(entries, Entry{ID: IDOf(r.Name), Version: VersionOf(r.Sequence, sha256.Sum256(payload))})
		}
		s := New(entries)
		require.Len(t, s.Entries(), len(v.Entries))
		for i, e := range s.Entries() {
			require.Equal(t, v.Entries[i], hex.EncodeToString(Append(nil, e)))
		}
		for b, sum := range s.Sums() {
			if want, ok := v.Sums[strconv.Itoa(b)]; ok {
				require.Equal(t, want, hex.EncodeToString(sum[:]))
			} else {
				require.Zero(t, sum)
			}
		}
		root := s.Root()
		require.Equal(t, v.Root, hex.EncodeToString(root[:]))
	}
}
