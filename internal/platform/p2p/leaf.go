package p2p

import (
	"time"

	dht "github.com/libp2p/go-libp2p-kad-dht"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Connections of a leaf. Between the high water mark and the limit is the room for the dials of a lookup.
const (
	leafConnections   = 32
	leafLow, leafHigh = 12, 20
	leafGrace         = 10 * time.Second
	leafRefresh       = 30 * time.Minute // a client serves no lookups of others
	leafQuery         = 10 * time.Second
	leafKnown         = 4 // peers of earlier runs that it dials at the start
)

// leaf turns the settings of a profile into those of a leaf. Errors are Invalid with the field.
func (c Config) leaf(to profileSettings) (profileSettings, error) {
	switch {
	case len(c.Bootstrap) == 0:
		return to, fault.Invalidf("bootstrap", nil, "a leaf needs at least one peer to connect to")
	case len(c.Listen) > 0:
		return to, fault.Invalidf("listen", len(c.Listen), "must be empty for a leaf, which only dials out")
	case len(c.Reach.Announce) > 0:
		return to, fault.Invalidf("announce", len(c.Reach.Announce), "must be empty for a leaf, to which nobody connects")
	case c.Limits.Connections != 0:
		return to, fault.Invalidf("connections.most", c.Limits.Connections, "must be 0 for a leaf, which has at most %d", leafConnections)
	}
	to.leaf, to.listen, to.mdns = true, nil, false
	to.mode, to.refresh, to.query = dht.ModeClient, leafRefresh, leafQuery
	to.low, to.high, to.grace = leafLow, leafHigh, leafGrace
	return to, nil
}

// Mode is the part that a peer takes in its network.
type Mode string

// The modes.
const (
	ModeServer Mode = "server" // in the routing tables of others; may keep their records
	ModeClient Mode = "client" // asks servers, because others cannot connect directly
	ModeLeaf   Mode = "leaf"   // dials out only, as its settings demand
)

// Mode returns the present mode.
func (n *Node) Mode() Mode {
	switch {
	case n.leaf:
		return ModeLeaf
	case n.routing.Serving():
		return ModeServer
	default:
		return ModeClient
	}
}
