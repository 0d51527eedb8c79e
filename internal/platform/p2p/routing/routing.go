package routing

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	kb "github.com/libp2p/go-libp2p-kbucket"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/core/routing"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"

	"github.com/blackhole/blackhole/pkg/fault"
)

// valueQuorum is the number of answers after which GetValue ends early. One outdated or dishonest peer then
// cannot decide alone.
const valueQuorum = 4

// Prober observes the peers that lookups ask.
type Prober interface {
	Avoid(peer.ID) bool // a lookup asks the peer only if no other one answers
	Suspect(...peer.ID) // they gave no answer
	Refuses(peer.ID) bool
	Late(began time.Time) bool
	Responded(peer.ID)
}

// Routing is the DHT as keepers use it. It is safe for concurrent use.
type Routing struct {
	dht       *dht.IpfsDHT
	finder    *finder
	protocols event.Subscription // to changes of those that the host handles
	serving   atomic.Bool

	mu           sync.Mutex    // guards the fields below
	changed      chan struct{} // closed and replaced with each change of the table or of serving
	hasNetwork   bool          // other peers exist: bootstrap peers are configured, or a peer was in the table, now or in an earlier run
	unintroduced bool          // bootstrap peers are configured, none was reached
}

// New hooks into the callbacks of the DHT's routing table. The table calls them under its own lock, and assigning
// them is not synchronised: New must run before the host's first connection. The caller runs Run, and closes the Routing.
func New(d *dht.IpfsDHT, c Config, prober Prober) (*Routing, error) {
	find, err := newFinder(d, c, prober)
	if err != nil {
		return nil, err
	}
	r := &Routing{dht: d, finder: find, changed: make(chan struct{}), hasNetwork: c.HasBootstrap || c.HasKnown, unintroduced: c.HasBootstrap}
	table := d.RoutingTable()
	added, removed := table.PeerAdded, table.PeerRemoved
	table.PeerAdded = func(p peer.ID) { added(p); r.notify(true) }
	table.PeerRemoved = func(p peer.ID) { removed(p); r.notify(false) }
	if r.protocols, err = c.Host.EventBus().Subscribe(new(event.EvtLocalProtocolsUpdated), eventbus.Name("blackhole/mode")); err != nil {
		return nil, err
	}
	r.setServing()
	return r, nil
}

// Run keeps Serving current until ctx ends.
func (r *Routing) Run(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { freeze(ctx, r.dht.RoutingTable()) })
	defer r.protocols.Close()
	for {
		select {
		case <-r.protocols.Out():
			r.setServing()
		case <-ctx.Done():
			return
		}
	}
}

// Close ends the idle streams of lookups.
func (r *Routing) Close() { r.finder.requests.pool.Close() }

// Serving reports whether this peer is a server of the DHT, which handles its protocol. Only servers appear in routing
// tables, so only they can be keepers. A peer behind NAT is no server. Changed tells of changes.
func (r *Routing) Serving() bool { return r.serving.Load() }

func (r *Routing) setServing() {
	serves := slices.Contains(r.finder.host.Mux().Protocols(), r.finder.protocol)
	if r.serving.Swap(serves) != serves {
		r.notify(false)
	}
}

func (r *Routing) notify(added bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hasNetwork = r.hasNetwork || added
	close(r.changed)
	r.changed = make(chan struct{})
}

// Changed returns a channel that closes with the next change of the routing table or of Serving. Call Changed
// before reading them; otherwise a change in between stays unnoticed.
func (r *Routing) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// Closest looks up the 20 peers closest to a key, nearest first, without this peer. It returns nil, nil for a
// peer that never had a network: without bootstrap peers, and with an empty table in all its runs.
//
// Errors, together with the peers found so far: Invalid for an empty key, Timeout at the deadline, Unavailable
//
//   - without contact to the network;
//   - with too many of the closest peers without room for a connection;
//   - with a small table and no contact to a bootstrap peer so far.
func (r *Routing) Closest(ctx context.Context, key string) ([]peer.ID, error) {
	const op = "routing.Closest"
	if key == "" {
		return nil, fault.In("key", fault.New(op, fault.Invalid, "must not be empty"))
	}
	peers, err := r.finder.closest(ctx, key)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case errors.Is(err, kb.ErrLookupFailure) && !r.hasNetwork: // empty table
		return nil, nil
	case errors.Is(err, kb.ErrLookupFailure):
		return nil, errIsolated(op)
	case err == nil && len(peers) < Replicas && r.unintroduced:
		err = fault.New(op, fault.Unavailable, "no bootstrap peer was reached: check their addresses")
	}
	return peers, fault.Wrap(op, err)
}

// errIsolated is the error of a peer without contact to its network.
func errIsolated(op string) error {
	return fault.New(op, fault.Unavailable, "no contact with any other peer: check the network and the bootstrap addresses")
}

// Suspect reports peers that gave no answer. They are probed soon and leave the routing table if dead.
func (r *Routing) Suspect(ids ...peer.ID) { r.finder.prober.Suspect(ids...) }

// Refuses reports whether the last check of a peer found its machine, and nothing that listens at any of its addresses.
func (r *Routing) Refuses(id peer.ID) bool { return r.finder.prober.Refuses(id) }

// Late reports whether this process ran late at some time since began: then the absence of an answer is no silence of the other peer.
func (r *Routing) Late(began time.Time) bool { return r.finder.prober.Late(began) }

// Introduced records contact with a bootstrap peer or with a peer of an earlier run.
func (r *Routing) Introduced() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unintroduced = false
}

// Nearby returns the n peers of the own routing table that are closest to a key, nearest first. It sends no
// message.
func (r *Routing) Nearby(key string, n int) []peer.ID {
	if n <= 0 {
		return nil
	}
	return r.dht.RoutingTable().NearestPeers(kb.ConvertKey(key), n)
}

// Size is the number of peers in the routing table.
func (r *Routing) Size() int { return r.dht.RoutingTable().Size() }

// Peers returns the peers of the routing table with their addresses.
func (r *Routing) Peers() []peer.AddrInfo {
	var out []peer.AddrInfo
	for _, id := range r.dht.RoutingTable().ListPeers() {
		out = append(out, r.finder.host.Peerstore().PeerInfo(id))
	}
	return out
}

// Speaks returns the protocols that a peer named.
func (r *Routing) Speaks(id peer.ID) ([]protocol.ID, error) {
	return r.finder.host.Peerstore().GetProtocols(id)
}

// Refresh fills the routing table. The channel tells its end, with an error for an empty table only.
func (r *Routing) Refresh() <-chan error { return r.dht.RefreshRoutingTable() }

// PutValue stores a value here and at the peers closest to its key. An isolated peer succeeds. The DHT does not
// report the number of stored copies.
//
// Errors: the validator's; Exists if this peer has a better value; Timeout.
func (r *Routing) PutValue(ctx context.Context, key string, value []byte) error {
	err := r.dht.PutValue(ctx, key, value)
	switch {
	case errors.Is(err, kb.ErrLookupFailure):
		return nil // stored before the lookup
	case outdated(err):
		return fault.As("routing.PutValue", fault.Exists, err)
	default:
		return fault.Wrap("routing.PutValue", err)
	}
}

// outdated matches kad-dht's refusal of an older value by its text: the library has no sentinel.
func outdated(err error) bool {
	return err != nil && strings.Contains(err.Error(), "can't replace a newer value")
}

// GetValue finds the best value under a key. At the deadline it returns the best value so far, if any.
// Errors: NotFound if no peer has a value, Timeout.
func (r *Routing) GetValue(ctx context.Context, key string) ([]byte, error) {
	value, err := r.dht.GetValue(ctx, key, dht.Quorum(valueQuorum))
	switch {
	case value != nil:
		return value, nil
	case errors.Is(err, routing.ErrNotFound):
		return nil, fault.As("routing.GetValue", fault.NotFound, err)
	default:
		return nil, fault.Wrap("routing.GetValue", err)
	}
}
