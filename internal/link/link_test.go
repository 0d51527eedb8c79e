package link_test

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"github.com/blackhole/blackhole/internal/agent/agenttest"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/link"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

var _ instances.Registrar = (*link.Agent)(nil)

// open serves an agent and links to it. asked has the metadata of each call.
func open(t testing.TB, a *agenttest.Agent, s link.Settings) (l *link.Link, asked chan metadata.MD) {
	asked = make(chan metadata.MD, 1<<12)
	listener, server := bufconn.Listen(1<<20), grpc.NewServer()
	agentv1.RegisterDiscoveryServiceServer(server, &agenttest.Server{Agent: a, Before: func(ctx context.Context, _ string) error {
		md, _ := metadata.FromIncomingContext(ctx)
		select {
		case asked <- md:
		default:
		}
		return nil
	}})
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); require.NoError(t, <-done) })
	s.Dial = append(s.Dial, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return listener.DialContext(ctx)
	}))
	l, err := link.Open("passthrough:///localhost:1", s)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l, asked
}

// TestAgentContract runs the suite of the agent plane over gRPC.
func TestAgentContract(t *testing.T) {
	agenttest.Run(t, func(t testing.TB) agenttest.API {
		a := agenttest.New()
		l, _ := open(t, a, link.Settings{})
		api := agenttest.InProcess(a)
		api.Registrar, api.Finder, api.Wire = l.Agent, l.Agent, true
		return api
	})
}

// TestToken: each call carries the token, which goes to nobody in the clear.
func TestToken(t *testing.T) {
	token := "secret"
	l, asked := open(t, agenttest.New(), link.Settings{Token: &token})
	_, err := l.Agent.Services(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, []string{"Bearer secret"}, (<-asked).Get("authorization"))

	_, err = link.Open("example.org:1", link.Settings{Token: &token})
	require.ErrorIs(t, err, fault.Invalid)
	for _, bad := range []string{"", "a b", "a\nb", "é"} {
		_, err := link.Open("", link.Settings{Token: &bad})
		require.Equal(t, "token", fault.FieldOf(err))
	}
	_, err = link.Open("\x00", link.Settings{})
	require.ErrorIs(t, err, fault.Invalid)
}

// TestClosed: a closed link refuses calls of both planes.
func TestClosed(t *testing.T) {
	l, err := link.Open("passthrough:///nobody", link.Settings{})
	require.NoError(t, err)
	require.NoError(t, l.Close())
	_, err = l.Agent.Services(t.Context(), "")
	require.ErrorIs(t, err, fault.Canceled)
	_, err = l.Coordination.Group(t.Context())
	require.ErrorIs(t, err, fault.Canceled)
}
