package client

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/agent/agenttest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/link"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Dial adds options of gRPC to a client of a test.
func Dial(opts ...grpc.DialOption) Option {
	return func(s *link.Settings) { s.Dial = append(s.Dial, opts...) }
}

// StartPeer starts a peer with a group of its own and without instances, on loopback. Examples run against it.
func StartPeer() (address string, stop func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err) // no example can go on without loopback
	}
	f := &front{solo: coordtest.New(coordtest.Config{}), calls: map[string]int{}}
	s, done := newServer(f.intercept), make(chan error, 1)
	api.RegisterLockServiceServer(s, f)
	api.RegisterCoordinationServiceServer(s, f)
	coordv1.RegisterCallServiceServer(s, f)
	api.RegisterRecordServiceServer(s, &shop{})
	agentv1.RegisterDiscoveryServiceServer(s, &agenttest.Server{Agent: agenttest.New()})
	go func() { done <- s.Serve(l) }()
	return l.Addr().String(), func() {
		s.Stop()
		<-done
	}
}

// shop keeps offers in memory, and gives all of them as an answer.
type shop struct {
	api.UnimplementedRecordServiceServer
	mu     sync.Mutex // guards offers
	offers []*api.Record
}

func (s *shop) Register(_ context.Context, r *api.RegisterRequest) (*api.RegisterResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offers = append(s.offers, &api.Record{Service: r.GetService()})
	return &api.RegisterResponse{Receipt: &api.Receipt{Id: r.GetService().GetId(), Sequence: 1}}, nil
}

func (s *shop) Query(context.Context, *api.QueryRequest) (*api.QueryResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &api.QueryResponse{Complete: true, Total: uint64(len(s.offers))}
	for _, r := range s.offers {
		a.Results = append(a.Results, &api.QueryResult{Record: r})
	}
	return a, nil
}

func (s *shop) Watch(_ *api.WatchRequest, out grpc.ServerStreamingServer[api.WatchResponse]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.offers {
		if err := out.Send(&api.WatchResponse{Kind: api.WatchResponse_KIND_ADDED, Record: r}); err != nil {
			return err
		}
	}
	return nil
}
