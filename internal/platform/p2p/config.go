package p2p

import (
	"log/slog"
	"slices"
	"strconv"

	ds "github.com/ipfs/go-datastore"
	"github.com/libp2p/go-libp2p"
	pubsub "github.com/libp2p/go-libp2p-pubsub"
	record "github.com/libp2p/go-libp2p-record"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/multiformats/go-multiaddr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/blackhole/blackhole/pkg/fault"
)

// maxBootstrap bounds Config.Bootstrap: each peer there costs a goroutine.
const maxBootstrap = 64

// minConnections is the least Config.Connections: about what a routing table needs.
const minConnections = 24

// Namespaces are who validates the values of the DHT, by the first segment of their keys.
type Namespaces map[string]record.Validator

// Config is what a Node is built from. Identity, Datastore and Validator are required.
type Config struct {
	Profile  Profile        // empty: Dev
	Identity crypto.PrivKey // Ed25519
	// Listen addresses must all work. Empty: the profile's, of which one must.
	Listen []multiaddr.Multiaddr
	// Bootstrap peers introduce this one; they need not run yet. Empty: this peer founds a
	// network or is found by others. At most 64; this peer itself is ignored.
	Bootstrap []peer.AddrInfo
	// Datastore holds DHT values and known peers. The caller owns it and closes it after
	// Node.Close.
	Datastore ds.Batching
	Validator record.Validator // of DHT values under /blackhole/
	// Namespaces are the DHT's other ones. A peer keeps no value of a namespace that it does not know.
	Namespaces Namespaces
	PubSub     []pubsub.Option
	// Transport replaces the profile's transports and turns off multicast DNS, for a network
	// that is not the machine's: a simulation. Empty: the profile's.
	Transport []libp2p.Option
	Protocols []protocol.ID // get resource limits of their own
	Probe     ProbeConfig
	// Connections is how many connections this peer grows to before it closes the least
	// useful third, at least 24 (the hard limit each way is four times that). 0: the profile's.
	Connections int
	UserAgent   string       // empty: "blackholed"
	Logger      *slog.Logger // nil: silent
	// Registerer gets libp2p's metrics; nil: none. libp2p's collectors belong to the
	// process: give a registerer to one node of it only.
	Registerer prometheus.Registerer
}

// complete checks c and fills in defaults. Errors are Invalid and name the field.
func (c Config) complete() (Config, profileSettings, error) {
	if c.Profile == "" {
		c.Profile = Dev
	}
	t, ok := c.Profile.settings()
	if !ok {
		return c, t, fault.Invalidf("profile", string(c.Profile), "must be one of dev, lan, public")
	}
	t.mdns = t.mdns && len(c.Transport) == 0
	if c.Connections != 0 {
		t.low, t.high = c.Connections*2/3, c.Connections
	}
	self, err := c.identity()
	if err != nil {
		return c, t, err
	}
	switch {
	case c.Datastore == nil:
		return c, t, fault.Invalidf("datastore", nil, "is required")
	case c.Validator == nil:
		return c, t, fault.Invalidf("validator", nil, "is required")
	case c.Connections != 0 && c.Connections < minConnections:
		return c, t, fault.Invalidf("connections", c.Connections, "must be 0 or at least %d", minConnections)
	case len(c.Bootstrap) > maxBootstrap:
		return c, t, fault.Invalidf("bootstrap", len(c.Bootstrap), "at most %d peers", maxBootstrap)
	}
	if c.Bootstrap, err = mergeBootstrap(c.Bootstrap, self); err != nil {
		return c, t, err
	}
	if c.Probe, err = c.Probe.complete(); err != nil {
		return c, t, err
	}
	if c.UserAgent == "" {
		c.UserAgent = "blackholed"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, t, nil
}

func (c Config) identity() (peer.ID, error) {
	if c.Identity == nil {
		return "", fault.Invalidf("identity", nil, "is required")
	}
	if c.Identity.Type() != crypto.Ed25519 {
		return "", fault.Invalidf("identity", c.Identity.Type().String(), "must be an Ed25519 key")
	}
	id, err := peer.IDFromPrivateKey(c.Identity)
	if err != nil {
		return "", fault.In("identity", fault.As("p2p.New", fault.Invalid, err))
	}
	return id, nil
}

// mergeBootstrap merges entries of the same peer and leaves self out.
func mergeBootstrap(list []peer.AddrInfo, self peer.ID) ([]peer.AddrInfo, error) {
	var out []peer.AddrInfo
	for i, p := range list {
		switch {
		case p.ID.Validate() != nil:
			return nil, fault.In("bootstrap["+strconv.Itoa(i)+"]", fault.Invalidf("id", p.ID.String(), "is no peer id"))
		case p.ID == self:
			continue
		case len(p.Addrs) == 0:
			return nil, fault.In("bootstrap["+strconv.Itoa(i)+"]", fault.Invalidf("addrs", nil, "peer %s has no address", p.ID))
		}
		out = addInfo(out, p)
	}
	return out, nil
}

// addInfo adds a peer's addresses to its entry in list.
func addInfo(list []peer.AddrInfo, p peer.AddrInfo) []peer.AddrInfo {
	at := slices.IndexFunc(list, func(q peer.AddrInfo) bool { return q.ID == p.ID })
	if at < 0 {
		return append(list, peer.AddrInfo{ID: p.ID, Addrs: slices.Clone(p.Addrs)})
	}
	list[at].Addrs = append(list[at].Addrs, p.Addrs...)
	return list
}
