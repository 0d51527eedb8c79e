package join

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/pnet"
	"github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"github.com/stretchr/testify/require"
)

// TestWhoAnswersAtAnAddress: the handshake proves the id, with the key of a closed network alone if it is closed.
func TestWhoAnswersAtAnAddress(t *testing.T) {
	psk := pnet.PSK(make([]byte, 32))
	for name, key := range map[string]pnet.PSK{"open": nil, "closed": psk} {
		t.Run(name, func(t *testing.T) {
			opts := []libp2p.Option{libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"), libp2p.DisableMetrics(), libp2p.DisableRelay(), libp2p.PrivateNetwork(key)}
			asked, err := libp2p.New(opts...)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, asked.Close()) })
			asking, err := libp2p.New(append(opts, libp2p.NoListenAddrs)...)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, asking.Close()) })
			id, err := who(t.Context(), asking, asked.Addrs()[0], key)
			require.NoError(t, err)
			require.Equal(t, asked.ID(), id)
			require.NoError(t, asking.Connect(t.Context(), peer.AddrInfo{ID: id, Addrs: asked.Addrs()}))
			require.Equal(t, network.Connected, asking.Network().Connectedness(id))
			if key == nil {
				_, err = who(t.Context(), asking, asked.Addrs()[0], psk)
				require.Error(t, err)
			}
		})
	}
	nobody, err := libp2p.New(libp2p.NoListenAddrs, libp2p.DisableMetrics())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, nobody.Close()) })
	_, err = who(t.Context(), nobody, multiaddr.StringCast("/ip4/127.0.0.1/tcp/1"), nil)
	require.Error(t, err)
}

// TestKnock: a peer knows its own address behind a name that several peers have, asks nobody twice, and forgets who
// is gone from the name.
func TestKnock(t *testing.T) {
	opts := []libp2p.Option{libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"), libp2p.DisableMetrics(), libp2p.DisableRelay()}
	h, err := libp2p.New(opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	b := &Bootstrapper{host: h, log: slog.New(slog.DiscardHandler)}
	door, known := h.Addrs()[0], map[string]peer.ID{"gone": "other"}
	for range 2 {
		require.NoError(t, b.knock(t.Context(), door, nil, known))
		require.Equal(t, map[string]peer.ID{string(door.Bytes()): h.ID()}, known)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	empty, err := manet.FromNetAddr(silent.Addr())
	require.NoError(t, err)
	require.NoError(t, silent.Close())
	require.Error(t, b.knock(t.Context(), empty, nil, known), "nobody listens there")
	require.Empty(t, known)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b.enter(ctx, empty, nil) // it ends with its context
}
