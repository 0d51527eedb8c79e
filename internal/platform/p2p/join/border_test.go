package join

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/stretchr/testify/require"
)

func TestOtherNetworksAreLoggedOnceAMinute(t *testing.T) {
	a, b := newHost(t), newHost(t)
	require.NoError(t, a.Connect(t.Context(), info(b)))
	var log strings.Builder
	guard, err := NewBorder(a, "a", slog.New(slog.NewTextHandler(&log, nil)), func() {})
	require.NoError(t, err)
	defer guard.seen.Close()
	now, conn := time.Unix(1e9, 0), a.Network().ConnsToPeer(b.ID())[0]
	seen := func(version string) {
		guard.examine(event.EvtPeerIdentificationCompleted{
			Peer: b.ID(), Conn: conn, ProtocolVersion: version,
		}, now)
	}
	for _, fine := range []string{"/blackhole/a/1", "/blackhole/a/2", "ipfs/0.1.0", ""} {
		seen(fine)
	}
	require.Empty(t, guard.parting)
	for range 2 * maxParting {
		seen("/blackhole/b/1")
	}
	require.Len(t, guard.parting, maxParting)
	require.Equal(t, 1, strings.Count(log.String(), "WARN"))
	require.NotEqual(t, network.Connected, a.Network().Connectedness(b.ID()), "beyond the bound at once")

	require.NoError(t, a.Connect(t.Context(), info(b)))
	now = now.Add(refusalPause)
	guard.part(now)
	require.Empty(t, guard.parting)
	require.Equal(t, network.Connected, a.Network().Connectedness(b.ID()), "it names this network now")
	seen("/blackhole/c/1")
	require.Contains(t, log.String(), fmt.Sprintf("network=a other=c peer=%s", b.ID()))
	require.Contains(t, log.String(), fmt.Sprintf("refused=%d", 2*maxParting))
	require.Len(t, guard.parting, 1)
}
