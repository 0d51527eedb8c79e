package p2p

import (
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/multiformats/go-multiaddr"

	"github.com/blackhole/blackhole/internal/platform/bounded"
)

// The library keeps addresses of peers that were connected for ever (go-libp2p v0.51.0, pstoremem): one stored as connected is
// outside the heap of expiries, and a later, shorter time does not put it there. So each identity that connects once would
// leave some 40 KB: in the book of the host, and in one of GossipSub, which also keeps signed records.
// TestLibraryKeepsTheConnected tells when both types below can go.

// Bounds of what stays of peers after their last connection. The heap of the library never shrinks, so its largest size is
// bounded too.
const (
	maxLeft   = 8    // addresses of a peer
	maxParted = 1000 // peers, the last ones
)

// knownPeers is what the host needs of a peerstore.
type knownPeers interface {
	peerstore.Peerstore
	peerstore.CertifiedAddrBook
}

// book is a peerstore that forgets peers some time after their last connection.
type book struct {
	knownPeers

	mu     sync.RWMutex // guards parted, and moments in which a peer has no addresses
	parted *simplelru.LRU[peer.ID, struct{}]
}

// newBook returns a book that forgets the peers of which protected is false as soon as many others came and went: strangers
// must not take the addresses of the routing table.
func newBook(known knownPeers, protected func(peer.ID) bool) *book {
	parted := bounded.Map(maxParted, func(p peer.ID, _ struct{}) {
		if !protected(p) {
			known.ClearAddrs(p)
		}
	})
	return &book{knownPeers: known, parted: parted}
}

// AddAddrs keeps a few addresses of a peer whose last connection has ended, and all of others.
func (b *book) AddAddrs(p peer.ID, addrs []multiaddr.Multiaddr, ttl time.Duration) {
	switch {
	case ttl == peerstore.RecentlyConnectedAddrTTL:
		addrs = addrs[:min(len(addrs), maxLeft)]
	case ttl >= peerstore.ConnectedAddrTTL:
		b.mu.Lock()
		defer b.mu.Unlock()
		if known := b.knownPeers.Addrs(p); b.parted.Remove(p) { // which may forget the addresses
			b.knownPeers.AddAddrs(p, known, peerstore.TempAddrTTL)
		}
	}
	b.knownPeers.AddAddrs(p, addrs, ttl)
}

// UpdateAddrs stores the addresses of a peer that are no longer connected anew, so that they expire. Signed records of
// disconnected peers go: nothing asks for them.
func (b *book) UpdateAddrs(p peer.ID, from, to time.Duration) {
	if from != peerstore.ConnectedAddrTTL {
		b.knownPeers.UpdateAddrs(p, from, to)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	addrs := b.knownPeers.Addrs(p)
	b.ClearAddrs(p)
	b.knownPeers.AddAddrs(p, addrs[:min(len(addrs), maxLeft)], to)
	if len(addrs) > 0 {
		b.parted.Add(p, struct{}{})
	}
}

// Addrs implements peerstore.AddrBook. It waits for addresses that are stored anew: each identification of a connected peer does so.
func (b *book) Addrs(p peer.ID) []multiaddr.Multiaddr {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.knownPeers.Addrs(p)
}

// PeerInfo implements peerstore.Peerstore.
func (b *book) PeerInfo(p peer.ID) peer.AddrInfo { return peer.AddrInfo{ID: p, Addrs: b.Addrs(p)} }

// plainHost is a host for GossipSub without peer exchange, which needs no book of signed records.
type plainHost struct{ host.Host }

// EventBus implements host.Host.
func (h plainHost) EventBus() event.Bus { return plainBus{h.Host.EventBus()} }

// plainBus leaves finished identifications out of the subscription of GossipSub's own book.
type plainBus struct{ event.Bus }

// Subscribe implements event.Bus. The book alone asks for identifications and connections together.
func (b plainBus) Subscribe(kinds any, options ...event.SubscriptionOpt) (event.Subscription, error) {
	list, ok := kinds.([]any)
	identified := func(k any) bool { _, ok := k.(*event.EvtPeerIdentificationCompleted); return ok }
	connected := func(k any) bool { _, ok := k.(*event.EvtPeerConnectednessChanged); return ok }
	if ok && slices.ContainsFunc(list, identified) && slices.ContainsFunc(list, connected) {
		kinds = slices.DeleteFunc(slices.Clone(list), identified)
	}
	return b.Bus.Subscribe(kinds, options...)
}

// Remembered returns the number of peers whose addresses this node knows, connected ones included.
func (n *Node) Remembered() int { return len(n.host.Peerstore().PeersWithAddrs()) }
