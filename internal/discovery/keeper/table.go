package keeper

import (
	"slices"
	"time"
)

// tableNotifier is a Router that reports changes of its table.
type tableNotifier interface {
	// Changed returns a channel that closes when a peer next enters or leaves the table.
	Changed() <-chan struct{}
}

// tableState is the routing table at one moment.
type tableState struct {
	*peerTable
	changed <-chan struct{} // closed after a change; nil if the router does not report changes
	size    int
	serving bool // this peer is a server of the DHT
	made    time.Time
	checked time.Time // at or after made
}

// changed returns nil if the router does not report changes.
func (y *Authority) changed() <-chan struct{} {
	if r, ok := y.Router.(tableNotifier); ok {
		return r.Changed()
	}
	return nil
}

// table returns the current routing table.
func (y *Authority) table() *tableState {
	y.mu.Lock()
	defer y.mu.Unlock()
	size, now := y.Router.Size(), y.clock()
	if s := y.current; s != nil && !s.stale(size) && (s.changed != nil || now.Sub(s.checked) < ownershipTTL) {
		return s
	}
	s := &tableState{changed: y.changed(), size: size, serving: y.Router.Serving(), made: now, checked: now} // before the copy, so that no change is missed
	y.becomeKeeper(s.serving, now)
	others := y.Router.Nearby(string(y.Self), maxTablePeers)
	s.peerTable = newPeerTable(y.Self, others, size < acceptWithin)
	if old := y.current; old != nil && s.equal(old.peerTable) {
		s.peerTable, s.made = old.peerTable, old.made // a peer left and came back, or the router does not report changes
	}
	y.current = s
	y.know.observe(s.peerTable, now)
	return s
}

// becomeKeeper notes whether this peer is a server of the DHT. A peer that becomes one begins as a
// joiner: nobody stored records here before. y.mu is held.
func (y *Authority) becomeKeeper(serving bool, now time.Time) {
	if old := y.current; old != nil && serving && !old.serving {
		y.know.setInformed(false, now)
	}
}

// stale reports whether the table has changed since.
func (s *tableState) stale(size int) bool {
	select {
	case <-s.changed:
		return true
	default:
		return size != s.size
	}
}

// settleTime returns the age from which on every publisher knows the table: publishers cache
// keeper sets for that long.
func (s *tableState) settleTime() time.Duration {
	if s.whole {
		return wholeTTL // publishers notice the change of a small network themselves
	}
	return 2 * keeperSetTTL
}

func (n *peerTable) equal(o *peerTable) bool {
	return n.whole == o.whole && slices.Equal(n.peers, o.peers)
}
