package keep

import (
	"slices"
	"time"
)

// tableNotifier is a Router that reports changes of its table.
type tableNotifier interface {
	// Changed returns a channel that closes when a peer next enters or leaves the table.
	Changed() <-chan struct{}
}

// TableState is the routing table at one moment.
type TableState struct {
	*Table
	changed <-chan struct{} // closed after a change; nil if the router does not report changes
	size    int
	Serving bool // this peer is a server of the DHT
	Made    time.Time
	checked time.Time // at or after made
}

// Changed returns nil if the router does not report changes.
func (y *Authority) Changed() <-chan struct{} {
	if r, ok := y.Router.(tableNotifier); ok {
		return r.Changed()
	}
	return nil
}

// Table returns the current routing table.
func (y *Authority) Table() *TableState {
	y.mu.Lock()
	defer y.mu.Unlock()
	size, now := y.Router.Size(), y.Clock()
	if s := y.current; s != nil && !s.stale(size) && (s.changed != nil || now.Sub(s.checked) < ownershipTTL) {
		return s
	}
	s := &TableState{changed: y.Changed(), size: size, Serving: y.Router.Serving(), Made: now, checked: now} // before the copy, so that no change is missed
	y.becomeKeeper(s.Serving, now)
	others := y.Router.Nearby(string(y.Self), maxTablePeers)
	s.Table = NewTable(y.Self, others, size < AcceptWithin)
	if old := y.current; old != nil && s.equal(old.Table) {
		s.Table, s.Made = old.Table, old.Made // a peer left and came back, or the router does not report changes
	}
	y.current = s
	y.Know.observe(s.Table, now)
	return s
}

// becomeKeeper notes whether this peer is a server of the DHT. A peer that becomes one begins as a
// joiner: nobody stored records here before. y.mu is held.
func (y *Authority) becomeKeeper(serving bool, now time.Time) {
	if old := y.current; old != nil && serving && !old.Serving {
		y.Know.SetInformed(false, now)
	}
}

// stale reports whether the table has changed since.
func (s *TableState) stale(size int) bool {
	select {
	case <-s.changed:
		return true
	default:
		return size != s.size
	}
}

// SettleTime returns the age from which on every publisher knows the table: publishers cache
// keeper sets for that long.
func (s *TableState) SettleTime() time.Duration {
	if s.Whole {
		return wholeTTL // publishers notice the change of a small network themselves
	}
	return 2 * keeperSetTTL
}

func (n *Table) equal(o *Table) bool {
	return n.Whole == o.Whole && slices.Equal(n.Peers, o.Peers)
}
