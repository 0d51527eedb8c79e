package route

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

const (
	// leastExpected is the number of peers that chance puts within the distance of the farthest keeper, below which the keepers were
	// probably chosen: ten or more at an expected 1.5 come once in 300,000 keys.
	leastExpected = 1.5
	// crowdedKeepers keep a cell whose Replicas closest peers were probably chosen: some of them were not.
	crowdedKeepers = Replicas + Replicas/2

	sizeSamples = 64 // lookups
	leastSample = 8  // of them, for a median
)

// sizes estimates the number of peers of the network by how far the keepers of other keys are from these, as Sridhar et al. do ("Content
// Censorship in the InterPlanetary File System", NDSS 2024). It is safe for concurrent use.
type sizes struct {
	mu      sync.Mutex   // guards samples
	samples []sizeSample // of recent lookups, oldest first
}

type sizeSample struct {
	key   string
	peers float64
	until time.Time
}

// share is a distance as a share of the greatest one.
func (w Words) share() float64 {
	return math.Ldexp(float64(w[0]), -64) + math.Ldexp(float64(w[1]), -128)
}

// peersAt estimates the number of peers from the distance of the nth closest one to a key.
func peersAt(distance Words, n int) float64 { return float64(n-1) / distance.share() }

// crowded reports whether the keepers of a key, the farthest at a distance, are closer than chance explains in a network of the size that
// other keys show: the larger of their median and own, the estimate by this peer's neighbours, since a network may grow.
func (s *sizes) crowded(key string, farthest Words, own float64, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.samples = slices.DeleteFunc(s.samples, func(x sizeSample) bool { return x.key == key || !now.Before(x.until) })
	s.samples = s.samples[max(0, len(s.samples)-sizeSamples+1):]
	known := make([]float64, len(s.samples))
	for i, x := range s.samples {
		known[i] = x.peers
	}
	s.samples = append(s.samples, sizeSample{key, peersAt(farthest, Replicas), now.Add(regionTTL)})
	if slices.Sort(known); len(known) >= leastSample {
		own = max(own, known[len(known)/2])
	}
	return own*farthest.share() < leastExpected
}

// guarded returns the keepers of a key. If the closest peers were probably chosen, further ones are among them.
func (p *Closest) guarded(key string, set *Set, all []peer.ID) *Set {
	all = Nearest(key, all, crowdedKeepers)
	neighbours := p.Router.Nearby(string(p.Self), Network)
	if len(all) < crowdedKeepers || len(neighbours) < Network {
		return set
	}
	away := func(key string, id peer.ID) Words { return HashOf(key).xor(HashOf(string(id))) }
	own := peersAt(away(string(p.Self), neighbours[Network-1]), Network)
	if !p.sizes.crowded(key, away(key, all[Replicas-1]), own, p.Now()) {
		return set
	}
	set = NewSet(all, nil)
	set.Outer = all[Replicas:]
	return set
}
