package client

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/blackhole/blackhole/pkg/fault"
)

// echo answers each request with itself, or none if it is dead: a dead one accepts nothing, like a stream that gRPC
// has restarted on another connection.
type echo struct {
	grpc.BidiStreamingClient[int, int]
	ctx  context.Context
	dead bool
	sent chan *int
}

func (s *echo) Send(n *int) error {
	if s.dead {
		return io.EOF
	}
	s.sent <- n
	return nil
}

func (s *echo) Recv() (*int, error) {
	select {
	case <-s.ctx.Done():
		return nil, status.FromContextError(s.ctx.Err()).Err()
	case n := <-s.sent:
		return n, nil
	}
}

// TestPipelineWithoutSender expects the next request to use a new stream after a failed send,
// while the first request waits for the cause and then fails long before its timeout.
func TestPipelineWithoutSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opened := 0
		p := &pipeline[int, int]{
			match: func(req, resp *int) bool { return *req == *resp },
			open: func(ctx context.Context) (grpc.BidiStreamingClient[int, int], error) {
				opened++
				return &echo{ctx: ctx, dead: opened == 1, sent: make(chan *int, 16)}, nil
			},
		}
		call := func(n int) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := p.call(ctx, "test", &n)
			return err
		}
		began := time.Now()
		first := make(chan error, 1)
		go func() { first <- call(1) }()
		synctest.Wait()
		require.NoError(t, call(2))
		require.Zero(t, time.Since(began))
		require.Equal(t, 2, opened)
		require.ErrorIs(t, <-first, fault.Unavailable)
		require.Equal(t, hearing, time.Since(began))
		require.NoError(t, call(3), "the second stream is not given up with the first")
		require.Equal(t, 2, opened)
		p.close()
		p.streams.Wait()
	})
}
