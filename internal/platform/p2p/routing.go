package p2p

import (
	"context"
	"errors"
	"strings"
	"sync"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	kb "github.com/libp2p/go-libp2p-kbucket"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/routing"

	"github.com/blackhole/blackhole/pkg/fault"
)

// valueQuorum is how many answers end a GetValue early: enough that one peer with an old
// value, or a liar, does not decide.
const valueQuorum = 4

// Routing is what keepers need of the DHT. Safe for concurrent use.
type Routing struct {
	dht    *dht.IpfsDHT
	finder *finder

	mu                   sync.Mutex    // guards what follows
	changed              chan struct{} // closed and replaced when the table changes
	hasNetwork           bool          // there are other peers: this one was told of some, or has met one
	awaitingIntroduction bool          // it was told of others, and has met none of those
}

// newRouting hooks into the table's callbacks. The table calls them under its own lock
// and without synchronising with their assignment: newRouting must run before the host
// has its first connection. Told says that this peer has a network to join.
func newRouting(d *dht.IpfsDHT, f *finder, told bool) *Routing {
	r := &Routing{dht: d, finder: f, changed: make(chan struct{}), hasNetwork: told, awaitingIntroduction: told}
	table := d.RoutingTable()
	added, removed := table.PeerAdded, table.PeerRemoved
	table.PeerAdded = func(p peer.ID) { added(p); r.notify(true) }
	table.PeerRemoved = func(p peer.ID) { removed(p); r.notify(false) }
	return r
}

func (r *Routing) notify(met bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hasNetwork = r.hasNetwork || met
	close(r.changed)
	r.changed = make(chan struct{})
}

// Changed returns a channel that is closed when a peer next enters or leaves the routing
// table. Take it before reading the table, so that no change is missed.
func (r *Routing) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// Closest looks up the peers closest to a key, up to 20, nearest first, this peer never
// among them. When the deadline passes it returns what it found so far together with a
// Timeout error. It returns nil, nil when this peer is alone: it was told of no other and has
// met none. When it has lost them all, or not met them yet, that is Unavailable; and so it is,
// with what was found, when too few of them could be asked, for want of room for connections,
// or because none of those who were to introduce this peer to a network was ever reached.
func (r *Routing) Closest(ctx context.Context, key string) ([]peer.ID, error) {
	const op = "p2p.Closest"
	if key == "" {
		return nil, fault.In("key", fault.New(op, fault.Invalid, "is empty"))
	}
	peers, err := r.finder.closest(ctx, key)
	switch {
	case errors.Is(err, kb.ErrLookupFailure): // empty table
		return nil, r.errIsolated(op)
	case err == nil && len(peers) < tableReplicas && r.notIntroduced():
		err = fault.New(op, fault.Unavailable, "none of the peers that lead into the network was reached")
	}
	return peers, fault.Wrap(op, err)
}

// Suspect says that peers did not answer. They are measured soon, and leave the routing table
// if they are gone.
func (r *Routing) Suspect(ids ...peer.ID) { r.finder.reach.Suspect(ids...) }

// introduced says that one of those was met whom this peer was told of.
func (r *Routing) introduced() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.awaitingIntroduction = false
}

func (r *Routing) notIntroduced() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.awaitingIntroduction
}

// errIsolated is nil when there are no other peers for all this one knows.
func (r *Routing) errIsolated(op string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hasNetwork {
		return fault.New(op, fault.Unavailable, "no contact with any other peer")
	}
	return nil
}

// Nearby gives the n peers of this peer's own routing table that are closest to a key,
// nearest first, without asking anyone.
func (r *Routing) Nearby(key string, n int) []peer.ID {
	if n <= 0 {
		return nil
	}
	return r.dht.RoutingTable().NearestPeers(kb.ConvertKey(key), n)
}

// Size is the number of peers in the routing table.
func (r *Routing) Size() int { return r.dht.RoutingTable().Size() }

// PutValue stores a value here and on the peers closest to its key. It succeeds when this
// peer is alone, and says nothing about how many others stored it: the DHT does not tell.
//
// Errors: the validator's; Exists when this peer holds a better value; Timeout.
func (r *Routing) PutValue(ctx context.Context, key string, value []byte) error {
	err := r.dht.PutValue(ctx, key, value)
	switch {
	case errors.Is(err, kb.ErrLookupFailure):
		return nil // stored before the lookup
	case outdated(err):
		return fault.As("p2p.PutValue", fault.Exists, err)
	default:
		return fault.Wrap("p2p.PutValue", err)
	}
}

// outdated knows kad-dht's refusal of a value worse than the stored one by its text:
// the library has no sentinel for it.
func outdated(err error) bool {
	return err != nil && strings.Contains(err.Error(), "can't replace a newer value")
}

// GetValue finds the best value under a key. At the deadline it settles for the best one
// seen so far, if any. Errors: NotFound when nobody has it, Timeout.
func (r *Routing) GetValue(ctx context.Context, key string) ([]byte, error) {
	value, err := r.dht.GetValue(ctx, key, dht.Quorum(valueQuorum))
	switch {
	case value != nil:
		return value, nil
	case errors.Is(err, routing.ErrNotFound):
		return nil, fault.As("p2p.GetValue", fault.NotFound, err)
	default:
		return nil, fault.Wrap("p2p.GetValue", err)
	}
}
