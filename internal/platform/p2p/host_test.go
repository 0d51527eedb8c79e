package p2p

import (
	"context"
	"io"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// TestOurProtocolsHaveLimits opens more streams to one peer than libp2p's default of 64 for one protocol, and
// fewer than the own limit.
func TestOurProtocolsHaveLimits(t *testing.T) {
	const id protocol.ID = "/blackhole/test/1.0.0"
	server, client := testConfig(t), testConfig(t)
	server.Protocols, client.Protocols = []protocol.ID{id}, []protocol.ID{id}
	s, c := start(t, server), start(t, client)
	s.Host().SetStreamHandler(id, func(st network.Stream) {
		_, err := io.Copy(st, st)
		if err != nil {
			_ = st.Reset()
		}
		_ = st.Close()
	})
	require.NoError(t, c.Host().Connect(t.Context(), info(s)))
	var open []network.Stream
	for range protocolPeerStreams {
		st, err := c.Host().NewStream(t.Context(), s.host.ID(), id)
		require.NoError(t, err)
		open = append(open, st)
		_, err = st.Write([]byte{1})
		require.NoError(t, err)
		_, err = io.ReadFull(st, make([]byte, 1))
		require.NoError(t, err)
	}
	_, err := c.Host().NewStream(t.Context(), s.host.ID(), id)
	require.ErrorIs(t, err, network.ErrResourceLimitExceeded)
	for _, st := range open {
		require.NoError(t, st.Close())
	}
}

// TestHostFindsAddresses opens a stream to a peer by its id alone.
func TestHostFindsAddresses(t *testing.T) {
	const id protocol.ID = "/blackhole/test/1.0.0"
	nodes := meet(t, 3)
	from, to := nodes[1], nodes[2]
	to.Host().SetStreamHandler(id, func(st network.Stream) { _ = st.Close() })
	require.NoError(t, from.host.Network().ClosePeer(to.host.ID()))
	from.host.Peerstore().ClearAddrs(to.host.ID())
	from.dht.RoutingTable().RemovePeer(to.host.ID())
	st, err := from.Host().NewStream(t.Context(), to.host.ID(), id)
	require.NoError(t, err)
	require.NoError(t, st.Close())
}

func TestPubSubDelivers(t *testing.T) {
	nodes := meet(t, 2)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	hears, err := nodes[1].PubSub().Join("t")
	require.NoError(t, err)
	sub, err := hears.Subscribe()
	require.NoError(t, err)
	speaks, err := nodes[0].PubSub().Join("t")
	require.NoError(t, err)
	events, err := speaks.EventHandler()
	require.NoError(t, err)
	_, err = events.NextPeerEvent(ctx)
	require.NoError(t, err)
	require.NoError(t, speaks.Publish(ctx, []byte("x")))
	m, err := sub.Next(ctx)
	require.NoError(t, err)
	require.Equal(t, "x", string(m.Data))
}

// TestCloseLeavesNothing closes running nodes: one of them still searches for its network, one never listened.
func TestCloseLeavesNothing(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Run("life", func(t *testing.T) {
		nodes := meet(t, 3)
		nodes[1].Prober().Suspect(nodes[2].host.ID())
		c := testConfig(t)
		c.Bootstrap = somePeers(t, 2, 1) // no peer at these addresses
		start(t, c)
		c = testConfig(t)
		c.Listen = nodes[0].host.Network().ListenAddresses()
		_, err := New(t.Context(), c)
		require.Error(t, err)
	})
	goleak.VerifyNone(t, before)
}
