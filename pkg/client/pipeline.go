package client

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/blackhole/blackhole/pkg/fault"
)

// maxQueued bounds the requests without an answer on one stream.
const maxQueued = 64

// pipeline sends the requests of all callers through one stream. Answers arrive in the order of
// requests. After a caller has timed out, the stream serves only its other current
// callers, and the next request opens a new stream: a lost answer delays no other request.
type pipeline[Req, Resp any] struct {
	open  func(ctx context.Context) (grpc.BidiStreamingClient[Req, Resp], error)
	match func(req *Req, resp *Resp) bool // whether resp answers req

	mu      sync.Mutex             // guards the fields below, and the queues of all streams
	current *pipeStream[Req, Resp] // nil: the next request opens a stream
	closed  bool
	streams sync.WaitGroup
}

// pipeStream is one stream with a sending and a receiving goroutine.
type pipeStream[Req, Resp any] struct {
	cancel  context.CancelFunc
	out     chan *exchange[Req, Resp] // requests to send
	queue   []*exchange[Req, Resp]    // requests without an answer, oldest first
	retired bool                      // accepts no more requests
}

// exchange is a request with its answer.
type exchange[Req, Resp any] struct {
	req  *Req
	done chan struct{} // closed after the answer or error
	left bool          // the caller has timed out
	resp *Resp
	err  error
}

// call sends one request and waits for its answer.
func (p *pipeline[Req, Resp]) call(ctx context.Context, op string, req *Req) (*Resp, error) {
	x := &exchange[Req, Resp]{req: req, done: make(chan struct{})}
	s, err := p.enqueue(x)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	select {
	case <-x.done:
	case <-ctx.Done():
		p.leave(s, x)
		return nil, fault.Wrap(op, ctx.Err())
	}
	return x.resp, fromStatus(op, x.err)
}

// enqueue adds a request to the current stream, or to a new one.
func (p *pipeline[Req, Resp]) enqueue(x *exchange[Req, Resp]) (*pipeStream[Req, Resp], error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed()
	}
	s := p.current
	if s == nil {
		ctx, cancel := context.WithCancel(context.Background())
		s = &pipeStream[Req, Resp]{cancel: cancel, out: make(chan *exchange[Req, Resp], maxQueued)}
		p.current = s
		p.streams.Go(func() { p.send(ctx, s) })
	}
	if len(s.queue) >= maxQueued {
		return nil, fault.New("client.pipeline", fault.LimitReached, "%d requests already wait for an answer", maxQueued)
	}
	s.queue = append(s.queue, x)
	s.out <- x // never blocks: out is a part of queue
	return s, nil
}

// send opens the stream and sends requests until the stream ends.
func (p *pipeline[Req, Resp]) send(ctx context.Context, s *pipeStream[Req, Resp]) {
	wire, err := p.open(ctx)
	if err != nil {
		p.end(s, err)
		return
	}
	p.streams.Go(func() { p.receive(wire, s) })
	for {
		select {
		case x := <-s.out:
			if wire.Send(x.req) != nil {
				p.giveUp(s)
				broken(ctx, func(err error) { p.end(s, err) })
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// receive distributes answers until the stream ends.
func (p *pipeline[Req, Resp]) receive(wire grpc.BidiStreamingClient[Req, Resp], s *pipeStream[Req, Resp]) {
	for {
		resp, err := wire.Recv()
		if err == nil {
			err = p.answer(s, resp)
		}
		if err != nil {
			p.end(s, err)
			return
		}
	}
}

// answer passes an answer to the oldest request.
func (p *pipeline[Req, Resp]) answer(s *pipeStream[Req, Resp], resp *Resp) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(s.queue) == 0 {
		return errors.New("the peer sent an answer without a request")
	}
	x := s.queue[0]
	if !p.match(x.req, resp) {
		return errors.New("the peer sent an answer to another request")
	}
	s.queue[0], s.queue = nil, s.queue[1:]
	x.resp = resp
	close(x.done)
	if s.deserted() {
		return errors.New("the stream has no callers any more")
	}
	return nil
}

// leave notes that a caller has timed out.
func (p *pipeline[Req, Resp]) leave(s *pipeStream[Req, Resp], x *exchange[Req, Resp]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x.left = true
	p.retire(s)
	if s.deserted() {
		s.cancel()
	}
}

// giveUp makes the next request open a new stream. Answers on this stream may still arrive.
func (p *pipeline[Req, Resp]) giveUp(s *pipeStream[Req, Resp]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retire(s)
}

// deserted reports whether a stream has neither callers nor new requests.
func (s *pipeStream[Req, Resp]) deserted() bool {
	return s.retired && !slices.ContainsFunc(s.queue, func(x *exchange[Req, Resp]) bool { return !x.left })
}

// end fails all waiting requests of a stream.
func (p *pipeline[Req, Resp]) end(s *pipeStream[Req, Resp], err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.cancel()
	p.retire(s)
	for _, x := range s.queue {
		x.err = err
		close(x.done)
	}
	s.queue = nil
}

func (p *pipeline[Req, Resp]) retire(s *pipeStream[Req, Resp]) {
	s.retired = true
	if p.current == s {
		p.current = nil
	}
}

// close ends the current stream. Retired streams end with the connection: wait for streams
// after closing it.
func (p *pipeline[Req, Resp]) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.current != nil {
		p.current.cancel()
	}
}

// hearing is the time for the cause of a failed send to arrive.
const hearing = 200 * time.Millisecond

// broken ends a stream after a failed send. Usually the receiver gets the cause. After a
// transparent retry of gRPC on another connection, the receiver would wait for answers without
// requests.
func broken(ctx context.Context, end func(error)) {
	timer := time.NewTimer(hearing)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
		end(status.Error(codes.Unavailable, "the connection to the peer broke"))
	}
}
