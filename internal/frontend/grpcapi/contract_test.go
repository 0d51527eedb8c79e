package grpcapi_test

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestOverTheWire runs the suite that package discovery itself passes on the client, with
// gRPC between them.
func TestOverTheWire(t *testing.T) {
	discoverytest.Run(t, func(t testing.TB, h *discoverytest.Harness) discoverytest.API {
		s := serve(t, grpcapi.Config{Registrar: h, Finder: h, Node: h.Node})
		w := wire{s.client(t).Offers()}
		return discoverytest.API{Writer: w, Views: w}
	})
}

// served is a server on an in-memory network.
type served struct {
	*grpcapi.Server
	listener *bufconn.Listener
}

func serve(t testing.TB, c grpcapi.Config) served {
	t.Helper()
	s := served{grpcapi.New(c), bufconn.Listen(1 << 20)}
	done := make(chan error, 1)
	go func() { done <- s.Serve(s.listener) }()
	t.Cleanup(func() {
		s.Close()
		require.NoError(t, <-done)
	})
	return s
}

func (s served) dialer() grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.listener.DialContext(ctx) })
}

func (s served) client(t testing.TB) *operator.Client {
	return dial(t, "passthrough:///peer", s.dialer())
}

func dial(t testing.TB, address string, opts ...grpc.DialOption) *operator.Client {
	t.Helper()
	c, err := operator.New(address, operator.Dial(opts...))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// wire is the client in the suite's words.
type wire struct{ client.Offers }

func (w wire) RegisterBatch(ctx context.Context, offers []records.Offer) (all []discovery.Outcome, err error) {
	done, err := w.Offers.RegisterBatch(ctx, offers)
	for _, o := range done {
		all = append(all, discovery.Outcome(o))
	}
	return all, err
}

func (w wire) Get(ctx context.Context, id string) (records.View, error) {
	r, err := w.Offers.Get(ctx, id)
	return r.View, err
}

func (w wire) List(ctx context.Context) ([]records.View, error) {
	list, err := w.Offers.List(ctx)
	var views []records.View
	for _, r := range list {
		views = append(views, r.View)
	}
	return views, err
}

func (w wire) Resolve(ctx context.Context, key string) (records.View, error) {
	r, err := w.Offers.Resolve(ctx, key)
	return r.View, err
}

func (w wire) Watch(ctx context.Context, q query.Query, after string) (discoverytest.Next, error) {
	watcher, err := w.Offers.Watch(ctx, q, after)
	if err != nil {
		return nil, err
	}
	return func() (discoverytest.Event, error) {
		ev, err := watcher.Next()
		if err != nil {
			return discoverytest.Event{}, err
		}
		seen := discoverytest.Event{Kind: ev.Kind, Cursor: ev.Cursor}
		if ev.Record != nil {
			seen.Record = &ev.Record.View
		}
		return seen, nil
	}, nil
}
