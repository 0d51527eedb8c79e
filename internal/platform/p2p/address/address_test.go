package address

import (
	"testing"

	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"
)

func addrs(t *testing.T, list ...string) []multiaddr.Multiaddr {
	t.Helper()
	out, err := Parse("test", list)
	require.NoError(t, err)
	return out
}

func TestPublicAddresses(t *testing.T) {
	for text, want := range map[string]bool{
		"/ip4/80.20.1.1/tcp/1":           true,
		"/dns4/peer.example.org/tcp/1":   true,
		"/ip6/2a01:4f8::1/udp/1/quic-v1": true,
		"/ip4/100.64.3.4/tcp/1":          false,
		"/ip6/fd00:1::7/tcp/1":           false,
		"/ip4/192.168.1.10/tcp/1":        false,
		"/ip4/127.0.0.1/tcp/1":           false,
	} {
		require.Equal(t, want, Direct(addrs(t, text)), text)
		require.Equal(t, want, len(Public(addrs(t, text))) == 1, text)
	}
	relayed := addrs(t, "/ip4/80.20.1.1/tcp/1/p2p/12D3KooWExFKd9gKCrBdxSPxDhjxtbUjAFWEnrXCsuu4W9kfH82c/p2p-circuit")
	require.Len(t, Public(relayed), 1)
	require.False(t, Direct(relayed), "no peer of the routing table")
}
