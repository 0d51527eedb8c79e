package keeper

import (
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	manet "github.com/multiformats/go-multiaddr/net"
	"golang.org/x/time/rate"
)

// source is where a request came from.
type source struct {
	peer   peer.ID
	prefix netip.Prefix // /24 of IPv4, /48 of IPv6; the zero prefix when the address is none of these
	exempt bool         // this very machine
}

func sourceOf(c network.Conn) source {
	o := source{peer: c.RemotePeer()}
	ip, err := manet.ToIP(c.RemoteMultiaddr())
	if err != nil {
		return o // one bucket for all that have no address
	}
	addr, _ := netip.AddrFromSlice(ip)
	o.exempt = addr.Unmap().IsLoopback()
	o.prefix = prefixOf(addr)
	return o
}

// prefixOf is the network that one party can be expected to hold the addresses of.
func prefixOf(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap().WithZone("")
	bits := 48
	if addr.Is4() {
		bits = 24
	}
	p, _ := addr.Prefix(bits) // the zero prefix for the zero address
	return p
}

// quotas bound how many records are taken from each address prefix. It remembers a bounded
// number of prefixes: the one not heard of for the longest time begins anew.
type quotas struct {
	rate  rate.Limit
	burst int

	mu       sync.Mutex // guards prefixes
	prefixes *simplelru.LRU[netip.Prefix, *rate.Limiter]
}

func newQuotas(l Limits) *quotas {
	prefixes, err := simplelru.NewLRU[netip.Prefix, *rate.Limiter](prefixesRemembered, nil)
	if err != nil {
		panic("keeper: " + err.Error()) // impossible: the size is a positive constant
	}
	return &quotas{rate: rate.Limit(l.StoreRate), burst: l.StoreBurst, prefixes: prefixes}
}

// store reports whether one more record may come from o.
func (q *quotas) take(o source, now time.Time) bool {
	if o.exempt {
		return true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	bucket, ok := q.prefixes.Get(o.prefix)
	if !ok {
		bucket = rate.NewLimiter(q.rate, q.burst)
		q.prefixes.Add(o.prefix, bucket)
	}
	return bucket.AllowN(now, 1)
}

// prefixOfPeer is the address prefix of a peer that it is connected from or, if it is not,
// known by; false when it has none that says anything.
func (k *Keeper) prefixOfPeer(id peer.ID) (netip.Prefix, bool) {
	if id == k.Self {
		return netip.Prefix{}, false
	}
	for _, c := range k.Host.Network().ConnsToPeer(id) {
		o := sourceOf(c)
		return o.prefix, !o.exempt && o.prefix.IsValid()
	}
	for _, a := range k.Host.Peerstore().Addrs(id) {
		if ip, err := manet.ToIP(a); err == nil {
			addr, _ := netip.AddrFromSlice(ip)
			from := prefixOf(addr)
			return from, from.IsValid() && !addr.Unmap().IsLoopback()
		}
	}
	return netip.Prefix{}, false
}
