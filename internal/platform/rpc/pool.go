package rpc

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
)

// PoolConfig configures a Pool.
type PoolConfig struct {
	Host     host.Host   // not closed by the Pool
	Protocol protocol.ID // a peer of another minor version serves it too
	Service  string      // name for the resource manager
	Format   Format      // of the responses

	CallsPerPeer int           // maximum number of requests under way to one peer; further requests wait
	IdlePerPeer  int           // maximum number of idle streams to one peer; zero closes each stream after its response
	Idle         int           // maximum number of idle streams in total
	IdleFor      time.Duration // lifetime of an idle stream: less than the server's IdleTimeout

	// Prepare returns the request to send to a peer that has the given time to answer. It may
	// return a changed copy. Zero means no deadline. Nil sends the request unchanged.
	Prepare func(req proto.Message, left time.Duration) proto.Message
}

// Pool sends requests to other peers. It is safe for concurrent use.
type Pool struct {
	config PoolConfig

	mu     sync.Mutex // guards the fields below, and the fields of peerStreams
	peers  map[peer.ID]*peerStreams
	idle   int // idle streams of all peers
	closed bool
}

// peerStreams are the client streams to one peer. It exists while it has a user or an idle stream.
type peerStreams struct {
	calls chan struct{} // semaphore of the requests under way
	users int
	idle  []*clientStream // the most recently used last
}

// clientStream belongs to one request or, while idle, to peerStreams.
type clientStream struct {
	*Stream
	reused bool        // it was idle before this request
	expiry *time.Timer // of an idle stream
}

// NewPool returns a Pool without streams.
func NewPool(c PoolConfig) *Pool {
	return &Pool{config: c, peers: make(map[peer.ID]*peerStreams)}
}

// Call sends a request to a peer and reads the response into resp. It dials the peer if
// necessary. A request whose idle stream turns out dead is sent again on a new stream, so every
// request must be safe to repeat. Errors: Unavailable and Timeout for a peer that did not
// answer, Canceled for the end of ctx, TooLarge, LimitReached and Unauthentic for a response
// that breaks the protocol.
func (p *Pool) Call(ctx context.Context, id peer.ID, req, resp proto.Message) error {
	ps := p.acquire(id)
	defer p.release(id, ps)
	select {
	case ps.calls <- struct{}{}:
		defer func() { <-ps.calls }()
	case <-ctx.Done():
		return fault.Wrap("", ctx.Err())
	}
	s := p.takeIdle(ps)
	for {
		if s == nil {
			opened, err := p.Open(ctx, id)
			if err != nil {
				return err
			}
			s = &clientStream{Stream: opened}
		}
		err := p.exchange(ctx, s.Stream, req, resp)
		if err == nil {
			p.putIdle(id, ps, s)
			return nil
		}
		_ = s.Reset()
		if !s.reused || ctx.Err() != nil || fault.KindOf(err) == fault.Unauthentic {
			return Classify(ctx, err)
		}
		p.drain(ps) // the other idle streams are at least as old and as dead
		s = nil
	}
}

// Open returns a new stream to a peer, outside the pool. The caller must close or reset it. Without a direct
// way, the stream passes through a relay, whose limits fit many requests.
func (p *Pool) Open(ctx context.Context, id peer.ID) (*Stream, error) {
	versions := Proposals(p.config.Host, id, p.config.Protocol)
	ns, err := p.config.Host.NewStream(network.WithAllowLimitedConn(ctx, p.config.Service), id, versions...)
	if err != nil {
		return nil, Classify(ctx, err)
	}
	s, err := newStream(ns, p.config.Service, p.config.Format)
	if err != nil {
		return nil, Classify(ctx, err)
	}
	return s, nil
}

// exchange sends one request and reads the response. The stream is unusable after an error.
func (p *Pool) exchange(ctx context.Context, s *Stream, req, resp proto.Message) error {
	var left time.Duration
	if deadline, ok := ctx.Deadline(); ok {
		_ = s.SetDeadline(deadline) // a transport without deadlines relies on the reset below
		left = max(time.Until(deadline), time.Millisecond)
	}
	if p.config.Prepare != nil {
		req = p.config.Prepare(req, left)
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Reset() })
	err := s.WriteMessage(req)
	if err == nil {
		err = s.ReadMessage(resp)
	}
	if !stop() && err == nil {
		err = ctx.Err() // the response arrived, but ctx reset the stream
	}
	return err
}

// acquire returns the streams of a peer and counts a user.
func (p *Pool) acquire(id peer.ID) *peerStreams {
	p.mu.Lock()
	defer p.mu.Unlock()
	ps, ok := p.peers[id]
	if !ok {
		ps = &peerStreams{calls: make(chan struct{}, p.config.CallsPerPeer)}
		p.peers[id] = ps
	}
	ps.users++
	return ps
}

func (p *Pool) release(id peer.ID, ps *peerStreams) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ps.users--
	p.removeIfUnused(id, ps)
}

func (p *Pool) removeIfUnused(id peer.ID, ps *peerStreams) {
	if ps.users == 0 && len(ps.idle) == 0 && p.peers[id] == ps {
		delete(p.peers, id)
	}
}

// takeIdle returns the most recently used idle stream, or nil.
func (p *Pool) takeIdle(ps *peerStreams) *clientStream {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(ps.idle)
	if n == 0 {
		return nil
	}
	s := ps.idle[n-1]
	ps.idle = ps.idle[:n-1]
	p.idle--
	s.expiry.Stop()
	s.reused = true
	return s
}

// putIdle keeps a stream for the next request, or closes it at a limit.
func (p *Pool) putIdle(id peer.ID, ps *peerStreams, s *clientStream) {
	p.mu.Lock()
	keep := !p.closed && p.idle < p.config.Idle && len(ps.idle) < p.config.IdlePerPeer
	if keep {
		ps.idle = append(ps.idle, s)
		p.idle++
		s.expiry = time.AfterFunc(p.config.IdleFor, func() { p.expire(id, ps, s) })
	}
	p.mu.Unlock()
	if !keep {
		_ = s.Close()
	}
}

// expire closes an idle stream at the end of its lifetime.
func (p *Pool) expire(id peer.ID, ps *peerStreams, s *clientStream) {
	p.mu.Lock()
	i := slices.Index(ps.idle, s)
	if i >= 0 {
		ps.idle = slices.Delete(ps.idle, i, i+1)
		p.idle--
		p.removeIfUnused(id, ps)
	}
	p.mu.Unlock()
	if i >= 0 {
		_ = s.Close()
	}
}

// drain resets all idle streams of a peer.
func (p *Pool) drain(ps *peerStreams) {
	p.mu.Lock()
	idle := ps.idle
	p.idle -= len(idle)
	ps.idle = nil
	p.mu.Unlock()
	for _, s := range idle {
		s.expiry.Stop()
		_ = s.Reset()
	}
}

// Close resets all idle streams and keeps none from now on. Streams in use end with their requests.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	all := slices.Collect(maps.Values(p.peers))
	clear(p.peers)
	p.mu.Unlock()
	for _, ps := range all {
		p.drain(ps)
	}
}
