package offer

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/records"
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

// The provider for whom an offer is made stands first.
func TestProviderOfADelegate(t *testing.T) {
	v := records.View{ProviderID: "12D3KooWdelegate"}
	require.Equal(t, "…delegate", providerOf(&v))
	v.OfferedFor = "12D3KooWprovider"
	require.Equal(t, "…provider by …delegate", providerOf(&v))
}
