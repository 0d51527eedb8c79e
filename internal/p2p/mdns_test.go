package p2p

import (
	"context"
	"fmt"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/miekg/dns"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

func TestMDNSMessages(t *testing.T) {
	id, err := peer.IDFromPrivateKey(testKey(t))
	require.NoError(t, err)
	question, err := mdnsQuestion()
	require.NoError(t, err)
	asked, found := mdnsParse(question)
	require.True(t, asked)
	require.Empty(t, found)

	tcp, quic := addr(t, "/ip4/192.168.1.7/tcp/4801"), addr(t, "/ip6/2001:db8::7/udp/4801/quic-v1")
	answer, err := mdnsAnswer(id, []multiaddr.Multiaddr{
		tcp,
		addr(t, "/dns4/evil.example/tcp/4801"),
		addr(t, "/ip4/1.2.3.4/tcp/1/p2p/"+id.String()+"/p2p-circuit"),
		quic,
	})
	require.NoError(t, err)
	asked, found = mdnsParse(answer)
	require.False(t, asked)
	require.Equal(t, []peer.AddrInfo{{ID: id, Addrs: []multiaddr.Multiaddr{tcp, quic}}}, found)

	_, err = mdnsAnswer(id, nil)
	require.ErrorIs(t, err, fault.Unavailable)
}

func TestMDNSBoundsAndStrangers(t *testing.T) {
	id, err := peer.IDFromPrivateKey(testKey(t))
	require.NoError(t, err)
	var many []multiaddr.Multiaddr
	for i := range 3 * mdnsMaxAddrs {
		many = append(many, addr(t, fmt.Sprintf("/ip4/10.0.0.%d/tcp/4801", i)))
	}
	answer, err := mdnsAnswer(id, many)
	require.NoError(t, err)
	_, found := mdnsParse(answer)
	require.Len(t, found[0].Addrs, mdnsMaxAddrs)

	var m dns.Msg
	require.NoError(t, m.Unpack(answer))
	m.Extra[0].Header().Name = "x._p2p._udp.local."
	other, err := m.Pack()
	require.NoError(t, err)
	_, found = mdnsParse(other)
	require.Empty(t, found, "another service")
	for _, entry := range []string{
		"", "dnsaddr=", "dnsaddr=/ip4/10.0.0.1/tcp/1", "dnsaddr=/p2p/" + id.String(), "x=/ip4/10.0.0.1/tcp/1/p2p/" + id.String(),
		"dnsaddr=/dnsaddr/evil.example/p2p/" + id.String(),
	} {
		_, ok := mdnsAddr(entry)
		require.False(t, ok, entry)
	}
}

func FuzzMDNSParse(f *testing.F) {
	id, err := peer.IDFromPrivateKey(testKey(f))
	require.NoError(f, err)
	answer, err := mdnsAnswer(id, []multiaddr.Multiaddr{addr(f, "/ip4/10.0.0.1/tcp/1")})
	require.NoError(f, err)
	question, err := mdnsQuestion()
	require.NoError(f, err)
	f.Add(answer)
	f.Add(question)
	f.Fuzz(func(t *testing.T, data []byte) {
		_, found := mdnsParse(data)
		total := 0
		for _, p := range found {
			total += len(p.Addrs)
			for _, a := range p.Addrs {
				require.True(t, dialable(a))
			}
			require.NoError(t, p.ID.Validate())
		}
		require.LessOrEqual(t, total, mdnsMaxAddrs)
	})
}

// TestNeighbourIsConnected takes the part behind the socket: the machine that runs the
// tests may have real neighbours.
func TestNeighbourIsConnected(t *testing.T) {
	a, b := start(t, testConfig(t)), start(t, testConfig(t))
	n := &neighbours{host: a.host, log: a.log, slots: make(chan struct{}, 1)}
	n.ctx, n.stop = context.WithCancel(t.Context())
	n.found(info(a)) // itself
	require.Empty(t, n.slots)
	n.found(info(b))
	n.found(info(b)) // again, while a dial is under way: dropped
	waitTable(t, a, func(size int) bool { return size == 1 })
	n.stop()
	n.work.Wait()
}
