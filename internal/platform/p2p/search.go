package p2p

import (
	"bytes"
	"slices"
	"time"

	kb "github.com/libp2p/go-libp2p-kbucket"
	"github.com/libp2p/go-libp2p/core/peer"
)

const (
	// searchDepth is how many of the peers closest to a key must have answered before a lookup
	// ends: as many as keep a cell.
	searchDepth = 10
	// searchWidth is how many peers a lookup asks at once, those that are late not counted.
	searchWidth = 10

	// A peer is mute when it has not answered in patienceFactor times what the quickest answer
	// took, which has a cold connection (four round trips) and half as much again in it.
	patienceFactor = 6
	patienceLeast  = 500 * time.Millisecond
	patienceMost   = 1500 * time.Millisecond
	// A third of that makes it slow: the lookup asks two peers more, in case.
	slowShare = 3
)

// state is what a lookup knows of a peer.
type state uint8

const (
	unasked state = iota // of by another peer, or out of the table
	asked                // its answer is awaited
	replied              // it did
	noRoom               // it lives, but one of the two has no room for a connection
	silent               // it did not answer in time
	avoided              // it did not answer lately: to be asked only when nobody else does
)

// candidate is a peer that may be among the closest.
type candidate struct {
	id    peer.ID
	away  kb.ID // from the key, by XOR
	state state
	since time.Time // of its state
}

// search is the state of a lookup: Kademlia's iteration towards a key (Maymounkov and
// Mazières, 2002), with alpha searchWidth. It differs from the usual one in how it ends.
// Those who are mute cost it a bounded time and not a dial's deadline, for they are left
// out; and a peer that lives but cannot be asked stays in the answer, so that two askers that
// cannot reach the same peers still agree on who is closest. It is pure: time and answers are
// arguments. Not safe for concurrent use.
type search struct {
	target   kb.ID
	self     peer.ID
	order    []*candidate // nearest first
	known    map[peer.ID]*candidate
	quickest time.Duration // of the answers; 0 before one
}

func newSearch(key string, self peer.ID) *search {
	return &search{target: kb.ConvertKey(key), self: self, known: make(map[peer.ID]*candidate)}
}

// add adds a peer, unless it is known.
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

// nearest gives up to n candidates that may be in the answer, nearest first.
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

// next gives the peers to ask now, and takes it that they are.
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

// allowAvoided has those asked after all who were to be avoided.
func (s *search) allowAvoided() {
	for _, c := range s.order {
		if c.state == avoided {
			c.state = unasked
		}
	}
}

func (s *search) count(what state) int {
	n := 0
	for _, c := range s.order {
		if c.state == what {
			n++
		}
	}
	return n
}

// setResult takes a peer's answer, or why there is none. It reports whether that is news: a
// mute peer may still answer.
func (s *search) setResult(id peer.ID, became state, now time.Time) bool {
	c, ok := s.known[id]
	if !ok || c.state != asked && (c.state != silent || became != replied) {
		return false
	}
	if took := now.Sub(c.since); became == replied && c.state == asked && (s.quickest == 0 || took < s.quickest) {
		s.quickest = max(took, time.Microsecond)
	}
	c.state = became
	if became != silent {
		c.since = now
	}
	return true
}

// patience is how long an answer is waited for.
func (s *search) patience() time.Duration {
	if s.quickest == 0 {
		return patienceMost
	}
	return min(max(patienceFactor*s.quickest, patienceLeast), patienceMost)
}

// overdue declares mute who has not answered for too long, and gives their ids.
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

// nextDeadline is when next or overdue may have more to say than now, without an answer; false
// when nobody is being waited for.
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

// done reports whether of the searchDepth closest peers all are settled.
func (s *search) done() bool {
	near := s.nearest(searchDepth)
	if len(near) == 0 && s.count(replied) == 0 && s.count(avoided) > 0 {
		return false
	}
	return !slices.ContainsFunc(near, func(c *candidate) bool { return c.state == unasked || c.state == asked })
}

// found gives the closest peers, nearest first, and of the searchDepth closest how many
// answered and how many could not be asked.
func (s *search) found() (ids []peer.ID, answers, bars int) {
	for i, c := range s.nearest(tableReplicas) {
		ids = append(ids, c.id)
		if i < searchDepth {
			switch c.state {
			case replied:
				answers++
			case noRoom:
				bars++
			}
		}
	}
	return ids, answers, bars
}
