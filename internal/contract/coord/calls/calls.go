// Package calls carries the commands and questions of the coordination plane to another peer on one gRPC stream
// (coord.v1.CallService). Applications call their peer this way, and peers call each other.
//
// Calls that are made while a message is being written share the next message: a message of many calls costs
// little more than one of a single call.
package calls

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that replies are read with
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Bounds of a Peer.
const (
	maxTogether   = 1024                   // calls of one message
	messageBytes  = 256 << 10              // approximate size of a message of several calls
	maxUnanswered = 4096                   // for each of the two kinds of calls; more calls wait
	causeTime     = 200 * time.Millisecond // for the cause of a failed send to arrive
)

// errNoReply reports a reply of another kind than its call.
var errNoReply = status.Error(codes.Internal, "the peer gave neither a result nor an error")

// call makes one call within a span.
func (p *Peer) call(ctx context.Context, room chan struct{}, method string, call *coordv1.Call) (reply *coordv1.Reply, err error) {
	select {
	case room <- struct{}{}:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	defer func() { <-room }()
	if p.begin != nil {
		var end func(error)
		if call.Traceparent, end = p.begin(ctx, method); end != nil {
			defer func() { end(err) }()
		}
	}
	encoded, err := proto.Marshal(call)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	one := &pending{done: make(chan struct{}, 1)}
	s, id, err := p.enqueue(encoded, one)
	if err != nil {
		return nil, err
	}
	select {
	case <-one.done:
	case <-ctx.Done():
		s.leave(id)
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if one.err == nil {
		one.err = statusOf(one.reply)
	}
	return one.reply, one.err
}

// statusOf returns the error of a reply; nil for a result or an answer.
func statusOf(r *coordv1.Reply) error {
	b, failed := r.GetBody().(*coordv1.Reply_Status)
	if !failed {
		return nil
	}
	st := status.New(codes.Unknown, "").Proto()
	if err := proto.Unmarshal(b.Status, st); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if st.GetCode() == int32(codes.OK) {
		return errNoReply
	}
	return status.ErrorProto(st)
}

// enqueue adds an encoded call without its id to the current stream, or to a new one.
func (p *Peer) enqueue(call []byte, one *pending) (s *stream, id uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, 0, status.Error(codes.Canceled, "the client is closed")
	}
	if s = p.current; s != nil {
		if id = s.add(call, one); id != 0 {
			return s, id, nil
		}
	}
	s = &stream{wake: make(chan struct{}, 1), waiting: make(map[uint64]*pending)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	id = s.add(call, one)
	p.current = s
	p.streams.Go(func() { p.run(s) })
	return s, id, nil
}

// run opens a stream and sends calls until it ends.
func (p *Peer) run(s *stream) {
	wire, err := p.service.Calls(s.ctx, grpc.ForceCodecV2(codec{encoding.GetCodecV2("proto")}))
	if err != nil {
		s.end(err)
		return
	}
	p.streams.Go(func() { s.receive(wire) })
	for {
		select {
		case <-s.wake:
		case <-s.ctx.Done():
			return
		}
		runtime.Gosched() // lets other goroutines add calls to this message
		for calls := s.take(); len(calls) > 0; {
			n := together(calls)
			if wire.SendMsg(request(calls[:n])) != nil {
				s.broken()
				return
			}
			calls = calls[n:]
		}
	}
}

// together returns the number of calls for the next message, at least one.
func together(calls [][]byte) int {
	most := min(len(calls), maxTogether)
	size := 0
	for i, call := range calls[:most] {
		if size += len(call); i > 0 && size > messageBytes {
			return i
		}
	}
	return most
}

// stream is one stream with a sending and a receiving goroutine.
type stream struct {
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{} // capacity 1: calls to send

	mu      sync.Mutex
	ended   bool
	next    uint64
	queue   [][]byte // encoded calls
	waiting map[uint64]*pending
}

// pending is a call without a reply.
type pending struct {
	done  chan struct{} // capacity 1; signalled after the fields below are set
	reply *coordv1.Reply
	err   error // of the stream
}

// add adds a call under a new id, or returns 0 if the stream has ended.
func (s *stream) add(call []byte, one *pending) (id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return 0
	}
	s.next++
	s.waiting[s.next] = one
	s.put(call, s.next)
	return s.next
}

// put queues a call for sending. The caller holds mu.
func (s *stream) put(call []byte, id uint64) {
	s.queue = append(s.queue, protowire.AppendVarint(protowire.AppendTag(call, callID, protowire.VarintType), id))
	if len(s.queue) == 1 {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

func (s *stream) take() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.queue
	s.queue = nil
	return calls
}

// leave cancels a call whose caller has left.
func (s *stream) leave(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, waits := s.waiting[id]; waits {
		delete(s.waiting, id)
		s.put(protowire.AppendVarint(protowire.AppendTag(nil, callCancel, protowire.VarintType), 1), id)
	}
}

// receive distributes replies until the stream ends.
func (s *stream) receive(wire coordv1.CallService_CallsClient) {
	for {
		resp, err := wire.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = status.Error(codes.Unavailable, "the peer ended the stream of calls")
			}
			s.end(err)
			return
		}
		s.mu.Lock()
		for _, r := range resp.GetReplies() {
			if one := s.waiting[r.GetId()]; one != nil { // otherwise the caller has left
				delete(s.waiting, r.GetId())
				one.reply = r
				one.done <- struct{}{}
			}
		}
		s.mu.Unlock()
	}
}

// broken ends a stream after a failed send. Usually the receiver gets the cause. After a transparent retry of
// gRPC on another connection, the receiver would wait for replies to calls that were never sent.
func (s *stream) broken() {
	select {
	case <-s.ctx.Done():
	case <-time.After(causeTime):
		s.end(status.Error(codes.Unavailable, "the connection to the peer broke"))
	}
}

// end fails all calls without a reply.
func (s *stream) end(err error) {
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
