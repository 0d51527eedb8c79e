package rpc

import (
	"net/netip"
	"sync"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/platform/share"
)

// Limiter bounds the inbound streams: in total, of one peer, and of the strangers in one address prefix, which leave a
// quarter of the strangers' places to other prefixes. Ids cost nothing, addresses do. It is safe for concurrent use.
type Limiter struct {
	total, perPeer int
	reserved       int                // places that strangers leave to known peers
	known          func(peer.ID) bool // nil: all peers are strangers

	active sync.WaitGroup // one for each stream

	mu       sync.Mutex // guards the fields below, and additions to active
	streams  map[network.Stream]source
	ofPeer   map[peer.ID]int
	ofPrefix map[netip.Prefix]int // streams of strangers
	closed   bool
}

// source is the sender of a stream.
type source struct {
	peer   peer.ID
	prefix netip.Prefix
	known  bool
}

// NewLimiter returns a Limiter of total streams, and perPeer streams of one peer. A quarter of the streams is kept for
// the peers that known reports; nil keeps none. known must be fast, and must not call the Limiter.
func NewLimiter(total, perPeer int, known func(peer.ID) bool) *Limiter {
	l := &Limiter{
		total: total, perPeer: perPeer, known: known,
		streams: make(map[network.Stream]source), ofPeer: make(map[peer.ID]int), ofPrefix: make(map[netip.Prefix]int),
	}
	if known != nil {
		l.reserved = total / 4
	}
	return l
}

// Enter counts a stream. It reports false at a limit and after Close. The caller must call
// Leave for a stream that entered.
func (l *Limiter) Enter(s network.Stream) bool {
	from := source{peer: s.Conn().RemotePeer(), prefix: PrefixOf(s.Conn().RemoteMultiaddr())}
	from.known = l.known != nil && l.known(from.peer) // without the lock, because known may take others
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.ofPeer[from.peer] >= l.perPeer || !l.hasRoom(from) {
		return false
	}
	l.streams[s] = from
	l.ofPeer[from.peer]++
	if !from.known {
		l.ofPrefix[from.prefix]++
	}
	l.active.Add(1)
	return true
}

// hasRoom reports whether the places that are left admit one more stream of a peer. Call it with mu held.
func (l *Limiter) hasRoom(from source) bool {
	free := l.total - len(l.streams)
	if from.known {
		return free > 0
	}
	return share.Fits(uint64(l.ofPrefix[from.prefix]), 1, uint64(max(free-l.reserved, 0)))
}

// Above reports whether more than n streams are active.
func (l *Limiter) Above(n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.streams) > n
}

// Leave ends the count of a stream. Further calls for the same stream have no effect.
func (l *Limiter) Leave(s network.Stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from, ok := l.streams[s]
	if !ok {
		return
	}
	delete(l.streams, s)
	lower(l.ofPeer, from.peer)
	if !from.known {
		lower(l.ofPrefix, from.prefix)
	}
	l.active.Done()
}

// lower takes one from a count. A count of zero leaves the map.
func lower[K comparable](counts map[K]int, key K) {
	if counts[key]--; counts[key] == 0 {
		delete(counts, key)
	}
}

// Close refuses new streams, resets the active ones and waits until all have left.
func (l *Limiter) Close() {
	l.mu.Lock()
	l.closed = true
	for s := range l.streams {
		_ = s.Reset()
	}
	l.mu.Unlock()
	l.active.Wait()
}
