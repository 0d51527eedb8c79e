package sim

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"github.com/quic-go/quic-go"
)

// What of QUIC a light link keeps: its round trips, and when it gives up.
const (
	lightShake   = 5 * time.Second        // without an answer, of a handshake
	lightIdle    = 30 * time.Second       // without a packet, of a connection
	lightRepeat  = 100 * time.Millisecond // until what was lost is sent again; doubles from then on
	lightBacklog = 16                     // connections that wait to be accepted
)

// light is a transport without packets, encryption and bandwidth: what a stream carries
// arrives after half a round trip, or later when the wire loses it. A network of hundreds of
// peers costs half of the processor time and of the memory that it takes with QUIC. In time it
// behaves as QUIC does: a round trip for a handshake, none for a stream, 5 s until a dial of
// the dead fails, 30 s until a connection to them ends. The ids of the ends are those of
// their keys, and nobody can claim another.
type light struct {
	wire *wire
	own  *endpoint
	key  crypto.PrivKey
	id   peer.ID
	room network.ResourceManager
}

// lightTransport makes libp2p speak through light links.
func (w *wire) lightTransport(a netip.Addr) []libp2p.Option {
	return []libp2p.Option{libp2p.Transport(
		func(key crypto.PrivKey, room network.ResourceManager) (transport.Transport, error) {
			id, err := peer.IDFromPrivateKey(key)
			return &light{wire: w, own: w.place(a), key: key, id: id, room: room}, err
		})}
}

func (t *light) Protocols() []int { return []int{multiaddr.P_QUIC_V1} }
func (t *light) Proxy() bool      { return false }

func (t *light) CanDial(a multiaddr.Multiaddr) bool {
	_, err := placeOf(a)
	return err == nil
}

var errNotLight = errors.New("not an address of a light link")

// placeOf reads /ip4/A/udp/P/quic-v1.
func placeOf(a multiaddr.Multiaddr) (netip.Addr, error) {
	if _, err := a.ValueForProtocol(multiaddr.P_QUIC_V1); err != nil {
		return netip.Addr{}, errNotLight
	}
	ip, err := manet.ToIP(a)
	if err != nil {
		return netip.Addr{}, err
	}
	at, ok := netip.AddrFromSlice(ip.To4())
	if !ok {
		return netip.Addr{}, errNotLight
	}
	return at, nil
}

// Dial makes a connection: one round trip.
func (t *light) Dial(ctx context.Context, raddr multiaddr.Multiaddr, id peer.ID) (_ transport.CapableConn, err error) {
	scope, err := t.room.OpenConnection(network.DirOutbound, false, raddr)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			scope.Done()
		}
	}()
	if err := scope.SetPeer(id); err != nil {
		return nil, err
	}
	to, err := placeOf(raddr)
	if err != nil {
		return nil, err
	}
	l, err := t.shake(ctx, to)
	if err != nil {
		return nil, err
	}
	if l.t.id != id {
		return nil, errors.New("peer id mismatch: expected " + id.String() + ", but remote key matches " + l.t.id.String())
	}
	near := newLightConn(t, l.t, scope)
	l.take(near)
	return near, nil
}

// shake finds who listens at an address: the handshake, said again until it is answered.
func (t *light) shake(ctx context.Context, to netip.Addr) (*lightListener, error) {
	deadline := time.NewTimer(lightShake)
	defer deadline.Stop()
	answer := make(chan *lightListener, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t.wire.carry(t.own, to, 0, ctx.Err, func() {
		if l := t.wire.listener(to); l != nil {
			t.wire.carry(l.t.own, t.own.own, 0, ctx.Err, func() { answer <- l })
		} else if t.wire.refuses {
			time.AfterFunc(t.wire.half, func() { answer <- nil })
		}
	})
	select {
	case l := <-answer:
		if l == nil {
			return nil, syscall.ECONNREFUSED
		}
		return l, nil
	case <-deadline.C:
		return nil, &quic.HandshakeTimeoutError{}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Listen opens the peer's only address.
func (t *light) Listen(a multiaddr.Multiaddr) (transport.Listener, error) {
	at, err := placeOf(a)
	if err != nil {
		return nil, err
	}
	l := &lightListener{t: t, addr: a, at: at, conns: make(chan *lightConn, lightBacklog), done: make(chan struct{})}
	return l, t.wire.listen(at, l)
}

// lightListener hands out the connections that others make.
type lightListener struct {
	t     *light
	addr  multiaddr.Multiaddr
	at    netip.Addr
	conns chan *lightConn
	done  chan struct{}
	once  sync.Once
}

// take makes the far end of a connection; who is refused learns of it half a round trip later.
func (l *lightListener) take(near *lightConn) {
	scope, err := l.t.room.OpenConnection(network.DirInbound, false, near.LocalMultiaddr())
	if err == nil {
		if err = scope.SetPeer(near.t.id); err != nil {
			scope.Done()
		}
	}
	if err != nil {
		scope = &network.NullScope{}
	}
	far := newLightConn(l.t, near.t, scope)
	near.other, far.other = far, near
	l.t.wire.tie(near)
	if err == nil {
		select {
		case l.conns <- far:
			return
		default: // more wait than anybody accepts
		}
	}
	_ = far.CloseWithError(network.ConnResourceLimitExceeded)
}

func (l *lightListener) Accept() (transport.CapableConn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, transport.ErrListenerClosed
	}
}

func (l *lightListener) Close() error {
	l.once.Do(func() {
		l.t.wire.listenNoMore(l.at)
		close(l.done)
	})
	return nil
}

func (l *lightListener) Addr() net.Addr                 { a, _ := manet.ToNetAddr(l.addr); return a }
func (l *lightListener) Multiaddr() multiaddr.Multiaddr { return l.addr }

// carry has something happen at another peer when a packet sent now arrives there. What is
// lost, or does not come through, is sent again with growing pauses until given says that
// it is no use any more.
func (w *wire) carry(from *endpoint, to netip.Addr, tries int, given func() error, arrived func()) {
	if given() != nil {
		return
	}
	w.packets.Add(1)
	if w.faults.Load().stops(from.own, to, from.draw) {
		w.lost.Add(1)
		time.AfterFunc(lightRepeat<<min(tries, 8), func() { w.carry(from, to, tries+1, given, arrived) })
		return
	}
	time.AfterFunc(w.half, arrived)
}

// lightNet is who listens where, and who is connected to whom.
type lightNet struct {
	mu        sync.Mutex // guards what follows
	listeners map[netip.Addr]*lightListener
	ties      map[*lightConn]*time.Timer // near ends; with a timer where nothing comes through
}

var errTaken = errors.New("address already in use")

func (w *wire) listen(at netip.Addr, l *lightListener) error {
	w.light.mu.Lock()
	defer w.light.mu.Unlock()
	if w.light.listeners[at] != nil {
		return errTaken
	}
	w.light.listeners[at] = l
	return nil
}

func (w *wire) listener(at netip.Addr) *lightListener {
	w.light.mu.Lock()
	defer w.light.mu.Unlock()
	return w.light.listeners[at]
}

func (w *wire) listenNoMore(at netip.Addr) {
	w.light.mu.Lock()
	defer w.light.mu.Unlock()
	delete(w.light.listeners, at)
}

func (w *wire) tie(near *lightConn) {
	w.light.mu.Lock()
	defer w.light.mu.Unlock()
	w.light.ties[near] = nil
	w.light.look(near, w.faults.Load())
}

func (w *wire) untie(near *lightConn) {
	w.light.mu.Lock()
	defer w.light.mu.Unlock()
	if t := w.light.ties[near]; t != nil {
		t.Stop()
	}
	delete(w.light.ties, near)
}

// lookAll ends connections over which nothing comes through for as long as QUIC waits.
func (w *wire) lookAll() {
	w.light.mu.Lock()
	defer w.light.mu.Unlock()
	for near := range w.light.ties {
		w.light.look(near, w.faults.Load())
	}
}

// look starts or stops a connection's last 30 s; n.mu is held.
func (n *lightNet) look(near *lightConn, f *faults) {
	always := func() float64 { return 1 } // single losses end no connection
	a, b := near.t.own.own, near.remote.own.own
	silent, t := f.stops(a, b, always) || f.stops(b, a, always), n.ties[near]
	switch {
	case silent && t == nil:
		n.ties[near] = time.AfterFunc(lightIdle, func() {
			near.fail(&quic.IdleTimeoutError{})
			near.other.fail(&quic.IdleTimeoutError{})
		})
	case !silent && t != nil:
		t.Stop()
		n.ties[near] = nil
	}
}
