package client

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Bounds of a bundle and its calls.
const (
	maxTogether   = 1024
	bundleBytes   = 256 << 10
	tooBigToShare = 64 << 10               // bytes; larger requests are sent alone
	maxUnanswered = 4096                   // for each of the two kinds of calls; more calls wait
	hearing       = 200 * time.Millisecond // time for the cause of a failed send to arrive
)

// bundles sends calls through one stream. Calls that arrive during a write share the next
// message, because separate calls cost several times as much on both sides. Peers without bundles
// get ordinary calls.
//
// A failure of the stream fails its calls, and the next call opens a new stream.
type bundles struct {
	service api.CoordinationServiceClient
	unknown atomic.Bool // the peer does not support bundles
	begin   BeginSpan   // nil: no traces

	mu      sync.Mutex
	current *bundleStream // nil: the next call opens a stream
	closed  bool
	streams sync.WaitGroup
}

// bundleStream is one stream with a sending and a receiving goroutine.
type bundleStream struct {
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{} // capacity 1: calls to send

	mu      sync.Mutex
	ended   bool
	next    uint64
	queue   []*api.BundledCall
	waiting map[uint64]*bundledCall
}

// bundledCall is a call without an answer.
type bundledCall struct {
	done   chan struct{} // capacity 1; signalled after the fields below are set
	answer *api.BundledAnswer
	err    error // error of the stream
}

// invoker makes calls of one kind. Short and long calls have separate limits. Streams use the
// connection of their kind.
type invoker struct {
	*bundles
	room    chan struct{}
	streams *grpc.ClientConn
}

func (b *bundles) invoker(streams *grpc.ClientConn) invoker {
	return invoker{b, make(chan struct{}, maxUnanswered), streams}
}

// NewStream implements grpc.ClientConnInterface.
func (v invoker) NewStream(ctx context.Context, d *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return v.streams.NewStream(ctx, d, method, opts...)
}

// Invoke implements grpc.ClientConnInterface.
func (v invoker) Invoke(ctx context.Context, method string, req, resp any, opts ...grpc.CallOption) error {
	principal, alone := principalIn(ctx)
	if v.unknown.Load() || len(opts) > 1 { // generated code passes one option, which marks the method as static
		return v.streams.Invoke(alone, method, req, resp, opts...)
	}
	request, err := proto.Marshal(req.(proto.Message))
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if len(request) > tooBigToShare {
		return v.streams.Invoke(alone, method, req, resp)
	}
	select {
	case v.room <- struct{}{}:
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	defer func() { <-v.room }()
	err = v.share(ctx, &api.BundledCall{Method: method, Request: request, Principal: principal}, resp.(proto.Message))
	if errors.Is(err, errNoBundles) {
		v.unknown.Store(true)
		return v.streams.Invoke(alone, method, req, resp)
	}
	return err
}

// errNoBundles says that the peer takes no bundles.
var errNoBundles = errors.New("client: the peer does not support bundles")

// share sends a call in the bundle and decodes the answer, within a span.
func (v invoker) share(ctx context.Context, call *api.BundledCall, resp proto.Message) (err error) {
	if v.begin != nil {
		var end func(error)
		if call.Traceparent, end = v.begin(ctx, call.GetMethod()); end != nil {
			defer func() { end(err) }()
		}
	}
	answer, err := v.call(ctx, call)
	switch {
	case status.Code(err) == codes.Unimplemented: // for the bundle, not for the call
		return errNoBundles
	case err != nil:
		return err
	case len(answer.GetStatus()) > 0:
		return statusOf(answer.GetStatus())
	}
	if err := proto.Unmarshal(answer.GetResponse(), resp); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// statusOf returns the error of an answer.
func statusOf(b []byte) error {
	st := status.New(codes.Unknown, "").Proto()
	if err := proto.Unmarshal(b, st); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if st.GetCode() == int32(codes.OK) {
		return status.Error(codes.Internal, "the peer gave neither an answer nor an error")
	}
	return status.ErrorProto(st)
}

// call sends a call and waits for its answer. Errors come from the stream or the context.
func (b *bundles) call(ctx context.Context, call *api.BundledCall) (*api.BundledAnswer, error) {
	one := &bundledCall{done: make(chan struct{}, 1)}
	s, err := b.enqueue(call, one)
	if err != nil {
		return nil, err
	}
	select {
	case <-one.done:
		return one.answer, one.err
	case <-ctx.Done():
		s.leave(call.GetId())
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// enqueue adds a call to the current stream, or to a new one.
func (b *bundles) enqueue(call *api.BundledCall, one *bundledCall) (*bundleStream, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, status.Error(codes.Canceled, "the client is closed")
	}
	if s := b.current; s != nil && s.add(call, one) {
		return s, nil
	}
	s := &bundleStream{wake: make(chan struct{}, 1), waiting: make(map[uint64]*bundledCall)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.add(call, one)
	b.current = s
	b.streams.Go(func() { b.run(s) })
	return s, nil
}

// run opens a stream and sends calls until it ends.
func (b *bundles) run(s *bundleStream) {
	wire, err := b.service.Bundle(s.ctx)
	if err != nil {
		s.end(err)
		return
	}
	b.streams.Go(func() { s.receive(wire) })
	for {
		select {
		case <-s.wake:
		case <-s.ctx.Done():
			return
		}
		runtime.Gosched() // lets other goroutines add calls to this message
		for calls := s.take(); len(calls) > 0; {
			n := together(calls)
			if wire.Send(&api.BundleRequest{Calls: calls[:n]}) != nil {
				broken(s.ctx, s.end)
				return
			}
			calls = calls[n:]
		}
	}
}

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

// together returns the number of calls for the next message, at least one.
func together(calls []*api.BundledCall) int {
	size := 0
	for i, c := range calls[:min(len(calls), maxTogether)] {
		if size += len(c.GetRequest()); i > 0 && size > bundleBytes {
			return i
		}
	}
	return min(len(calls), maxTogether)
}

// add adds a call, unless the stream has ended.
func (s *bundleStream) add(call *api.BundledCall, one *bundledCall) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.next++
	call.Id = s.next
	s.waiting[call.Id] = one
	s.put(call)
	return true
}

// put queues a call for sending. The caller holds mu.
func (s *bundleStream) put(call *api.BundledCall) {
	s.queue = append(s.queue, call)
	if len(s.queue) == 1 {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

func (s *bundleStream) take() []*api.BundledCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.queue
	s.queue = nil
	return calls
}

// leave removes a call whose caller has timed out.
func (s *bundleStream) leave(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, waits := s.waiting[id]; waits {
		delete(s.waiting, id)
		s.put(&api.BundledCall{Id: id, Cancel: true})
	}
}

// receive distributes answers until the stream ends.
func (s *bundleStream) receive(wire api.CoordinationService_BundleClient) {
	for {
		resp, err := wire.Recv()
		if err != nil {
			if err == io.EOF {
				err = status.Error(codes.Unavailable, "the peer ended the bundle")
			}
			s.end(err)
			return
		}
		s.mu.Lock()
		for _, a := range resp.GetAnswers() {
			if one := s.waiting[a.GetId()]; one != nil { // otherwise the caller has timed out
				delete(s.waiting, a.GetId())
				one.answer = a
				one.done <- struct{}{}
			}
		}
		s.mu.Unlock()
	}
}

// end fails all pending calls.
func (s *bundleStream) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended, s.queue = true, nil
	s.cancel()
	for id, one := range s.waiting {
		delete(s.waiting, id)
		one.err = err
		one.done <- struct{}{}
	}
}

// close refuses new calls. The stream ends with the connection: wait for streams after closing
// it.
func (b *bundles) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if s := b.current; s != nil {
		s.cancel()
	}
}
