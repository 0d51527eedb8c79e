package keeper

import (
	"net/netip"
	"sync"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/platform/rpc"
)

// source is the sender of a request.
type source struct {
	peer   peer.ID
	prefix netip.Prefix // /24 of IPv4, /48 of IPv6; zero for any other address
	exempt bool         // this peer itself, or a peer on loopback in a network of one machine
}

// sourceOf returns the sender of the requests on a connection.
func (l Limits) sourceOf(conn network.Conn) source {
	addr := rpc.AddrOf(conn.RemoteMultiaddr())
	return source{ // all senders without an address share one quota
		peer: conn.RemotePeer(), prefix: rpc.PrefixOf(conn.RemoteMultiaddr()), exempt: l.Loopback && addr.IsLoopback(),
	}
}

// peerLimit bounds concurrent operations, in total and per peer. It is safe for concurrent use.
type peerLimit struct {
	total, perPeer int // zero total means no limit in total

	mu     sync.Mutex // guards the fields below
	active int
	ofPeer map[peer.ID]int
}

// enter starts an operation for a peer. It reports false at a limit; otherwise the caller must
// call leave.
func (l *peerLimit) enter(id peer.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total > 0 && l.active >= l.total || l.ofPeer[id] >= l.perPeer {
		return false
	}
	if l.ofPeer == nil {
		l.ofPeer = make(map[peer.ID]int)
	}
	l.active++
	l.ofPeer[id]++
	return true
}

func (l *peerLimit) leave(id peer.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active--
	if l.ofPeer[id]--; l.ofPeer[id] == 0 {
		delete(l.ofPeer, id)
	}
}
