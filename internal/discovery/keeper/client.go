package keeper

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// pool holds the client streams: a request takes an idle one or opens one, alone for its
// time, and puts it back when the answer was whole. It is safe for concurrent use.
type pool struct {
	host  host.Host
	clock func() time.Time // of the streams' deadlines: the runtime's, whatever time the records live in

	mu     sync.Mutex // guards what follows, lanes' fields included
	lanes  map[peer.ID]*lane
	idle   int // streams in all lanes
	closed bool
}

// lane are the streams to one peer. It exists while it has a user or an idle stream.
type lane struct {
	slots chan struct{} // one for each request under way
	users int
	idle  []*line // the last one was used last
}

// line is a client stream with its reader. It is owned by one request, or by its lane.
type line struct {
	stream network.Stream
	frames *frames
	kept   bool        // it was idle before this request
	expiry *time.Timer // of an idle stream
}

func newPool(h host.Host) *pool {
	return &pool{host: h, clock: time.Now, lanes: make(map[peer.ID]*lane)}
}

// call sends a request and waits for its answer, within ctx. A request that finds its idle
// stream dead is sent once more on a new one; all requests may be repeated. A refusal by
// the peer is returned as the fault it stands for, with refused set. Other errors are
// Unavailable or Timeout for a peer that did not answer, Canceled for a caller that did
// not wait, and Unauthentic for an answer against the protocol.
func (p *pool) call(ctx context.Context, id peer.ID, req *pb.Request) (_ *pb.Response, refused bool, _ error) {
	const op = "keeper.call"
	l := p.enter(id)
	defer p.leave(id, l)
	select {
	case l.slots <- struct{}{}:
		defer func() { <-l.slots }()
	case <-ctx.Done():
		return nil, false, fault.Wrap(op, ctx.Err())
	}
	c := p.take(l)
	for {
		if c == nil {
			var err error
			if c, err = p.open(ctx, id); err != nil {
				return nil, false, fault.Wrap(op, lost(ctx, err))
			}
		}
		resp, err := c.exchange(ctx, p.clock(), req)
		if err == nil {
			p.put(id, l, c)
			err = faultOf(op, resp.Refusal)
			return resp, err != nil, err
		}
		_ = c.stream.Reset()
		if !c.kept || ctx.Err() != nil || fault.KindOf(err) == fault.Unauthentic {
			return nil, false, fault.Wrap(op, lost(ctx, err))
		}
		p.drain(l) // streams as old as this one are as dead
		c = nil
	}
}

// lost tells a peer that cannot be reached from a time that is over and from nonsense.
func lost(ctx context.Context, err error) error {
	var f *fault.Error
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &f):
		return err
	case isTimeout(err):
		return fault.As("", fault.Timeout, err)
	default:
		return fault.As("", fault.Unavailable, err)
	}
}

// isTimeout reports whether a stream's deadline passed.
func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// open makes a stream to a peer, dialing it if need be.
func (p *pool) open(ctx context.Context, id peer.ID) (*line, error) {
	s, err := p.host.NewStream(ctx, id, Protocol)
	if err != nil {
		return nil, err
	}
	if err := s.Scope().SetService(service); err != nil {
		_ = s.Reset()
		return nil, fault.As("", fault.LimitReached, err)
	}
	return &line{stream: s, frames: newFrames(s, s.Scope())}, nil
}

// exchange sends one request and reads its answer. After an error the stream is of no more use.
func (c *line) exchange(ctx context.Context, now time.Time, req *pb.Request) (*pb.Response, error) {
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.stream.SetDeadline(deadline) // a transport without deadlines has the reset below
		left := min(max(deadline.Sub(now), time.Millisecond), serveMost)
		req = &pb.Request{TimeoutMs: uint32(left.Milliseconds()), Op: req.Op}
	}
	stop := context.AfterFunc(ctx, func() { _ = c.stream.Reset() })
	resp := new(pb.Response)
	err := c.frames.write(req)
	if err == nil {
		err = c.frames.read(resp, maxResponse, responseBounds())
	}
	if !stop() && err == nil {
		err = ctx.Err() // the answer came, but the stream was reset behind it
	}
	return resp, err
}

// enter gives the lane of a peer and counts its user.
func (p *pool) enter(id peer.ID) *lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, ok := p.lanes[id]
	if !ok {
		l = &lane{slots: make(chan struct{}, callsPerPeer)}
		p.lanes[id] = l
	}
	l.users++
	return l
}

func (p *pool) leave(id peer.ID, l *lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.users--
	p.dropIfEmpty(id, l)
}

func (p *pool) dropIfEmpty(id peer.ID, l *lane) {
	if l.users == 0 && len(l.idle) == 0 && p.lanes[id] == l {
		delete(p.lanes, id)
	}
}

// take gives the idle stream that was used last, or nil.
func (p *pool) take(l *lane) *line {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(l.idle)
	if n == 0 {
		return nil
	}
	c := l.idle[n-1]
	l.idle = l.idle[:n-1]
	p.idle--
	c.expiry.Stop()
	c.kept = true
	return c
}

// put keeps a stream for the next request, or closes it when there are enough.
func (p *pool) put(id peer.ID, l *lane, c *line) {
	p.mu.Lock()
	keep := !p.closed && p.idle < idleStreams && len(l.idle) < idlePerPeer
	if keep {
		l.idle = append(l.idle, c)
		p.idle++
		c.expiry = time.AfterFunc(idleFor, func() { p.expire(id, l, c) })
	}
	p.mu.Unlock()
	if !keep {
		_ = c.stream.Close()
	}
}

// expire closes a stream that nobody took.
func (p *pool) expire(id peer.ID, l *lane, c *line) {
	p.mu.Lock()
	i := slices.Index(l.idle, c)
	if i >= 0 {
		l.idle = slices.Delete(l.idle, i, i+1)
		p.idle--
		p.dropIfEmpty(id, l)
	}
	p.mu.Unlock()
	if i >= 0 {
		_ = c.stream.Close()
	}
}

// drain ends all idle streams of a lane.
func (p *pool) drain(l *lane) {
	p.mu.Lock()
	idle := l.idle
	p.idle -= len(idle)
	l.idle = nil
	p.mu.Unlock()
	for _, c := range idle {
		c.expiry.Stop()
		_ = c.stream.Reset()
	}
}

// close ends all idle streams; those in use end with their requests.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	lanes := slices.Collect(maps.Values(p.lanes))
	clear(p.lanes)
	p.mu.Unlock()
	for _, l := range lanes {
		p.drain(l)
	}
}
