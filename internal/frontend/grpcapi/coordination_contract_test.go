package grpcapi_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestCoordinationOverTheWire runs the suite that a Solo itself passes on the client, with
// gRPC between them.
func TestCoordinationOverTheWire(t *testing.T) {
	coordtest.Run(t, func(t testing.TB) coordtest.API {
		solo := coordtest.New(coordtest.Config{})
		peers := plane(solo)
		peers.Peers = true
		s := serve(t, grpcapi.Config{Coordination: peers})
		alice, bob := s.as(t, "alice"), s.as(t, "bob")
		api := coordtest.InProcess(solo)
		api.Alice.Ops, api.Bob.Ops, api.Ops, api.Admin = ops.Of(alice), ops.Of(bob), ops.Of(alice), alice
		api.Directory = true
		return api
	})
}

// as returns the contract of an owner.
func (s served) as(t testing.TB, owner string) *calls.Peer {
	return dial(t, "passthrough:///peer", s.dialer(), grpc.WithPerRPCCredentials(named(owner))).Coordination()
}

// named tells the server who calls.
type named string

func (n named) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"owner": string(n)}, nil
}

func (n named) RequireTransportSecurity() bool { return false }

// plane serves a Solo to named owners. Mallory is refused.
func plane(s *coordtest.Solo) *grpcapi.Coordination {
	return &grpcapi.Coordination{Service: s, Admin: s, Owner: func(ctx context.Context) (string, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		name := append(md.Get("owner"), "")[0]
		if name == "mallory" {
			return "", fault.New("test.Owner", fault.Forbidden, "is not listed")
		}
		return name, nil
	}}
}
