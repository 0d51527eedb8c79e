package dial

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/multiformats/go-multiaddr"
	"github.com/multiformats/go-multistream"

	"github.com/blackhole/blackhole/internal/platform/pause"
)

// besideTime bounds the dials of a connection over TCP beside another one.
const besideTime = time.Second

// TCP is libp2p's TCP transport. Beside opens a connection to a peer that has one of another kind, which the swarm never does.
type TCP struct {
	*tcp.TcpTransport
	dialed chan transport.CapableConn
}

// NewTCP returns a transport with the given one below it.
func NewTCP(below *tcp.TcpTransport) *TCP {
	return &TCP{TcpTransport: below, dialed: make(chan transport.CapableConn)}
}

// Listen implements transport.Transport. Each listener also accepts what beside has dialled: a swarm takes connections only from
// its own dials and from listeners.
func (t *TCP) Listen(a multiaddr.Multiaddr) (transport.Listener, error) {
	below, err := t.TcpTransport.Listen(a)
	if err != nil {
		return nil, err
	}
	l := &listener{Listener: below, dialed: t.dialed, accepted: make(chan accepted)}
	go func() { // until the error that Close causes; the swarm accepts until then
		for {
			c, err := below.Accept()
			if l.accepted <- (accepted{c, err}); err != nil {
				return
			}
		}
	}()
	return l, nil
}

type listener struct {
	transport.Listener
	dialed   <-chan transport.CapableConn
	accepted chan accepted
}

type accepted struct {
	conn transport.CapableConn
	err  error
}

func (l *listener) Accept() (transport.CapableConn, error) {
	select {
	case a := <-l.accepted:
		return a.conn, a.err
	case c := <-l.dialed:
		return c, nil
	}
}

// beside dials all addresses at once, and gives the first connection to the swarm. It returns false without one.
func (t *TCP) beside(ctx context.Context, id peer.ID, addrs []multiaddr.Multiaddr) bool {
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	first := make(chan transport.CapableConn, len(addrs))
	var dials sync.WaitGroup
	for _, a := range addrs {
		dials.Go(func() {
			if c, err := t.Dial(within, a, id); err == nil {
				first <- c
				cancel()
			}
		})
	}
	dials.Wait()
	close(first)
	given := false
	for c := range first {
		if !given {
			select {
			case t.dialed <- c:
				given = true
				continue
			case <-ctx.Done():
			}
		}
		_ = c.Close()
	}
	return given
}

// OverTCP returns an open direct connection to a peer over TCP; nil without one.
func OverTCP(h host.Host, id peer.ID) network.Conn {
	conns := h.Network().ConnsToPeer(id)
	i := slices.IndexFunc(conns, func(c network.Conn) bool { return IsTCP(c) && !c.IsClosed() })
	if i < 0 {
		return nil
	}
	return conns[i]
}

// IsTCP reports whether a connection is a direct one over TCP. The kernel closes such a connection when the process at its other
// end is killed; one over QUIC falls silent.
func IsTCP(c network.Conn) bool { return overTCP(c.RemoteMultiaddr()) && !c.Stat().Limited }

func overTCP(a multiaddr.Multiaddr) bool {
	_, err := a.ValueForProtocol(multiaddr.P_TCP)
	return err == nil
}

// ByTCP is OverTCP, and opens such a connection if there is none, beside one of another kind. It returns nil for a peer that
// cannot be dialled over TCP within besideTime, and on a host that does not listen over TCP by NewTCP.
func ByTCP(ctx context.Context, h host.Host, id peer.ID) network.Conn {
	if c := OverTCP(h, id); c != nil {
		return c
	}
	swarm, ok := h.Network().(interface {
		TransportForDialing(multiaddr.Multiaddr) transport.Transport
		CanDial(peer.ID, multiaddr.Multiaddr) bool
	})
	if !ok || !slices.ContainsFunc(h.Network().ListenAddresses(), overTCP) {
		return nil
	}
	var t *TCP
	addrs := slices.DeleteFunc(h.Peerstore().Addrs(id), func(a multiaddr.Multiaddr) bool {
		by, is := swarm.TransportForDialing(a).(*TCP)
		if is = is && swarm.CanDial(id, a); is {
			t = by
		}
		return !is
	})
	if len(addrs) == 0 {
		return nil
	}
	entered := make(chan struct{}, 1)
	watch := &network.NotifyBundle{ConnectedF: func(_ network.Network, c network.Conn) {
		if c.RemotePeer() == id && IsTCP(c) {
			pause.Wake(entered)
		}
	}}
	h.Network().Notify(watch)
	defer h.Network().StopNotify(watch)
	ctx, cancel := context.WithTimeout(ctx, besideTime)
	defer cancel()
	if t.beside(ctx, id, addrs[:min(len(addrs), reachAddresses)]) {
		select {
		case <-entered:
		case <-ctx.Done():
		}
	}
	return OverTCP(h, id)
}

// On opens a stream on a connection with the first protocol of the list that the other side speaks.
func On(ctx context.Context, c network.Conn, protocols ...protocol.ID) (network.Stream, error) {
	s, err := c.NewStream(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Reset() })
	defer stop()
	chosen, err := multistream.SelectOneOf(protocols, s)
	if err == nil {
		err = s.SetProtocol(chosen)
	}
	if err != nil {
		_ = s.Reset()
		return nil, err
	}
	return s, nil
}
