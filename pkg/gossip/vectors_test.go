package gossip

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMessageIDVectors: the ids must never change, because peers of all versions compare them. Another program
// computed the vectors, from docs/wire.md.
func TestMessageIDVectors(t *testing.T) {
	text, err := os.ReadFile("testdata/message_ids.json")
	require.NoError(t, err)
	var vectors []struct{ Topic, Data, ID string }
	require.NoError(t, json.Unmarshal(text, &vectors))
	require.NotEmpty(t, vectors)
	for _, v := range vectors {
		data, err := hex.DecodeString(v.Data)
		require.NoError(t, err)
		require.Equal(t, v.ID, hex.EncodeToString([]byte(messageID(message(v.Topic, data).Message))), v.Topic)
	}
}
