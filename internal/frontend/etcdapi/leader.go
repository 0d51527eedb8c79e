package etcdapi

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
)

// retryAfter is the time between two tries of a call that waits for a majority.
const retryAfter = 250 * time.Millisecond

// led is a time in which the group has a leader. Short times without one belong to it.
type led struct {
	context.Context
	end context.CancelFunc
}

// newLed begins such a time.
func newLed() *led {
	ctx, end := context.WithCancel(context.Background())
	return &led{ctx, end}
}

// lead follows the leader until the server closes. A group that had none for s.NoLeader has none, as in etcd.
func (s *Server) lead() {
	var lost <-chan time.Time
	for {
		_, leader, changed := s.Leading()
		if leader == "" && lost == nil {
			lost = time.After(s.NoLeader)
		}
		if leader != "" {
			lost = nil
			if s.led.Load().Err() != nil {
				s.led.Store(newLed())
			}
		}
		select {
		case <-changed:
		case <-lost:
			s.led.Load().end()
			lost = make(chan time.Time)
		case <-s.closing.Done():
			return
		}
	}
}

// requiring returns the context of a call. That of a client which requires a leader ends with rpctypes.ErrGRPCNoLeader
// without one.
func (s *Server) requiring(ctx context.Context) (context.Context, context.CancelFunc) {
	wish := metadata.ValueFromIncomingContext(ctx, rpctypes.MetadataRequireLeaderKey)
	if len(wish) == 0 || wish[0] != rpctypes.MetadataHasLeader {
		return ctx, func() {}
	}
	ctx, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.led.Load(), func() { end(rpctypes.ErrGRPCNoLeader) })
	return ctx, func() {
		stop()
		end(nil)
	}
}

// bound is the stream of a call with another context.
type bound struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (b bound) Context() context.Context { return b.ctx }

// waits reports after a pause whether a call without a majority goes on: its client does not require a leader, or ctx
// would have ended.
func (s *Server) waits(ctx context.Context, err error) bool {
	return err != nil && fault.KindOf(err) == fault.Unavailable && pause.For(ctx, retryAfter)
}
