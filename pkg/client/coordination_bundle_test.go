package client

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// halfDead serves bundles. Its first stream accepts nothing and never answers, like a stream that
// gRPC has restarted on another connection. Later streams answer.
type halfDead struct {
	api.CoordinationServiceClient
	opened int
}

func (h *halfDead) Bundle(ctx context.Context, _ ...grpc.CallOption) (grpc.BidiStreamingClient[api.BundleRequest, api.BundleResponse], error) {
	h.opened++
	return newHalfStream(ctx, h.opened == 1, func(req *api.BundleRequest) *api.BundleResponse {
		resp := &api.BundleResponse{}
		for _, c := range req.GetCalls() {
			resp.Answers = append(resp.Answers, &api.BundledAnswer{Id: c.GetId()})
		}
		return resp
	}), nil
}

// halfStream answers each request, or none.
type halfStream[Req, Resp any] struct {
	grpc.ClientStream
	ctx    context.Context
	dead   bool
	answer func(*Req) *Resp
	sent   chan *Req
}

func newHalfStream[Req, Resp any](ctx context.Context, dead bool, answer func(*Req) *Resp) *halfStream[Req, Resp] {
	return &halfStream[Req, Resp]{ctx: ctx, dead: dead, answer: answer, sent: make(chan *Req, 16)}
}

func (s *halfStream[Req, Resp]) Send(req *Req) error {
	if s.dead {
		return io.EOF
	}
	s.sent <- req
	return nil
}

func (s *halfStream[Req, Resp]) Recv() (*Resp, error) {
	select {
	case <-s.ctx.Done():
		return nil, status.FromContextError(s.ctx.Err()).Err()
	case req := <-s.sent:
		return s.answer(req), nil
	}
}

// TestBundleWithoutSender expects a stream to end after a failed send without a cause: its calls
// fail, and the next call opens a new stream.
func TestBundleWithoutSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := &halfDead{}
		b := &bundles{service: peer}
		_, err := b.call(t.Context(), &api.BundledCall{Method: "x"})
		require.Equal(t, codes.Unavailable, status.Code(err))
		_, err = b.call(t.Context(), &api.BundledCall{Method: "x"})
		require.NoError(t, err)
		require.Equal(t, 2, peer.opened)
		b.close()
		b.streams.Wait()
	})
}

// TestRenewalsWithoutSender expects the next request to use a new stream after a failed send,
// while the first request waits for the cause and then fails long before its timeout.
func TestRenewalsWithoutSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opened := 0
		r := new(renewals)
		r.match, r.open = renews, func(ctx context.Context) (api.LockService_LeaseKeepAliveClient, error) {
			opened++
			return newHalfStream(ctx, opened == 1, func(req *api.LeaseKeepAliveRequest) *api.LeaseKeepAliveResponse {
				return &api.LeaseKeepAliveResponse{Id: req.GetId(), TtlMs: 1000}
			}), nil
		}
		call := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, _, err := r.call(ctx, "test", "", []coord.LeaseID{1})
			return err
		}
		began := time.Now()
		first := make(chan error, 1)
		go func() { first <- call() }()
		synctest.Wait()
		require.NoError(t, call())
		require.Zero(t, time.Since(began))
		require.Equal(t, 2, opened)
		require.ErrorIs(t, <-first, fault.Unavailable)
		require.Equal(t, hearing, time.Since(began))
		require.NoError(t, call(), "the second stream is not given up with the first")
		require.Equal(t, 2, opened)
		r.close()
		r.streams.Wait()
	})
}
