package client

import (
	"testing"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
)

var (
	_ coord.Service = (*calls.Peer)(nil)
	_ coord.Admin   = (*calls.Peer)(nil)
)

// TestContract runs the suite of the coordination plane over gRPC.
func TestContract(t *testing.T) {
	coordtest.Run(t, func(t testing.TB) coordtest.API {
		solo := coordtest.New(coordtest.Config{})
		w := serve(t, solo)
		alice, bob := w.client("alice").link.Coordination, w.client("bob").link.Coordination
		api := coordtest.InProcess(solo)
		api.Alice.Ops, api.Bob.Ops = ops.Of(alice), ops.Of(bob)
		api.Ops, api.Admin = ops.Of(alice), bob
		return api
	})
}
