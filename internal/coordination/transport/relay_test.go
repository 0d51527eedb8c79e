package transport

import (
	"fmt"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// TestCallsPassARelay calls a peer that has an address at a relay only.
func TestCallsPassARelay(t *testing.T) {
	loopback := func(opts ...libp2p.Option) host.Host {
		h, err := libp2p.New(append(opts, libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"), libp2p.EnableRelay(), libp2p.DisableMetrics())...)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, h.Close()) })
		return h
	}
	relay := loopback(libp2p.ForceReachabilityPublic(), libp2p.EnableRelayService())
	home, caller := loopback(), loopback()
	at := peer.AddrInfo{ID: relay.ID(), Addrs: relay.Addrs()}
	require.NoError(t, home.Connect(t.Context(), at))
	require.Eventually(t, func() bool { // the relay starts with its first event
		_, err := client.Reserve(t.Context(), home, at)
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	circuit, err := multiaddr.NewMultiaddr(fmt.Sprintf("%s/p2p/%s/p2p-circuit", at.Addrs[0], at.ID))
	require.NoError(t, err)
	caller.Peerstore().AddAddr(home.ID(), circuit, peerstore.PermanentAddrTTL)

	serveCalls(t, plain, home)
	_, err = callerOf(t, caller, Target(home.ID())).Check(t.Context(), &healthv1.HealthCheckRequest{})
	require.Equal(t, codes.AlreadyExists, status.Code(err), "%v", err)
	require.Contains(t, err.Error(), caller.ID().String())
	require.Equal(t, network.Limited, caller.Network().Connectedness(home.ID()))
}
