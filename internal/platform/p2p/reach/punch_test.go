package reach

import (
	"fmt"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	"github.com/stretchr/testify/require"
)

// TestPunchPlan repeats hole punches after growing pauses, and forgets a peer that left.
func TestPunchPlan(t *testing.T) {
	plan, now := punchPlan{}, time.Unix(0, 0)
	a, b := testID(t), testID(t)
	require.Empty(t, plan.due([]peer.ID{a}, now), "libp2p's own punch comes first")
	for _, pause := range punchPauses() {
		require.Empty(t, plan.due([]peer.ID{a}, now.Add(pause-1)))
		now = now.Add(pause)
		require.Equal(t, []peer.ID{a}, plan.due([]peer.ID{a}, now))
		require.Equal(t, []peer.ID{a}, plan.due([]peer.ID{a}, now), "not begun for want of a slot")
		plan.begin(a, now)
	}
	require.Empty(t, plan.due([]peer.ID{a, b}, now.Add(24*time.Hour)), "not without end")
	require.Len(t, plan, 2)
	require.Empty(t, plan.due(nil, now))
	require.Empty(t, plan)
}

// TestPuncherFindsRelayedPeers: the end that accepted the relayed connection punches.
func TestPuncherFindsRelayedPeers(t *testing.T) {
	start := func(options ...libp2p.Option) host.Host {
		h, err := libp2p.New(append(options, libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"), libp2p.DisableMetrics())...)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, h.Close()) })
		return h
	}
	relay, home, caller := start(libp2p.EnableRelayService(), libp2p.ForceReachabilityPublic()), start(), start()
	at := func(h host.Host) peer.AddrInfo { return peer.AddrInfo{ID: h.ID(), Addrs: h.Addrs()} }
	require.NoError(t, home.Connect(t.Context(), at(relay)))
	_, err := client.Reserve(t.Context(), home, at(relay))
	require.NoError(t, err)
	via := peer.AddrInfo{ID: home.ID(), Addrs: multiaddrs(t, fmt.Sprintf("%s/p2p/%s/p2p-circuit", relay.Addrs()[0], relay.ID()))}
	require.NoError(t, caller.Connect(network.WithAllowLimitedConn(t.Context(), "test"), via))
	punch, other := &puncher{host: home}, &puncher{host: caller}
	require.Eventually(t, func() bool { return len(punch.relayed()) == 1 }, time.Minute, 10*time.Millisecond)
	require.Equal(t, []peer.ID{caller.ID()}, punch.relayed())
	require.Empty(t, other.relayed())
	require.NoError(t, caller.Connect(network.WithForceDirectDial(t.Context(), "test"), at(home)))
	require.Eventually(t, func() bool { return len(punch.relayed()) == 0 }, time.Minute, 10*time.Millisecond)
}
