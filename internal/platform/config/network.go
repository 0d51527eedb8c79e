package config

import (
	"os"
	"time"

	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
)

// Network are the settings of the network that this peer belongs to. They must be the same on all its peers.
type Network struct {
	Closed  bool   `yaml:"closed" help:"Refuse every peer without the key of the network. Over TCP only; a new key needs a restart of all peers."`
	KeyFile string `yaml:"key_file" help:"File with the key of the network, for peers that begin it together or join without an invitation: 32 bytes in base64url, kept in network.key of the data directory."`
	Name    string `yaml:"name" help:"Name of the network: 1 to 32 lower-case letters, digits and inner hyphens. Peers of other networks are refused. Empty: the profile's (dev, lan or main)."`
}

// NetworkName returns the name of this peer's network.
func (c *Config) NetworkName() network.Name {
	if c.Network.Name == "" {
		return network.Default(c.Profile)
	}
	return network.Name(c.Network.Name)
}

func (n *Network) validate() error {
	if n.Name == "" {
		return nil
	}
	return fault.In(networkKey, network.Name(n.Name).Validate())
}

// Connections are the settings of connections with other peers.
type Connections struct {
	Name       string `yaml:"name" help:"Name beside this peer's id: 1 to 63 letters, digits, hyphens, dots or underscores. It proves nothing. Empty: the host's."`
	Reach      string `yaml:"reach" help:"Whether strangers can connect: auto (other peers test it), public or private. Only in profile public."`
	Most       int    `yaml:"most" help:"Connections above which the least useful third is closed: 24 to 100000. 0: 160 in profile dev, 192 in lan, 288 in public."`
	PerAddress int    `yaml:"per_address" help:"Peers behind one IPv4 address or one IPv6 /56: 4 to 100000. 0: 64 in profile public, otherwise 1024."`
	Relay      Relay  `yaml:"relay"`
}

// PeerName returns the name that this peer gives itself: as set, or of the host. It may be empty.
func (c *Config) PeerName() identity.PeerName {
	if c.Connections.Name != "" {
		return identity.PeerName(c.Connections.Name)
	}
	host, err := os.Hostname()
	if err != nil {
		return ""
	}
	return identity.PeerNameOf(host)
}

// Relay are the settings of this peer as a relay.
type Relay struct {
	Enabled                bool          `yaml:"enabled" help:"Relay for peers behind NAT, while strangers can connect to this peer. Only in profile public."`
	Reservations           int           `yaml:"reservations" help:"Peers behind NAT with an address at this relay: 1 to 100000. 0: 256."`
	ReservationsPerAddress int           `yaml:"reservations_per_address" help:"The same behind one IP address: 1 to 100000. 0: 64."`
	Circuits               int           `yaml:"circuits" help:"Relayed connections: 1 to 100000. 0: 512."`
	CircuitsPerPeer        int           `yaml:"circuits_per_peer" help:"Relayed connections from or to one peer: 1 to 100000. 0: 32."`
	CircuitBytes           int           `yaml:"circuit_bytes" help:"Bytes of one relayed connection in each direction until its end: 131072 to 1099511627776. 0: 32 MiB."`
	CircuitTime            time.Duration `yaml:"circuit_time" help:"Lifetime of a relayed connection: 2m to 24h. 0: 30m."`
}

// Bounds of relays.
const (
	maxRelayed      = 100_000
	minCircuitBytes = 128 << 10
	maxCircuitBytes = 1 << 40
	minCircuitTime  = 2 * time.Minute
	maxCircuitTime  = 24 * time.Hour
)

func (r *Relay) validate() error {
	return firstError(
		zeroOr("connections.relay.reservations", r.Reservations, 1, maxRelayed),
		zeroOr("connections.relay.reservations_per_address", r.ReservationsPerAddress, 1, maxRelayed),
		zeroOr("connections.relay.circuits", r.Circuits, 1, maxRelayed),
		zeroOr("connections.relay.circuits_per_peer", r.CircuitsPerPeer, 1, maxRelayed),
		zeroOr("connections.relay.circuit_bytes", r.CircuitBytes, minCircuitBytes, maxCircuitBytes),
		zeroOr("connections.relay.circuit_time", r.CircuitTime, minCircuitTime, maxCircuitTime),
	)
}

// Bounds of connections: a routing table needs about minConnections, and minPerAddress leaves room for the dials of one peer.
const (
	minConnections = 24
	minPerAddress  = 4
	maxConnections = 100_000
)

func (c *Connections) validate() error {
	var named error
	if c.Name != "" {
		named = fault.In(nameKey, identity.PeerName(c.Name).Validate())
	}
	return firstError(
		named,
		oneOf("connections.reach", c.Reach, auto, "public", "private"),
		zeroOr("connections.most", c.Most, minConnections, maxConnections),
		zeroOr("connections.per_address", c.PerAddress, minPerAddress, maxConnections),
		c.Relay.validate(),
	)
}

// zeroOr requires 0 or a value between least and most.
func zeroOr[T int | time.Duration](key string, value, least, most T) error {
	if value == 0 || value >= least && value <= most {
		return nil
	}
	return fault.Invalidf(key, value, "must be 0, or %v to %v", least, most)
}

// leafOn is the value of the setting leaf for a peer that only dials out.
const leafOn = "on"

// IsLeaf reports whether this peer only dials out.
func (c *Config) IsLeaf() bool { return c.Leaf == leafOn }

// validateLeaf refuses what a leaf cannot do.
func (c *Config) validateLeaf() error {
	if err := oneOf("leaf", c.Leaf, auto, leafOn); err != nil || !c.IsLeaf() {
		return err
	}
	switch {
	case len(c.Bootstrap) == 0:
		return fault.Invalidf("bootstrap", nil, "must name at least one peer: a leaf only dials out")
	case len(c.Listen) > 0:
		return fault.Invalidf("listen", c.Listen, "must be empty: a leaf only dials out")
	case len(c.Announce) > 0:
		return fault.Invalidf("announce", c.Announce, "must be empty: nobody connects to a leaf")
	case c.Connections.Most != 0:
		return fault.Invalidf("connections.most", c.Connections.Most, "must be 0: a leaf has at most 32")
	}
	return nil
}
