package trade

import (
	"context"
	"io"
	"net"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	libp2p "github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/trade/v1"
)

// A stranger may check what an offer with access: peer sells, by a stream without a grant that carries one handshake.
// Its bounds leave nothing worth taking, and keep room for the checks of others.
const (
	maxAsked    = 4 << 10         // bytes of the stranger; its direction ends behind them
	maxAnswered = 32 << 10        // and of the service
	checkTime   = 8 * time.Second // more than a check lasts, so that it tells a silent service by its own clock

	checkEvery    = 20 * time.Second // between checks of an offer by one peer, and by one prefix, in the long run
	checkBurst    = 8                // of them at once
	maxChecks     = 16               // streams at a time, of all offers; a prefix leaves some to others
	checksPerPeer = 2

	checkField = "check_offer"
)

// admitCheck connects a stranger to the local service of an own offer. The caller leaves d.checks.
func (d *Desk) admitCheck(s libp2p.Stream, req *pb.OpenRequest) (l line, err error) {
	id := req.GetCheckOffer()
	if req.GetToken() != 0 {
		return l, fault.Refused(fault.Invalid, "token", "must be 0 beside check_offer: a check has no grant")
	}
	r, err := d.Own(id)
	switch {
	case err != nil:
		return l, fault.In(checkField, err)
	case r.Service().GetMetadata().GetAccess() != records.AccessPeer:
		return l, fault.Refused(fault.Unsupported, checkField, "names an offer without access through its peer")
	}
	by := d.consumerOf(s.Conn())
	if !d.shares.Of(id+" "+by.ID).Allow() || by.Prefix != "" && !d.shares.Of(id+" "+by.Prefix).Allow() {
		return l, fault.Refused(fault.LimitReached, checkField,
			"was checked %d times by you or your network, and may be again each %s", checkBurst, checkEvery)
	}
	if !d.checks.Enter(s) {
		return l, fault.Refused(fault.LimitReached, checkField,
			"has no room: of %d checks at a time you or your network have your share", maxChecks)
	}
	ctx, cancel := context.WithTimeout(d.life, checkTime)
	defer cancel()
	service, err := d.servedOf(id)
	if err == nil {
		l, err = d.reach(ctx, s, id, service)
	}
	return l, fault.In(checkField, err)
}

// carryCheck carries a bounded number of bytes for a bounded time, and closes the line.
func (l line) carryCheck() {
	end := time.Now().Add(checkTime)
	_ = l.stream.SetDeadline(end)
	_ = l.conn.SetDeadline(end)
	asked, answered := io.LimitReader(l.stream, maxAsked), ended{io.LimitReader(l.conn, maxAnswered)}
	l.pump(half{asked, l.stream}, half{answered, l.conn}, new(counters))
}

// half is a duplex that gives what its Reader gives.
type half struct {
	io.Reader
	writer
}

// ended is what a service says in a check: one that resets the connection has closed it, and who checks learns that.
type ended struct{ io.Reader }

func (e ended) Read(p []byte) (int, error) {
	n, err := e.Reader.Read(p)
	if err != nil {
		err = io.EOF
	}
	return n, err
}

// Check connects to the service of an offer of another peer for one handshake. Errors: Gone if that peer says that
// nothing serves there; any other one says nothing about the service.
func Check(ctx context.Context, h host.Host, n network.Name, provider peer.ID, offer string) (net.Conn, error) {
	s, err := begin(ctx, h, n, provider, &pb.OpenRequest{CheckOffer: offer})
	switch {
	case fault.FieldOf(err) == checkField && fault.KindOf(err) == fault.Unavailable:
		return nil, fault.As("trade.Check", fault.Gone, err)
	case err != nil:
		return nil, fault.Wrap("trade.Check", err)
	}
	return checkConn{s}, nil
}

// checkConn is a stream as a net.Conn.
type checkConn struct{ libp2p.Stream }

func (c checkConn) LocalAddr() net.Addr  { return peerAddr(c.Conn().LocalPeer()) }
func (c checkConn) RemoteAddr() net.Addr { return peerAddr(c.Conn().RemotePeer()) }

type peerAddr peer.ID

func (peerAddr) Network() string  { return "libp2p" }
func (a peerAddr) String() string { return peer.ID(a).String() }
