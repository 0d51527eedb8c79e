package flood

import (
	"bufio"
	"context"
	"errors"
	"net/netip"
	"time"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/testnet/await"
)

const (
	callLimit   = 5 * time.Second
	maxResponse = 4 << 20
	comesBack   = 200 * time.Millisecond // after a failed connection
)

// hostile is an attacker at one address. It changes its identity at will.
type hostile struct {
	order  Order
	target peer.AddrInfo
	from   netip.Addr
	pace   *pace
	tally  *tally

	host  host.Host    // nil: not yet
	table *dht.IpfsDHT // nil: it is no server of the DHT
}

// appear makes a host with a new identity, connected to the victim. served are protocols that the host claims to speak.
func (h *hostile) appear(ctx context.Context, served ...protocol.ID) error {
	h.leave()
	made, err := newHost(h.from, nil)
	if err != nil {
		return err
	}
	h.host = made
	h.tally.host()
	for _, id := range served {
		made.SetStreamHandler(id, func(s network.Stream) { drain(s) })
	}
	return h.arrive(ctx)
}

// arrive connects the present host to the victim.
func (h *hostile) arrive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	to := peer.AddrInfo{ID: h.target.ID, Addrs: h.reachable()}
	return h.host.Connect(ctx, to)
}

// reachable returns the TCP addresses of the victim in the family of the attacker.
func (h *hostile) reachable() []multiaddr.Multiaddr {
	var some []multiaddr.Multiaddr
	for _, a := range h.target.Addrs {
		ip, err := manet.ToIP(a)
		if err != nil || (ip.To4() != nil) != h.from.Is4() {
			continue
		}
		if _, err := a.ValueForProtocol(multiaddr.P_TCP); err == nil {
			some = append(some, a)
		}
	}
	return some
}

// await appears until it is connected. It reports false at the end.
func (h *hostile) await(ctx context.Context, served ...protocol.ID) bool {
	for ctx.Err() == nil {
		err := h.appear(ctx, served...)
		if err == nil {
			return true
		}
		h.tally.send(1, "connection: "+short(err))
		_ = await.Pause(ctx, comesBack)
	}
	return false
}

// leave ends the present host.
func (h *hostile) leave() {
	if h.table != nil {
		_ = h.table.Close()
		h.table = nil
	}
	if h.host != nil {
		_ = h.host.Close() // nobody minds
		h.host = nil
	}
}

// open opens a stream to the victim.
func (h *hostile) open(ctx context.Context, id protocol.ID) (network.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return h.host.NewStream(ctx, h.target.ID, id)
}

// conversation is a stream of requests and answers.
type conversation struct {
	network.Stream
	r *bufio.Reader
}

func (c *conversation) ask(req, resp proto.Message) error {
	if err := c.SetDeadline(time.Now().Add(callLimit)); err != nil {
		return err
	}
	if _, err := protodelim.MarshalTo(c, req); err != nil {
		return err
	}
	return protodelim.UnmarshalOptions{MaxSize: maxResponse}.UnmarshalFrom(c.r, resp)
}

// converse asks a question after the other on one stream, and opens another one after a failure. next returns the question and
// its number of messages; judge counts the fate of these.
func (h *hostile) converse(ctx context.Context, id protocol.ID, next func() (req, resp proto.Message, n int), judge func(resp proto.Message, n int)) {
	for h.await(ctx) {
		for ctx.Err() == nil {
			stream, err := h.open(ctx, id)
			if err != nil {
				h.tally.send(1, "stream: "+short(err))
				break
			}
			stop := context.AfterFunc(ctx, func() { _ = stream.Reset() })
			h.ask(ctx, &conversation{stream, bufio.NewReader(stream)}, next, judge)
			stop()
			_ = stream.Reset()
		}
		_ = await.Pause(ctx, comesBack)
	}
}

func (h *hostile) ask(ctx context.Context, c *conversation, next func() (req, resp proto.Message, n int), judge func(proto.Message, int)) {
	for {
		req, resp, n := next()
		if !h.pace.turn(ctx, n) {
			return
		}
		if err := c.ask(req, resp); err != nil {
			if ctx.Err() == nil {
				h.tally.send(int64(n), "stream: "+short(err))
			}
			return
		}
		judge(resp, n)
	}
}

// drain reads what the victim sends, so that it has a peer that listens.
func drain(s network.Stream) {
	buf := make([]byte, 4096)
	for {
		if _, err := s.Read(buf); err != nil {
			_ = s.Reset()
			return
		}
	}
}

// short names the kind of an error.
func short(err error) string {
	var dial interface{ Timeout() bool }
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &dial) && dial.Timeout():
		return "no answer in time"
	case errors.Is(err, network.ErrReset):
		return "reset"
	case errors.Is(err, network.ErrNoConn):
		return "no connection"
	default:
		return "refused or ended"
	}
}

// peerPart is the end of a multiaddr that names the peer.
func peerPart(id peer.ID) multiaddr.Multiaddr {
	part, err := multiaddr.NewMultiaddr("/p2p/" + id.String())
	if err != nil {
		panic("flood: " + err.Error()) // impossible: an id is a valid component
	}
	return part
}
