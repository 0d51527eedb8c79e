package rpc

import (
	"sync"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
)

// Limiter bounds the inbound streams, in total and per peer. It is safe for concurrent use.
type Limiter struct {
	total, perPeer int

	active sync.WaitGroup // one for each stream

	mu      sync.Mutex // guards the fields below, and additions to active
	streams map[network.Stream]peer.ID
	ofPeer  map[peer.ID]int
	closed  bool
}

// NewLimiter returns a Limiter of total streams, and perPeer streams of one peer.
func NewLimiter(total, perPeer int) *Limiter {
	return &Limiter{
		total: total, perPeer: perPeer,
		streams: make(map[network.Stream]peer.ID), ofPeer: make(map[peer.ID]int),
	}
}

// Enter counts a stream. It reports false at a limit and after Close. The caller must call
// Leave for a stream that entered.
func (l *Limiter) Enter(s network.Stream) bool {
	id := s.Conn().RemotePeer()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.streams) >= l.total || l.ofPeer[id] >= l.perPeer {
		return false
	}
	l.streams[s] = id
	l.ofPeer[id]++
	l.active.Add(1)
	return true
}

// Leave ends the count of a stream. Further calls for the same stream have no effect.
func (l *Limiter) Leave(s network.Stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, ok := l.streams[s]
	if !ok {
		return
	}
	delete(l.streams, s)
	if l.ofPeer[id]--; l.ofPeer[id] == 0 {
		delete(l.ofPeer, id)
	}
	l.active.Done()
}

// Close refuses new streams, resets the active ones and waits until all have left.
func (l *Limiter) Close() {
	l.mu.Lock()
	l.closed = true
	for s := range l.streams {
		_ = s.Reset()
	}
	l.mu.Unlock()
	l.active.Wait()
}
