package grpcapi_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// command is a call of a stream.
func command(id uint64, request *coordv1.Command) *coordv1.Call {
	return &coordv1.Call{Id: id, Body: &coordv1.Call_Command{Command: request}}
}

func lockCall(id uint64, name string, lease int64) *coordv1.Call {
	return command(id, &coordv1.Command{Request: &coordv1.Command_Lock{Lock: &api.LockRequest{Name: name, LeaseId: lease, TimeoutMs: -1}}})
}

func cancelCall(id uint64) *coordv1.Call {
	return &coordv1.Call{Id: id, Body: &coordv1.Call_Cancel{Cancel: true}}
}

func tryLockCall(id uint64, name string, lease int64) *coordv1.Call {
	return command(id, &coordv1.Command{Request: &coordv1.Command_TryLock{TryLock: &api.TryLockRequest{Name: name, LeaseId: lease}}})
}

// question is a call of a stream.
func question(id uint64, request proto.Message) *coordv1.Call {
	return &coordv1.Call{Id: id, Body: &coordv1.Call_Question{Question: coord.QuestionOf("", request)}}
}

// codeOf returns the code of a reply.
func codeOf(t testing.TB, a *coordv1.Reply) codes.Code {
	t.Helper()
	st := status.New(codes.OK, "").Proto()
	require.NoError(t, proto.Unmarshal(a.GetStatus(), st))
	return codes.Code(st.GetCode())
}

// replies receives n replies in any number of messages, by id.
func replies(t testing.TB, s coordv1.CallService_CallsClient, n int) map[uint64]*coordv1.Reply {
	t.Helper()
	all := make(map[uint64]*coordv1.Reply)
	for len(all) < n {
		resp, err := s.Recv()
		require.NoError(t, err)
		for _, a := range resp.GetReplies() {
			require.NotContains(t, all, a.GetId())
			all[a.GetId()] = a
		}
	}
	return all
}

// TestCalls: each call succeeds or fails alone, and a waiting call delays no other.
func TestCalls(t *testing.T) {
	r := newRaw(t, "alice")
	mine, other := r.lease(t), r.lease(t)
	s, err := r.Calls(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Send(&coordv1.CallsRequest{Calls: []*coordv1.Call{tryLockCall(1, "db", mine)}}))
	require.Equal(t, codes.OK, codeOf(t, replies(t, s, 1)[1]))
	later := &coordv1.Command{Request: &coordv1.Command_OpenClient{OpenClient: &api.OpenClientRequest{}}}
	later.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 900, protowire.VarintType), 1))
	require.NoError(t, s.Send(&coordv1.CallsRequest{Calls: []*coordv1.Call{
		lockCall(1, "db", other), // waits
		{Id: 2},
		command(3, &coordv1.Command{Request: &coordv1.Command_Compact{Compact: &coordv1.Compact{Revision: 1}}}),
		command(4, later),
		question(5, &api.LockInfoRequest{}),
		command(6, &coordv1.Command{Owner: "@bob", Request: &coordv1.Command_OpenClient{OpenClient: &api.OpenClientRequest{}}}),
		cancelCall(99), // already answered
	}}))
	got := replies(t, s, 5)
	for id, want := range map[uint64]codes.Code{
		2: codes.InvalidArgument, 3: codes.InvalidArgument, 4: codes.Unimplemented, 5: codes.InvalidArgument, 6: codes.PermissionDenied,
	} {
		require.Equal(t, want, codeOf(t, got[id]), id)
	}
	require.NoError(t, s.Send(&coordv1.CallsRequest{Calls: []*coordv1.Call{cancelCall(1)}}))
	require.Equal(t, codes.Canceled, codeOf(t, replies(t, s, 1)[1]))
	require.NoError(t, s.CloseSend())
	_, err = s.Recv()
	require.ErrorContains(t, err, "EOF")
}

// TestCallsRefuseWhatTheyCannotTellApart: a reused id ends the stream and its calls.
func TestCallsRefuseWhatTheyCannotTellApart(t *testing.T) {
	r := newRaw(t, "alice")
	mine, other := r.lease(t), r.lease(t)
	_, err := r.TryLock(t.Context(), &api.TryLockRequest{Name: "db", LeaseId: mine})
	require.NoError(t, err)
	s, err := r.Calls(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Send(&coordv1.CallsRequest{Calls: []*coordv1.Call{lockCall(1, "db", other), lockCall(1, "db", other)}}))
	for err == nil {
		_, err = s.Recv()
	}
	refused(t, err, codes.InvalidArgument, "id")
}

// TestCallsEndWithTheServer: waiting calls learn of the shutdown.
func TestCallsEndWithTheServer(t *testing.T) {
	r := newRaw(t, "alice")
	mine, other := r.lease(t), r.lease(t)
	_, err := r.TryLock(t.Context(), &api.TryLockRequest{Name: "db", LeaseId: mine})
	require.NoError(t, err)
	s, err := r.Calls(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Send(&coordv1.CallsRequest{Calls: []*coordv1.Call{
		lockCall(1, "db", other),
		question(2, &api.ListLocksRequest{}),
	}}))
	require.Equal(t, codes.OK, codeOf(t, replies(t, s, 1)[2]))
	closed := make(chan struct{})
	go func() { defer close(closed); r.Close() }()
	require.Equal(t, codes.Unavailable, codeOf(t, replies(t, s, 1)[1]))
	_, err = s.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err))
	<-closed
}
