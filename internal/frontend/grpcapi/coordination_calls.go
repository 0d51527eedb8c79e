package grpcapi

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/frontend/budget"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Bounds of one stream of calls.
const (
	maxUnanswered = maxStreams        // calls without a reply
	maxAtOnce     = 4 * maxUnanswered // calls under way on all streams of a server
	maxIdle       = 16                // goroutines waiting for another call
	replyBytes    = 1 << 20           // approximate size of a message
)

// Calls implements coordv1.CallServiceServer. Every call passes the same interceptors, rights and limits as a call
// by itself. When the server closes, calls under way are answered before the stream ends.
func (c *coordination) Calls(wire grpc.BidiStreamingServer[coordv1.CallsRequest, coordv1.CallsResponse]) error {
	// Each call asks again for its owner: a client can lose its rights while its stream lives.
	_, err := c.Owner(wire.Context())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(wire.Context())
	defer cancel()
	b := &callStream{c: c, out: wire, ctx: ctx, running: make(map[uint64]context.CancelFunc), wake: make(chan struct{}, 1),
		idle: make(chan begun), room: make(chan struct{}, maxIdle), over: make(chan struct{})}
	received, sent := make(chan error, 1), make(chan struct{})
	go func() { received <- b.receive() }() // ends with the stream's call, which unblocks Recv
	go func() { defer close(sent); b.send() }()
	select {
	case err = <-received:
	case <-c.closing.Done():
		err = fault.New("grpcapi.Calls", fault.Unavailable, "the peer is shutting down")
	}
	if err != nil && c.closing.Err() == nil {
		cancel() // the replies have no reader
	}
	b.end()
	b.calls.Wait()
	close(b.wake)
	<-sent
	return err
}

// callStream holds the calls of one stream.
type callStream struct {
	c     *coordination
	out   grpc.BidiStreamingServer[coordv1.CallsRequest, coordv1.CallsResponse]
	ctx   context.Context
	calls sync.WaitGroup
	wake  chan struct{} // capacity 1; closed at the end
	idle  chan begun    // unbuffered: idle workers receive from it
	room  chan struct{} // bounds idle workers
	over  chan struct{} // closed before the end: no new calls

	mu      sync.Mutex
	ended   bool                          // no new calls
	running map[uint64]context.CancelFunc // until the reply is taken for sending
	replies []*budget.Charged             // of *coordv1.Reply; Release may be nil
}

// receive starts calls until the client closes its side (nil) or an error.
func (b *callStream) receive() error {
	for {
		req, err := b.out.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(req.ProtoReflect().GetUnknown()) > 0 {
			return understood(req)
		}
		for _, call := range req.GetCalls() {
			if err := b.begin(call); err != nil {
				return err
			}
		}
	}
}

// end refuses new calls.
func (b *callStream) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	close(b.over)
}

// begin starts a call, or cancels one.
func (b *callStream) begin(call *coordv1.Call) error {
	const op = "grpcapi.Calls"
	b.mu.Lock()
	defer b.mu.Unlock()
	stop, runs := b.running[call.GetId()]
	switch {
	case b.ended:
		return nil
	case call.GetCancel():
		if runs {
			stop()
		}
		return nil
	case runs:
		return fault.Wrap(op, fault.Invalidf("id", call.GetId(), "is in use on this stream"))
	case len(b.running) >= maxUnanswered:
		return fault.New(op, fault.LimitReached, "%d calls on this stream have no reply already", maxUnanswered)
	}
	ctx, cancel := context.WithCancel(b.ctx)
	if said := call.GetTraceparent(); said != "" { // to the place of a call by itself
		md, _ := metadata.FromIncomingContext(ctx)
		md = md.Copy()
		md.Set("traceparent", said)
		ctx = metadata.NewIncomingContext(ctx, md)
	}
	b.running[call.GetId()] = cancel
	one := begun{ctx, call}
	select {
	case b.idle <- one:
	default:
		b.calls.Go(func() { b.work(one) })
	}
	return nil
}

// begun is a call with its context.
type begun struct {
	context.Context
	call *coordv1.Call
}

// work executes a call, and further calls if they come soon: its grown stack is worth reusing.
func (b *callStream) work(one begun) {
	for more := true; more; {
		b.answer(b.do(one, one.call))
		select {
		case b.room <- struct{}{}:
		default:
			return
		}
		select {
		case one = <-b.idle:
		case <-b.over:
			more = false
		}
		<-b.room
	}
}

// do executes one call and returns the reply.
func (b *callStream) do(ctx context.Context, call *coordv1.Call) *budget.Charged {
	reply := &coordv1.Reply{Id: call.GetId()}
	out := &budget.Charged{Message: reply}
	var err error
	if out.Release, err = b.c.reply(ctx, call, reply); err != nil {
		st, _ := proto.Marshal(status.Convert(toStatus(err)).Proto()) // a status has an encoding
		reply.Body = &coordv1.Reply_Status{Status: st}
	}
	return out
}

// reply executes a call as if it came by itself, and puts the outcome into its reply. release ends its charge, if it has one.
func (c *coordination) reply(ctx context.Context, call *coordv1.Call, reply *coordv1.Reply) (release func(), err error) {
	info := grpc.UnaryServerInfo{Server: c}
	var request proto.Message
	var run grpc.UnaryHandler
	var envelope proto.Message = call
	switch body := call.GetBody().(type) {
	case *coordv1.Call_Command:
		info.FullMethod, request = c.methods.Of(body.Command)
		run, envelope = func(ctx context.Context, _ any) (any, error) { return c.Execute(ctx, body.Command) }, body.Command
	case *coordv1.Call_Question:
		info.FullMethod, request = c.methods.Of(body.Question)
		run, envelope = func(ctx context.Context, _ any) (any, error) { return c.Read(ctx, body.Question) }, body.Question
	}
	if len(call.ProtoReflect().GetUnknown())+len(envelope.ProtoReflect().GetUnknown()) > 0 {
		return nil, understood(call)
	}
	if info.FullMethod == "" {
		return nil, fault.Wrap("grpcapi.Calls", fault.Invalidf("body", nil, "is no command or question that a caller may send"))
	}
	resp, err := c.intercept(ctx, request, &info, run)
	if err != nil {
		return nil, err
	}
	if c, ok := resp.(*budget.Charged); ok {
		resp, release = c.Message, c.Release
	}
	switch resp := resp.(type) {
	case *coordv1.Result:
		reply.Body = &coordv1.Reply_Result{Result: resp}
	case *coordv1.Answer:
		reply.Body = &coordv1.Reply_Answer{Answer: resp}
	}
	return release, nil
}

// answer gives a reply to be sent.
func (b *callStream) answer(r *budget.Charged) {
	b.mu.Lock()
	b.replies = append(b.replies, r)
	first := len(b.replies) == 1
	b.mu.Unlock()
	if first {
		b.wake <- struct{}{} // never blocks: the sender took the last signal before the replies
	}
}

// send sends pending replies together, until wake is closed.
func (b *callStream) send() {
	broken := false
	for range b.wake {
		runtime.Gosched() // let other replies join this message
		b.mu.Lock()
		ready := b.replies
		b.replies = nil
		for _, r := range ready {
			id := r.Message.(*coordv1.Reply).GetId()
			b.running[id]()
			delete(b.running, id)
		}
		b.mu.Unlock()
		for len(ready) > 0 {
			n := together(ready)
			one := joined(ready[:n])
			if !broken {
				broken = b.out.SendMsg(one) != nil // Recv says why
			}
			if broken {
				budget.Written(one)
			}
			ready = ready[n:]
		}
	}
}

// together returns the number of replies for one message, at least one.
func together(replies []*budget.Charged) int {
	size := 0
	for i, r := range replies {
		if size += proto.Size(r.Message); i > 0 && size > replyBytes {
			return i
		}
	}
	return len(replies)
}

// joined returns the message of some replies, with their charges together.
func joined(replies []*budget.Charged) *budget.Charged {
	all := make([]*coordv1.Reply, len(replies))
	var charges []func()
	for i, r := range replies {
		all[i] = r.Message.(*coordv1.Reply)
		if r.Release != nil {
			charges = append(charges, r.Release)
		}
	}
	out := &budget.Charged{Message: &coordv1.CallsResponse{Replies: all}}
	if charges != nil {
		out.Release = func() {
			for _, release := range charges {
				release()
			}
		}
	}
	return out
}
