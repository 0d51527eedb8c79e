package offer

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func FuzzParseOffers(f *testing.F) {
	for _, path := range []string{"one.yaml", "batch.json", "lines.ndjson", "wrong.json", "empty.yaml"} {
		data, err := os.ReadFile(filepath.Join("..", "testdata", path))
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte("{id: x"))
	f.Add([]byte("[[{}]]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		offers, err := parseOffers(data)
		if err != nil {
			return
		}
		for _, o := range offers {
			require.NoError(t, o.Validate())
		}
	})
}
