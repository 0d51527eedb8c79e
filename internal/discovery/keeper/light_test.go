package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	libp2pprotocol "github.com/libp2p/go-libp2p/core/protocol"

	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/condition"

	ma "github.com/multiformats/go-multiaddr"
	"github.com/multiformats/go-multistream"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/records"
)

// lightCluster is a network of peers without cryptography and packets: a stream is a pipe. It
// handles hundreds of thousands of records, where a cluster handles hundreds.
type lightCluster struct {
	t     testing.TB
	dht   *directory
	nodes []*lightNode

	hosts    *lightHosts
	verifier *records.Verifier

	draw func(n int) int         // see protocol.Config
	now  func(peer.ID) time.Time // clock of a peer; nil: all right
}

type lightNode struct {
	*Keeper
	host   *lightHost
	counts *keepertest.Counts
}

// newLightCluster returns n nodes that never compare.
func newLightCluster(t testing.TB, n int) *lightCluster {
	return newLimitedCluster(t, n, protocol.Limits{Sync: -1})
}

func newLimitedCluster(t testing.TB, n int, limits protocol.Limits) *lightCluster {
	verifier, err := records.NewVerifier("test", max(100_000, 2*number(t, "TEST_KEEPER_RECORDS", 0))) // shared: verifies each record once
	require.NoError(t, err)
	w := &lightCluster{
		t: t, dht: &directory{}, hosts: new(lightHosts), verifier: verifier,
	}
	for i := range n {
		w.join(peer.ID(fmt.Sprintf("light %d", i)), limits)
	}
	return w
}

// join adds a node.
func (w *lightCluster) join(id peer.ID, limits protocol.Limits) *lightNode {
	h := &lightHost{id: id, hosts: w.hosts, addr: ma.StringCast("/ip4/127.0.0.1/udp/1/quic-v1")}
	w.hosts.Store(id, h)
	n := w.start(h, limits, nil) // first, so that it speaks the protocol when others compare with it
	w.nodes = append(w.nodes, n)
	w.dht.edit(func() {
		w.dht.peers = append(w.dht.peers, id)
		w.dht.fire()
	})
	return n
}

// start starts the keeper of a host, which tells its conditions.
func (w *lightCluster) start(h *lightHost, limits protocol.Limits, told *condition.Set) *lightNode {
	n := &lightNode{host: h, counts: keepertest.NewCounts(w.t)}
	limits.Loopback = true // all nodes have one address
	var err error
	var now func() time.Time
	if w.now != nil {
		now = func() time.Time { return w.now(h.id) }
	}
	n.Keeper, err = New(protocol.Config{
		Network: "test", Draw: w.draw, Now: now,
		Host: h, Router: &lightRouter{router: router{w.dht, h.id}}, Index: index.New(index.Config{}), Verifier: w.verifier,
		Signals: protocol.Signals{Metrics: n.counts.Discovery, Conditions: told}, Limits: limits,
	})
	require.NoError(w.t, err)
	return n
}

func (w *lightCluster) close() {
	for _, n := range w.nodes {
		require.NoError(w.t, n.Close())
	}
}

func (w *lightCluster) node(id peer.ID) *lightNode {
	for _, n := range w.nodes {
		if n.Self == id {
			return n
		}
	}
	return nil
}

// keepersOf returns the keepers of a cell.
func (w *lightCluster) keepersOf(c records.CellKey) []*lightNode {
	var nodes []*lightNode
	for _, id := range w.dht.nearest(keep.KeyOf(c), w.dht.peers, keep.Replicas) {
		nodes = append(nodes, w.node(id))
	}
	return nodes
}

// lightRouter caches the closest peers to keys until the next join.
type lightRouter struct {
	router

	mu   sync.Mutex // guards the fields below
	size int
	near map[string][]peer.ID
}

func (r *lightRouter) Size() int {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	others := len(r.d.peers) - len(r.d.clients) + r.d.unseen
	if !slices.Contains(r.d.clients, r.self) {
		others--
	}
	return others
}

// Suspect has the peers of the directory checked, at once.
func (r *lightRouter) Suspect(ids ...peer.ID) {
	r.d.edit(func() { r.d.checked = append(r.d.checked, ids...) })
}

func (r *lightRouter) Late(time.Time) (is bool) {
	r.d.edit(func() { is = r.d.late })
	return is
}

func (r *lightRouter) Refuses(id peer.ID) (is bool) {
	r.d.edit(func() { is = slices.Contains(r.d.ended, id) && slices.Contains(r.d.checked, id) })
	return is
}

func (r *lightRouter) Nearby(key string, n int) []peer.ID {
	r.mu.Lock()
	defer r.mu.Unlock()
	if size := r.Size(); size != r.size || r.near == nil {
		r.size, r.near = size, make(map[string][]peer.ID)
	}
	near, ok := r.near[key]
	if !ok || len(near) < min(n, r.size) {
		near = r.router.Nearby(key, max(n, keep.Network))
		r.near[key] = near
	}
	return slices.Clone(near[:min(n, len(near))])
}

// lightHosts are the hosts by id.
type lightHosts struct {
	sync.Map
	lost atomic.Pointer[func(from, to peer.ID) bool] // whether a message is lost; nil for none
}

// lose begins to lose messages.
func (m *lightHosts) lose(lost func(from, to peer.ID) bool) { m.lost.Store(&lost) }

func (m *lightHosts) of(id peer.ID) *lightHost {
	if h, ok := m.Load(id); ok {
		return h.(*lightHost)
	}
	return nil
}

// lightHost implements the methods of a host that a Keeper uses.
type lightHost struct {
	host.Host
	id    peer.ID
	addr  ma.Multiaddr
	hosts *lightHosts

	mu      sync.Mutex // guards handler
	handler network.StreamHandler
}

func (h *lightHost) ID() peer.ID { return h.id }

func (h *lightHost) SetStreamHandler(_ libp2pprotocol.ID, handler network.StreamHandler) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.handler = handler
}

func (h *lightHost) SetStreamHandlerMatch(id libp2pprotocol.ID, _ func(libp2pprotocol.ID) bool, handler network.StreamHandler) {
	h.SetStreamHandler(id, handler)
}

func (h *lightHost) RemoveStreamHandler(libp2pprotocol.ID) { h.SetStreamHandler("", nil) }

func (h *lightHost) NewStream(_ context.Context, id peer.ID, ids ...libp2pprotocol.ID) (network.Stream, error) {
	other := h.hosts.of(id)
	if other == nil {
		return nil, errors.New("no such peer")
	}
	other.mu.Lock()
	handler := other.handler
	other.mu.Unlock()
	if handler == nil {
		return nil, fmt.Errorf("failed to negotiate protocol: %w", multistream.ErrNotSupported[libp2pprotocol.ID]{Protos: ids})
	}
	near, far := net.Pipe()
	go handler(&lightStream{pipe: far, own: other, remote: h})
	return &lightStream{pipe: near, own: h, remote: other}, nil
}

func (h *lightHost) Network() network.Network       { return lightNetwork{} }
func (h *lightHost) Peerstore() peerstore.Peerstore { return lightPeerstore{hosts: h.hosts} }

type lightNetwork struct{ network.Network }

func (lightNetwork) ConnsToPeer(peer.ID) []network.Conn { return nil }

type lightPeerstore struct {
	peerstore.Peerstore
	hosts *lightHosts
}

func (p lightPeerstore) Addrs(id peer.ID) []ma.Multiaddr {
	if h := p.hosts.of(id); h != nil {
		return []ma.Multiaddr{h.addr}
	}
	return nil
}

func (lightPeerstore) GetProtocols(peer.ID) ([]libp2pprotocol.ID, error) { return nil, nil }

// lightStream is one end of a pipe.
type lightStream struct {
	network.Stream
	pipe   net.Conn
	own    *lightHost
	remote *lightHost
}

// Write loses the message, if messages are lost.
func (s *lightStream) Write(b []byte) (int, error) {
	if lost := s.own.hosts.lost.Load(); lost != nil && (*lost)(s.own.id, s.remote.id) {
		return len(b), nil
	}
	return s.pipe.Write(b)
}

func (s *lightStream) Read(b []byte) (int, error)         { return s.pipe.Read(b) }
func (s *lightStream) Close() error                       { return s.pipe.Close() }
func (s *lightStream) Reset() error                       { return s.pipe.Close() }
func (s *lightStream) SetDeadline(t time.Time) error      { return s.pipe.SetDeadline(t) }
func (s *lightStream) SetReadDeadline(t time.Time) error  { return s.pipe.SetReadDeadline(t) }
func (s *lightStream) SetWriteDeadline(t time.Time) error { return s.pipe.SetWriteDeadline(t) }
func (s *lightStream) Scope() network.StreamScope         { return &network.NullScope{} }

func (s *lightStream) Conn() network.Conn { return lightConn{remote: s.remote} }

type lightConn struct {
	network.Conn
	remote *lightHost
}

func (c lightConn) RemotePeer() peer.ID           { return c.remote.id }
func (c lightConn) RemoteMultiaddr() ma.Multiaddr { return c.remote.addr }
