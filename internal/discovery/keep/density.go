package keep

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multihash"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
)

const (
	// implausible is the chance of so many peers so close to a key, below which their ids were probably chosen.
	implausible = 1e-6
	// regionPeers are in the region of a key by the estimated size. Its peers keep a cell whose Replicas closest peers were probably chosen.
	regionPeers     = 20
	acceptedRegions = 2 // a peer accepts records within so many regions: others estimate another size
	regionTargets   = 4 // lookups within a region
	targetTries     = 1 << 18
	maxRegion       = 2 * regionPeers

	sizeSamples = 64 // lookups
	leastSample = 8  // of them, for a median
	surveyed    = 16 // of them, for a region
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

// away returns the distance of a peer from a key.
func away(key string, id peer.ID) Words { return HashOf(key).xor(HashOf(string(id))) }

// peersAt estimates the number of peers from the distance of the nth closest one to a key.
func peersAt(distance Words, n int) float64 { return float64(n-1) / distance.share() }

// median returns the median of the sizes that lookups of other keys than one show; 0 with less than least of them.
func (s *sizes) median(key string, least int, now time.Time) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.samples = slices.DeleteFunc(s.samples, func(x sizeSample) bool { return !now.Before(x.until) })
	known := make([]float64, 0, len(s.samples))
	for _, x := range s.samples {
		if x.key != key {
			known = append(known, x.peers)
		}
	}
	if slices.Sort(known); len(known) < least {
		return 0
	}
	return known[len(known)/2]
}

// add notes the size that a lookup shows.
func (s *sizes) add(key string, peers float64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.samples = slices.DeleteFunc(s.samples, func(x sizeSample) bool { return x.key == key })
	s.samples = append(s.samples[max(0, len(s.samples)-sizeSamples+1):], sizeSample{key, peers, now.Add(regionTTL)})
}

// crowded reports whether some of the peers closest to a key, at the distances near, are closer than chance explains in a network of the size
// that other keys show: the larger of their median and own, the estimate by this peer's neighbours, since a network may grow.
func (s *sizes) crowded(key string, near []Words, own float64, now time.Time) (is bool) {
	size := max(own, s.median(key, leastSample, now))
	s.add(key, peersAt(near[Replicas-1], Replicas), now)
	for i, d := range near {
		is = is || chanceOf(i+1, size*d.share()) < implausible
	}
	return is
}

// chanceOf returns the chance of n peers or more where a mean is expected (Poisson).
func chanceOf(n int, mean float64) float64 {
	fewer, term := 0.0, math.Exp(-mean)
	for k := range n {
		fewer += term
		term *= mean / float64(k+1)
	}
	return 1 - fewer
}

// sizeBy estimates the size of the network by the neighbours of a peer, nearest first; 0 with few.
func sizeBy(self Words, neighbours []Peer) float64 {
	if len(neighbours) < Network {
		return 0
	}
	return peersAt(self.xor(neighbours[Network-1].Hash), Network)
}

// guarded returns the keepers of a key. If the closest peers were probably chosen, the others of the region are among them.
func (p *Closest) guarded(key string, set *Set, all []peer.ID) *Set {
	own := sizeBy(HashOf(string(p.Self)), NewTable(p.Self, p.Router.Nearby(string(p.Self), Network), false).Peers)
	if all = Nearest(key, all, Network); len(all) < Replicas || own == 0 {
		return set
	}
	near := make([]Words, len(all))
	for i, id := range all {
		near[i] = away(key, id)
	}
	if !p.sizes.crowded(key, near, own, p.Now()) {
		return set
	}
	size := p.sizes.median(key, surveyed, p.Now())
	if size == 0 {
		p.survey()
		size = cmp.Or(p.sizes.median(key, leastSample, p.Now()), own)
	}
	return p.around(key, set, size)
}

// survey looks up random keys: the neighbours of a peer close to the chosen ones say nothing of the size of the network.
func (p *Closest) survey() {
	seed := uint64(p.Draw(math.MaxInt))
	protocol.Bounded(surveyed, surveyed, func(i int) {
		key := drawnKey(seed, i)
		if near, err := p.findClosest(key); err == nil && len(near) >= Replicas {
			p.sizes.add(key, peersAt(away(key, Nearest(key, near, Replicas)[Replicas-1]), Replicas), p.Now())
		}
	})
}

// around returns a set of chosen keepers with others, from the region of the key by the size of the network. Hundreds of peers that somebody
// put next to the key hide nobody there: they are closer to the key than to random targets around it.
func (p *Closest) around(key string, set *Set, size float64) *Set {
	at, reach := HashOf(key), regionPeers/size
	targets := targetsAround(at, reach, p.Draw)
	found := make([][]peer.ID, len(targets))
	protocol.Bounded(len(targets), len(targets), func(i int) {
		near, _ := p.findClosest(targets[i]) // the others serve without it
		if near = slices.Clone(near); p.Router.Serving() {
			near = append(near, p.Self)
		}
		target := HashOf(targets[i])
		found[i] = slices.DeleteFunc(near, func(id peer.ID) bool {
			hash := HashOf(string(id))
			return !hash.xor(target).less(hash.xor(at)) || hash.xor(at).share() > reach || set.Has(id)
		})
	})
	var calm []peer.ID // where no more peers are than chance explains
	for i, x := range targets {
		far := math.Exp2(-float64(bits.LeadingZeros64(HashOf(x).xor(at)[0])))
		if chanceOf(len(found[i]), size*(min(far, reach)-far/2)) >= implausible {
			calm = append(calm, found[i]...)
		}
	}
	if len(calm) == 0 {
		calm = slices.Concat(found...)
	}
	slices.Sort(calm)
	calm = slices.Compact(calm)
	p.Draw.Mix(calm)
	calm = calm[:min(len(calm), maxRegion)]
	far := func(id peer.ID) bool { return away(key, id).share() > reach/2 }
	outer := slices.DeleteFunc(slices.Clone(calm), far)
	inner := len(outer)
	outer = append(outer, slices.DeleteFunc(calm, func(id peer.ID) bool { return !far(id) })...)
	return &Set{Peers: set.Peers, Id: "chosen " + NewSet(slices.Concat(set.Peers, outer), nil).Id, Chosen: true, Outer: outer, Inner: inner}
}

// targetsAround draws keys in a region: one in its outer half, one in the outer half of the rest, and so on. They lie as far
// apart as most of its peers.
func targetsAround(at Words, reach float64, draw func(int) int) (targets []string) {
	var drawn [regionTargets]string
	first := max(0, -math.Ilogb(reach)-1) // zeros before the first bit of the farthest distance
	seed := uint64(draw(math.MaxInt))
	for try := 0; try < targetTries && len(targets) < regionTargets; try++ {
		key := drawnKey(seed, try)
		if depth := bits.LeadingZeros64(HashOf(key).xor(at)[0]) - first; depth >= 0 && depth < regionTargets && drawn[depth] == "" {
			drawn[depth] = key
			targets = append(targets, key)
		}
	}
	return targets
}

// drawnKey returns one of the keys of a draw. It looks like the key of a cell.
func drawnKey(seed uint64, n int) string {
	drawn := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, seed), uint64(n))
	sum, _ := multihash.Sum(drawn, multihash.SHA2_256, -1) // never fails: the library registers sha2-256
	return string(sum)
}
