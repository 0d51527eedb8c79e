package p2p

import (
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
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
	relay := startPublic(t, ReachConfig{Mode: ReachablePublic})
	home, caller := startPublic(t, ReachConfig{Mode: ReachablePrivate}), startPublic(t, ReachConfig{Mode: ReachablePrivate})
	via, err := reserve(t, relay, home)
	require.NoError(t, err)
	require.NoError(t, caller.host.Connect(network.WithAllowLimitedConn(t.Context(), "test"), via))
	require.Eventually(t, func() bool { return len(home.punch.relayed()) == 1 }, patience, 10*time.Millisecond)
	require.Equal(t, []peer.ID{caller.host.ID()}, home.punch.relayed())
	require.Empty(t, caller.punch.relayed())
	require.NoError(t, caller.host.Connect(network.WithForceDirectDial(t.Context(), "test"), info(home)))
	require.Eventually(t, func() bool { return len(home.punch.relayed()) == 0 }, patience, 10*time.Millisecond)
}
