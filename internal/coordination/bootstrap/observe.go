package bootstrap

import (
	"maps"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

// sayHello announces this peer to the eligible peers, and asks them for a certificate. In the mode Listed
// every tenth round goes to all connected peers, which may know the group after the end of all founders.
func (m *machine) sayHello() {
	h := m.greeting()
	pause := m.timing.Hello
	switch {
	case m.state.Certificate != nil:
		pause = m.timing.Recheck
	case m.abstains != "":
		pause *= time.Duration(min(m.hello.rounds+1, maxSlower))
	}
	to := m.peers.audience(m.network.Founders)
	if m.network.Mode == Listed && m.hello.rounds%10 != 0 {
		to = m.peers.others(m.network.Founders)
	}
	for _, p := range to {
		m.send(p, h)
	}
	m.hello.rounds++
	m.hello.next = m.now.Add(m.spread(pause))
}

// meet greets new connections of a network without founders: each of them may have a group, or found one.
func (m *machine) meet(connected []peer.ID) {
	fresh := m.peers.setConnected(connected)
	if m.network.Mode == Listed || m.state.Certificate != nil {
		return
	}
	for _, p := range fresh {
		m.send(p, m.greeting())
	}
}

// maxSlower bounds the slowdown of hellos of a searching peer, because such peers may be numerous.
const maxSlower = 15

// onHello answers with the certificate if the sender lacks it, and with a hello if the sender is new or knows
// more.
func (m *machine) onHello(from peer.ID, h hello) {
	if c := m.state.Certificate; c != nil {
		if h.group != c.GroupID() {
			m.send(from, announce{*c})
		}
		return
	}
	isNew := false
	if h.raftID != 0 && m.network.Eligible(from) {
		isNew = m.peers.observe(from, h.raftID)
	}
	if isNew || !h.group.IsZero() {
		m.send(from, m.greeting())
	}
}

func (m *machine) greeting() (h hello) {
	if m.abstains == "" {
		h.raftID = m.raftID
	}
	if c := m.state.Certificate; c != nil {
		h.group = c.GroupID()
	}
	return h
}

// peerView holds the peers in reach of a machine.
type peerView struct {
	self      peer.ID
	size      int           // E of the network
	ttl       time.Duration // of an observation
	now       time.Time
	connected []peer.ID               // at the last tick, ascending, without self
	seen      map[peer.ID]observation // eligible peers, at most maxSeen
}

// observe records a hello of p; it reports whether p was invisible before.
func (v *peerView) observe(p peer.ID, raftID uint64) bool {
	before, known := v.seen[p]
	if !known && len(v.seen) >= maxSeen {
		maps.DeleteFunc(v.seen, func(_ peer.ID, s observation) bool { return !v.now.Before(s.until) })
		if len(v.seen) >= maxSeen {
			return false
		}
	}
	v.seen[p] = observation{raftID: raftID, until: v.now.Add(v.ttl)}
	return !known || !v.now.Before(before.until)
}

// visible returns the visible eligible peers, this one included, in ascending order.
func (v *peerView) visible() []peer.ID {
	all := []peer.ID{v.self}
	for p, s := range v.seen {
		if p != v.self && v.now.Before(s.until) {
			all = append(all, p)
		}
	}
	slices.Sort(all)
	return all
}

// seats returns the visible peers that may vote from this peer's view: the E lowest.
func (v *peerView) seats() []peer.ID {
	all := v.visible()
	return all[:min(len(all), v.size)]
}

// seated reports whether this peer and from are both among the E lowest visible peers. In the mode Listed they
// always are.
func (v *peerView) seated(from peer.ID) bool {
	all := v.visible()
	if at, ok := slices.BinarySearch(all, from); !ok {
		all = slices.Insert(all, at, from)
	}
	all = all[:min(len(all), v.size)]
	return slices.Contains(all, from) && slices.Contains(all, v.self)
}

// setConnected returns the peers that were not connected before.
func (v *peerView) setConnected(all []peer.ID) (fresh []peer.ID) {
	before := v.connected
	v.connected = v.others(all[:min(len(all), maxSeen)])
	for _, p := range v.connected {
		if _, known := slices.BinarySearch(before, p); !known {
			fresh = append(fresh, p)
		}
	}
	return fresh
}

// others returns a list's peers without this one, ascending and distinct.
func (v *peerView) others(list []peer.ID) []peer.ID {
	set := slices.Sorted(slices.Values(list))
	set = slices.Compact(set)
	return slices.DeleteFunc(set, func(p peer.ID) bool { return p == v.self })
}

// audience returns the peers that may need a certificate.
func (v *peerView) audience(founders []peer.ID) []peer.ID {
	return v.others(slices.Concat(founders, v.connected, v.visible()))
}

// consider decides on the time of a proposal: after a quorum was visible for the settling time, later while
// fewer peers than the wanted voters are visible, and later for all but the lowest peer.
func (m *machine) consider() {
	p := &m.patience
	seats := m.peers.seats()
	rank := slices.Index(seats, m.self)
	if rank < 0 || len(seats) < m.quorum() {
		p.since, p.due = time.Time{}, time.Time{}
		return
	}
	full := min(m.voters, m.network.Size())
	if p.since.IsZero() || len(seats) > p.most && p.most < full {
		p.since, p.most, p.extra = m.now, len(seats), m.upTo(m.timing.Settle/4)
	}
	p.due = p.since.Add(m.timing.Settle + p.extra + time.Duration(min(rank, maxRank))*m.timing.Stagger)
	if len(seats) < full {
		p.due = p.due.Add(m.timing.Patience)
	}
	if p.due.Before(m.backOff) {
		p.due = m.backOff
	}
	if alone := m.network.Mode == Listed && m.network.Size() == 1; alone || !m.now.Before(p.due) {
		m.begin()
	}
}

// maxRank bounds the wait of higher peers for lower ones.
const maxRank = 4

func (m *machine) quorum() int {
	if m.flaws.majorityVisible {
		return len(m.peers.seats())/2 + 1
	}
	return m.network.Quorum()
}
