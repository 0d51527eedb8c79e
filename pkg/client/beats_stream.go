package client

import (
	"context"

	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// beatStream is the stream of all heartbeats of a client. It is for one goroutine.
type beatStream struct {
	open    func(ctx context.Context, opts ...grpc.CallOption) (agentv1.DiscoveryService_HeartbeatStreamClient, error)
	current agentv1.DiscoveryService_HeartbeatStreamClient // nil: the next exchange opens one
	cancel  context.CancelFunc                             // ends current
}

// exchange sends one request and waits for its answer. A stream on which that failed is given up: what
// came on it later would be the answer to something else.
func (s *beatStream) exchange(ctx context.Context, leases []string) ([]*agentv1.Beat, error) {
	const op = "client.beats"
	if s.current == nil {
		life, cancel := context.WithCancel(context.Background())
		stop := context.AfterFunc(ctx, cancel)
		stream, err := s.open(life)
		if !stop() && err == nil {
			err = ctx.Err()
		}
		if err != nil {
			cancel()
			return nil, fromStatus(op, err)
		}
		s.current, s.cancel = stream, cancel
	}
	stop := context.AfterFunc(ctx, s.cancel)
	beats, err := s.once(leases)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		s.rest()
		return nil, fromStatus(op, err)
	}
	return beats, nil
}

// rest ends the stream.
func (s *beatStream) rest() {
	if s.current != nil {
		s.cancel()
		s.current = nil
	}
}

func (s *beatStream) once(leases []string) ([]*agentv1.Beat, error) {
	_ = s.current.Send(&agentv1.HeartbeatRequest{LeaseIds: leases}) // Recv says why
	resp, err := s.current.Recv()
	if err != nil {
		return nil, err
	}
	if len(resp.GetBeats()) != len(leases) {
		return nil, fault.New("client.beats", fault.Internal, "the peer answered for %d leases, not %d", len(resp.GetBeats()), len(leases))
	}
	return resp.GetBeats(), nil
}
