package client

import (
	"testing"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/pkg/coord"
)

var (
	_ coord.Writer = (*Coordination)(nil)
	_ coord.Reader = (*Coordination)(nil)
	_ coord.Admin  = (*Coordination)(nil)
)

// TestContract runs the suite of the coordination plane over gRPC.
func TestContract(t *testing.T) {
	coordtest.Run(t, func(t testing.TB) coordtest.API {
		solo := coordtest.New(coordtest.Config{})
		w := serve(t, solo)
		alice, bob := w.client("alice").Coordination(), w.client("bob").Coordination()
		api := coordtest.InProcess(solo)
		api.Alice.Writer, api.Bob.Writer = alice, bob
		api.Reader, api.Admin = alice, bob
		return api
	})
}
