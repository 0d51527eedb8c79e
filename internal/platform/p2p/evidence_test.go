package p2p

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	quic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	quicgo "github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"
)

func TestInterpret(t *testing.T) {
	dial := func(causes ...error) error {
		e := &swarm.DialError{Cause: swarm.ErrAllDialsFailed}
		for i, c := range causes {
			e.DialErrors = append(e.DialErrors, swarm.TransportError{Address: addr(t, fmt.Sprintf("/ip4/192.0.2.%d/tcp/1", i)), Cause: c})
		}
		return fmt.Errorf("wrapped: %w", e)
	}
	op := func(err error) error {
		return &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", err)}
	}
	late := &swarm.DialError{Cause: context.DeadlineExceeded, DialErrors: []swarm.TransportError{{Cause: network.ErrResourceLimitExceeded}}}
	for name, c := range map[string]struct {
		err  error
		want evidence
	}{
		"closed port":                      {dial(op(syscall.ECONNREFUSED)), closed},
		"silence":                          {dial(context.DeadlineExceeded), silence},
		"silence and a closed port":        {dial(op(syscall.ETIMEDOUT), op(syscall.ECONNREFUSED)), closed},
		"accepted, then closed":            {dial(fmt.Errorf("failed to negotiate security protocol: %w", io.EOF)), refusal},
		"accepted, then reset":             {dial(op(syscall.ECONNRESET)), refusal},
		"no room at one of many addresses": {dial(context.DeadlineExceeded, op(syscall.ECONNREFUSED), io.EOF), refusal},
		"code of a full peer over QUIC":    {dial(&quicgo.ApplicationError{Remote: true, ErrorCode: quicgo.ApplicationErrorCode(network.ConnResourceLimitExceeded)}), refusal},
		"refusal before the handshake":     {dial(&quicgo.TransportError{Remote: true, ErrorCode: quicgo.ConnectionRefused}), refusal},
		"handshake without an answer":      {dial(&quicgo.HandshakeTimeoutError{}), silence},
		"trimmed":                          {&network.ConnError{Remote: true, ErrorCode: network.ConnGarbageCollected}, refusal},
		"no room for a stream":             {&network.StreamError{Remote: true, ErrorCode: network.StreamResourceLimitExceeded}, refusal},
		"our limit":                        {dial(network.ErrResourceLimitExceeded), local},
		"our limit and a closed port":      {dial(network.ErrResourceLimitExceeded, op(syscall.ECONNREFUSED)), closed},
		"no route of our own":              {dial(op(syscall.ENETUNREACH)), local},
		"our files":                        {dial(op(syscall.EMFILE)), local},
		"a relay without room":             {dial(errors.New("error opening relay circuit: RESOURCE_LIMIT_EXCEEDED (201)")), local},
		"our guess":                        {dial(swarm.ErrDialRefusedBlackHole), local},
		"our cache":                        {dial(swarm.ErrDialBackoff), local},
		"too late for some addresses":      {late, silence},
		"no address":                       {&swarm.DialError{Cause: swarm.ErrNoGoodAddresses}, local},
		"another peer":                     {dial(errors.New("peer id mismatch")), closed},
	} {
		require.Equal(t, c.want, interpret(c.err), name)
	}
	require.Equal(t, busy, refusal.result(false))
	require.Equal(t, failed, closed.result(false), "a refused connection proves that this peer's network works")
	require.Equal(t, failed, silence.result(true))
	require.Equal(t, undecided, silence.result(false), "perhaps this peer has no network")
	require.Equal(t, undecided, local.result(true))
}

// bothTransports makes a node speak TCP and QUIC on loopback, without multicast DNS.
func bothTransports(c *Config) {
	c.Transport = []libp2p.Option{libp2p.Transport(tcp.NewTCPTransport), libp2p.Transport(quic.NewTransport)}
}

// stranger is a libp2p host without our limits.
func stranger(t testing.TB, opts ...libp2p.Option) host.Host {
	t.Helper()
	h, err := libp2p.New(append(opts, libp2p.DisableMetrics(), libp2p.DisableRelay(), libp2p.Identity(testKey(t)))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = h.Close() })
	return h
}

// full is a resource manager without room for inbound connections.
func full(t testing.TB) libp2p.Option {
	limits := rcmgr.PartialLimitConfig{System: rcmgr.ResourceLimits{ConnsInbound: rcmgr.BlockAllLimit}}
	m, err := rcmgr.NewResourceManager(rcmgr.NewFixedLimiter(limits.Build(rcmgr.DefaultLimits.AutoScale())), rcmgr.WithMetricsDisabled())
	require.NoError(t, err)
	return libp2p.ResourceManager(m)
}

// deaf refuses all inbound connections, before or after the handshake.
type deaf struct{ after bool }

func (deaf) InterceptPeerDial(peer.ID) bool                      { return true }
func (deaf) InterceptAddrDial(peer.ID, multiaddr.Multiaddr) bool { return true }
func (d deaf) InterceptAccept(network.ConnMultiaddrs) bool       { return d.after }
func (deaf) InterceptSecured(dir network.Direction, _ peer.ID, _ network.ConnMultiaddrs) bool {
	return dir == network.DirOutbound
}
func (deaf) InterceptUpgraded(network.Conn) (bool, control.DisconnectReason) { return true, 0 }

// TestRefusalIsBusy: whatever way a living peer refuses, it is not gone.
func TestRefusalIsBusy(t *testing.T) {
	nodes := make([]*Node, 2)
	for i := range nodes {
		c := testConfig(t)
		bothTransports(&c)
		nodes[i] = start(t, c)
	}
	require.NoError(t, nodes[0].host.Connect(t.Context(), info(nodes[1])))
	d := nodes[0].prober.net.(*dialer)
	for _, listen := range []string{"/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"} {
		for name, opts := range map[string][]libp2p.Option{
			"no room":        {full(t)},
			"gated":          {libp2p.ConnectionGater(deaf{})},
			"gated at once":  {libp2p.ConnectionGater(deaf{after: true})},
			"no ping stream": nil,
		} {
			t.Run(listen+" "+name, func(t *testing.T) {
				h := stranger(t, append(opts, libp2p.ListenAddrStrings(listen))...)
				h.SetStreamHandler(ping.ID, func(s network.Stream) { _ = s.ResetWithError(network.StreamResourceLimitExceeded) })
				d.host.Peerstore().AddAddrs(h.ID(), h.Addrs(), time.Hour)
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				require.Equal(t, busy, d.check(ctx, probe{id: h.ID()}).result)
			})
		}
	}
}

// TestSilenceIsNoEvidenceForALonePeer: a port that accepts and never answers.
func TestSilenceIsNoEvidenceForALonePeer(t *testing.T) {
	hole, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer hole.Close()
	at, err := manet.FromNetAddr(hole.Addr())
	require.NoError(t, err)
	id, err := peer.IDFromPrivateKey(testKey(t))
	require.NoError(t, err)
	a, b := start(t, testConfig(t)), start(t, testConfig(t))
	check := func() result {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		a.host.Peerstore().AddAddrs(id, []multiaddr.Multiaddr{at}, time.Hour)
		return a.prober.net.check(ctx, probe{id: id}).result
	}
	require.Equal(t, undecided, check())
	require.NoError(t, a.host.Connect(t.Context(), info(b)))
	require.Equal(t, failed, check())
}

// TestProbeGivesItsConnectionBack, and only its own one.
func TestProbeGivesItsConnectionBack(t *testing.T) {
	n := start(t, testConfig(t))
	h := stranger(t, libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"))
	d := n.prober.net.(*dialer)
	d.host.Peerstore().AddAddrs(h.ID(), h.Addrs(), time.Hour)
	o := d.check(t.Context(), probe{id: h.ID()})
	require.Equal(t, answered, o.result)
	require.True(t, o.dialed)
	require.False(t, d.connected(h.ID()))

	require.NoError(t, d.host.Connect(t.Context(), peer.AddrInfo{ID: h.ID(), Addrs: h.Addrs()}))
	o = d.check(t.Context(), probe{id: h.ID()})
	require.Equal(t, answered, o.result)
	require.False(t, o.dialed)
	require.True(t, d.connected(h.ID()), "this connection has another use")
}

// TestCrowdedProviderIsNeverGone: more idle peers than a provider has room for hold their connections and come back
// when they are closed. New consumers find it reachable, or at worst busy.
func TestCrowdedProviderIsNeverGone(t *testing.T) {
	c := testConfig(t)
	c.Limits.Connections = minConnections
	provider := start(t, c)
	const crowd = 5 * minConnections // the hard limit is four times the mark
	ctx, cancel := context.WithCancel(t.Context())
	var idle sync.WaitGroup
	defer idle.Wait()
	defer cancel()
	var refused atomic.Int64
	for range crowd {
		h := stranger(t, libp2p.NoListenAddrs)
		idle.Go(func() {
			for tick := time.NewTicker(time.Second); ; {
				if h.Network().Connectedness(provider.host.ID()) != network.Connected && h.Connect(ctx, info(provider)) != nil {
					refused.Add(1)
				}
				select {
				case <-ctx.Done():
					tick.Stop()
					return
				case <-tick.C:
				}
			}
		})
	}
	require.Eventually(t, func() bool { return refused.Load() > 0 }, patience, 10*time.Millisecond, "the provider has no room left")
	counts := map[result]int{}
	for range 10 {
		n := start(t, testConfig(t))
		d := n.prober.net.(*dialer)
		d.host.Peerstore().AddAddrs(provider.host.ID(), provider.host.Addrs(), time.Hour)
		probing, done := context.WithTimeout(ctx, patience)
		counts[d.check(probing, probe{id: provider.host.ID()}).result]++
		done()
	}
	t.Log("answered", counts[answered], "busy", counts[busy])
	require.Equal(t, 10, counts[answered]+counts[busy], "%v", counts)
}
