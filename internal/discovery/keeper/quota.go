package keeper

import (
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/time/rate"

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

// quotas limit the rate of records from each address prefix. They hold a bounded number of
// prefixes: the least recently used prefix loses its history.
type quotas struct {
	rate  rate.Limit
	burst int

	mu       sync.Mutex // guards prefixes
	prefixes *simplelru.LRU[netip.Prefix, *rate.Limiter]
}

func newQuotas(l Limits) *quotas {
	prefixes, err := simplelru.NewLRU[netip.Prefix, *rate.Limiter](maxPrefixes, nil)
	if err != nil {
		panic("keeper: " + err.Error()) // impossible: the size is a positive constant
	}
	return &quotas{rate: rate.Limit(l.StoreRate), burst: l.StoreBurst, prefixes: prefixes}
}

// take takes one record from the quota of a source. It reports false for an empty quota.
func (q *quotas) take(s source, now time.Time) bool {
	if s.exempt {
		return true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	bucket, ok := q.prefixes.Get(s.prefix)
	if !ok {
		bucket = rate.NewLimiter(q.rate, q.burst)
		q.prefixes.Add(s.prefix, bucket)
	}
	return bucket.AllowN(now, 1)
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

// prefixOfPeer returns the address prefix of a peer, from its connections or else from the
// peer store. It reports false for this peer, for loopback in a network of one machine, and for an unknown prefix.
func (a *asker) prefixOfPeer(id peer.ID) (netip.Prefix, bool) {
	if id == a.k.Self {
		return netip.Prefix{}, false
	}
	for _, c := range a.k.Host.Network().ConnsToPeer(id) {
		s := a.k.Limits.sourceOf(c)
		return s.prefix, !s.exempt && s.prefix.IsValid()
	}
	for _, at := range a.k.Host.Peerstore().Addrs(id) {
		if from := rpc.PrefixOf(at); from.IsValid() {
			return from, !(a.k.Limits.Loopback && rpc.AddrOf(at).IsLoopback())
		}
	}
	return netip.Prefix{}, false
}
