package bootstrap

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

// The acceptor.

// votes reports whether this peer takes part in a ballot of from. A peer with a certificate answers with it
// instead.
func (m *machine) votes(from peer.ID, b Ballot) bool {
	switch {
	case m.state.Certificate != nil:
		m.send(from, announce{*m.state.Certificate})
	case m.abstains != "":
	case !m.network.Eligible(from):
		m.rejectf(from, "proposes but is not eligible")
	case b.Peer != from:
		m.rejectf(from, "proposes at a ballot of %s", b.Peer)
	case b.Round > m.state.Promised.Round+maxLeap:
		m.rejectf(from, "round %d is too far above %d", b.Round, m.state.Promised.Round)
	case !m.peers.seated(from):
		m.rejectf(from, "more than %d peers want to found", m.network.Size())
	default:
		return true
	}
	return false
}

func (m *machine) onPrepare(from peer.ID, p prepare) {
	if p.ballot.Compare(m.state.Promised) < 0 {
		m.send(from, refuse{ballot: p.ballot, promised: m.state.Promised})
		return
	}
	m.follow(p.ballot)
	m.send(from, promise{ballot: p.ballot, accepted: m.state.Accepted, membership: m.state.Membership})
}

// follow promises b to its proposer and leaves it time to finish.
func (m *machine) follow(b Ballot) {
	m.try = nil
	m.round = max(m.round, b.Round)
	m.backOff = m.now.Add(m.spread(m.timing.Attempt))
	if b == m.state.Promised {
		return
	}
	state := m.state
	state.Promised = b
	if m.flaws.forgetPromises {
		m.state = state
		return
	}
	m.save(state)
}

func (m *machine) onAccept(from peer.ID, a accept) {
	if a.ballot.Compare(m.state.Promised) < 0 {
		m.send(from, refuse{ballot: a.ballot, promised: m.state.Promised})
		return
	}
	if err := m.network.checkMembership(a.membership); err != nil {
		m.reject(from, err)
		return
	}
	if a.ballot == m.state.Accepted && a.membership.ID() != m.state.Membership.ID() {
		m.rejectf(from, "proposes two memberships at one ballot")
		return
	}
	m.try = nil
	m.round = max(m.round, a.ballot.Round)
	m.backOff = m.now.Add(m.spread(m.timing.Attempt))
	signature, err := m.accept(a.ballot, a.membership)
	if err != nil {
		m.reject(m.self, err)
		return
	}
	m.send(from, accepted{ballot: a.ballot, group: a.membership.ID(), signature: signature})
}

// accept saves the acceptance, then signs it.
func (m *machine) accept(b Ballot, c Membership) ([]byte, error) {
	if b != m.state.Accepted {
		state := m.state
		state.Promised, state.Accepted, state.Membership = b, b, &c
		m.save(state)
	}
	return m.key.Sign(m.network.digest(b, m.id, c.ID()))
}

// The proposer.

// attempt is one ballot of this peer. It collects promises, then signatures.
type attempt struct {
	ballot     Ballot
	promises   []promiseFrom
	membership *Membership // proposed; nil during the first phase
	signatures []Signature // of distinct peers
	deadline   time.Time
	resend     time.Time
}

// promiseFrom is a received promise.
type promiseFrom struct {
	peer       peer.ID
	accepted   Ballot
	membership *Membership
}

// begin starts a ballot above all known ones. This peer saves its own promise before it asks others, so that
// no ballot is used twice.
func (m *machine) begin() {
	m.round = max(m.round, m.state.Promised.Round) + 1
	b := Ballot{Round: m.round, Peer: m.self}
	state := m.state
	state.Promised = b
	m.save(state)
	m.patience.due = time.Time{}
	m.try = &attempt{ballot: b, deadline: m.now.Add(m.timing.Attempt)}
	m.try.ask(m)
	m.onPromise(m.self, promise{ballot: b, accepted: m.state.Accepted, membership: m.state.Membership})
}

// drive repeats unanswered questions, and gives up after the deadline.
func (t *attempt) drive(m *machine) {
	if !m.now.Before(t.deadline) {
		m.giveUp()
	} else if !m.now.Before(t.resend) {
		t.ask(m)
	}
}

// giveUp lets others propose for a random time, which grows with each failure.
func (m *machine) giveUp() {
	m.try = nil
	pause := m.timing.Backoff << min(m.fails, 3)
	m.fails++
	m.backOff = m.now.Add(pause/2 + m.upTo(pause))
	m.consider()
}

// ask asks the peers without an answer in the present phase.
func (t *attempt) ask(m *machine) {
	t.resend = m.now.Add(m.timing.Resend)
	for _, p := range electorate(m) {
		switch {
		case t.membership == nil && !t.promisedBy(p):
			m.send(p, prepare{t.ballot})
		case t.membership != nil && !t.signedBy(p):
			m.send(p, accept{ballot: t.ballot, membership: *t.membership})
		}
	}
}

// electorate returns the acceptors besides this peer.
func electorate(m *machine) []peer.ID {
	if m.network.Mode == Listed {
		return m.peers.others(m.network.Founders)
	}
	return m.peers.others(m.peers.seats())
}

func (t *attempt) promisedBy(p peer.ID) bool {
	return slices.ContainsFunc(t.promises, func(v promiseFrom) bool { return v.peer == p })
}

func (t *attempt) signedBy(p peer.ID) bool {
	return slices.ContainsFunc(t.signatures, func(s Signature) bool { return s.Peer == p })
}

// current reports whether an answer belongs to the present attempt.
func (m *machine) current(from peer.ID, b Ballot) bool {
	return m.try != nil && m.try.ballot == b && m.network.Eligible(from)
}

// onPromise collects promises. A quorum of them fixes the proposal: the membership accepted at the highest
// ballot, because it may have been chosen already. Only without one may the proposer choose its own.
func (m *machine) onPromise(from peer.ID, p promise) {
	if !m.current(from, p.ballot) || m.try.membership != nil || m.try.promisedBy(from) {
		return
	}
	if p.membership != nil {
		if err := m.network.checkMembership(*p.membership); err != nil {
			m.reject(from, err)
			return
		}
		if p.accepted.Compare(p.ballot) >= 0 {
			m.rejectf(from, "promises a ballot and has accepted a higher one")
			return
		}
	}
	t := m.try
	t.promises = append(t.promises, promiseFrom{peer: from, accepted: p.accepted, membership: p.membership})
	if len(t.promises) < m.quorum() {
		return
	}
	t.membership = choose(m, t.promises)
	signature, err := m.accept(t.ballot, *t.membership)
	if err != nil {
		m.reject(m.self, err)
		m.giveUp()
		return
	}
	m.try.ask(m)
	m.try.collect(m, Signature{Peer: m.self, Bytes: signature})
}

func choose(m *machine, promises []promiseFrom) *Membership {
	highest := slices.MaxFunc(promises, func(a, b promiseFrom) int { return a.accepted.Compare(b.accepted) })
	if highest.membership == nil || m.flaws.forgetAccepted {
		return draft(m)
	}
	return highest.membership
}

// draft returns this peer's own proposal: the lowest visible peers, itself included. Of an even number above
// two it leaves one out, which would not raise the number of survivable failures; two peers both vote, for the
// sake of two copies.
func draft(m *machine) *Membership {
	seats := m.peers.seats()
	n := min(m.voters, len(seats))
	if n > 2 && n%2 == 0 {
		n--
	}
	chosen := append([]peer.ID{m.self}, m.peers.others(seats)[:n-1]...)
	slices.Sort(chosen)
	c := &Membership{Network: m.id, Eligible: m.network.Size(), Proposer: m.self, Founders: m.network.founders()}
	taken := make(map[uint64]bool)
	for _, p := range chosen {
		id := m.raftID
		if p != m.self {
			id = m.peers.seen[p].raftID
		}
		if taken[id] {
			continue // a copied data directory: one of the two stays out
		}
		taken[id] = true
		c.Voters = append(c.Voters, Voter{Peer: p, RaftID: id})
	}
	binary.BigEndian.PutUint64(c.Nonce[:8], m.rand.Uint64())
	binary.BigEndian.PutUint64(c.Nonce[8:], m.rand.Uint64())
	return c
}

func (m *machine) onAccepted(from peer.ID, a accepted) {
	if !m.current(from, a.ballot) || m.try.membership == nil {
		return
	}
	s := Signature{Peer: from, Bytes: a.signature}
	if a.group != m.try.membership.ID() || !m.network.signed(s, m.network.digest(a.ballot, m.id, a.group)) {
		m.rejectf(from, "signed something else than it was asked for")
		return
	}
	m.try.collect(m, s)
}

// collect makes the certificate from a quorum of signatures.
func (t *attempt) collect(m *machine, s Signature) {
	if t.signedBy(s.Peer) && !m.flaws.countDoubles {
		return
	}
	t.signatures = append(t.signatures, s)
	if len(t.signatures) < m.quorum() {
		return
	}
	slices.SortFunc(t.signatures, func(a, b Signature) int { return cmp.Compare(a.Peer, b.Peer) })
	c := Certificate{Membership: *t.membership, Ballot: t.ballot, Signatures: t.signatures}
	m.learn(c)
	for _, p := range m.peers.others(slices.Concat(m.network.Founders, m.peers.visible())) {
		m.send(p, announce{c})
	}
}

// onRefuse adopts the round of the refusing peer.
func (m *machine) onRefuse(from peer.ID, r refuse) {
	if !m.current(from, r.ballot) || r.promised.Compare(r.ballot) <= 0 {
		return
	}
	if r.promised.Round > r.ballot.Round+maxLeap {
		m.rejectf(from, "round %d is too far above %d", r.promised.Round, r.ballot.Round)
		return
	}
	m.round = max(m.round, r.promised.Round)
	m.giveUp()
}
