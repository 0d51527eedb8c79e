package network_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
)

func TestPeerName(t *testing.T) {
	for _, good := range []string{"a", "db-1.example_x", "7", strings.Repeat("x", 63)} {
		require.NoError(t, network.PeerName(good).Validate())
		require.Equal(t, network.PeerName(good), network.PeerNameOf(good))
	}
	for _, bad := range []string{"", "-a", ".", "a b", "ä", "a\n", "a\x1b[31m", strings.Repeat("x", 64)} {
		require.ErrorIs(t, network.PeerName(bad).Validate(), fault.Invalid, "%q", bad)
		if made := network.PeerNameOf(bad); made != "" {
			require.NoError(t, made.Validate(), "%q of %q", made, bad)
		}
	}
	require.Equal(t, network.PeerName("Anna-s-Laptop.local"), network.PeerNameOf("Anna's Laptop.local"))
}
