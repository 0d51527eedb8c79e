package keeper

import (
	"bytes"
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

const (
	regionTTL       = time.Minute // a lookup's answer is used for other keys; much less than a placement is
	maxRegions      = 512         // answers remembered
	bitsOfDistances = 8 * sha256.Size
)

// region is what a lookup tells beyond its own key. The answer being the closest peers to
// its target, every other peer of the network is at least as far from the target as the
// farthest of them. For another key that settles who is closest, too, if no peer that far
// from the target can be nearer to the key than the known ones are. So ten thousand keys
// cost as many lookups as the network has regions of a dozen peers, not ten thousand.
type region struct {
	target [sha256.Size]byte
	radius distance // from target to the farthest of peers
	peers  []hashedPeer
	until  time.Time
}

func newRegion(key string, answer []peer.ID, until time.Time) region {
	g := region{target: sha256.Sum256([]byte(key)), peers: make([]hashedPeer, len(answer)), until: until}
	for i, id := range answer {
		g.peers[i] = hashedPeer{id, sha256.Sum256([]byte(id))}
		if d := xor(g.target, g.peers[i].hash); bytes.Compare(d[:], g.radius[:]) > 0 {
			g.radius = d
		}
	}
	return g
}

// settles reports whether the n closest peers to a key, self counted, are among the
// region's and self in every network in which the region's answer is right.
func (g *region) settles(key, self [sha256.Size]byte, n int) bool {
	apart := xor(g.target, key)
	if bytes.Compare(apart[:], g.radius[:]) >= 0 || len(g.peers)+1 < n {
		return false // a peer may sit on the key itself
	}
	away := make([]distance, 0, len(g.peers)+1)
	away = append(away, xor(key, self))
	for i := range g.peers {
		away = append(away, xor(key, g.peers[i].hash))
	}
	slices.SortFunc(away, func(a, b distance) int { return bytes.Compare(a[:], b[:]) })
	nearest := leastBeyond(g.radius, apart)
	return bytes.Compare(away[n-1][:], nearest[:]) < 0
}

// leastBeyond is the least x XOR apart of all x above or equal to radius: how near to a key
// a peer can be that is that far from another, the two keys being apart. From the highest
// bit on, x must have the ones of radius, until it can exceed radius by having a one of
// apart instead of a zero; from there on it may have all bits of apart.
func leastBeyond(radius, apart distance) distance {
	var least distance
	for i := range bitsOfDistances {
		mask := byte(0x80) >> (i % 8)
		of, here := radius[i/8]&mask, apart[i/8]&mask
		switch {
		case of != 0 && here == 0:
			least[i/8] |= mask
		case of == 0 && here != 0:
			return least
		}
	}
	return least
}

// regions are the latest lookups' answers. It is safe for concurrent use.
type regions struct {
	mu    sync.Mutex // guards known
	known []region   // the oldest first
}

// add remembers a whole answer of a lookup.
func (r *regions) add(g region) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= maxRegions {
		r.known = slices.Delete(r.known, 0, 1)
	}
	r.known = append(r.known, g)
}

// around gives peers among which, and self, are the Replicas closest to a key, if an
// earlier answer tells.
func (r *regions) around(key string, self peer.ID, now time.Time) ([]peer.ID, bool) {
	at, own := sha256.Sum256([]byte(key)), sha256.Sum256([]byte(self))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = slices.DeleteFunc(r.known, func(g region) bool { return !now.Before(g.until) })
	for i := range r.known {
		if g := &r.known[i]; g.settles(at, own, Replicas) {
			ids := make([]peer.ID, len(g.peers))
			for j := range g.peers {
				ids[j] = g.peers[j].id
			}
			return ids, true
		}
	}
	return nil, false
}

// forget drops the answers with a peer in them: it may be gone.
func (r *regions) forget(id peer.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = slices.DeleteFunc(r.known, func(g region) bool {
		return slices.ContainsFunc(g.peers, func(n hashedPeer) bool { return n.id == id })
	})
}

// findClosest looks a key up, unless an earlier answer tells who is closest to it.
func (p *closestCache) findClosest(key string) (others []peer.ID, err error) {
	if others, ok := p.regions.around(key, p.k.Self, p.k.Now()); ok {
		return others, nil
	}
	ctx, end, err := p.k.begin(p.k.ctx, "lookup", p.k.Limits.Lookup)
	if err != nil {
		return nil, err
	}
	others, err = p.k.Router.Closest(ctx, key)
	end(err)
	if err == nil && len(others) == Network {
		p.regions.add(newRegion(key, others, p.k.Now().Add(regionTTL)))
	}
	return others, err
}
