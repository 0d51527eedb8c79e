package grpcapi_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

const locks = "/blackhole.api.v1.LockService/"

// bundled is a call in a bundle.
func bundled(t testing.TB, id uint64, method string, req proto.Message) *api.BundledCall {
	t.Helper()
	b, err := proto.Marshal(req)
	require.NoError(t, err)
	return &api.BundledCall{Id: id, Method: method, Request: b}
}

// codeOf returns the code of an answer's status.
func codeOf(t testing.TB, a *api.BundledAnswer) codes.Code {
	t.Helper()
	st := status.New(codes.OK, "").Proto()
	require.NoError(t, proto.Unmarshal(a.GetStatus(), st))
	return codes.Code(st.GetCode())
}

// answers receives n answers in any bundling, by id.
func answers(t testing.TB, s api.CoordinationService_BundleClient, n int) map[uint64]*api.BundledAnswer {
	t.Helper()
	all := make(map[uint64]*api.BundledAnswer)
	for len(all) < n {
		resp, err := s.Recv()
		require.NoError(t, err)
		for _, a := range resp.GetAnswers() {
			require.NotContains(t, all, a.GetId())
			all[a.GetId()] = a
		}
	}
	return all
}

// TestBundle: each call succeeds or fails alone, and a waiting call delays no other.
func TestBundle(t *testing.T) {
	r := newRaw(t, "alice")
	mine, other := r.lease(t), r.lease(t)
	s, err := r.Bundle(t.Context())
	require.NoError(t, err)
	taken := bundled(t, 1, locks+"TryLock", &api.TryLockRequest{Name: "db", LeaseId: mine})
	require.NoError(t, s.Send(&api.BundleRequest{Calls: []*api.BundledCall{taken}}))
	require.Equal(t, codes.OK, codeOf(t, answers(t, s, 1)[1]))
	calls := &api.BundleRequest{Calls: []*api.BundledCall{
		bundled(t, 1, locks+"Lock", &api.LockRequest{Name: "db", LeaseId: other, TimeoutMs: -1}), // waits
		bundled(t, 2, locks+"Steal", &api.LockRequest{}),
		bundled(t, 3, locks+"Watch", &api.WatchKeysRequest{}),
		{Id: 4, Method: locks + "Unlock", Request: []byte{0xff}},
		bundled(t, 5, locks+"LockInfo", &api.LockInfoRequest{}),
		{Id: 99, Cancel: true}, // already answered
	}}
	require.NoError(t, s.Send(calls))
	got := answers(t, s, 4)
	for id, want := range map[uint64]codes.Code{2: codes.Unimplemented, 3: codes.Unimplemented, 4: codes.Internal, 5: codes.InvalidArgument} {
		require.Equal(t, want, codeOf(t, got[id]), id)
	}
	require.NoError(t, s.Send(&api.BundleRequest{Calls: []*api.BundledCall{{Id: 1, Cancel: true}}}))
	require.Equal(t, codes.Canceled, codeOf(t, answers(t, s, 1)[1]))
	require.NoError(t, s.CloseSend())
	_, err = s.Recv()
	require.ErrorContains(t, err, "EOF")
}

// TestBundleRefusesWhatItCannotTellApart: a reused id ends the stream and its calls.
func TestBundleRefusesWhatItCannotTellApart(t *testing.T) {
	r := newRaw(t, "alice")
	mine, other := r.lease(t), r.lease(t)
	_, err := r.TryLock(t.Context(), &api.TryLockRequest{Name: "db", LeaseId: mine})
	require.NoError(t, err)
	s, err := r.Bundle(t.Context())
	require.NoError(t, err)
	waits := bundled(t, 1, locks+"Lock", &api.LockRequest{Name: "db", LeaseId: other, TimeoutMs: -1})
	require.NoError(t, s.Send(&api.BundleRequest{Calls: []*api.BundledCall{waits, waits}}))
	for err == nil {
		_, err = s.Recv()
	}
	refused(t, err, codes.InvalidArgument, "id")
}

// TestBundleEndsWithTheServer: waiting calls learn of the shutdown.
func TestBundleEndsWithTheServer(t *testing.T) {
	r := newRaw(t, "alice")
	mine, other := r.lease(t), r.lease(t)
	_, err := r.TryLock(t.Context(), &api.TryLockRequest{Name: "db", LeaseId: mine})
	require.NoError(t, err)
	s, err := r.Bundle(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Send(&api.BundleRequest{Calls: []*api.BundledCall{
		bundled(t, 1, locks+"Lock", &api.LockRequest{Name: "db", LeaseId: other, TimeoutMs: -1}),
		bundled(t, 2, locks+"ListLocks", &api.ListLocksRequest{}),
	}}))
	require.Equal(t, codes.OK, codeOf(t, answers(t, s, 1)[2]))
	closed := make(chan struct{})
	go func() { defer close(closed); r.Close() }()
	require.Equal(t, codes.Unavailable, codeOf(t, answers(t, s, 1)[1]))
	_, err = s.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err))
	<-closed
}
