package p2p

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/net/ipv4"

	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	mdnsPort       = 5353
	mdnsTTL        = 255 // RFC 6762 section 11
	mdnsInterfaces = 16
	mdnsDials      = 8 // at once
	mdnsTimeout    = 10 * time.Second
	mdnsFirstAsk   = time.Second // pause after the first question; then three times as long,
	mdnsLastAsk    = time.Minute // up to this
	mdnsQuiet      = time.Second // between two answers of ours: RFC 6762 section 6
)

// neighbours connects to the peers that multicast DNS finds on the local network. The
// messages are those of libp2p's "Multicast DNS (mDNS)" discovery specification, over
// IPv4, with a service name of our own.
type neighbours struct {
	host  host.Host
	log   *slog.Logger
	ctx   context.Context // ends with close
	stop  context.CancelFunc
	conn  *ipv4.PacketConn
	group *net.UDPAddr
	asked chan struct{} // capacity 1: somebody wants to know who is here
	slots chan struct{} // of dials
	work  sync.WaitGroup
}

// startNeighbours announces this peer and looks for others. Where multicast does not work,
// as in many containers, it returns Unavailable and the peer must rely on bootstrap peers.
func startNeighbours(ctx context.Context, h host.Host, log *slog.Logger) (*neighbours, error) {
	const op = "p2p.mdns"
	group := &net.UDPAddr{IP: net.IPv4(224, 0, 0, 251), Port: mdnsPort}
	links := multicastLinks()
	if len(links) == 0 {
		return nil, fault.New(op, fault.Unavailable, "no multicast interface")
	}
	socket, err := net.ListenMulticastUDP("udp4", &links[0], group)
	if err != nil {
		return nil, fault.As(op, fault.Unavailable, err)
	}
	n := &neighbours{
		host: h, log: log, group: group, conn: ipv4.NewPacketConn(socket),
		asked: make(chan struct{}, 1), slots: make(chan struct{}, mdnsDials),
	}
	n.ctx, n.stop = context.WithCancel(ctx)
	// Peers on this same machine hear us only by loopback.
	if err := n.conn.SetMulticastLoopback(true); err != nil {
		log.Debug("no multicast loopback", "err", err)
	}
	if err := n.conn.SetMulticastTTL(mdnsTTL); err != nil {
		log.Debug("cannot set the multicast TTL", "err", err)
	}
	n.work.Go(n.speak)
	n.work.Go(n.listen)
	return n, nil
}

// multicastLinks are the interfaces to use now; they come and go.
func multicastLinks() []net.Interface {
	all, err := net.Interfaces()
	if err != nil {
		return nil
	}
	const wanted = net.FlagUp | net.FlagMulticast
	var links []net.Interface
	for _, l := range all {
		if l.Flags&wanted == wanted && l.Flags&net.FlagLoopback == 0 && len(links) < mdnsInterfaces {
			links = append(links, l)
		}
	}
	return links
}

// speak asks who is here, often at first, and answers when asked. Answers wait between 20
// and 120 ms, each peer a time of its own, so that they do not collide.
func (n *neighbours) speak() {
	id := n.host.ID()
	delay := (20 + time.Duration(id[len(id)-1])%100) * time.Millisecond
	pause := mdnsFirstAsk
	ask := time.NewTimer(0)
	defer ask.Stop()
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-ask.C:
			n.send(mdnsQuestion())
			ask.Reset(pause)
			pause = min(3*pause, mdnsLastAsk)
		case <-n.asked:
			rest(n.ctx, delay)
			n.send(mdnsAnswer(id, n.host.Addrs()))
			rest(n.ctx, mdnsQuiet)
		}
	}
}

func (n *neighbours) send(message []byte, err error) {
	if err != nil {
		n.log.Warn("cannot write a multicast DNS message", "err", err)
		return
	}
	for _, l := range multicastLinks() {
		_ = n.conn.JoinGroup(&l, n.group) // fails when joined already
		if err := n.conn.SetMulticastInterface(&l); err != nil {
			continue
		}
		if _, err := n.conn.WriteTo(message, nil, n.group); err != nil {
			n.log.Debug("cannot send multicast DNS", "interface", l.Name, "err", err)
		}
	}
}

// listen reads until close closes the socket.
func (n *neighbours) listen() {
	buf := make([]byte, mdnsMaxBytes)
	for n.ctx.Err() == nil {
		size, _, _, err := n.conn.ReadFrom(buf)
		if err != nil {
			rest(n.ctx, time.Second) // closed, or an interface went down
			continue
		}
		asked, found := mdnsParse(buf[:size])
		if asked {
			select {
			case n.asked <- struct{}{}:
			default:
			}
		}
		for _, p := range found {
			n.found(p)
		}
	}
}

// found connects to a peer, unless mdnsDials dials are under way: it will be found again.
func (n *neighbours) found(p peer.AddrInfo) {
	if p.ID == n.host.ID() || n.host.Network().Connectedness(p.ID) == network.Connected {
		return
	}
	select {
	case n.slots <- struct{}{}:
	default:
		return
	}
	n.work.Go(func() {
		defer func() { <-n.slots }()
		ctx, cancel := context.WithTimeout(n.ctx, mdnsTimeout)
		defer cancel()
		if err := n.host.Connect(ctx, p); err != nil {
			n.log.Debug("cannot connect to a neighbour", "peer", p.ID, "err", err)
		}
	})
}

func (n *neighbours) close() {
	n.stop()
	if err := n.conn.Close(); err != nil {
		n.log.Debug("closing multicast DNS", "err", err)
	}
	n.work.Wait()
}
