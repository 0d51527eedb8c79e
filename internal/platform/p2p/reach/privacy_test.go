package reach

import (
	"log/slog"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/condition"
)

// connection is one to an address.
type connection struct {
	network.Conn
	to multiaddr.Multiaddr
}

func (c connection) RemoteMultiaddr() multiaddr.Multiaddr { return c.to }

func connections(t *testing.T, to ...string) (all []network.Conn) {
	for _, a := range multiaddrs(t, to...) {
		all = append(all, connection{to: a})
	}
	return all
}

// TestPrivateAddressesAreACondition after a minute, until a public address appears.
func TestPrivateAddressesAreACondition(t *testing.T) {
	const vpn, home, outer = "/ip4/100.64.0.7/tcp/4801", "/ip4/192.168.1.5/udp/4801/quic-v1", "/ip4/62.10.1.1/tcp/4801"
	for name, c := range map[string]struct {
		own, remote []string
		want        bool
	}{
		"a VPN":                         {own: []string{"/ip4/127.0.0.1/tcp/4801", vpn}, want: true},
		"IPv6 of a private network":     {own: []string{"/ip6/fd00::7/tcp/4801", "/ip6/fe80::7/tcp/4801"}, want: true},
		"neighbours only":               {own: []string{home}, remote: []string{"/ip4/192.168.1.6/tcp/4801"}, want: true},
		"behind NAT, observed":          {own: []string{home, outer}},
		"behind NAT, connected":         {own: []string{home}, remote: []string{outer}},
		"a server":                      {own: []string{"/ip6/2a02:8100::1/tcp/4801"}},
		"an announced name":             {own: []string{home, "/dns/host.example.com/tcp/4801"}},
		"no network":                    {own: []string{"/ip4/127.0.0.1/tcp/4801", "/ip6/fe80::7/tcp/4801"}},
		"no address":                    {},
		"a relay at a public address":   {own: []string{home, outer + "/p2p/" + testID(t).String() + "/p2p-circuit"}},
		"IPv4 private and IPv6 public":  {own: []string{home, "/ip6/2a02:8100::1/tcp/4801"}},
		"a link-local address and home": {own: []string{"/ip6/fe80::7/tcp/4801", home}, want: true},
	} {
		begin := time.Unix(0, 0)
		set := condition.NewSet(slog.New(slog.DiscardHandler), time.Now)
		p := privacy{last: begin}
		own, remote := multiaddrs(t, c.own...), connections(t, c.remote...)
		p.look(own, remote, begin.Add(privacySettle-1), set)
		require.Empty(t, set.Active(), name)
		p.look(own, remote, begin.Add(privacySettle), set)
		if !c.want {
			p.look(own, remote, begin.Add(10*privacySettle), set)
			require.Empty(t, set.Active(), name)
			continue
		}
		require.Equal(t, []string{string(condition.PrivateAddresses)}, set.ActiveNames(), name)
		require.Contains(t, set.Active()[0].String(), "use profile lan with bootstrap addresses", name)
		found := begin.Add(2 * privacySettle)
		p.look(own, connections(t, outer), found, set)
		require.Empty(t, set.Active(), name)
		p.look(own, remote, found.Add(privacySettle-1), set)
		require.Empty(t, set.Active(), "a short interruption")
	}
}
