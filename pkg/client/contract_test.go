package client

import (
	"testing"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/pkg/coord"
)

var (
	_ coord.Actor    = (*Coordination)(nil)
	_ coord.Reader   = (*Coordination)(nil)
	_ coord.Overseer = (*Coordination)(nil)
)

// TestContract holds the contract to its promises over gRPC.
func TestContract(t *testing.T) {
	coordtest.Run(t, func(t testing.TB) coordtest.API {
		solo := coordtest.New(coordtest.Config{})
		w := serve(t, solo)
		alice, bob := w.client("alice").Coordination(), w.client("bob").Coordination()
		api := coordtest.InProcess(solo)
		api.Alice.Actor, api.Bob.Actor = alice, bob
		api.Reader, api.Overseer = alice, bob
		return api
	})
}
