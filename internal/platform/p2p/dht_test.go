package p2p

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNamespaces: a peer stores values of known namespaces only, after their validator accepts them.
func TestNamespaces(t *testing.T) {
	c := testConfig(t)
	c.Namespaces = Namespaces{"other": bigger{}, "test": bigger{}}
	with, without := start(t, c).Routing(), start(t, testConfig(t)).Routing()
	for _, key := range []string{"/other/k", "/test/k"} {
		require.NoError(t, with.PutValue(t.Context(), key, []byte("good")))
		require.Error(t, with.PutValue(t.Context(), key, []byte("bad")))
	}
	require.NoError(t, without.PutValue(t.Context(), "/test/k", []byte("good")))
	require.Error(t, without.PutValue(t.Context(), "/other/k", []byte("good")))
	require.Error(t, with.PutValue(t.Context(), "/pk/k", []byte("good")))
}
