package grpcapi_test

import (
	"testing"

	"github.com/blackhole/blackhole/internal/agent/agenttest"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
)

// serveAgent serves an agent in memory alone.
func serveAgent(t testing.TB, a *agenttest.Agent, edits ...func(*grpcapi.Config)) served {
	t.Helper()
	c := grpcapi.Config{Agent: &grpcapi.Agent{Registrar: a, Catalog: a, Removed: a.Removed}}
	for _, edit := range edits {
		edit(&c)
	}
	return serve(t, c)
}

// TestAgentOverTheWire runs the suite that an agent in memory itself passes on the client, with gRPC
// between them.
func TestAgentOverTheWire(t *testing.T) {
	agenttest.Run(t, func(t testing.TB) agenttest.API {
		a := agenttest.New()
		c := serveAgent(t, a).client(t).Agent()
		api := agenttest.InProcess(a)
		api.Registrar, api.Finder, api.Wire = c, c, true
		return api
	})
}
