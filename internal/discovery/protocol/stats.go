package protocol

import (
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/platform/bounded"
)

// statsCache holds the response times and failures of keepers. It drops the least recently
// used peers. It is safe for concurrent use.
type statsCache struct {
	mu    sync.Mutex // guards peers and the values
	peers *lru.Cache[peer.ID, *peerStats]
}

// peerStats is the history of one peer.
type peerStats struct {
	rtt        rttEstimator
	avoidUntil time.Time // the peer is last in every order until then
	misses     int       // requests without an answer, since the last answer or other cause to avoid it
	lacked     int       // outdated answers without a long pause between them
}

// rttEstimator estimates the response time of a peer: smoothed mean and deviation with the
// gains of RFC 6298. Mean plus two deviations approximates the 95th percentile. The zero value
// has no observation.
type rttEstimator struct {
	mean, deviation time.Duration
	known           bool
}

func (e *rttEstimator) observe(took time.Duration) {
	if !e.known {
		*e = rttEstimator{mean: took, deviation: took / 2, known: true}
		return
	}
	e.deviation += ((e.mean - took).Abs() - e.deviation) / 4
	e.mean += (took - e.mean) / 8
}

// HedgeDelay returns the wait for this peer before the request goes to another peer too.
func (e *rttEstimator) hedgeDelay() time.Duration {
	if !e.known {
		return hedgeAfter
	}
	return min(max(e.mean+2*e.deviation, hedgeMin), hedgeMax)
}

func newStatsCache() *statsCache {
	return &statsCache{peers: bounded.Shared[peer.ID, *peerStats](maxPeerStats)}
}

// update changes the stats of a peer under the lock.
func (c *statsCache) update(id peer.ID, change func(*peerStats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.peers.Get(id)
	if !ok {
		s = new(peerStats)
		c.peers.Add(id, s)
	}
	change(s)
}

// observe adds the time of one answer, which ends a silence.
func (c *statsCache) observe(id peer.ID, took time.Duration) {
	c.update(id, func(s *peerStats) {
		s.rtt.observe(took)
		if s.misses > 0 {
			s.misses, s.avoidUntil = 0, time.Time{}
		}
	})
}

// miss puts a peer without an answer last in every order, for longer after each further one.
func (c *statsCache) miss(id peer.ID, now time.Time) {
	c.update(id, func(s *peerStats) {
		if until := now.Add(avoidFor << min(s.misses, avoidDoubled)); s.avoidUntil.Before(until) {
			s.avoidUntil = until
		}
		s.misses++
	})
}

// avoid puts a peer last in every order until the given time.
func (c *statsCache) avoid(id peer.ID, until time.Time) {
	c.update(id, func(s *peerStats) {
		if s.avoidUntil.Before(until) {
			s.avoidUntil = until
		}
		s.misses = 0
	})
}

// outdated puts a peer last whose answer lacked what others had, for longer each time without a long pause.
func (c *statsCache) outdated(id peer.ID, now time.Time) {
	c.update(id, func(s *peerStats) {
		if now.Sub(s.avoidUntil) > distrustFor {
			s.lacked = 0
		}
		if until := now.Add(avoidFor << min(s.lacked, lackDoubled)); s.avoidUntil.Before(until) {
			s.avoidUntil = until
		}
		s.misses = 0
		s.lacked++
	})
}

// avoided reports whether a peer should be asked last.
func (c *statsCache) avoided(id peer.ID, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.peers.Peek(id)
	return ok && now.Before(s.avoidUntil)
}

// HedgeDelay returns the maximum hedge delay of some peers.
func (c *statsCache) hedgeDelay(ids []peer.ID) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	delay := hedgeMin
	for _, id := range ids {
		var e rttEstimator
		if s, ok := c.peers.Peek(id); ok {
			e = s.rtt
		}
		delay = max(delay, e.hedgeDelay())
	}
	return delay
}
