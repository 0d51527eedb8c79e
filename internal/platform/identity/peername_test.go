package identity_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/pkg/fault"
)

func TestPeerName(t *testing.T) {
	for _, good := range []string{"a", "db-1.example_x", "7", strings.Repeat("x", 63)} {
		require.NoError(t, identity.PeerName(good).Validate())
		require.Equal(t, identity.PeerName(good), identity.PeerNameOf(good))
	}
	for _, bad := range []string{"", "-a", ".", "a b", "ä", "a\n", "a\x1b[31m", strings.Repeat("x", 64)} {
		require.ErrorIs(t, identity.PeerName(bad).Validate(), fault.Invalid, "%q", bad)
		if made := identity.PeerNameOf(bad); made != "" {
			require.NoError(t, made.Validate(), "%q of %q", made, bad)
		}
	}
	require.Equal(t, identity.PeerName("Anna-s-Laptop.local"), identity.PeerNameOf("Anna's Laptop.local"))
}
