package keeper

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"
)

// peerTable is a copy of the routing table. From it SYNC derives, without any request, which peers
// keep which cells. It is immutable.
//
// A peer among the Replicas closest to a key in the network is so in every routing table, because
// tables leave peers out and invent none. So all keepers of a cell count themselves in, and a peer
// missing from a table costs an extra comparison, not a record.
type peerTable struct {
	self  hashedPeer
	peers []hashedPeer // without self, nearest to self first
	whole bool         // small network: every peer keeps every cell

	hashes []words // of peers
}

type hashedPeer struct {
	id   peer.ID
	hash [sha256.Size]byte
}

func newPeerTable(self peer.ID, others []peer.ID, whole bool) *peerTable {
	n := &peerTable{self: hashedPeer{self, sha256.Sum256([]byte(self))}, whole: whole}
	for _, id := range others {
		if id != self {
			n.peers = append(n.peers, hashedPeer{id, sha256.Sum256([]byte(id))})
		}
	}
	slices.SortFunc(n.peers, func(a, b hashedPeer) int {
		x, y := xor(n.self.hash, a.hash), xor(n.self.hash, b.hash)
		return bytes.Compare(x[:], y[:])
	})
	n.peers = slices.CompactFunc(n.peers, func(a, b hashedPeer) bool { return a.id == b.id })
	n.hashes = make([]words, len(n.peers))
	for i := range n.peers {
		n.hashes[i] = wordsOf(n.peers[i].hash)
	}
	return n
}

func xor(a, b [sha256.Size]byte) distance {
	var d distance
	for i := range d {
		d[i] = a[i] ^ b[i]
	}
	return d
}

// words are the 256 bits of a hash or of a distance, highest bits first. A view compares every cell with every peer of the table,
// so these comparisons are much of its cost.
type words [sha256.Size / 8]uint64

func wordsOf(b [sha256.Size]byte) (w words) {
	for i := range w {
		w[i] = binary.BigEndian.Uint64(b[8*i:])
	}
	return w
}

func (w words) xor(v words) words {
	for i := range w {
		w[i] ^= v[i]
	}
	return w
}

func (w words) less(v words) bool {
	for i := range w {
		if w[i] != v[i] {
			return w[i] < v[i]
		}
	}
	return false
}

// radius is the distance from a key within which a peer is responsible for it.
type radius struct {
	target   words
	farthest words
	full     bool // the radius covers Replicas keepers; without full it covers every peer
}

// covers reports whether a peer is responsible for the key. The peer need not be in the table.
func (r *radius) covers(hash [sha256.Size]byte) bool { return r.coversWords(wordsOf(hash)) }

func (r *radius) coversWords(hash words) bool {
	return !r.full || !r.farthest.less(r.target.xor(hash))
}

// radiusOf returns the radius of a routing key. It reports false for a cell of other keepers.
func (n *peerTable) radiusOf(key string) (radius, bool) {
	r := radius{target: wordsOf(sha256.Sum256([]byte(key)))}
	own := r.target.xor(wordsOf(n.self.hash))
	var closest [Replicas + 1]words // the first known, nearest first, with room for one more
	closest[0] = own
	known, closer := 1, 0
	for i := range n.hashes {
		d := r.target.xor(n.hashes[i])
		if d.less(own) {
			if closer++; closer == Replicas {
				return radius{}, false
			}
		}
		if known == Replicas && closest[known-1].less(d) {
			continue
		}
		at := known
		for ; at > 0 && d.less(closest[at-1]); at-- {
			closest[at] = closest[at-1]
		}
		closest[at] = d
		known = min(known+1, Replicas)
	}
	if known == Replicas {
		r.full, r.farthest = true, closest[known-1]
	}
	return r, true
}

// closer counts the peers closer than self to a routing key, up to most.
func (n *peerTable) closer(key string, most int) int {
	target := wordsOf(sha256.Sum256([]byte(key)))
	own, found := target.xor(wordsOf(n.self.hash)), 0
	for i := range n.hashes {
		if target.xor(n.hashes[i]).less(own) {
			if found++; found == most {
				break
			}
		}
	}
	return found
}

// keepers returns the other peers within a radius.
func (n *peerTable) keepers(r *radius) []peer.ID {
	var ids []peer.ID
	for i := range n.peers {
		if r.covers(n.peers[i].hash) {
			ids = append(ids, n.peers[i].id)
		}
	}
	return ids
}

// ids returns all peers of the table, nearest to self first.
func (n *peerTable) ids() []peer.ID {
	ids := make([]peer.ID, len(n.peers))
	for i := range n.peers {
		ids[i] = n.peers[i].id
	}
	return ids
}
