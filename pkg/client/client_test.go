package client

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// peer is a peer that only answers watches, with fixed answers.
type peer struct {
	api.UnimplementedRecordServiceServer
	watch func(out grpc.ServerStreamingServer[api.WatchResponse]) error
}

func (p peer) Watch(_ *api.WatchRequest, out grpc.ServerStreamingServer[api.WatchResponse]) error {
	return p.watch(out)
}

func (p peer) client(t *testing.T) *Client {
	t.Helper()
	l, s := bufconn.Listen(1<<16), grpc.NewServer()
	api.RegisterRecordServiceServer(s, p)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); require.NoError(t, <-done) })
	c, err := New("passthrough:///peer", Dial(grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return l.DialContext(ctx)
	})))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// TestStatusesWithoutDetail checks statuses from gRPC itself or from foreign servers.
func TestStatusesWithoutDetail(t *testing.T) {
	for code, kind := range map[codes.Code]fault.Kind{
		codes.Unavailable: fault.Unavailable, codes.DeadlineExceeded: fault.Timeout, codes.Canceled: fault.Canceled,
		codes.ResourceExhausted: fault.TooLarge, codes.Unimplemented: fault.Unsupported,
		codes.Unknown: fault.Internal, codes.Internal: fault.Internal, codes.DataLoss: fault.Internal,
	} {
		err := calls.Fault("client.X", status.Error(code, "why"))
		require.ErrorIs(t, err, kind)
		require.Equal(t, "why", fault.Message(err))
		require.Equal(t, "client.X", fault.OpOf(err))
	}
	require.NoError(t, calls.Fault("client.X", nil))
	require.ErrorIs(t, calls.Fault("client.X", context.DeadlineExceeded), fault.Timeout)
	require.ErrorIs(t, calls.Fault("client.X", io.EOF), fault.Unavailable)
}

func TestToFault(t *testing.T) {
	err := calls.Restored("client.Register", &api.Error{
		Kind: uint32(fault.Invalid), Op: "discovery.Register", Field: "location.latitude", Message: "is off the globe",
	}, nil)
	require.ErrorIs(t, err, discovery.ErrInvalidLocation)
	require.ErrorIs(t, err, discovery.ErrInvalidService)
	require.NotErrorIs(t, err, discovery.ErrInvalidQuery)
	require.EqualError(t, err, "client.Register: discovery.Register: location.latitude: is off the globe")

	later := calls.Restored("client.X", &api.Error{Kind: 200, Message: "new"}, nil)
	require.ErrorIs(t, later, fault.Kind(200), "a kind of a later version is kept")
	require.ErrorIs(t, calls.Restored("client.X", &api.Error{Kind: 256 + uint32(fault.Invalid)}, nil), fault.Internal, "and is no other one", nil)
}

func TestOfNothing(t *testing.T) {
	require.Zero(t, toReceipt(nil))
	require.Zero(t, toRecord(nil))
	require.Equal(t, Event{}, toEvent(&api.WatchResponse{}))
	require.Empty(t, toAnswer(&api.QueryResponse{}).Results)
}

func TestUnimplemented(t *testing.T) {
	c := peer{}.client(t)
	_, err := c.Offers().Register(t.Context(), records.Offer{})
	require.ErrorIs(t, err, fault.Unsupported)
	_, err = c.Offers().List(t.Context())
	require.ErrorIs(t, err, fault.Unsupported)
}

func TestNobodyThere(t *testing.T) {
	c, err := New("passthrough:///nobody", Dial(grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
		return nil, errors.New("connection refused")
	})))
	require.NoError(t, err, "it connects when first used")
	_, err = c.Offers().Query(t.Context(), query.Query{Type: "x"})
	require.ErrorIs(t, err, fault.Unavailable)
	_, err = c.Offers().Watch(t.Context(), query.Query{Type: "x"}, "")
	require.ErrorIs(t, err, fault.Unavailable)
	require.NoError(t, c.Close())
	_, err = c.Offers().Get(t.Context(), "a")
	require.Error(t, err)
}

func TestBadAddress(t *testing.T) {
	_, err := New("\x00")
	require.ErrorIs(t, err, fault.Invalid)
}

func TestWatchStreams(t *testing.T) {
	ended := errors.New("x")
	for name, test := range map[string]struct {
		watch func(out grpc.ServerStreamingServer[api.WatchResponse]) error
		kind  fault.Kind // of the error after one event
	}{
		"ends without a reason": {func(out grpc.ServerStreamingServer[api.WatchResponse]) error {
			return out.Send(&api.WatchResponse{Kind: api.WatchResponse_KIND_PROGRESS, Cursor: "1"})
		}, fault.Unavailable},
		"fails": {func(out grpc.ServerStreamingServer[api.WatchResponse]) error {
			return errors.Join(ended, out.Send(&api.WatchResponse{Kind: api.WatchResponse_KIND_PROGRESS, Cursor: "1"}))
		}, fault.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := peer{watch: test.watch}.client(t).Offers().Watch(t.Context(), query.Query{}, "")
			require.NoError(t, err)
			ev, err := w.Next()
			require.NoError(t, err)
			require.Equal(t, Event{Kind: query.Progress, Cursor: "1"}, ev)
			_, err = w.Next()
			require.ErrorIs(t, err, test.kind)
		})
	}
	t.Run("never begins", func(t *testing.T) {
		c := peer{watch: func(grpc.ServerStreamingServer[api.WatchResponse]) error { return nil }}.client(t)
		_, err := c.Offers().Watch(t.Context(), query.Query{}, "")
		require.ErrorIs(t, err, fault.Unavailable)
	})
}

func TestEveryEventHasAName(t *testing.T) {
	for n := range api.WatchResponse_Kind_name {
		kind := api.WatchResponse_Kind(n)
		if kind != api.WatchResponse_KIND_UNSPECIFIED {
			require.NotEmpty(t, toEvent(&api.WatchResponse{Kind: kind}).Kind, kind)
		}
	}
}
