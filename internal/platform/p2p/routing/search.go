package routing

import (
	"bytes"
	"slices"
	"time"

	kb "github.com/libp2p/go-libp2p-kbucket"
	"github.com/libp2p/go-libp2p/core/peer"
)

const (
	searchDepth = 10 // closest peers that must answer before a lookup ends: the keepers of one cell
	searchWidth = 10 // concurrent requests, late ones not counted

	// A peer without an answer after patienceFactor times the quickest answer is silent. The factor covers a
	// cold connection (four round trips) and half as much again.
	patienceFactor = 6
	patienceLeast  = 500 * time.Millisecond
	patienceMost   = 1500 * time.Millisecond
	slowShare      = 3 // after a third of the patience, a peer is slow and two further peers are asked
)

// state is a lookup's state of a peer.
type state uint8

const (
	unasked state = iota
	asked         // the answer is pending
	replied
	noRoom  // alive, but one side has no room for a connection
	silent  // no answer in time
	avoided // silent in a recent lookup: asked only if no other peer answers
)

// candidate is a possible member of the answer.
type candidate struct {
	id    peer.ID
	away  kb.ID // XOR distance from the key
	state state
	since time.Time // start of the state
}

// search is the state of a lookup: Kademlia's iteration towards a key (Maymounkov and Mazières, 2002) with
// alpha searchWidth. Its end differs from Kademlia's. Silent peers cost a bounded time instead of a dial
// timeout, and the answer omits them. Peers without room for a connection stay in the answer, so that two
// searchers with different connections agree on the closest peers.
//
// Time and answers are arguments, so its results are reproducible. It is not safe for concurrent use.
type search struct {
	target   kb.ID
	self     peer.ID
	order    []*candidate // nearest first
	known    map[peer.ID]*candidate
	quickest time.Duration // answer so far; 0 before the first
}

func newSearch(key string, self peer.ID) *search {
	return &search{target: kb.ConvertKey(key), self: self, known: make(map[peer.ID]*candidate)}
}

// add adds a new peer.
func (s *search) add(id peer.ID, avoid bool) {
	if _, ok := s.known[id]; ok || id == s.self || id == "" {
		return
	}
	c := &candidate{id: id, away: xor(s.target, kb.ConvertPeerID(id))}
	if avoid {
		c.state = avoided
	}
	s.known[id] = c
	at, _ := slices.BinarySearchFunc(s.order, c, func(a, b *candidate) int { return bytes.Compare(a.away, b.away) })
	s.order = slices.Insert(s.order, at, c)
}

func xor(a, b kb.ID) kb.ID {
	out := make(kb.ID, len(a))
	for i := range a {
		out[i] = a[i] ^ b[i]
	}
	return out
}

// nearest returns up to n candidates for the answer, nearest first.
func (s *search) nearest(n int) []*candidate {
	out := make([]*candidate, 0, n)
	for _, c := range s.order {
		if len(out) == n {
			break
		}
		if c.state != silent && c.state != avoided {
			out = append(out, c)
		}
	}
	return out
}

// next returns the peers to ask now and marks them as asked.
func (s *search) next(now time.Time) []peer.ID {
	if len(s.nearest(1)) == 0 && s.count(replied) == 0 {
		s.allowAvoided()
	}
	waiting, slow := 0, 0
	for _, c := range s.order {
		if c.state == asked {
			waiting++
			if now.Sub(c.since) >= s.patience()/slowShare {
				slow++
			}
		}
	}
	var ids []peer.ID
	for _, c := range s.nearest(searchDepth + 2*slow) {
		if c.state == unasked && waiting-slow+len(ids) < searchWidth {
			c.state, c.since = asked, now
			ids = append(ids, c.id)
		}
	}
	return ids
}

// allowAvoided admits the avoided peers as a last resort.
func (s *search) allowAvoided() {
	for _, c := range s.order {
		if c.state == avoided {
			c.state = unasked
		}
	}
}

func (s *search) count(in state) int {
	n := 0
	for _, c := range s.order {
		if c.state == in {
			n++
		}
	}
	return n
}

// setResult records the result of a request and reports whether it changed the state. A late answer replaces
// the state silent.
func (s *search) setResult(id peer.ID, result state, now time.Time) bool {
	c, ok := s.known[id]
	if !ok || c.state != asked && (c.state != silent || result != replied) {
		return false
	}
	if took := now.Sub(c.since); result == replied && c.state == asked && (s.quickest == 0 || took < s.quickest) {
		s.quickest = max(took, time.Microsecond)
	}
	c.state = result
	if result != silent {
		c.since = now
	}
	return true
}

// patience is the time that a peer has for its answer.
func (s *search) patience() time.Duration {
	if s.quickest == 0 {
		return patienceMost
	}
	return min(max(patienceFactor*s.quickest, patienceLeast), patienceMost)
}

// overdue marks peers without an answer in time as silent and returns them.
func (s *search) overdue(now time.Time) []peer.ID {
	var late []peer.ID
	for _, c := range s.order {
		if c.state == asked && now.Sub(c.since) >= s.patience() {
			c.state = silent
			late = append(late, c.id)
		}
	}
	return late
}

// nextDeadline returns the next time at which next or overdue may have a new result without an answer, false
// without pending requests.
func (s *search) nextDeadline(now time.Time) (time.Time, bool) {
	var at time.Time
	for _, c := range s.order {
		if c.state != asked {
			continue
		}
		due := c.since.Add(s.patience() / slowShare)
		if !due.After(now) {
			due = c.since.Add(s.patience())
		}
		if at.IsZero() || due.Before(at) {
			at = due
		}
	}
	return at, !at.IsZero()
}

// done reports whether all of the searchDepth closest peers have a result.
func (s *search) done() bool {
	near := s.nearest(searchDepth)
	if len(near) == 0 && s.count(replied) == 0 && s.count(avoided) > 0 {
		return false
	}
	return !slices.ContainsFunc(near, func(c *candidate) bool { return c.state == unasked || c.state == asked })
}

// found returns the closest peers, nearest first. answers and full count, among the searchDepth closest, the
// peers that answered and those without room.
func (s *search) found() (ids []peer.ID, answers, full int) {
	for i, c := range s.nearest(Replicas) {
		ids = append(ids, c.id)
		if i < searchDepth {
			switch c.state {
			case replied:
				answers++
			case noRoom:
				full++
			}
		}
	}
	return ids, answers, full
}
