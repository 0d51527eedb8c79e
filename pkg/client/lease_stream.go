package client

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// maxRenewals bounds the requests without an answer on one stream.
const maxRenewals = 64

// renewals sends the keepalives of all callers through one stream. Answers come in the order
// of the requests. A stream on which a caller waited in vain is left to those who
// already wait on it, and whoever comes next opens another: one lost answer delays nobody.
type renewals struct {
	open func(ctx context.Context) (api.LockService_LeaseKeepAliveClient, error)

	mu      sync.Mutex     // guards what follows, and the queues of all streams
	current *renewalStream // nil: the next caller opens one
	closed  bool
	streams sync.WaitGroup
}

// renewalStream is one stream: a goroutine that sends and one that receives.
type renewalStream struct {
	cancel  context.CancelFunc
	out     chan *renewal // to be sent
	queue   []*renewal    // without an answer, the oldest first
	retired bool          // takes no request
}

// renewal is one request and the answer to it.
type renewal struct {
	ids  []coord.LeaseID
	done chan struct{} // closed when answered
	left bool          // nobody waits any more
	resp *api.LeaseKeepAliveResponse
	err  error
}

// call sends one request, of at least one lease, and waits for its answer.
func (r *renewals) call(ctx context.Context, op string, ids []coord.LeaseID) ([]coord.Renewal, coord.Header, error) {
	one := &renewal{ids: ids, done: make(chan struct{})}
	s, err := r.enqueue(one)
	if err != nil {
		return nil, coord.Header{}, fault.Wrap(op, err)
	}
	select {
	case <-one.done:
	case <-ctx.Done():
		r.leave(s, one)
		return nil, coord.Header{}, fault.Wrap(op, ctx.Err())
	}
	if one.err != nil {
		return nil, coord.Header{}, fromStatus(op, one.err)
	}
	out := make([]coord.Renewal, len(ids))
	out[0] = coord.Renewal{ID: ids[0], TTL: one.resp.GetTtlMs()}
	for i, ttl := range one.resp.GetTtlsMs() {
		out[i+1] = coord.Renewal{ID: ids[i+1], TTL: ttl}
	}
	publish(out, one.resp.GetPublished())
	return out, toHeader(one.resp.GetHeader()), nil
}

// enqueue gives a request to the current stream, opened if there is none.
func (r *renewals) enqueue(one *renewal) (*renewalStream, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errClosed()
	}
	s := r.current
	if s == nil {
		ctx, cancel := context.WithCancel(context.Background())
		s = &renewalStream{cancel: cancel, out: make(chan *renewal, maxRenewals)}
		r.current = s
		r.streams.Go(func() { r.send(ctx, s) })
	}
	if len(s.queue) >= maxRenewals {
		return nil, fault.New("client.renewals", fault.LimitReached, "%d requests wait for an answer already", maxRenewals)
	}
	s.queue = append(s.queue, one)
	s.out <- one // has room: what is in it is in the queue
	return s, nil
}

// send opens the stream and sends until it ends.
func (r *renewals) send(ctx context.Context, s *renewalStream) {
	wire, err := r.open(ctx)
	if err != nil {
		r.end(s, err)
		return
	}
	r.streams.Go(func() { r.receive(wire, s) })
	for {
		select {
		case one := <-s.out:
			req := &api.LeaseKeepAliveRequest{Id: int64(one.ids[0])}
			for _, id := range one.ids[1:] {
				req.Ids = append(req.Ids, int64(id))
			}
			if wire.Send(req) != nil {
				r.giveUp(s)
				broken(ctx, func(err error) { r.end(s, err) })
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// receive hands out answers until the stream ends.
func (r *renewals) receive(wire api.LockService_LeaseKeepAliveClient, s *renewalStream) {
	for {
		resp, err := wire.Recv()
		if err == nil {
			err = r.answer(s, resp)
		}
		if err != nil {
			r.end(s, err)
			return
		}
	}
}

// answer gives an answer to the oldest request.
func (r *renewals) answer(s *renewalStream, resp *api.LeaseKeepAliveResponse) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(s.queue) == 0 {
		return errors.New("the peer renewed leases that nobody asked for")
	}
	one := s.queue[0]
	if resp.GetId() != int64(one.ids[0]) || len(resp.GetTtlsMs()) != len(one.ids)-1 {
		return errors.New("the peer renewed other leases than those asked for")
	}
	s.queue[0], s.queue = nil, s.queue[1:]
	one.resp = resp
	close(one.done)
	if s.deserted() {
		return errors.New("nobody waits on the stream any more")
	}
	return nil
}

// leave is for a caller that waited in vain.
func (r *renewals) leave(s *renewalStream, one *renewal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one.left = true
	r.retire(s)
	if s.deserted() {
		s.cancel()
	}
}

// giveUp has the next request open a stream, whatever is still heard on this one.
func (r *renewals) giveUp(s *renewalStream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.retire(s)
}

// fresh has the next request open a stream if answers are missing on the current one.
func (r *renewals) fresh() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current != nil && len(r.current.queue) > 0 {
		r.retire(r.current)
	}
}

// deserted reports whether a stream is of no use any more.
func (s *renewalStream) deserted() bool {
	return s.retired && !slices.ContainsFunc(s.queue, func(one *renewal) bool { return !one.left })
}

// end fails all that wait on a stream.
func (r *renewals) end(s *renewalStream, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.cancel()
	r.retire(s)
	for _, one := range s.queue {
		one.err = err
		close(one.done)
	}
	s.queue = nil
}

func (r *renewals) retire(s *renewalStream) {
	s.retired = true
	if r.current == s {
		r.current = nil
	}
}

// close ends the current stream. Those left to their last callers end with the connection;
// wait for streams after closing it.
func (r *renewals) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.current != nil {
		r.current.cancel()
	}
}
