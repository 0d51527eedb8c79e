package keeper

import (
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

const (
	roundsKept      = 8
	settledPartners = 2 // other keepers to compare a cell with before this peer answers alone
)

// syncRound is the result of one anti-entropy round. It is immutable.
type syncRound struct {
	table  *tableState
	age    time.Duration       // of the routing table at the start
	done   map[peer.ID]partner // partners with a complete comparison
	alone  bool                // no other peer in the network
	before []*syncRound        // previous rounds, latest first, at most roundsKept, each without its own list
}

// partner is what a partner said of itself in a comparison.
type partner struct {
	whole    bool // it regards the network as small, as this peer does
	informed bool // it has compared with an informed keeper itself
}

// fresh reports whether a round can found a new network, whose peers started together: no peer is
// informed, but all know each other for a while, and together they have all records.
func (o *syncRound) fresh() bool { return o.age >= freshAge }

// keep makes o the last round.
func (y *Authority) keep(o *syncRound) {
	if last := y.last.Load(); last != nil {
		bare := *last
		bare.before = nil
		o.before = append([]*syncRound{&bare}, last.before[:min(len(last.before), roundsKept-1)]...)
	}
	y.last.Store(o)
	y.own.Purge() // authority may have changed
}
