package p2p

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMDNSPeerIsConnected calls the handler directly, because the machine may have real peers in its local
// network.
func TestMDNSPeerIsConnected(t *testing.T) {
	a, b := start(t, testConfig(t)), start(t, testConfig(t))
	n := &mdnsPeers{host: a.host, log: a.log, slots: make(chan struct{}, 1)}
	n.ctx, n.stop = context.WithCancel(t.Context())
	n.HandlePeerFound(info(a)) // itself
	require.Empty(t, n.slots)
	n.HandlePeerFound(info(b))
	n.HandlePeerFound(info(b)) // again, during a dial: dropped
	waitTable(t, a, func(size int) bool { return size == 1 })
	n.stop()
	n.work.Wait()
}
