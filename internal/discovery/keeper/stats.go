package keeper

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/libp2p/go-libp2p/core/peer"
)

// statsCache remembers how keepers answered: how fast, and whether they are to be asked
// last for a while. It forgets the peers that were not asked for the longest time. It is
// safe for concurrent use.
type statsCache struct {
	mu    sync.Mutex // guards known and what it points to
	peers *simplelru.LRU[peer.ID, *peerStats]
}

// peerStats is one peer's track record.
type peerStats struct {
	rtt        rttEstimator
	avoidUntil time.Time // asked last until then
}

// rtt estimates how long a peer takes: smoothed mean and deviation with the gains of
// RFC 6298. Mean plus two deviations stands for the 95th percentile. The zero value knows nothing.
type rttEstimator struct {
	mean, deviation time.Duration
	known           bool
}

func (p *rttEstimator) observe(took time.Duration) {
	if !p.known {
		*p = rttEstimator{mean: took, deviation: took / 2, known: true}
		return
	}
	p.deviation += ((p.mean - took).Abs() - p.deviation) / 4
	p.mean += (took - p.mean) / 8
}

// hedgeDelay is how long to wait for the peer before another one is asked as well.
func (p *rttEstimator) hedgeDelay() time.Duration {
	if !p.known {
		return hedgeAfter
	}
	return min(max(p.mean+2*p.deviation, hedgeMin), hedgeMax)
}

func newStatsCache() *statsCache {
	known, err := simplelru.NewLRU[peer.ID, *peerStats](maxPeerStats, nil)
	if err != nil {
		panic("keeper: " + err.Error()) // impossible: the size is a positive constant
	}
	return &statsCache{peers: known}
}

// sharedWithte changes a peer's record under the lock.
func (s *statsCache) update(id peer.ID, change func(*peerStats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.peers.Get(id)
	if !ok {
		st = new(peerStats)
		s.peers.Add(id, st)
	}
	change(st)
}

// observe notes how long an answer took.
func (s *statsCache) observe(id peer.ID, took time.Duration) {
	s.update(id, func(st *peerStats) { st.rtt.observe(took) })
}

// avoid has a peer asked last until a time.
func (s *statsCache) avoid(id peer.ID, until time.Time) {
	s.update(id, func(st *peerStats) {
		if st.avoidUntil.Before(until) {
			st.avoidUntil = until
		}
	})
}

// avoided reports whether a peer is to be asked last.
func (s *statsCache) avoided(id peer.ID, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.peers.Peek(id)
	return ok && now.Before(st.avoidUntil)
}

// hedgeDelay is the longest wait that any of the peers deserves.
func (s *statsCache) hedgeDelay(ids []peer.ID) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait := hedgeMin
	for _, id := range ids {
		var p rttEstimator
		if st, ok := s.peers.Peek(id); ok {
			p = st.rtt
		}
		wait = max(wait, p.hedgeDelay())
	}
	return wait
}
