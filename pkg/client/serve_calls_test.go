package client

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Calls serves a stream of calls like a peer: each passes the interceptor of the server.
func (f *front) Calls(wire grpc.BidiStreamingServer[coordv1.CallsRequest, coordv1.CallsResponse]) error {
	var mu sync.Mutex // guards the sending side and running
	running := map[uint64]context.CancelFunc{}
	var all sync.WaitGroup
	defer all.Wait()
	ctx, end := context.WithCancel(wire.Context())
	defer end()
	for {
		req, err := wire.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, call := range req.GetCalls() {
			mu.Lock()
			if call.GetCancel() {
				if stop := running[call.GetId()]; stop != nil {
					stop()
				}
				mu.Unlock()
				continue
			}
			each, stop := context.WithCancel(ctx)
			running[call.GetId()] = stop
			mu.Unlock()
			all.Go(func() {
				reply := f.reply(each, call)
				mu.Lock()
				defer mu.Unlock()
				delete(running, call.GetId())
				stop()
				_ = wire.Send(&coordv1.CallsResponse{Replies: []*coordv1.Reply{reply}})
			})
		}
	}
}

func (f *front) reply(ctx context.Context, call *coordv1.Call) *coordv1.Reply {
	methods := calls.NewMethods()
	method, _ := methods.Of(call.GetCommand())
	run := func(ctx context.Context, _ any) (any, error) { return f.execute(ctx, call.GetCommand()) }
	if q := call.GetQuestion(); q != nil {
		method, _ = methods.Of(q)
		run = func(ctx context.Context, _ any) (any, error) { return f.read(ctx, q) }
	}
	resp, err := f.intercept(ctx, call, &grpc.UnaryServerInfo{FullMethod: method}, run)
	reply := &coordv1.Reply{Id: call.GetId()}
	switch resp := resp.(type) {
	case *coordv1.Result:
		reply.Body = &coordv1.Reply_Result{Result: resp}
	case *coordv1.Answer:
		reply.Body = &coordv1.Reply_Answer{Answer: resp}
	}
	if err != nil {
		st, _ := proto.Marshal(status.Convert(err).Proto())
		reply.Body = &coordv1.Reply_Status{Status: st}
	}
	return reply
}

func (f *front) execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	cmd.Owner = owner(ctx)
	if a := cmd.GetAttempt(); a != nil && a.GetClient() == 0 {
		a.Client = 1 << 60 // an unknown client, which is refused
	}
	return f.solo.Execute(ctx, cmd)
}

func (f *front) read(ctx context.Context, q *coordv1.Question) (*coordv1.Answer, error) {
	if r := q.GetRange(); r != nil && r.GetLimit() == 0 {
		r.Limit = 4 // forces several pages
	}
	return f.solo.Read(ctx, q)
}
