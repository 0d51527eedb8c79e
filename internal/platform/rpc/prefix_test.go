package rpc

import (
	"net/netip"
	"testing"

	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"
)

func TestPrefixOf(t *testing.T) {
	for at, want := range map[string]string{
		"/ip4/198.51.100.7/tcp/1":            "198.51.100.0/24",
		"/ip6/::ffff:198.51.100.7/tcp/1":     "198.51.100.0/24",
		"/ip6/2001:db8:1:2::7/udp/1/quic-v1": "2001:db8:1::/48",
		"/ip6zone/eth0/ip6/fe80::1/tcp/1":    "fe80::/48",
		"/ip4/198.51.100.7/tcp/1/p2p/12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo/p2p-circuit": "198.51.100.0/24",
	} {
		require.Equal(t, want, PrefixOf(multiaddr.StringCast(at)).String(), at)
	}
	require.Equal(t, netip.Prefix{}, PrefixOf(multiaddr.StringCast("/dns4/peer.example/tcp/1")))
	require.Equal(t, netip.Prefix{}, PrefixOf(nil))
}
