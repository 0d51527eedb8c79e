package grpcapi_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"github.com/blackhole/blackhole/internal/agent/agenttest"
	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// counted is an agent that counts the instances that answers are made of.
type counted struct {
	*agenttest.Agent
	made atomic.Int64
}

func (c *counted) LastBeat(k instance.Key) (time.Time, bool) {
	c.made.Add(1)
	return c.Agent.LastBeat(k)
}

// lists is a server with long lists of all kinds: some hundred kilobytes each.
type lists struct {
	answers *access.Pool
	agent   *counted
	listen  *bufconn.Listener
}

const listed = 100

// offers has one record many times.
type offers struct {
	discovery.Registrar
	discovery.Finder
	r *records.Record
}

func (o offers) OwnAll() []*records.Record { return slices.Repeat([]*records.Record{o.r}, listed) }

func (o offers) Query(context.Context, query.Query) (*query.Answer, error) {
	return &query.Answer{Results: slices.Repeat([]query.Result{{Record: o.r}}, listed)}, nil
}

// newLists serves until close. A call names its caller in its metadata.
func newLists(t *testing.T, r *records.Record) (l *lists, end func()) {
	l = &lists{access.NewPool("answer_bytes", 8<<20, nil), &counted{Agent: agenttest.New()}, bufconn.Listen(1 << 10)}
	wide := strings.Repeat("x", 1000)
	for n := range listed {
		r := agenttest.Web(fmt.Sprint("i", n))
		r.Spec.Metadata = map[string]string{"a": wide, "b": wide, "c": wide, "d": wide}
		_, err := l.agent.Register(t.Context(), r)
		require.NoError(t, err)
		r.Service = fmt.Sprint("s", n)
		r.Spec.Tags = nil
		for tag := range 30 {
			r.Spec.Tags = append(r.Spec.Tags, fmt.Sprint(wide[:50], tag))
		}
		_, err = l.agent.Register(t.Context(), r)
		require.NoError(t, err)
		r.Service = "gone"
		_, err = l.agent.Register(t.Context(), r)
		require.NoError(t, err)
		_, err = l.agent.Deregister(t.Context(), r.Key)
		require.NoError(t, err)
	}
	s := grpcapi.New(grpcapi.Config{
		Agent:        &grpcapi.Agent{Registrar: l.agent, Catalog: l.agent, Removed: l.agent.Removed},
		Registrar:    offers{r: r},
		Finder:       offers{r: r},
		Coordination: plane(coordtest.New(coordtest.Config{})),
		Answers:      l.answers,
		Unary: []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, call grpc.UnaryHandler) (any, error) {
			if name := metadata.ValueFromIncomingContext(ctx, "caller"); len(name) > 0 {
				ctx = access.With(ctx, access.Principal{Name: name[0], Role: access.RoleAdmin})
			}
			return call(ctx, req)
		}},
	})
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(access.NewConnections(64, nil).Listener(l.listen)) }()
	return l, func() {
		s.Close()
		require.NoError(t, <-ended)
	}
}

func (l *lists) dial(t *testing.T, silent chan struct{}) *grpc.ClientConn {
	c, err := grpc.NewClient("passthrough:///peer", grpc.WithPerRPCCredentials(named("a")), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := l.listen.DialContext(ctx)
			return &deaf{Conn: c, silent: silent, closed: make(chan struct{})}, err
		}))
	require.NoError(t, err)
	return c
}

func as(ctx context.Context, caller string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "caller", caller)
}

// fill takes the room of answers for others.
func (l *lists) fill(t *testing.T) (releases []func()) {
	for left := 8 << 20; left > 20<<10; left = 8<<20 - l.answers.Used() {
		other := access.With(t.Context(), access.Principal{Name: fmt.Sprint("other", left)})
		release, err := l.answers.TakeWithin(other, "test", left/2, 0)
		require.NoError(t, err)
		releases = append(releases, release)
	}
	return releases
}

// TestOneKeyNeedsNoRoom: a transaction that reads the first key of many, as that of a mutex of etcd's client, waits for no
// room of answers.
func TestOneKeyNeedsNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, end := newLists(t, nil)
		defer end()
		c := l.dial(t, make(chan struct{}))
		defer c.Close()
		l.fill(t)
		first := &api.TxnRange{Key: []byte("a"), RangeEnd: []byte("b"), Order: api.TxnRange_CREATE_REVISION, Limit: 1}
		_, err := api.NewCoordinationServiceClient(c).Txn(as(t.Context(), "honest"), &api.TxnRequest{
			Then: []*api.TxnStep{{Step: &api.TxnStep_Range{Range: first}}},
		})
		require.NoError(t, err)
	})
}

// TestListsAskForRoomFirst: a list without room waits for it, and nothing of it is built or read meanwhile; then it is
// refused by the name of the pool, or passes.
func TestListsAskForRoomFirst(t *testing.T) {
	record := discoverytest.New(t).Foreign(t, discoverytest.Offer("a", func(o *records.Offer) { o.Metadata.Description = strings.Repeat("x", 500) }))
	for name, ask := range map[string]func(context.Context, *grpc.ClientConn) error{
		"Discover": func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := agentv1.NewDiscoveryServiceClient(c).Discover(ctx, &agentv1.DiscoverRequest{ServiceName: "web"})
			return err
		},
		"ListInstances": func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := agentv1.NewDiscoveryServiceClient(c).ListInstances(ctx, &agentv1.ListInstancesRequest{})
			return err
		},
		"ListServices": func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := agentv1.NewDiscoveryServiceClient(c).ListServices(ctx, &agentv1.ListServicesRequest{})
			return err
		},
		"ListRemoved": func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := agentv1.NewDiscoveryServiceClient(c).ListRemoved(ctx, &agentv1.ListRemovedRequest{})
			return err
		},
		"List": func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := api.NewRecordServiceClient(c).List(ctx, &api.ListRequest{})
			return err
		},
		"Query": func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := api.NewRecordServiceClient(c).Query(ctx, &api.QueryRequest{Query: &pb.Query{}})
			return err
		},
		"Range": func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := api.NewCoordinationServiceClient(c).Range(ctx, &api.RangeRequest{Key: []byte("a"), Prefix: true})
			return err
		},
		"Txn": func(ctx context.Context, c *grpc.ClientConn) error {
			step := &api.TxnStep{Step: &api.TxnStep_Range{Range: &api.TxnRange{Key: []byte("a"), RangeEnd: []byte("b")}}}
			_, err := api.NewCoordinationServiceClient(c).Txn(ctx, &api.TxnRequest{Then: []*api.TxnStep{step}})
			return err
		},
		"ListLocks": func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := api.NewLockServiceClient(c).ListLocks(ctx, &api.ListLocksRequest{})
			return err
		},
		"ListLeases": func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := api.NewLockServiceClient(c).ListLeases(ctx, &api.ListLeasesRequest{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, end := newLists(t, record)
				defer end()
				c := l.dial(t, make(chan struct{}))
				defer c.Close()
				require.NoError(t, ask(as(t.Context(), "honest"), c))
				synctest.Wait()
				require.Zero(t, l.answers.Used())
				releases := l.fill(t)
				made := l.agent.made.Load()
				refused(t, ask(as(t.Context(), "honest"), c), codes.ResourceExhausted, "pool.answer_bytes")
				require.Equal(t, made, l.agent.made.Load(), "nothing was built")
				for _, release := range releases {
					time.AfterFunc(2*time.Second, release)
				}
				require.NoError(t, ask(as(t.Context(), "honest"), c))
				synctest.Wait()
				require.Zero(t, l.answers.Used())
			})
		})
	}
}

// TestSilentReadersOfLists: of forty readers of a list who do not read, those without room cost nothing but their
// calls, and an honest caller has its list.
func TestSilentReadersOfLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, end := newLists(t, nil)
		defer end()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		results := make(chan error, 40)
		var conns []*grpc.ClientConn
		for range 40 {
			silent := make(chan struct{})
			c := l.dial(t, silent)
			conns = append(conns, c)
			none := &agentv1.DiscoverRequest{ServiceName: "none"}
			_, err := agentv1.NewDiscoveryServiceClient(c).Discover(as(ctx, "greedy"), none)
			require.NoError(t, err)
			close(silent)
			go func() {
				_, err := agentv1.NewDiscoveryServiceClient(c).Discover(as(ctx, "greedy"), &agentv1.DiscoverRequest{ServiceName: "web"})
				results <- err
			}()
		}
		time.Sleep(6 * time.Second)
		synctest.Wait()
		require.LessOrEqual(t, l.answers.Used(), 6<<20)
		require.Less(t, l.agent.made.Load(), int64(20*listed), "who has no room makes no list")
		c := l.dial(t, make(chan struct{}))
		got, err := agentv1.NewDiscoveryServiceClient(c).Discover(as(ctx, "honest"), &agentv1.DiscoverRequest{ServiceName: "web"})
		require.NoError(t, err)
		require.Len(t, got.GetInstances(), listed)
		cancel()
		for _, c := range append(conns, c) {
			_ = c.Close()
		}
	})
}
