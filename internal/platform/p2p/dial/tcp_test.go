package dial

import (
	"io"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	libp2pquic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/libp2p/go-libp2p/p2p/transport/tcpreuse"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"
)

const byQUIC, byTCP = "/ip4/127.0.0.1/udp/0/quic-v1", "/ip4/127.0.0.1/tcp/0"

// quicHost listens on loopback, over TCP by NewTCP.
func quicHost(t *testing.T, listen ...string) host.Host {
	t.Helper()
	h, err := libp2p.New(libp2p.ListenAddrStrings(listen...), libp2p.Transport(libp2pquic.NewTransport),
		libp2p.Transport(func(up transport.Upgrader, limits network.ResourceManager, shared *tcpreuse.ConnMgr) (*TCP, error) {
			below, err := tcp.NewTCPTransport(up, limits, shared)
			return NewTCP(below), err
		}), libp2p.DisableRelay(), libp2p.DisableMetrics())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h
}

// TestByTCP: a connection over TCP opens beside the one over QUIC, once, and carries streams. A peer that listens over QUIC alone
// gets none.
func TestByTCP(t *testing.T) {
	here := quicHost(t, byQUIC, byTCP)
	for name, listen := range map[string][]string{"both": {byQUIC, byTCP}, "QUIC alone": {byQUIC}} {
		t.Run(name, func(t *testing.T) {
			other := quicHost(t, listen...)
			other.SetStreamHandler("/echo", func(s network.Stream) {
				_, _ = io.Copy(s, s)
				_ = s.Close()
			})
			quic := multiaddr.FilterAddrs(other.Addrs(), func(a multiaddr.Multiaddr) bool { return !overTCP(a) })
			require.NoError(t, here.Connect(t.Context(), peer.AddrInfo{ID: other.ID(), Addrs: quic}))
			require.Nil(t, OverTCP(here, other.ID()))
			if len(listen) == 1 {
				require.Nil(t, ByTCP(t.Context(), here, other.ID()))
				return
			}
			require.Eventually(t, func() bool { // its other addresses come by identify
				return ByTCP(t.Context(), here, other.ID()) != nil
			}, time.Minute, time.Millisecond)
			c := ByTCP(t.Context(), here, other.ID())
			require.True(t, IsTCP(c))
			require.Len(t, here.Network().ConnsToPeer(other.ID()), 2)
			_, err := On(t.Context(), c, "/unknown")
			require.Error(t, err)
			s, err := On(t.Context(), c, "/unknown", "/echo")
			require.NoError(t, err)
			_, err = s.Write([]byte("hello"))
			require.NoError(t, err)
			require.NoError(t, s.CloseWrite())
			heard, err := io.ReadAll(s)
			require.NoError(t, err)
			require.Equal(t, "hello", string(heard))
			require.NoError(t, c.Close())
			require.Nil(t, OverTCP(here, other.ID()))
		})
	}
}
