package route

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"
)

// Table is a copy of the routing table. From it SYNC derives, without any request, which peers
// keep which cells. It is immutable.
//
// A peer among the Replicas closest to a key in the network is so in every routing table, because
// tables leave peers out and invent none. So all keepers of a cell count themselves in, and a peer
// missing from a table costs an extra comparison, not a record.
type Table struct {
	self  Peer
	Peers []Peer // without self, nearest to self first
	Whole bool   // small network: every peer keeps every cell

	hashes []Words // of peers
}

// Peer is a peer with the hash of its id.
type Peer struct {
	Id   peer.ID
	Hash [sha256.Size]byte
}

// NewTable returns a table of other peers. Whole: every peer keeps every cell.
func NewTable(self peer.ID, others []peer.ID, whole bool) *Table {
	n := &Table{self: Peer{self, sha256.Sum256([]byte(self))}, Whole: whole}
	for _, id := range others {
		if id != self {
			n.Peers = append(n.Peers, Peer{id, sha256.Sum256([]byte(id))})
		}
	}
	slices.SortFunc(n.Peers, func(a, b Peer) int {
		x, y := xor(n.self.Hash, a.Hash), xor(n.self.Hash, b.Hash)
		return bytes.Compare(x[:], y[:])
	})
	n.Peers = slices.CompactFunc(n.Peers, func(a, b Peer) bool { return a.Id == b.Id })
	n.hashes = make([]Words, len(n.Peers))
	for i := range n.Peers {
		n.hashes[i] = WordsOf(n.Peers[i].Hash)
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

// Words are the 256 bits of a hash or of a distance, highest bits first. A view compares every cell with every peer of the table,
// so these comparisons are much of its cost.
type Words [sha256.Size / 8]uint64

// WordsOf returns the words of a hash.
func WordsOf(b [sha256.Size]byte) (w Words) {
	for i := range w {
		w[i] = binary.BigEndian.Uint64(b[8*i:])
	}
	return w
}

func (w Words) xor(v Words) Words {
	for i := range w {
		w[i] ^= v[i]
	}
	return w
}

func (w Words) less(v Words) bool {
	for i := range w {
		if w[i] != v[i] {
			return w[i] < v[i]
		}
	}
	return false
}

// Radius is the distance from a key within which a peer is responsible for it.
type Radius struct {
	target   Words
	farthest Words
	full     bool // the radius covers Replicas keepers; without full it covers every peer
}

// Covers reports whether a peer is responsible for the key. The peer need not be in the table.
func (r *Radius) Covers(hash [sha256.Size]byte) bool { return r.CoversWords(WordsOf(hash)) }

// CoversWords is Covers for the words of a hash.
func (r *Radius) CoversWords(hash Words) bool {
	return !r.full || !r.farthest.less(r.target.xor(hash))
}

// RadiusOf returns the radius of a routing key. It reports false for a cell of other keepers.
func (n *Table) RadiusOf(key string) (Radius, bool) {
	r := Radius{target: WordsOf(sha256.Sum256([]byte(key)))}
	own := r.target.xor(WordsOf(n.self.Hash))
	var closest [Replicas + 1]Words // the first known, nearest first, with room for one more
	closest[0] = own
	known, closer := 1, 0
	for i := range n.hashes {
		d := r.target.xor(n.hashes[i])
		if d.less(own) {
			if closer++; closer == Replicas {
				return Radius{}, false
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
func (n *Table) closer(key string, most int) int {
	target := WordsOf(sha256.Sum256([]byte(key)))
	own, found := target.xor(WordsOf(n.self.Hash)), 0
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
func (n *Table) keepers(r *Radius) []peer.ID {
	var ids []peer.ID
	for i := range n.Peers {
		if r.Covers(n.Peers[i].Hash) {
			ids = append(ids, n.Peers[i].Id)
		}
	}
	return ids
}

// Ids returns all peers of the table, nearest to self first.
func (n *Table) Ids() []peer.ID {
	ids := make([]peer.ID, len(n.Peers))
	for i := range n.Peers {
		ids[i] = n.Peers[i].Id
	}
	return ids
}
