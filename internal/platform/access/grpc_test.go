package access

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/blackhole/blackhole/pkg/fault"
)

// echo is a health service that checks its caller: Check fails unless the service is the caller's
// name.
type echo struct {
	healthpb.UnimplementedHealthServer
}

func (echo) Check(ctx context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if want := req.GetService(); want != "" && From(ctx).Name != want {
		return nil, status.Errorf(codes.Unknown, "called by %q", From(ctx).Name)
	}
	return &healthpb.HealthCheckResponse{}, nil
}

func (echo) Watch(_ *healthpb.HealthCheckRequest, s healthpb.Health_WatchServer) error {
	return s.Send(&healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_ServingStatus(From(s.Context()).Role)})
}

func needOf(fullMethod string) Need {
	if strings.HasSuffix(fullMethod, "/Watch") {
		return Need{Role: RoleReadOnly}
	}
	return Need{Role: RoleAdmin}
}

func toStatus(err error) error {
	switch fault.KindOf(err) {
	case fault.Unauthentic:
		return status.Error(codes.Unauthenticated, err.Error())
	case fault.Forbidden:
		return status.Error(codes.PermissionDenied, err.Error())
	default:
		return err
	}
}

// serveGRPC answers calls on l until the test ends.
func serveGRPC(t *testing.T, l net.Listener, g *Guard, creds credentials.TransportCredentials) {
	t.Helper()
	s := grpc.NewServer(grpc.Creds(creds),
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, call grpc.UnaryHandler) (any, error) {
			resp, err := call(ctx, req)
			return resp, toStatus(err)
		}, g.Unary(needOf)),
		grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, call grpc.StreamHandler) error {
			return toStatus(call(srv, ss))
		}, g.Stream(needOf)))
	healthpb.RegisterHealthServer(s, echo{})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); require.NoError(t, <-done) })
}

func dial(t *testing.T, target string, creds credentials.TransportCredentials) healthpb.HealthClient {
	t.Helper()
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return healthpb.NewHealthClient(conn)
}

// roleOf returns the role of the caller of a stream.
func roleOf(ctx context.Context, c healthpb.HealthClient) (Role, error) {
	s, err := c.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return RoleNone, err
	}
	resp, err := s.Recv()
	return Role(resp.GetStatus()), err
}

func TestGRPCByToken(t *testing.T) {
	l := loopback(t)
	serveGRPC(t, l, newGuard(t, threeTokens(), Options{}), insecure.NewCredentials())
	c := dial(t, l.Addr().String(), insecure.NewCredentials())
	for _, one := range []struct {
		headers []string
		unary   codes.Code
		name    string
		stream  codes.Code
		role    Role
	}{
		{nil, codes.Unauthenticated, "", codes.OK, RoleReadOnly},
		{[]string{"Bearer admin-token"}, codes.OK, "token", codes.OK, RoleAdmin},
		{[]string{"Bearer web-token"}, codes.PermissionDenied, "", codes.OK, RoleService},
		{[]string{"Bearer wrong"}, codes.Unauthenticated, "", codes.Unauthenticated, RoleNone},
		{[]string{"Bearer admin-token", "Bearer admin-token"}, codes.Unauthenticated, "", codes.Unauthenticated, RoleNone},
	} {
		ctx := context.Background()
		for _, h := range one.headers {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", h)
		}
		_, err := c.Check(ctx, &healthpb.HealthCheckRequest{Service: one.name})
		require.Equal(t, one.unary, status.Code(err), "%v: %v", one.headers, err)
		role, err := roleOf(ctx, c)
		require.Equal(t, one.stream, status.Code(err), "%v: %v", one.headers, err)
		require.Equal(t, one.role, role)
	}
}

func TestGRPCOpen(t *testing.T) {
	l := loopback(t)
	serveGRPC(t, l, nil, insecure.NewCredentials())
	_, err := dial(t, l.Addr().String(), insecure.NewCredentials()).Check(context.Background(), &healthpb.HealthCheckRequest{Service: "local"})
	require.NoError(t, err)
}

func TestGRPCByCertificate(t *testing.T) {
	servers, clients := newAuthority(t, "servers"), newAuthority(t, "clients")
	f, c := serverFiles(t, servers, clients)
	c.Certificates = []Certificate{{Name: "ops", Role: RoleAdmin}}
	var at clock
	o := Options{Now: at.now}
	secure, err := NewTLS(c, o)
	require.NoError(t, err)
	l := loopback(t)
	serveGRPC(t, l, newGuard(t, c, o), credentials.NewTLS(secure.Server("h2")))
	with := func(certs ...tls.Certificate) healthpb.HealthClient {
		return dial(t, l.Addr().String(), credentials.NewTLS(servers.trust(certs...)))
	}
	ctx := context.Background()
	_, err = with(clients.pair(t, "ops")).Check(ctx, &healthpb.HealthCheckRequest{Service: "ops"})
	require.NoError(t, err)
	_, err = with(clients.pair(t, "web")).Check(ctx, &healthpb.HealthCheckRequest{})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	_, err = with().Check(ctx, &healthpb.HealthCheckRequest{})
	require.Equal(t, codes.Unavailable, status.Code(err), "no handshake")

	cert, key := servers.issue(t, "renewed")
	write(t, f.path("server.crt"), cert)
	write(t, f.path("server.key"), key)
	at.advance(pollEvery)
	trust := servers.trust(clients.pair(t, "ops"))
	trust.NextProtos = []string{"h2"}
	require.Eventually(t, func() bool { // a client without a connection may be retrying and reading
		name, err := presented(t, l.Addr().String(), trust)
		return err == nil && name == "renewed"
	}, time.Minute, time.Millisecond)
}

func TestGRPCOverSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := ListenUnix(path)
	require.NoError(t, err)
	serveGRPC(t, l, newGuard(t, threeTokens(), Options{}), insecure.NewCredentials())
	who := peerAddr{uid: os.Geteuid(), known: true}.String()
	_, err = dial(t, "unix:"+path, insecure.NewCredentials()).Check(context.Background(), &healthpb.HealthCheckRequest{Service: who})
	require.NoError(t, err)
}

// TestStreamsEndWithTheirProof: a stream accepts no message after its token has expired.
func TestStreamsEndWithTheirProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, hs256(), Options{})
		until := time.Now().Add(time.Hour)
		token := sign(t, jwt.SigningMethodHS256, []byte(hmacKey), with(jwt.MapClaims{"exp": until.Unix(), "role": "admin"}))
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer "+token))
		err := g.Stream(needOf)(nil, endless{ctx: ctx}, &grpc.StreamServerInfo{}, func(_ any, ss grpc.ServerStream) error {
			require.Equal(t, "web", From(ss.Context()).Name)
			for {
				if err := ss.RecvMsg(nil); err != nil {
					return err
				}
			}
		})
		require.ErrorIs(t, err, fault.Unauthentic)
		require.WithinDuration(t, until.Add(leeway), time.Now(), time.Minute)
	})
}

// TestStreamsEndWithTheirToken: a running call ends soon after its token was replaced, and not before.
func TestStreamsEndWithTheirToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := write(t, filepath.Join(t.TempDir(), "token"), []byte("first"))
		g := newGuard(t, Config{Enabled: true, TokenFile: path}, Options{})
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer first"))
		err := g.Stream(needOf)(nil, endless{ctx: ctx}, &grpc.StreamServerInfo{}, func(_ any, ss grpc.ServerStream) error {
			time.Sleep(time.Hour)
			require.NoError(t, ss.Context().Err())
			write(t, path, []byte("second"))
			before := time.Now()
			<-ss.Context().Done()
			require.LessOrEqual(t, time.Since(before), recheckEvery)
			return context.Cause(ss.Context())
		})
		require.ErrorIs(t, err, fault.Unauthentic)
	})
}

// endless is a stream with a message each minute.
type endless struct {
	grpc.ServerStream
	ctx context.Context
}

func (e endless) Context() context.Context { return e.ctx }

func (e endless) RecvMsg(any) error {
	<-time.After(time.Minute)
	return nil
}
