package keep

import (
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

const (
	regionTTL       = time.Minute // much less than the lifetime of a keeper set
	maxRegions      = 512
	bitsOfDistances = 64 * len(Words{})
)

// region is the knowledge of one lookup about other keys. The lookup returned the closest peers to
// its target, so every other peer is at least as far from the target as the farthest of them. For
// another key this decides the closest peers too, if no peer at that distance from the target can
// be nearer to the key than the known peers. So ten thousand keys cost one lookup for each region
// of a dozen peers instead of ten thousand lookups.
type region struct {
	target Words // hash of its key
	radius Words // from target to the farthest peer
	peers  []Peer
	until  time.Time
}

func newRegion(key string, answer []peer.ID, until time.Time) region {
	g := region{target: HashOf(key), peers: make([]Peer, len(answer)), until: until}
	for i, id := range answer {
		g.peers[i] = peerOf(id)
		if d := g.target.xor(g.peers[i].Hash); g.radius.less(d) {
			g.radius = d
		}
	}
	return g
}

// settles reports whether the n closest peers to a key, self included, are among the region's
// peers and self, in every network where the lookup's result is right.
func (g *region) settles(key, self Words, n int) bool {
	apart := g.target.xor(key)
	if !apart.less(g.radius) || len(g.peers)+1 < n {
		return false // an unknown peer may have the key itself as its hash
	}
	away := make([]Words, 0, len(g.peers)+1)
	away = append(away, key.xor(self))
	for i := range g.peers {
		away = append(away, key.xor(g.peers[i].Hash))
	}
	slices.SortFunc(away, Words.compare)
	return away[n-1].less(leastBeyond(g.radius, apart))
}

// leastBeyond returns the minimum of x XOR apart over all x at or above radius: the smallest
// distance between a key and a peer at distance radius or more from another key, with apart
// between the keys. From the highest bit on, x must have the ones of radius until it exceeds
// radius by a one of apart in place of a zero. The remaining bits of x can equal apart.
func leastBeyond(radius, apart Words) (least Words) {
	for i := range bitsOfDistances {
		mask := uint64(1) << (63 - i%64)
		of, here := radius[i/64]&mask, apart[i/64]&mask
		switch {
		case of != 0 && here == 0:
			least[i/64] |= mask
		case of == 0 && here != 0:
			return least
		}
	}
	return least
}

// regions are the results of recent lookups. They are safe for concurrent use.
type regions struct {
	mu    sync.Mutex // guards known
	known []region   // oldest first
}

// add adds the result of a complete lookup.
func (r *regions) add(g region) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= maxRegions {
		r.known = slices.Delete(r.known, 0, 1)
	}
	r.known = append(r.known, g)
}

// around returns peers that include, together with self, the Replicas closest to a key, if a
// cached lookup decides them.
func (r *regions) around(key string, self peer.ID, now time.Time) ([]peer.ID, bool) {
	at, own := HashOf(key), HashOf(string(self))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = slices.DeleteFunc(r.known, func(g region) bool { return !now.Before(g.until) })
	for i := range r.known {
		if g := &r.known[i]; g.settles(at, own, Replicas) {
			ids := make([]peer.ID, len(g.peers))
			for j := range g.peers {
				ids[j] = g.peers[j].Id
			}
			return ids, true
		}
	}
	return nil, false
}

// forget removes the results with a peer that may be gone.
func (r *regions) forget(id peer.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = slices.DeleteFunc(r.known, func(g region) bool {
		return slices.ContainsFunc(g.peers, func(n Peer) bool { return n.Id == id })
	})
}

// findClosest looks a key up, unless a cached result decides its closest peers.
func (p *Closest) findClosest(key string) (others []peer.ID, err error) {
	if others, ok := p.regions.around(key, p.Self, p.Now()); ok {
		return others, nil
	}
	ctx, end, err := p.Begin(p.Context(), "lookup", p.Lookup)
	if err != nil {
		return nil, err
	}
	others, err = p.Router.Closest(ctx, key)
	end(err)
	if err == nil && len(others) == Network {
		p.regions.add(newRegion(key, others, p.Now().Add(regionTTL)))
	}
	return others, err
}
