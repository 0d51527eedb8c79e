package keeper

import (
	"bytes"
	"crypto/sha256"
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
	return n
}

func xor(a, b [sha256.Size]byte) distance {
	var d distance
	for i := range d {
		d[i] = a[i] ^ b[i]
	}
	return d
}

// radius is the distance from a key within which a peer is responsible for it.
type radius struct {
	target   [sha256.Size]byte
	farthest distance
	full     bool // the radius covers Replicas keepers; without full it covers every peer
}

// covers reports whether a peer is responsible for the key. The peer need not be in the table.
func (r *radius) covers(hash [sha256.Size]byte) bool {
	if !r.full {
		return true
	}
	d := xor(r.target, hash)
	return bytes.Compare(d[:], r.farthest[:]) <= 0
}

// radiusOf returns the radius of a routing key. It reports false for a cell of other keepers.
func (n *peerTable) radiusOf(key string) (radius, bool) {
	r := radius{target: sha256.Sum256([]byte(key))}
	own := xor(r.target, n.self.hash)
	closest := make([]distance, 1, Replicas+1)
	closest[0] = own
	closer := 0
	for i := range n.peers {
		d := xor(r.target, n.peers[i].hash)
		if bytes.Compare(d[:], own[:]) < 0 {
			if closer++; closer == Replicas {
				return radius{}, false
			}
		}
		if len(closest) == Replicas && bytes.Compare(d[:], closest[Replicas-1][:]) > 0 {
			continue
		}
		at, _ := slices.BinarySearchFunc(closest, d, func(a, b distance) int { return bytes.Compare(a[:], b[:]) })
		closest = slices.Insert(closest, at, d)
		closest = closest[:min(len(closest), Replicas)]
	}
	if len(closest) == Replicas {
		r.full, r.farthest = true, closest[Replicas-1]
	}
	return r, true
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
