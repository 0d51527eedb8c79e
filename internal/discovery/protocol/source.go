package protocol

import (
	"net/netip"
	"sync"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/platform/rpc"
)

// Source is the sender of a request.
type Source struct {
	Peer   peer.ID
	Prefix netip.Prefix // /24 of IPv4, /48 of IPv6; zero for any other address
	Exempt bool         // this peer itself, or a peer on loopback in a network of one machine
}

// SourceOf returns the sender of the requests on a connection.
func (l Limits) SourceOf(conn network.Conn) Source {
	addr := rpc.AddrOf(conn.RemoteMultiaddr())
	return Source{ // all senders without an address share one quota
		Peer: conn.RemotePeer(), Prefix: rpc.PrefixOf(conn.RemoteMultiaddr()), Exempt: l.Loopback && addr.IsLoopback(),
	}
}

// PeerLimit bounds concurrent operations, in total and per peer. It is safe for concurrent use.
type PeerLimit struct {
	Total, PerPeer int // zero total means no limit in total

	mu     sync.Mutex // guards the fields below
	active int
	ofPeer map[peer.ID]int
}

// Enter starts an operation for a peer. It reports false at a limit; otherwise the caller must
// call leave.
func (l *PeerLimit) Enter(id peer.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Total > 0 && l.active >= l.Total || l.ofPeer[id] >= l.PerPeer {
		return false
	}
	if l.ofPeer == nil {
		l.ofPeer = make(map[peer.ID]int)
	}
	l.active++
	l.ofPeer[id]++
	return true
}

// Leave ends an operation of a peer.
func (l *PeerLimit) Leave(id peer.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active--
	if l.ofPeer[id]--; l.ofPeer[id] == 0 {
		delete(l.ofPeer, id)
	}
}
