package keep

import (
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
}

// Peer is a peer with the hash of its id.
type Peer struct {
	Id   peer.ID
	Hash Words
}

// NewTable returns a table of other peers. Whole: every peer keeps every cell.
func NewTable(self peer.ID, others []peer.ID, whole bool) *Table {
	n := &Table{self: peerOf(self), Whole: whole}
	for _, id := range others {
		if id != self {
			n.Peers = append(n.Peers, peerOf(id))
		}
	}
	slices.SortFunc(n.Peers, func(a, b Peer) int {
		return n.self.Hash.xor(a.Hash).compare(n.self.Hash.xor(b.Hash))
	})
	n.Peers = slices.CompactFunc(n.Peers, func(a, b Peer) bool { return a.Id == b.Id })
	return n
}

func peerOf(id peer.ID) Peer { return Peer{id, HashOf(string(id))} }

// Words are the 256 bits of a hash or of a distance, highest bits first. The distance is the XOR metric of Kademlia (Maymounkov and
// Mazières, 2002) between hashed keys, as in kad-dht. A view compares every cell with every peer of the table, so these comparisons
// are much of its cost.
type Words [sha256.Size / 8]uint64

// HashOf returns the hash of a routing key or a peer id.
func HashOf(key string) (w Words) {
	b := sha256.Sum256([]byte(key))
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

func (w Words) compare(v Words) int { return slices.Compare(w[:], v[:]) }

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
func (r *Radius) Covers(hash Words) bool { return !r.full || !r.farthest.less(r.target.xor(hash)) }

// RadiusOf returns the radius of a routing key. It reports false for a cell of other keepers.
func (n *Table) RadiusOf(key string) (Radius, bool) {
	r := Radius{target: HashOf(key)}
	own := r.target.xor(n.self.Hash)
	var closest [Replicas + 1]Words // the first known, nearest first, with room for one more
	closest[0] = own
	known, closer := 1, 0
	for i := range n.Peers {
		d := r.target.xor(n.Peers[i].Hash)
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
	target := HashOf(key)
	own, found := target.xor(n.self.Hash), 0
	for i := range n.Peers {
		if target.xor(n.Peers[i].Hash).less(own) {
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
