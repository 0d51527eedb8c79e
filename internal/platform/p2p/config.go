package p2p

import (
	"cmp"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	ds "github.com/ipfs/go-datastore"
	pubsub "github.com/libp2p/go-libp2p-pubsub"
	record "github.com/libp2p/go-libp2p-record"
	hostconfig "github.com/libp2p/go-libp2p/config"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/multiformats/go-multiaddr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/internal/platform/p2p/probe"
	"github.com/blackhole/blackhole/internal/platform/p2p/reach"
	"github.com/blackhole/blackhole/internal/platform/p2p/routing"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
)

// maxBootstrap bounds Config.Bootstrap: each bootstrap peer costs a goroutine.
const maxBootstrap = 64

// Namespaces are the validators of DHT values, by the first segment of the key.
type Namespaces map[string]record.Validator

// Config are the settings and dependencies of a Node. Identity and Datastore are required.
type Config struct {
	Profile Profile      // empty: Dev
	Network network.Name // empty: the profile's
	// PrivateKey closes the network: libp2p's private network protocol refuses every connection of a peer without these
	// 32 bytes. It works over TCP only. Empty: an open network.
	PrivateKey []byte
	Identity   crypto.PrivKey // Ed25519
	// Listen addresses must all open. Empty: the profile's addresses, at least one of which must open.
	Listen []multiaddr.Multiaddr
	// Bootstrap peers lead into the network. They may start later. Empty: this peer starts a new network, or
	// other peers find it. At most 64, each peer once; this peer itself is ignored.
	Bootstrap []peer.AddrInfo
	// Doors are TCP addresses without an id, as the name of a service: whoever answers there is asked for its id. At most 64.
	Doors []multiaddr.Multiaddr
	// Datastore holds DHT values and known peers. The caller closes it after Node.Close.
	Datastore ds.Batching
	// Namespaces are the namespaces of DHT values. A peer refuses values of all others. A validator bounds what
	// strangers can store here: it must accept a small constant number of keys.
	Namespaces Namespaces
	// Providers answers the DHT's question for providers; nil: this peer does not answer it.
	Providers routing.Providers
	PubSub    []pubsub.Option
	// Transport replaces the profile's transports and disables multicast DNS, for simulated networks. Empty:
	// the profile's transports.
	Transport []hostconfig.Option
	Protocols []protocol.ID // with resource limits of their own
	Probe     probe.Config
	// Leaf: this peer dials out only. It does not listen, is a client of the DHT and no keeper, and has at most 32
	// connections. It needs a bootstrap peer.
	Leaf      bool
	Limits    Limits
	Reach     reach.Config
	UserAgent string       // empty: "blackholed"
	Logger    *slog.Logger // nil: silent
	// Conditions receives the causes that limit this node; nil: none.
	Conditions *condition.Set
	// Registerer receives libp2p's metrics; nil: none. libp2p's collectors are global: give a registerer to at
	// most one node of a process.
	Registerer prometheus.Registerer
}

// complete validates c and sets defaults. Errors are Invalid with the field.
func (c Config) complete() (Config, profileSettings, error) {
	c.Profile = cmp.Or(c.Profile, Dev)
	t, ok := c.Profile.settings()
	if !ok {
		return c, t, fault.Invalidf("profile", string(c.Profile), "must be dev, lan or public")
	}
	c.Network = cmp.Or(c.Network, network.Default(string(c.Profile)))
	if err := c.Network.Validate(); err != nil {
		return c, t, fault.In("network", err)
	}
	t, err := c.private(t)
	if err != nil {
		return c, t, err
	}
	t.mdns = t.mdns && len(c.Transport) == 0
	self, err := c.identity()
	if err != nil {
		return c, t, err
	}
	if c.Leaf {
		if t, err = c.leaf(t); err != nil {
			return c, t, err
		}
	}
	c.Limits.apply(&t)
	switch {
	case c.Datastore == nil:
		return c, t, fault.Invalidf("datastore", nil, "is required")
	case len(c.Bootstrap)+len(c.Doors) > maxBootstrap:
		return c, t, fault.Invalidf("bootstrap", len(c.Bootstrap)+len(c.Doors), "must have at most %d peers", maxBootstrap)
	}
	if c.Bootstrap, err = otherPeers(c.Bootstrap, self); err != nil {
		return c, t, err
	}
	if c.Reach, err = c.Reach.Complete(t.open); err != nil {
		return c, t, err
	}
	c.UserAgent = cmp.Or(c.UserAgent, "blackholed")
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Limits.OnRefusal == nil {
		c.Limits.OnRefusal = func(Refusal) {}
	}
	return c, t, nil
}

// private leaves out, in a closed network, the transports that bring their own encryption, below which no private network fits.
func (c Config) private(t profileSettings) (profileSettings, error) {
	switch len(c.PrivateKey) {
	case 0:
		return t, nil
	case identity.KeySize:
	default:
		return t, fault.Invalidf("private_key", nil, "must have %d bytes, got %d", identity.KeySize, len(c.PrivateKey))
	}
	for i, a := range c.Listen {
		if !overTCP(a) {
			return t, fault.Invalidf("listen["+strconv.Itoa(i)+"]", a.String(), "must be a TCP address: a closed network has no QUIC")
		}
	}
	t.quic = false
	t.listen = slices.DeleteFunc(slices.Clone(t.listen), func(a string) bool { return !strings.Contains(a, "/tcp/") })
	return t, nil
}

func overTCP(a multiaddr.Multiaddr) bool {
	_, err := a.ValueForProtocol(multiaddr.P_TCP)
	return err == nil
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

// otherPeers validates bootstrap peers and removes self.
func otherPeers(list []peer.AddrInfo, self peer.ID) ([]peer.AddrInfo, error) {
	for i, p := range list {
		switch {
		case p.ID.Validate() != nil:
			return nil, fault.In("bootstrap["+strconv.Itoa(i)+"]", fault.Invalidf("id", p.ID.String(), "malformed peer id"))
		case p.ID != self && len(p.Addrs) == 0:
			return nil, fault.In("bootstrap["+strconv.Itoa(i)+"]", fault.Invalidf("addrs", nil, "peer %s needs at least one address", p.ID))
		}
	}
	return slices.DeleteFunc(slices.Clone(list), func(p peer.AddrInfo) bool { return p.ID == self }), nil
}
