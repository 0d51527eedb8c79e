package calls

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// fakePeer serves streams of calls. Its first dead ones accept nothing and never answer, like a stream that gRPC
// has restarted on another connection.
type fakePeer struct {
	coordv1.CallServiceClient
	dead, opened int
	answer       func(*coordv1.Call) *coordv1.Reply // nil: no reply
}

func (p *fakePeer) Calls(ctx context.Context, _ ...grpc.CallOption) (grpc.BidiStreamingClient[coordv1.CallsRequest, coordv1.CallsResponse], error) {
	p.opened++
	return &fakeStream{ctx: ctx, dead: p.opened <= p.dead, answer: p.answer, sent: make(chan []*coordv1.Reply, 16)}, nil
}

type fakeStream struct {
	grpc.BidiStreamingClient[coordv1.CallsRequest, coordv1.CallsResponse]
	ctx    context.Context
	dead   bool
	answer func(*coordv1.Call) *coordv1.Reply
	sent   chan []*coordv1.Reply
}

// SendMsg encodes the calls as a connection does.
func (s *fakeStream) SendMsg(m any) error {
	if s.dead {
		return io.EOF
	}
	b, err := codec{encoding.GetCodecV2("proto")}.Marshal(m)
	if err != nil {
		return err
	}
	req := &coordv1.CallsRequest{}
	if err := proto.Unmarshal(b.Materialize(), req); err != nil {
		return err
	}
	var replies []*coordv1.Reply
	for _, call := range req.GetCalls() {
		if r := s.answer(call); r != nil {
			r.Id = call.GetId()
			replies = append(replies, r)
		}
	}
	s.sent <- replies
	return nil
}

func (s *fakeStream) Recv() (*coordv1.CallsResponse, error) {
	select {
	case <-s.ctx.Done():
		return nil, status.FromContextError(s.ctx.Err()).Err()
	case replies := <-s.sent:
		return &coordv1.CallsResponse{Replies: replies}, nil
	}
}

func newPeer(p *fakePeer) *Peer {
	c := NewPeer(PeerConfig{})
	c.service = p
	return c
}

func unlock(name string) *coordv1.Command {
	return &coordv1.Command{Request: &coordv1.Command_Unlock{Unlock: &apiv1.UnlockRequest{Name: name}}}
}

// TestCalls: replies find their calls, whatever shares a message, and a failure fails its call alone.
func TestCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newPeer(&fakePeer{answer: func(call *coordv1.Call) *coordv1.Reply {
			if q := call.GetQuestion(); q != nil {
				return &coordv1.Reply{Body: &coordv1.Reply_Answer{Answer: &coordv1.Answer{Response: &coordv1.Answer_LockInfo{
					LockInfo: &apiv1.LockInfoResponse{Lock: &apiv1.LockState{Name: q.GetLockInfo().GetName()}},
				}}}}
			}
			var count uint32
			if _, err := fmt.Sscan(call.GetCommand().GetUnlock().GetName(), &count); err != nil {
				st, _ := proto.Marshal(status.New(codes.InvalidArgument, "no number").Proto())
				return &coordv1.Reply{Body: &coordv1.Reply_Status{Status: st}}
			}
			return &coordv1.Reply{Body: &coordv1.Reply_Result{Result: &coordv1.Result{Response: &coordv1.Result_Unlock{Unlock: &apiv1.UnlockResponse{Count: count}}}}}
		}})
		var all sync.WaitGroup
		for i := range 2000 {
			all.Go(func() {
				r, err := c.Execute(t.Context(), unlock(fmt.Sprint(i)))
				if err != nil || r.GetUnlock().GetCount() != uint32(i) {
					t.Errorf("call %d: %v %v", i, r, err)
				}
			})
		}
		all.Wait()
		_, err := c.Execute(t.Context(), unlock("x"))
		require.ErrorContains(t, err, "no number")
		a, err := c.Read(t.Context(), &coordv1.Question{Request: &coordv1.Question_LockInfo{LockInfo: &apiv1.LockInfoRequest{Name: "db"}}})
		require.NoError(t, err)
		require.Equal(t, "db", a.GetLockInfo().GetLock().GetName())
		c.Close()
		c.Wait()
		_, err = c.Execute(t.Context(), unlock("1"))
		require.ErrorIs(t, err, fault.Canceled)
	})
}

// TestCallerLeaves: a call whose caller left is canceled at the peer, and delays no other.
func TestCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var canceled []uint64
		c := newPeer(&fakePeer{answer: func(call *coordv1.Call) *coordv1.Reply {
			switch {
			case call.GetCancel():
				canceled = append(canceled, call.GetId())
				return nil
			case call.GetCommand().GetLock() != nil:
				return nil // waits
			}
			return &coordv1.Reply{Body: &coordv1.Reply_Result{Result: &coordv1.Result{Response: &coordv1.Result_Unlock{Unlock: &apiv1.UnlockResponse{}}}}}
		}})
		ctx, leave := context.WithCancel(t.Context())
		waiting := make(chan error, 1)
		go func() {
			_, err := c.Execute(ctx, &coordv1.Command{Request: &coordv1.Command_Lock{Lock: &apiv1.LockRequest{Name: "db", TimeoutMs: -1}}})
			waiting <- err
		}()
		synctest.Wait()
		_, err := c.Execute(t.Context(), unlock("db"))
		require.NoError(t, err)
		leave()
		require.ErrorIs(t, <-waiting, fault.Canceled)
		synctest.Wait()
		require.Equal(t, []uint64{1}, canceled)
		c.Close()
		c.Wait()
	})
}

// TestStreamWithoutSender expects a stream to end after a failed send without a cause: its calls fail, and the
// next call opens a new stream.
func TestStreamWithoutSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := &fakePeer{dead: 1, answer: func(*coordv1.Call) *coordv1.Reply {
			return &coordv1.Reply{Body: &coordv1.Reply_Result{Result: &coordv1.Result{}}}
		}}
		c := newPeer(peer)
		began := time.Now()
		_, err := c.Execute(t.Context(), unlock("x"))
		require.ErrorIs(t, err, fault.Unavailable)
		require.Equal(t, causeTime, time.Since(began))
		_, err = c.Execute(t.Context(), unlock("x"))
		require.NoError(t, err)
		require.Equal(t, 2, peer.opened)
		c.Close()
		c.Wait()
	})
}

// TestReplyOfAnotherKind: a peer that answers a command with nothing has failed.
func TestReplyOfAnotherKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newPeer(&fakePeer{answer: func(*coordv1.Call) *coordv1.Reply { return &coordv1.Reply{} }})
		_, err := c.Execute(t.Context(), unlock("x"))
		require.ErrorIs(t, err, fault.Internal)
		c.Close()
		c.Wait()
	})
}

// TestSpans: a call carries the traceparent of its span, which learns of the outcome.
func TestSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newPeer(&fakePeer{answer: func(call *coordv1.Call) *coordv1.Reply {
			st, _ := proto.Marshal(status.New(codes.NotFound, call.GetTraceparent()).Proto())
			return &coordv1.Reply{Body: &coordv1.Reply_Status{Status: st}}
		}})
		var outcome error
		c.begin = func(_ context.Context, method string) (string, func(error)) {
			return method, func(err error) { outcome = err }
		}
		_, err := c.Execute(t.Context(), unlock("x"))
		require.ErrorContains(t, err, apiv1.LockService_Unlock_FullMethodName)
		require.Equal(t, codes.NotFound, status.Code(outcome))
		c.Close()
		c.Wait()
	})
}
