package client

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

const keepAliveMethod = api.LockService_LeaseKeepAlive_FullMethodName

// front serves a Solo to clients like a peer. The metadata of a call has its owner.
type front struct {
	api.UnimplementedLockServiceServer
	api.UnimplementedCoordinationServiceServer
	coordv1.UnimplementedCallServiceServer
	solo *coordtest.Solo

	mu    sync.Mutex
	calls map[string]int                                   // by method
	fault func(method string, n int) (before, after error) // errors of the n-th call of a method; nil means none
	hold  func(ctx context.Context, method string, n int)  // called before an answer is sent; nil means nothing
}

// wire is a front on its own network.
type wire struct {
	*front
	t        testing.TB
	listener *bufconn.Listener
	server   *grpc.Server
	done     chan error
}

func serve(t testing.TB, solo *coordtest.Solo) *wire {
	w := &wire{t: t, front: &front{solo: solo, calls: map[string]int{}}}
	w.start()
	t.Cleanup(w.stop)
	return w
}

func (w *wire) start() {
	w.listener, w.server, w.done = bufconn.Listen(1<<20), newServer(w.intercept), make(chan error, 1)
	api.RegisterLockServiceServer(w.server, w.front)
	api.RegisterCoordinationServiceServer(w.server, w.front)
	coordv1.RegisterCallServiceServer(w.server, w.front)
	l, s, done := w.listener, w.server, w.done
	go func() { done <- s.Serve(l) }()
}

func newServer(intercept grpc.UnaryServerInterceptor) *grpc.Server {
	return grpc.NewServer(grpc.UnaryInterceptor(intercept),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}))
}

func (w *wire) stop() {
	w.server.Stop()
	<-w.done
	w.done <- nil
}

// restart closes every connection.
func (w *wire) restart() {
	w.stop()
	w.mu.Lock()
	w.start()
	w.mu.Unlock()
}

func (w *wire) client(owner string, opts ...Option) *Client {
	c, err := New("passthrough:///peer", append([]Option{
		Dial(grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			w.mu.Lock()
			l := w.listener
			w.mu.Unlock()
			return l.DialContext(ctx)
		}), grpc.WithPerRPCCredentials(named(owner))),
	}, opts...)...)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, c.Close()) })
	return c
}

// intercept fails calls by fault, before or after their execution.
func (f *front) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	n, hold, before, after := f.called(info.FullMethod)
	if before != nil {
		return nil, toStatus(before)
	}
	resp, err := handle(ctx, req)
	if hold != nil {
		hold(ctx, info.FullMethod, n)
	}
	if after != nil {
		return nil, toStatus(after)
	}
	return resp, toStatus(err)
}

func (f *front) called(method string) (n int, hold func(context.Context, string, int), before, after error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[method]++
	n = f.calls[method]
	if f.fault != nil {
		before, after = f.fault(method, n)
	}
	return n, f.hold, before, after
}

func (f *front) count(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[method]
}

// named returns the dial option for an owner.
type named string

func (n named) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"owner": string(n)}, nil
}

func (named) RequireTransportSecurity() bool { return false }

func owner(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	if names := md.Get("owner"); len(names) > 0 {
		return names[0]
	}
	return "example"
}

func toStatus(err error) error {
	if err == nil {
		return nil
	}
	details := []*api.Error{{
		Kind: uint32(fault.KindOf(err)), Field: fault.FieldOf(err), Message: fault.Message(err), Op: fault.OpOf(err),
	}}
	st, _ := status.New(codes.Unknown, err.Error()).WithDetails(details[0])
	var past *coord.Compacted
	if errors.As(err, &past) {
		st, _ = st.WithDetails(&api.WatchKeysResponse{
			CompactRevision: int64(past.Revision), Header: &api.Header{Revision: int64(past.Current)},
		})
	}
	return st.Err()
}

func (f *front) Watch(stream api.LockService_WatchServer) error {
	r, err := stream.Recv()
	if err != nil {
		return err
	}
	created := true
	return toStatus(f.solo.Watch(stream.Context(), r, func(b *api.WatchKeysResponse) error {
		b.WatchId, b.Created = r.GetWatchId(), created
		created = false
		return stream.Send(b)
	}))
}
