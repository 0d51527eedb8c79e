package keeper

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/libp2p/go-libp2p/core/peer"
)

// standings remembers how keepers answered: how fast, and whether they are to be asked
// last for a while. It forgets the peers that were not asked for the longest time. It is
// safe for concurrent use.
type standings struct {
	mu    sync.Mutex // guards known and what it points to
	known *simplelru.LRU[peer.ID, *standing]
}

// standing is one peer's track record.
type standing struct {
	pace  pace
	shunt time.Time // asked last until then
}

// pace estimates how long a peer takes: smoothed mean and deviation with the gains of
// RFC 6298. Mean plus two deviations stands for the 95th percentile. The zero value knows nothing.
type pace struct {
	mean, deviation time.Duration
	known           bool
}

func (p *pace) observe(took time.Duration) {
	if !p.known {
		*p = pace{mean: took, deviation: took / 2, known: true}
		return
	}
	p.deviation += ((p.mean - took).Abs() - p.deviation) / 4
	p.mean += (took - p.mean) / 8
}

// patience is how long to wait for the peer before another one is asked as well.
func (p *pace) patience() time.Duration {
	if !p.known {
		return hedgeAfter
	}
	return min(max(p.mean+2*p.deviation, hedgeLeast), hedgeMost)
}

func newStandings() *standings {
	known, err := simplelru.NewLRU[peer.ID, *standing](peersRemembered, nil)
	if err != nil {
		panic("keeper: " + err.Error()) // impossible: the size is a positive constant
	}
	return &standings{known: known}
}

// with changes a peer's record under the lock.
func (s *standings) with(id peer.ID, change func(*standing)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.known.Get(id)
	if !ok {
		st = new(standing)
		s.known.Add(id, st)
	}
	change(st)
}

// answered notes how long an answer took.
func (s *standings) answered(id peer.ID, took time.Duration) {
	s.with(id, func(st *standing) { st.pace.observe(took) })
}

// avoid has a peer asked last until a time.
func (s *standings) avoid(id peer.ID, until time.Time) {
	s.with(id, func(st *standing) {
		if st.shunt.Before(until) {
			st.shunt = until
		}
	})
}

// avoided reports whether a peer is to be asked last.
func (s *standings) avoided(id peer.ID, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.known.Peek(id)
	return ok && now.Before(st.shunt)
}

// patience is the longest wait that any of the peers deserves.
func (s *standings) patience(ids []peer.ID) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait := hedgeLeast
	for _, id := range ids {
		var p pace
		if st, ok := s.known.Peek(id); ok {
			p = st.pace
		}
		wait = max(wait, p.patience())
	}
	return wait
}
