package coordination_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	libp2pquic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	"github.com/marcopolo/simnet"
	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/fx"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination"
	"github.com/blackhole/blackhole/internal/coordination/announce"
	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/formation"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/internal/coordination/routing"
	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// TestMain gives memory for time, as the clusters of these tests make much garbage.
func TestMain(m *testing.M) {
	debug.SetGCPercent(200)
	os.Exit(m.Run())
}

// testCluster is a cluster of peers with planes, in the virtual time of a bubble. Calls go straight to members; the
// transport has its own tests.
type testCluster struct {
	t     *testing.T
	net   *simnet.Simnet
	peers []*node
}

// node is a peer of the test; tests stop and start it.
type node struct {
	*coordination.Seat // nil while stopped
	host               host.Host
	key                crypto.PrivKey
	fs                 vfs.FS
	cut                atomic.Bool // its packets do not leave
	door               *door       // entrance for other peers
	limits             func(coord.Limits) coord.Limits
	values             *values // nil: no DHT
	conditions         *condition.Set
	lost               func(locks []string)
	features           machine.Features // zero: this program's
	policy             formation.Policy
	dial               func(context.Context, peer.ID) error // nil: it can dial every peer
	serves             func() bool                          // nil: others can dial it
	trusts             func(context.Context, peer.ID) error // nil: everybody
}

// newTestCluster makes n hosts without planes.
func newTestCluster(t *testing.T, n int) *testCluster {
	w := &testCluster{t: t, net: &simnet.Simnet{LatencyFunc: simnet.StaticLatency(time.Millisecond), Logger: slog.New(slog.DiscardHandler)}}
	w.net.Start()
	t.Cleanup(w.net.Close)
	for i := range n {
		key, _, err := crypto.GenerateEd25519Key(rand.Reader)
		require.NoError(t, err)
		one := &node{key: key, fs: vfs.NewMem()}
		one.door = &door{cut: &one.cut}
		one.host = w.host(i, one)
		w.peers = append(w.peers, one)
	}
	for _, a := range w.peers {
		for _, b := range w.peers {
			if a != b {
				a.host.Peerstore().AddAddrs(b.host.ID(), b.host.Addrs(), peerstore.PermanentAddrTTL)
			}
		}
	}
	t.Cleanup(func() {
		for _, p := range w.peers {
			p.stop(t)
		}
	})
	return w
}

type source net.IP

func (s source) PreferredSourceIPForDestination(*net.UDPAddr) (net.IP, error) { return net.IP(s), nil }

type endpoint struct {
	*simnet.SimConn
	cut *atomic.Bool
}

func (e *endpoint) WriteTo(p []byte, to net.Addr) (int, error) {
	if e.cut.Load() {
		return len(p), nil
	}
	return e.SimConn.WriteTo(p, to)
}

func (w *testCluster) host(i int, n *node) host.Host {
	ip := simnet.IntToPublicIPv4(i)
	wide := simnet.LinkSettings{BitsPerSecond: 100_000_000}
	h, err := libp2p.New(
		libp2p.Identity(n.key),
		libp2p.ListenAddrStrings(fmt.Sprintf("/ip4/%s/udp/4801/quic-v1", ip)),
		libp2p.Transport(libp2pquic.NewTransport),
		libp2p.QUICReuse(
			func(l fx.Lifecycle, reset quic.StatelessResetKey, token quic.TokenGeneratorKey, opts ...quicreuse.Option) (*quicreuse.ConnManager, error) {
				m, err := quicreuse.NewConnManager(reset, token, opts...)
				if err == nil {
					l.Append(fx.StopHook(m.Close))
				}
				return m, err
			},
			quicreuse.OverrideSourceIPSelector(func() (quicreuse.SourceIPSelector, error) { return source(ip), nil }),
			quicreuse.OverrideListenUDP(func(_ string, local *net.UDPAddr) (net.PacketConn, error) {
				return &endpoint{w.net.NewEndpoint(local, simnet.NodeBiDiLinkSettings{Uplink: wide, Downlink: wide}), &n.cut}, nil
			})),
		libp2p.DisableIdentifyAddressDiscovery(), libp2p.ResourceManager(&network.NullResourceManager{}),
		libp2p.DisableRelay(), libp2p.DisableMetrics())
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, h.Close()) })
	return h
}

// listed returns the network of the first n peers.
func (w *testCluster) listed(n int) bootstrap.Network {
	var ids []peer.ID
	for _, p := range w.peers[:n] {
		ids = append(ids, p.host.ID())
	}
	return bootstrap.Network{Name: "test", Founders: ids}
}

// start starts the plane of a peer.
func (w *testCluster) start(i int, n bootstrap.Network) {
	p := w.peers[i]
	var dht announce.Values
	if p.values != nil {
		dht = p.values
	}
	p.conditions = condition.NewSet(slog.New(slog.DiscardHandler), time.Now)
	policy := p.policy
	if !n.Listed() && policy.Members == formation.ListedMembers {
		policy = formation.Policy{Members: formation.TrustedMembers, Founds: true}
	}
	policy.Dial, policy.Serves = p.dial, p.serves
	config := coordination.Config{
		Conditions: p.conditions, LocksLost: p.lost,
		Host: p.host, Values: dht, Key: p.key, Name: identity.PeerName(fmt.Sprint("host-", i)), Etcd: fmt.Sprintf("http://10.0.0.%d:2379", i), Network: n, Voters: 3, Replace: 10 * time.Second, Limits: p.limits, Dir: "data", Marks: "keys", FS: p.fs,
		Access: formation.Access{Open: true, Trusts: p.trusts}, Policy: policy,
		Replica: replica.Config{Features: p.features},
		Fatal:   func(err error) { w.t.Errorf("peer %d failed: %v", i, err) },
	}
	config.DialBy(func(to peer.ID) (routing.Remote, error) {
		for _, other := range w.peers {
			if other.host.ID() == to {
				return other.door, nil
			}
		}
		return nil, fmt.Errorf("nobody is %v", to)
	})
	plane, err := coordination.Open(config)
	require.NoError(w.t, err)
	p.Seat, p.door.Serving = plane, plane.Member()
}

// exchange asks questions in the place of a peer without a plane.
func (w *testCluster) exchange(i int) *transport.Exchange {
	x := transport.NewExchange(transport.ExchangeConfig{
		Host: w.peers[i].host, Network: "test", Logger: slog.New(slog.DiscardHandler), Known: func(peer.ID) bool { return true },
	})
	w.t.Cleanup(func() { require.NoError(w.t, x.Close()) })
	return x
}

func (p *node) stop(t testing.TB) {
	if p.Seat != nil {
		require.NoError(t, p.Seat.Close())
		p.Seat = nil
	}
}

// cluster starts planes on all peers, of which the first may be members and three of them are founders, and waits for a leader.
func startCluster(t *testing.T, peers, founders int) *testCluster {
	w := newTestCluster(t, peers)
	for i, p := range w.peers {
		if founders > 3 && i < founders { // may be a member, but not all are initial voters
			p.policy.Members = formation.TrustedMembers
		}
		w.start(i, w.listed(min(founders, 3)))
	}
	w.await("a leader", func() bool { return w.leader() >= 0 })
	return w
}

// await waits for a condition in virtual time.
func (w *testCluster) await(what string, is func() bool) {
	w.t.Helper()
	for range 1200 {
		if is() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	w.t.Fatalf("not within a minute: %s", what)
}

// leader returns the index of the leader if all running peers agree; otherwise -1.
func (w *testCluster) leader() int {
	lead := ""
	for _, p := range w.peers {
		if p.Seat == nil {
			continue
		}
		s, err := p.Group(w.t.Context())
		if err != nil || s.Leader == "" || lead != "" && lead != s.Leader {
			return -1
		}
		lead = s.Leader
	}
	for i, p := range w.peers {
		if p.Seat != nil && p.host.ID().String() == lead {
			return i
		}
	}
	return -1
}

// door leads to a peer's present member. While the peer is cut off, calls get no answer.
type door struct {
	coordination.Serving
	cut  *atomic.Bool
	deaf atomic.Bool // calls take effect, but neither answers nor cancellations arrive
}

func (d *door) Execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	waits := cmd.GetLock() != nil
	if waits && d.deaf.Load() {
		go d.Serving.Execute(context.WithoutCancel(ctx), cmd) // ends when the claim is given back
	}
	if waits && d.deaf.Load() || !waits && cmd.GetKeepAlive() == nil && d.cut.Load() {
		<-ctx.Done()
		return nil, fault.Wrap("door", ctx.Err())
	}
	return d.Serving.Execute(ctx, cmd)
}

func (*door) Close() error { return nil }

func lease(t *testing.T, a coord.Service, owner string, ttl time.Duration) coord.LeaseID {
	t.Helper()
	r, _, err := ops.Of(a).Do(t.Context(), ops.Command{Owner: owner, Op: &ops.LeaseGrant{TTL: ttl.Milliseconds()}})
	require.NoError(t, err)
	return r.Lease
}

func (p *node) id() string { return p.host.ID().String() }
