package keep

import (
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/records"
)

const (
	roundsKept      = 8
	settledPartners = 2 // other keepers to compare a cell with before this peer answers alone
)

// Round is the result of one anti-entropy round. It is immutable.
type Round struct {
	Table  *TableState
	Age    time.Duration       // of the routing table at the start
	Done   map[peer.ID]Partner // partners with a complete comparison
	Alone  bool                // no other peer in the network
	before []*Round            // previous rounds, latest first, at most roundsKept, each without its own list
}

// Partner is what a partner said of itself in a comparison.
type Partner struct {
	Whole    bool // it regards the network as small, as this peer does
	Informed bool // it has compared with an informed keeper itself
}

// Partners returns the partners of a complete comparison that keep a cell too, and whether this peer keeps it.
func (o *Round) Partners(c records.CellKey) (ids []peer.ID, kept bool) {
	r, kept := o.Table.RadiusOf(KeyOf(c))
	kept = kept || o.Table.Whole
	for _, n := range o.Table.Peers {
		if _, done := o.Done[n.Id]; done && kept && (o.Table.Whole || r.Covers(n.Hash)) {
			ids = append(ids, n.Id)
		}
	}
	return ids, kept
}

// Fresh reports whether a round can found a new network, whose peers started together: no peer is
// informed, but all know each other for a while, and together they have all records.
func (o *Round) Fresh() bool { return o.Age >= freshAge }

// Keep makes o the last round.
func (y *Authority) Keep(o *Round) {
	if last := y.Last.Load(); last != nil {
		bare := *last
		bare.before = nil
		o.before = append([]*Round{&bare}, last.before[:min(len(last.before), roundsKept-1)]...)
	}
	y.Last.Store(o)
	y.own.Purge() // authority may have changed
}
