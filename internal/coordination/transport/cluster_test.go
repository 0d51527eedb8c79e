package transport

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/platform/metrics"
	"github.com/blackhole/blackhole/internal/platform/metrics/metricstest"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	libp2pquic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	"github.com/marcopolo/simnet"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/fx"
)

// wire is a network with a latency of 5 ms, in the virtual time of a bubble.
type wire struct {
	net *simnet.Simnet
	cut atomic.Bool // packets vanish without an error
}

func newWire(t testing.TB) *wire {
	w := &wire{net: &simnet.Simnet{LatencyFunc: simnet.StaticLatency(5 * time.Millisecond), Logger: slog.New(slog.DiscardHandler)}}
	w.net.Start()
	t.Cleanup(w.net.Close)
	return w
}

type endpoint struct {
	*simnet.SimConn
	wire *wire
}

func (e *endpoint) WriteTo(p []byte, to net.Addr) (int, error) {
	if e.wire.cut.Load() {
		return len(p), nil
	}
	return e.SimConn.WriteTo(p, to)
}

type source net.IP

func (s source) PreferredSourceIPForDestination(*net.UDPAddr) (net.IP, error) { return net.IP(s), nil }

// host makes the i-th peer.
func (w *wire) host(t testing.TB, i int) host.Host {
	ip := simnet.IntToPublicIPv4(i)
	link := simnet.LinkSettings{BitsPerSecond: 100_000_000}
	h, err := libp2p.New(
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
				return &endpoint{w.net.NewEndpoint(local, simnet.NodeBiDiLinkSettings{Uplink: link, Downlink: link}), w}, nil
			})),
		libp2p.DisableIdentifyAddressDiscovery(), libp2p.ResourceManager(&network.NullResourceManager{}),
		libp2p.DisableRelay(), libp2p.DisableMetrics())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h
}

// hosts makes n peers with each other's addresses.
func hosts(t testing.TB, w *wire, n int) []host.Host {
	all := make([]host.Host, n)
	for i := range all {
		all[i] = w.host(t, i)
	}
	introduce(all)
	return all
}

func introduce(all []host.Host) {
	for _, h := range all {
		for _, other := range all {
			if other != h {
				h.Peerstore().AddAddrs(other.ID(), other.Addrs(), peerstore.PermanentAddrTTL)
			}
		}
	}
}

// counts are metrics that a test reads.
type counts struct {
	*metrics.Coordination
	t        testing.TB
	registry *prometheus.Registry
}

func newCounts(t testing.TB) *counts {
	c := &counts{t: t, registry: prometheus.NewRegistry()}
	var err error
	c.Coordination, err = metrics.NewCoordination(c.registry, func() (s metrics.GroupStats) { return s })
	require.NoError(t, err)
	return c
}

// of returns a counter: sent.LANE, received.LANE, dropped.LANE.REASON or refused.REASON.
func (c *counts) of(what string) int {
	c.t.Helper()
	kind, labels, _ := strings.Cut(what, ".")
	name, ok := map[string]string{
		"sent": "messages_total{out,", "received": "messages_total{in,", "dropped": "messages_dropped_total{", "refused": "streams_refused_total{",
	}[kind]
	require.True(c.t, ok, what)
	return int(metricstest.Values(c.t, c.registry)["blackhole_coordination_"+name+strings.Replace(labels, ".", ",", 1)+"}"])
}

// group is the configuration that all members of a test share.
type group struct {
	mu    sync.Mutex // guards all below
	peers map[uint64]peer.ID
	index uint64
}

func (g *group) lookup(member uint64) (peer.ID, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	id, ok := g.peers[member]
	return id, ok
}

func (g *group) has(id peer.ID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, member := range g.peers {
		if member == id {
			return true
		}
	}
	return false
}

func (g *group) set(member uint64, id peer.ID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.index++
	if g.peers[member] = id; id == "" {
		delete(g.peers, member)
	}
}

// member is a Receiver with its transport.
type member struct {
	*Transport
	host   host.Host
	counts *counts
	gate   chan struct{} // Receive waits for an element, unless nil

	mu          sync.Mutex // guards all below
	got         []*raftpb.Message
	unreachable int
	snapshots   []bool
	strangers   []uint64
	gone        []uint64
}

func (m *member) Receive(msg *raftpb.Message) {
	if m.gate != nil {
		<-m.gate
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.got = append(m.got, msg)
}

func (m *member) Unreachable(id uint64, gone bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unreachable++; gone {
		m.gone = append(m.gone, id)
	}
}

func (m *member) SnapshotSent(_ uint64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.snapshots = append(m.snapshots, ok)
}

// take returns the messages received since the last call.
func (m *member) take() []*raftpb.Message {
	m.mu.Lock()
	defer m.mu.Unlock()
	got := m.got
	m.got = nil
	return got
}

func (m *member) lost() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unreachable
}

func (m *member) sent() []bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]bool(nil), m.snapshots...)
}

func groupID() (id [32]byte) {
	for i := range id {
		id[i] = byte(i + 1)
	}
	return id
}

// cluster is a group of members 1 to n on peers 0 to n-1, with one more peer outside.
type cluster struct {
	wire     *wire
	group    *group
	members  []*member
	stranger host.Host
}

func newCluster(t testing.TB, n int, edit func(i int, m *member, c *Config)) *cluster {
	w := &cluster{wire: newWire(t), group: &group{peers: make(map[uint64]peer.ID)}}
	all := hosts(t, w.wire, n+1)
	w.stranger = all[n]
	for i, h := range all[:n] {
		w.group.set(uint64(i+1), h.ID())
	}
	for i, h := range all[:n] {
		w.members = append(w.members, w.start(t, h, uint64(i+1), func(m *member, c *Config) {
			if edit != nil {
				edit(i, m, c)
			}
		}))
	}
	return w
}

func (w *cluster) start(t testing.TB, h host.Host, id uint64, edit func(*member, *Config)) *member {
	m := &member{host: h, counts: newCounts(t)}
	c := basic(h, id)
	c.Lookup, c.Known, c.Metrics = w.group.lookup, w.group.has, m.counts.Coordination
	c.Stranger = func(_ peer.ID, member uint64) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.strangers = append(m.strangers, member)
	}
	edit(m, &c)
	m.Transport = New(c)
	m.Start(m)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// basic returns the configuration of a member that tells nobody anything.
func basic(h host.Host, member uint64) Config {
	return Config{
		Host: h, Network: "test", Group: groupID(), Member: member, Lookup: (&group{}).lookup, Known: func(peer.ID) bool { return true },
		Levels: func() (coord.Levels, uint32) {
			return coord.Levels{Min: coord.FirstLevel, Max: coord.FirstLevel}, coord.FirstLevel
		},
		Snapshots: inMemory{}, Stranger: func(peer.ID, uint64) {}, Refused: func(peer.ID, *groupv1.MemberWelcome) {}, WrongLevel: func(peer.ID, error) {},
		Logger: slog.New(slog.DiscardHandler), Jitter: func() float64 { return 0 },
	}
}

// bubble runs a test in virtual time.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// settle lets the network work for d.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func message(kind raftpb.MessageType, from, to uint64) *raftpb.Message {
	return &raftpb.Message{Type: kind.Enum(), From: &from, To: &to, Term: new(uint64(7))}
}

// appending returns an append of one entry.
func appending(from, to, index uint64, size int) *raftpb.Message {
	m := message(raftpb.MsgApp, from, to)
	m.Index = &index
	m.Entries = []*raftpb.Entry{{Term: new(uint64(7)), Index: new(index + 1), Data: make([]byte, size)}}
	return m
}

func snapshotOf(from, to uint64, data []byte) *raftpb.Message {
	m := message(raftpb.MsgSnap, from, to)
	m.Snapshot = &raftpb.Snapshot{Data: data, Metadata: &raftpb.SnapshotMetadata{
		Index: new(uint64(9)), Term: new(uint64(7)), ConfState: &raftpb.ConfState{Voters: []uint64{1, 2}},
	}}
	return m
}
