package client

import (
	"net"

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
	agentv1.RegisterDiscoveryServiceServer(s, &agenttest.Server{Agent: agenttest.New()})
	go func() { done <- s.Serve(l) }()
	return l.Addr().String(), func() {
		s.Stop()
		<-done
	}
}
