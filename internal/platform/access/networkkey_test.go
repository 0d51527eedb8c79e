package access

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/pkg/fault"
)

// The file of keys is stable. One of a later version is refused, and nothing replaces it.
func TestNetworkKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "network.key")
	k, err := identity.NewKey(strings.NewReader(strings.Repeat("7", identity.KeySize)))
	require.NoError(t, err)
	require.NoError(t, CreateNetworkKey(path, k))
	const golden = "network key, format 1\nNzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc\n"
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, golden, string(text))
	keys, err := ReadNetworkKeys(path)
	require.NoError(t, err)
	require.Len(t, keys, 1)
	require.True(t, keys[0].Equal(k))

	for text, kind := range map[string]fault.Kind{
		"network key, format 2\n?":          fault.Unsupported,
		strings.SplitAfter(golden, "\n")[1]: fault.Invalid, // without a version
		"network key, format 1\n":           fault.Invalid,
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err = ReadNetworkKeys(path)
		require.Equal(t, kind, fault.KindOf(err), "%q: %v", text, err)
		require.Equal(t, "network.key", fault.FieldOf(err))
		_, err = OpenNetworkKeys(path, Options{})
		require.Equal(t, kind, fault.KindOf(err), text)
		require.Equal(t, fault.Exists, fault.KindOf(CreateNetworkKey(path, k)))
		require.NotContains(t, err.Error(), "Nzc3", "no key in errors")
	}
}
