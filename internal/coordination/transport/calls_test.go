package transport

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/blackhole/blackhole/pkg/fault"
)

// whoami answers a health check with the caller's peer id, as an error.
type whoami struct {
	healthv1.UnimplementedHealthServer
}

func (whoami) Check(ctx context.Context, _ *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	id, ok := PeerOf(ctx)
	if !ok {
		return nil, status.Error(codes.Unauthenticated, "local")
	}
	return nil, status.Error(codes.AlreadyExists, id.String())
}

func (whoami) Watch(_ *healthv1.HealthCheckRequest, s healthv1.Health_WatchServer) error {
	for range 100 {
		if err := s.Send(&healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}); err != nil {
			return err
		}
	}
	return nil
}

// List cuts its caller off.
func (whoami) List(ctx context.Context, _ *healthv1.HealthListRequest) (*healthv1.HealthListResponse, error) {
	p, _ := grpcpeer.FromContext(ctx)
	p.AuthInfo.(AuthInfo).Cut()
	<-ctx.Done()
	return nil, ctx.Err()
}

// wrapped wraps a connection before its credentials see it, as a server may.
type wrapped struct{ net.Listener }

func (w wrapped) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return struct{ net.Conn }{c}, nil
}

func plain(l net.Listener) net.Listener { return l }

func serveCalls(t testing.TB, wrap func(net.Listener) net.Listener, h host.Host) *grpc.Server {
	l := Listen(h, "test", ListenLimits{})
	s := grpc.NewServer(grpc.Creds(Credentials()))
	healthv1.RegisterHealthServer(s, whoami{})
	go func() { _ = s.Serve(wrap(l)) }()
	t.Cleanup(s.Stop)
	return s
}

func callerOf(t testing.TB, h host.Host, target string) healthv1.HealthClient {
	c, err := grpc.NewClient(target, DialOptions(h, "test")...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return healthv1.NewHealthClient(c)
}

// TestPeerOf: the server knows the caller, even through a wrapped connection.
func TestPeerOf(t *testing.T) {
	for name, wrap := range map[string]func(net.Listener) net.Listener{
		"plain":   plain,
		"wrapped": func(l net.Listener) net.Listener { return wrapped{l} },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				all := hosts(t, newWire(t), 3)
				serveCalls(t, wrap, all[0])
				for _, h := range all[1:] {
					client := callerOf(t, h, Target(all[0].ID()))
					_, err := client.Check(t.Context(), nil)
					require.Equal(t, codes.AlreadyExists, status.Code(err), err)
					require.Equal(t, h.ID().String(), status.Convert(err).Message())
					stream, err := client.Watch(t.Context(), nil)
					require.NoError(t, err)
					for range 100 {
						_, err := stream.Recv()
						require.NoError(t, err)
					}
					_, err = client.List(t.Context(), &healthv1.HealthListRequest{})
					require.Equal(t, codes.Unavailable, status.Code(err), "the server closed the connection: %v", err)
				}
				synctest.Wait()
			})
		})
	}
}

func TestPeerOfAnythingElse(t *testing.T) {
	_, ok := PeerOf(t.Context())
	require.False(t, ok)
	a, b := net.Pipe()
	defer func() { _, _ = a.Close(), b.Close() }()
	only := Credentials().Clone()
	_, _, err := only.ServerHandshake(a)
	require.ErrorIs(t, err, fault.Unauthentic)
	_, _, err = only.ClientHandshake(t.Context(), "", a)
	require.ErrorIs(t, err, fault.Unauthentic)
}

func TestDialErrors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(t)
		all := hosts(t, w, 2)
		_, err := Dial(t.Context(), all[0], "test", all[0].ID())
		require.ErrorIs(t, err, fault.Invalid)
		require.Equal(t, "peer", fault.FieldOf(err))
		_, err = Dial(t.Context(), all[0], "test", "unknown")
		require.ErrorIs(t, err, fault.Unavailable)
		w.cut.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		_, err = Dial(ctx, all[0], "test", all[1].ID())
		require.ErrorIs(t, err, fault.Timeout)
		require.InDelta(t, 1, time.Since(begin).Seconds(), 0.1)
		_, err = callerOf(t, all[0], "passthrough:///nobody").Check(t.Context(), nil)
		require.Equal(t, codes.Unavailable, status.Code(err))
	})
}

// Each open connection is protected from trimming.
func TestDialProtects(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all := hosts(t, newWire(t), 2)
		l := Listen(all[1], "test", ListenLimits{})
		defer func() { require.NoError(t, l.Close()) }()
		one, err := Dial(t.Context(), all[0], "test", all[1].ID())
		require.NoError(t, err)
		two, err := Dial(t.Context(), all[0], "test", all[1].ID())
		require.NoError(t, err)
		manager := all[0].ConnManager()
		require.True(t, manager.IsProtected(all[1].ID(), ""))
		require.NoError(t, one.Close())
		require.True(t, manager.IsProtected(all[1].ID(), ""))
		require.NoError(t, two.Close())
		require.NoError(t, two.Close())
		require.False(t, manager.IsProtected(all[1].ID(), ""))
	})
}

// The open and waiting connections of one peer are bounded; an ended one makes room.
func TestListenerBounds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all := hosts(t, newWire(t), 3)
		l := Listen(all[0], "test", ListenLimits{PerPeer: 3, Waiting: 4})
		knock := func(from host.Host) network.Stream {
			s, err := from.NewStream(t.Context(), all[0].ID(), CallProtocol("test"))
			require.NoError(t, err)
			_, err = s.Write([]byte("x"))
			require.NoError(t, err)
			settle(100 * time.Millisecond)
			return s
		}
		for range 3 {
			knock(all[1])
		}
		ended(t, knock(all[1]))
		knock(all[2])
		ended(t, knock(all[2])) // none was accepted: too many wait

		for range 4 {
			c, err := l.Accept()
			require.NoError(t, err)
			require.Equal(t, "libp2p", c.RemoteAddr().Network())
			require.Equal(t, l.Addr(), c.LocalAddr())
			require.NoError(t, c.Close())
		}
		knock(all[1])
		c, err := l.Accept()
		require.NoError(t, err)
		require.Equal(t, all[1].ID().String(), c.RemoteAddr().String())
		waiting := knock(all[1])
		require.NoError(t, l.Close())
		require.NoError(t, l.Close())
		ended(t, waiting)
		_, err = l.Accept()
		require.True(t, errors.Is(err, net.ErrClosed))
		_, err = c.Write([]byte("still open"))
		require.NoError(t, err)
		require.NoError(t, c.Close())
	})
}
