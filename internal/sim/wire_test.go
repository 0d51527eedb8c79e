package sim

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/connmgr"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/pnet"
	"github.com/libp2p/go-libp2p/core/transport"
	libp2pquic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	"github.com/marcopolo/simnet"
	"github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"github.com/quic-go/quic-go"
	"go.uber.org/fx"
)

const (
	port      = 4801
	bandwidth = 100_000_000 // bits per second of each peer's link, each way
)

// wire is the simulated network: latency is the same between any two peers; loss, silence
// and cuts are decided when a packet is sent. It is safe for concurrent use.
type wire struct {
	net     *simnet.Simnet
	refuses bool // a machine whose peer is dead refuses connections, as TCP does
	shares  bool // peers share findings about endpoints and deaths
	closed  bool // the network is closed, and of one office: peers count, not prefixes
	half    time.Duration
	seed    uint64

	packets, bytes, lost atomic.Int64
	faults               atomic.Pointer[faults]
	mu                   sync.Mutex         // guards changes of faults, making endpoints, and open
	open                 map[netip.Addr]int // sockets
}

// faults say which packets do not arrive. It is immutable.
type faults struct {
	loss  float64             // of all packets, 0 to 1
	dead  map[netip.Addr]bool // neither send nor receive
	sides map[netip.Addr]int  // with a partition: packets stay on their side
	cuts  map[[2]netip.Addr]bool
}

func newWire(rtt time.Duration, loss float64, seed uint64) *wire {
	w := &wire{seed: seed, half: rtt / 2, open: make(map[netip.Addr]int), net: &simnet.Simnet{
		LatencyFunc: simnet.StaticLatency(rtt / 2),
		Logger:      slog.New(slog.DiscardHandler),
	}}
	w.faults.Store(&faults{loss: loss})
	w.net.Start()
	return w
}

// change replaces the faults by a changed copy.
func (w *wire) change(f func(*faults)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := *w.faults.Load()
	f(&next)
	w.faults.Store(&next)
}

// silence takes a peer off the network without a word, for good.
func (w *wire) silence(a netip.Addr) {
	w.change(func(f *faults) {
		dead := map[netip.Addr]bool{a: true}
		for d := range f.dead {
			dead[d] = true
		}
		f.dead = dead
	})
}

// split makes a partition; nil heals it. Peers without a side are on side 0.
func (w *wire) split(sides map[netip.Addr]int) {
	w.change(func(f *faults) { f.sides = sides })
}

// cut loses what is sent from one peer to another, and only in that direction; nil mends all.
func (w *wire) cut(pairs map[[2]netip.Addr]bool) {
	w.change(func(f *faults) { f.cuts = pairs })
}

func (f *faults) stops(from, to netip.Addr, draw func() float64) bool {
	switch {
	case f.dead[from], f.dead[to]:
		return true
	case f.sides != nil && f.sides[from] != f.sides[to]:
		return true
	case f.cuts != nil && f.cuts[[2]netip.Addr{from, to}]:
		return true
	}
	return f.loss > 0 && draw() < f.loss
}

// address is the i-th peer's: public-looking, each in its own IPv4 /16.
func address(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(40 + i%50), byte(1 + i/50), 7, 10})
}

// addressOf is address, or in a closed network one of an office.
func (w *wire) addressOf(i int) netip.Addr {
	if w.closed {
		return netip.AddrFrom4([4]byte{40, 7, 7, byte(10 + i)})
	}
	return address(i)
}

func listenOn(a netip.Addr) multiaddr.Multiaddr {
	return multiaddr.StringCast(fmt.Sprintf("/ip4/%s/udp/%d/quic-v1", a, port))
}

// transport makes libp2p's QUIC speak through the wire instead of a socket.
func (w *wire) transport(a netip.Addr) []libp2p.Option {
	own := net.IP(a.AsSlice())
	return []libp2p.Option{
		libp2p.Transport(func(key crypto.PrivKey, m *quicreuse.ConnManager, psk pnet.PSK, gater connmgr.ConnectionGater, room network.ResourceManager) (transport.Transport, error) {
			t, err := libp2pquic.NewTransport(key, m, psk, gater, room)
			return &refusing{t, w}, err
		}),
		libp2p.QUICReuse(
			func(l fx.Lifecycle, reset quic.StatelessResetKey, token quic.TokenGeneratorKey, opts ...quicreuse.Option) (*quicreuse.ConnManager, error) {
				m, err := quicreuse.NewConnManager(reset, token, opts...)
				if err == nil {
					l.Append(fx.StopHook(m.Close)) // libp2p closes only a manager of its own making
				}
				return m, err
			},
			quicreuse.OverrideSourceIPSelector(func() (quicreuse.SourceIPSelector, error) { return source(own), nil }),
			quicreuse.OverrideListenUDP(func(_ string, local *net.UDPAddr) (net.PacketConn, error) {
				return w.endpoint(local), nil
			})),
	}
}

// source is a peer's only address.
type source net.IP

func (s source) PreferredSourceIPForDestination(*net.UDPAddr) (net.IP, error) { return net.IP(s), nil }

// refusing is a transport whose dials are refused by a machine without a peer, a round trip later, if the wire says so.
type refusing struct {
	transport.Transport
	wire *wire
}

// Dial implements transport.Transport.
func (t *refusing) Dial(ctx context.Context, to multiaddr.Multiaddr, id peer.ID) (transport.CapableConn, error) {
	if ip, err := manet.ToIP(to); err == nil {
		if at, _ := netip.AddrFromSlice(ip); t.wire.deserted(at.Unmap()) {
			time.Sleep(2 * t.wire.half)
			return nil, syscall.ECONNREFUSED
		}
	}
	return t.Transport.Dial(ctx, to, id)
}

// Close implements io.Closer.
func (t *refusing) Close() error { return t.Transport.(io.Closer).Close() }

// deserted reports whether a machine refuses connections.
func (w *wire) deserted(a netip.Addr) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refuses && w.open[a] == 0
}

func (w *wire) endpoint(local *net.UDPAddr) *endpoint {
	link, own := simnet.LinkSettings{BitsPerSecond: bandwidth, FlowBucketCount: 16}, local.AddrPort().Addr().Unmap()
	seed := uint64(own.As4()[0])<<8 | uint64(own.As4()[1])
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[own]++
	return &endpoint{
		SimConn: w.net.NewEndpoint(local, simnet.NodeBiDiLinkSettings{Uplink: link, Downlink: link}),
		wire:    w, own: own, rand: rand.New(rand.NewPCG(w.seed, seed)),
	}
}

// endpoint is one peer's socket.
type endpoint struct {
	*simnet.SimConn
	wire *wire
	own  netip.Addr

	mu   sync.Mutex // guards rand
	rand *rand.Rand
}

// Close closes the socket.
func (e *endpoint) Close() error {
	e.wire.mu.Lock()
	e.wire.open[e.own]--
	e.wire.mu.Unlock()
	return e.SimConn.Close()
}

// WriteTo sends a packet, or loses it.
func (e *endpoint) WriteTo(p []byte, to net.Addr) (int, error) {
	e.wire.packets.Add(1)
	e.wire.bytes.Add(int64(len(p)))
	if udp, ok := to.(*net.UDPAddr); ok && e.wire.faults.Load().stops(e.own, udp.AddrPort().Addr().Unmap(), e.draw) {
		e.wire.lost.Add(1)
		return len(p), nil
	}
	return e.SimConn.WriteTo(p, to)
}

func (e *endpoint) draw() float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rand.Float64()
}
