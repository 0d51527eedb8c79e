package grpcapi_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/agent"
	"github.com/blackhole/blackhole/internal/agent/agenttest"
	"github.com/blackhole/blackhole/internal/agent/health"
	"github.com/blackhole/blackhole/internal/agent/registry"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
)

// TestRealAgent holds the agent of a peer to the same contract, in process and over the wire, in
// virtual time.
func TestRealAgent(t *testing.T) {
	for name, test := range agenttest.Tests() {
		for _, wire := range []bool{false, true} {
			t.Run(map[bool]string{false: "in process/", true: "over the wire/"}[wire]+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { test(t, realAgent(t, wire)) })
			})
		}
	}
}

// unreachable is the network of health checks.
func unreachable(context.Context, string, string) (net.Conn, error) {
	return nil, errors.New("unreachable")
}

// realAgent is an agent on a disk in memory.
func realAgent(t *testing.T, wire bool) agenttest.API {
	s, err := agent.New(agent.Config{
		Registry: registry.Config{Dir: "instances", FS: vfs.NewMem(), Self: "me"}, Now: time.Now,
		Checks: health.Config{Random: rand.New(rand.NewPCG(1, 2)).Uint64, Dial: unreachable},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	api := agenttest.API{Registrar: s, Finder: s, Wire: wire, Pass: func(d time.Duration) {
		time.Sleep(d)
		synctest.Wait()
	}}
	if wire {
		c := serve(t, grpcapi.Config{Agent: &grpcapi.Agent{Registrar: s, Catalog: s}}).client(t).Agent()
		api.Registrar, api.Finder = c, c
	}
	return api
}
