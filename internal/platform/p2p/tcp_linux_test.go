package p2p

import (
	"os"
	"strconv"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestUserTimeout: both ends of a TCP connection between peers have the timeout.
func TestUserTimeout(t *testing.T) {
	for _, profile := range []Profile{Dev, Public} {
		t.Run(string(profile), func(t *testing.T) {
			c, d := testConfig(t), testConfig(t)
			c.Profile, d.Profile = profile, profile
			a, b := start(t, c), start(t, d)
			before := timeoutSockets(t)
			require.NoError(t, a.host.Connect(t.Context(), peer.AddrInfo{ID: b.host.ID(), Addrs: b.host.Network().ListenAddresses()}))
			require.Equal(t, before+2, timeoutSockets(t))
		})
	}
}

// timeoutSockets counts the sockets of this process with the timeout.
func timeoutSockets(t *testing.T) (n int) {
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, f := range open {
		fd, err := strconv.Atoi(f.Name())
		require.NoError(t, err)
		if ms, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT); err == nil && int64(ms) == userTimeout.Milliseconds() {
			n++
		}
	}
	return n
}
