package client

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/coord/calls"
	"github.com/blackhole/blackhole/pkg/fault"
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
	method, _ := calls.MethodOf(call.GetCommand())
	run := func(ctx context.Context, _ any) (any, error) { return f.execute(ctx, call.GetCommand()) }
	if q := call.GetQuestion(); q != nil {
		method, _ = calls.MethodOfQuestion(q)
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
	switch r := cmd.GetRequest().(type) {
	case *coordv1.Command_Lock:
		resp, err := f.Lock(ctx, r.Lock)
		return &coordv1.Result{Response: &coordv1.Result_Lock{Lock: resp}}, err
	case *coordv1.Command_TryLock:
		resp, err := f.TryLock(ctx, r.TryLock)
		return &coordv1.Result{Response: &coordv1.Result_TryLock{TryLock: resp}}, err
	case *coordv1.Command_Unlock:
		resp, err := f.Unlock(ctx, r.Unlock)
		return &coordv1.Result{Response: &coordv1.Result_Unlock{Unlock: resp}}, err
	case *coordv1.Command_LeaseGrant:
		resp, err := f.LeaseGrant(ctx, r.LeaseGrant)
		return &coordv1.Result{Response: &coordv1.Result_LeaseGrant{LeaseGrant: resp}}, err
	case *coordv1.Command_LeaseRevoke:
		resp, err := f.LeaseRevoke(ctx, r.LeaseRevoke)
		return &coordv1.Result{Response: &coordv1.Result_LeaseRevoke{LeaseRevoke: resp}}, err
	case *coordv1.Command_Txn:
		resp, err := f.Txn(ctx, r.Txn)
		return &coordv1.Result{Response: &coordv1.Result_Txn{Txn: resp}}, err
	case *coordv1.Command_PublishInstances:
		resp, err := f.PublishInstances(ctx, r.PublishInstances)
		return &coordv1.Result{Response: &coordv1.Result_PublishInstances{PublishInstances: resp}}, err
	case *coordv1.Command_SetRequirement:
		resp, err := f.SetRequirement(ctx, r.SetRequirement)
		return &coordv1.Result{Response: &coordv1.Result_SetRequirement{SetRequirement: resp}}, err
	case *coordv1.Command_DeleteRequirement:
		resp, err := f.DeleteRequirement(ctx, r.DeleteRequirement)
		return &coordv1.Result{Response: &coordv1.Result_DeleteRequirement{DeleteRequirement: resp}}, err
	case *coordv1.Command_OpenClient:
		resp, err := f.OpenClient(ctx, r.OpenClient)
		return &coordv1.Result{Response: &coordv1.Result_OpenClient{OpenClient: resp}}, err
	case *coordv1.Command_CloseClient:
		resp, err := f.CloseClient(ctx, r.CloseClient)
		return &coordv1.Result{Response: &coordv1.Result_CloseClient{CloseClient: resp}}, err
	case *coordv1.Command_KeepAlive:
		resp, err := f.keepAlive(ctx, r.KeepAlive)
		return &coordv1.Result{Response: &coordv1.Result_KeepAlive{KeepAlive: resp}}, err
	}
	return nil, fault.New("front.execute", fault.Invalid, "unknown command")
}

func (f *front) read(ctx context.Context, q *coordv1.Question) (*coordv1.Answer, error) {
	switch r := q.GetRequest().(type) {
	case *coordv1.Question_LockInfo:
		resp, err := f.LockInfo(ctx, r.LockInfo)
		return &coordv1.Answer{Response: &coordv1.Answer_LockInfo{LockInfo: resp}}, err
	case *coordv1.Question_ListLocks:
		resp, err := f.ListLocks(ctx, r.ListLocks)
		return &coordv1.Answer{Response: &coordv1.Answer_ListLocks{ListLocks: resp}}, err
	case *coordv1.Question_LeaseTimeToLive:
		resp, err := f.LeaseTimeToLive(ctx, r.LeaseTimeToLive)
		return &coordv1.Answer{Response: &coordv1.Answer_LeaseTimeToLive{LeaseTimeToLive: resp}}, err
	case *coordv1.Question_ListLeases:
		resp, err := f.ListLeases(ctx, r.ListLeases)
		return &coordv1.Answer{Response: &coordv1.Answer_ListLeases{ListLeases: resp}}, err
	case *coordv1.Question_Range:
		resp, err := f.Range(ctx, r.Range)
		return &coordv1.Answer{Response: &coordv1.Answer_Range{Range: resp}}, err
	}
	return nil, fault.New("front.read", fault.Invalid, "unknown question")
}
