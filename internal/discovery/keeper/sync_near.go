package keeper

import (
	"bytes"
	"crypto/sha256"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"
)

// neighbourhood is the routing table as SYNC sees it: who keeps what with whom, by what
// this peer knows without asking. It is immutable.
//
// Who is among the Replicas closest to a key in the network is so in every table, for
// tables leave peers out and add none. So all keepers of a cell count themselves in, and
// what a table leaves out costs a comparison too many, not a record.
type neighbourhood struct {
	self  neighbour
	peers []neighbour // the others, nearest to self first
	whole bool        // the network is so small that everybody keeps everything
}

type neighbour struct {
	id   peer.ID
	hash [sha256.Size]byte
}

func newNeighbourhood(self peer.ID, others []peer.ID, whole bool) *neighbourhood {
	n := &neighbourhood{self: neighbour{self, sha256.Sum256([]byte(self))}, whole: whole}
	for _, id := range others {
		if id != self {
			n.peers = append(n.peers, neighbour{id, sha256.Sum256([]byte(id))})
		}
	}
	slices.SortFunc(n.peers, func(a, b neighbour) int {
		x, y := xor(n.self.hash, a.hash), xor(n.self.hash, b.hash)
		return bytes.Compare(x[:], y[:])
	})
	n.peers = slices.CompactFunc(n.peers, func(a, b neighbour) bool { return a.id == b.id })
	return n
}

func xor(a, b [sha256.Size]byte) distance {
	var d distance
	for i := range d {
		d[i] = a[i] ^ b[i]
	}
	return d
}

// reach is how far from a key its keepers are.
type reach struct {
	target   [sha256.Size]byte
	farthest distance
	full     bool // there are Replicas of them; otherwise everybody is one
}

// has reports whether a peer keeps the key, be it in the table or not.
func (r *reach) has(hash [sha256.Size]byte) bool {
	if !r.full {
		return true
	}
	d := xor(r.target, hash)
	return bytes.Compare(d[:], r.farthest[:]) <= 0
}

// reachOf gives the reach of a routing key, if this peer is one of its keepers.
func (n *neighbourhood) reachOf(key string) (reach, bool) {
	r := reach{target: sha256.Sum256([]byte(key))}
	own := xor(r.target, n.self.hash)
	closest := make([]distance, 1, Replicas+1)
	closest[0] = own
	closer := 0
	for i := range n.peers {
		d := xor(r.target, n.peers[i].hash)
		if bytes.Compare(d[:], own[:]) < 0 {
			if closer++; closer == Replicas {
				return reach{}, false
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

// keepers gives the other keepers within a reach.
func (n *neighbourhood) keepers(r *reach) []peer.ID {
	var ids []peer.ID
	for i := range n.peers {
		if r.has(n.peers[i].hash) {
			ids = append(ids, n.peers[i].id)
		}
	}
	return ids
}

// ids are all peers of the table, nearest to self first.
func (n *neighbourhood) ids() []peer.ID {
	ids := make([]peer.ID, len(n.peers))
	for i := range n.peers {
		ids[i] = n.peers[i].id
	}
	return ids
}
