package client

import (
	"context"
	"io"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// halfDead serves bundles: the first stream takes nothing and says nothing, as one does that gRPC has begun anew on
// another connection. Later ones answer.
type halfDead struct {
	api.CoordinationServiceClient
	opened int
}

func (h *halfDead) Bundle(ctx context.Context, _ ...grpc.CallOption) (grpc.BidiStreamingClient[api.BundleRequest, api.BundleResponse], error) {
	h.opened++
	return &halfStream{ctx: ctx, dead: h.opened == 1, sent: make(chan *api.BundleRequest, 16)}, nil
}

type halfStream struct {
	grpc.ClientStream
	ctx  context.Context
	dead bool
	sent chan *api.BundleRequest
}

func (s *halfStream) Send(req *api.BundleRequest) error {
	if s.dead {
		return io.EOF
	}
	s.sent <- req
	return nil
}

func (s *halfStream) Recv() (*api.BundleResponse, error) {
	select {
	case <-s.ctx.Done():
		return nil, status.FromContextError(s.ctx.Err()).Err()
	case req := <-s.sent:
		resp := &api.BundleResponse{}
		for _, c := range req.GetCalls() {
			resp.Answers = append(resp.Answers, &api.BundledAnswer{Id: c.GetId()})
		}
		return resp, nil
	}
}

// A stream that cannot be sent on, and does not say so, ends: the calls on it fail, and the next one opens another.
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
