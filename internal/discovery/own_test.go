package discovery

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/probe"
)

// listening is a node that announces addresses, and nothing else.
type listening struct {
	Node
	at announcing
}

type announcing struct {
	host.Host
	addrs []multiaddr.Multiaddr
}

func (l *listening) Host() host.Host { return l.at }

func (h announcing) Addrs() []multiaddr.Multiaddr { return h.addrs }

// No offer makes a peer connect to its own machine, whatever the peer listens on: all interfaces, one of them, an
// announced address in place of them, or nothing. A network of one machine is a test.
func TestChecksLeaveThisMachineAlone(t *testing.T) {
	own := []string{"12.0.0.7", "192.168.7.7", "100.64.7.7", "[2a01:7::7]", "[2a01:7::99]", "[fd00:7::7]", "[64:ff9b::c00:7]", "127.0.0.1", "[::1]", "0.0.0.0"}
	special := []string{"10.0.0.1", "100.64.0.1", "198.18.0.1", "192.0.0.1", "192.0.2.1", "203.0.113.1", "[2001:db8::1]", "[100::1]", "[5f00::1]", "169.254.169.254", "[fd00::1]"}
	for name, addrs := range map[string][]string{
		"all":       {"/ip4/12.0.0.7/tcp/4801", "/ip4/192.168.7.7/tcp/4801", "/ip6/2a01:7::7/tcp/4801"},
		"one":       {"/ip4/192.168.7.7/tcp/4801"},
		"leaf":      nil,
		"relayed":   {"/ip4/13.0.0.7/tcp/4801/p2p/12D3KooWExFKd9gKCrBdxSPxDhjxtbUjAFWEnrXCsuu4W9kfH82c/p2p-circuit"},
		"announced": {"/ip4/13.0.0.7/tcp/4801", "/dns4/peer.net/tcp/4801"},
	} {
		node := &listening{}
		for _, text := range addrs {
			node.at.addrs = append(node.at.addrs, multiaddr.StringCast(text))
		}
		for _, lan := range []bool{false, true} {
			p := &Plane{config: Config{Loopback: lan, Now: time.Now, Interfaces: func() (list []net.Addr, _ error) {
				for _, text := range []string{"127.0.0.1/8", "12.0.0.7/24", "192.168.7.7/24", "100.64.7.7/10", "2a01:7::7/64", "fd00:7::7/64"} {
					ip, in, err := net.ParseCIDR(text)
					require.NoError(t, err)
					list = append(list, &net.IPNet{IP: ip, Mask: in.Mask})
				}
				return list, nil
			}}}
			prober, dialed := p.endpointProber(node), 0
			prober.Dial = func(context.Context, string, string) (net.Conn, error) { dialed++; return nil, io.EOF }
			reaches := func(at string) bool {
				dialed = 0
				for _, endpoint := range []string{"http://" + at + ":25", "tcp://" + at + ":6379", "ws://" + at} {
					target, ok := probe.Parse(endpoint, nil)
					require.True(t, ok)
					prober.Probe(t.Context(), target)
				}
				return dialed > 0
			}
			for _, at := range own {
				require.Equal(t, lan && at == "[2a01:7::99]", reaches(at), "%s, LAN %v: %s", name, lan, at)
			}
			require.Equal(t, name != "announced", reaches("13.0.0.7"), name)
			for _, at := range special {
				require.False(t, !lan && reaches(at), "%s: %s", name, at)
			}
			require.True(t, reaches("12.0.0.8"))
		}
	}
}
