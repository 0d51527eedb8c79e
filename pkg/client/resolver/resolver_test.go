package resolver_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental/balancer/weight"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	gresolver "google.golang.org/grpc/resolver"
	"google.golang.org/grpc/test/bufconn"

	"github.com/blackhole/blackhole/internal/agent/agenttest"
	"github.com/blackhole/blackhole/internal/link"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/client/resolver"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// network has servers by address.
type network struct {
	t  *testing.T
	mu sync.Mutex
	at map[string]*bufconn.Listener
}

// serve serves at an address until stop.
func (n *network) serve(address string, register func(s *grpc.Server)) (stop func()) {
	l, s, done := bufconn.Listen(1<<16), grpc.NewServer(), make(chan struct{})
	register(s)
	go func() { defer close(done); _ = s.Serve(l) }()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at[address] = l
	return sync.OnceFunc(func() {
		n.mu.Lock()
		delete(n.at, address)
		n.mu.Unlock()
		s.Stop()
		<-done
	})
}

// named is a connection that knows its address.
type named struct {
	net.Conn
	address string
}

func (c named) RemoteAddr() net.Addr { return textAddr(c.address) }

type textAddr string

func (textAddr) Network() string  { return "test" }
func (a textAddr) String() string { return string(a) }

func (n *network) dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.at[address]
	n.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	c, err := l.DialContext(ctx)
	return named{c, address}, err
}

// fixture is an agent on a network with a client.
type fixture struct {
	network
	agent *agenttest.Agent
	peer  *agenttest.Server
	stop  func() // the peer
	c     *client.Client
}

func bubble(t *testing.T, f func(t *testing.T, w *fixture)) {
	synctest.Test(t, func(t *testing.T) {
		a := agenttest.New()
		w := &fixture{network: network{t: t, at: map[string]*bufconn.Listener{}}, agent: a, peer: &agenttest.Server{Agent: a}}
		w.start()
		t.Cleanup(func() { w.stop() })
		var err error
		began := time.Now()
		w.c, err = client.New("passthrough:///peer", client.Option(func(s *link.Settings) { s.Dial = append(s.Dial, grpc.WithContextDialer(w.dial)) }), client.WithClock(func() time.Duration { return time.Since(began) }))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, w.c.Close()) })
		f(t, w)
	})
}

func (w *fixture) start() {
	w.stop = w.serve("peer", func(s *grpc.Server) { agentv1.RegisterDiscoveryServiceServer(s, w.peer) })
}

// instance registers an instance and serves it.
func (w *fixture) instance(n int, edits ...func(*instance.Registration)) string {
	address := fmt.Sprintf("10.0.0.%d:8080", n)
	w.t.Cleanup(w.serve(address, func(s *grpc.Server) { healthpb.RegisterHealthServer(s, health.NewServer()) }))
	r := agenttest.Web(fmt.Sprint("i", n))
	r.Spec.Host = fmt.Sprintf("10.0.0.%d", n)
	for _, edit := range edits {
		edit(&r)
	}
	_, err := w.agent.Register(w.t.Context(), r)
	require.NoError(w.t, err)
	return address
}

func (w *fixture) conn(target string) *grpc.ClientConn {
	conn, err := grpc.NewClient(target, grpc.WithResolvers(resolver.New(w.c)), grpc.WithDefaultServiceConfig(resolver.RoundRobin),
		grpc.WithContextDialer(w.dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, conn.Close()) })
	return conn
}

// called makes n calls and counts the answers of each instance.
func (w *fixture) called(conn *grpc.ClientConn) map[string]int {
	w.t.Helper()
	synctest.Wait()
	who := map[string]int{}
	for range 30 {
		var p peer.Peer
		_, err := healthpb.NewHealthClient(conn).Check(w.t.Context(), &healthpb.HealthCheckRequest{}, grpc.Peer(&p), grpc.WaitForReady(true))
		require.NoError(w.t, err)
		who[p.Addr.String()]++
		synctest.Wait()
	}
	return who
}

func TestCallsAreSpread(t *testing.T) {
	bubble(t, func(t *testing.T, w *fixture) {
		one := w.instance(1)
		w.instance(2, func(r *instance.Registration) { r.Spec.Tags = []string{"canary"} })
		conn := w.conn("blackhole:///web?tag=v1&zone=eu")
		require.Equal(t, map[string]int{one: 30}, w.called(conn))
		three := w.instance(3)
		require.Equal(t, map[string]int{one: 15, three: 15}, w.called(conn))
		_, err := w.agent.SetStatus(t.Context(), agenttest.Web("i1").Key, instance.StatusOutOfService)
		require.NoError(t, err)
		require.Equal(t, map[string]int{three: 30}, w.called(conn))

		w.stop() // stops the peer; the instances stay
		time.Sleep(time.Hour)
		require.Equal(t, map[string]int{three: 30}, w.called(conn), "who was known last stays")
		four := w.instance(4)
		w.start()
		time.Sleep(10 * time.Second)
		require.Equal(t, map[string]int{three: 15, four: 15}, w.called(conn))
	})
}

func TestNobodyIsThere(t *testing.T) {
	bubble(t, func(t *testing.T, w *fixture) {
		conn := w.conn("blackhole:///web")
		_, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		require.Error(t, err)
		one := w.instance(1)
		time.Sleep(time.Second)
		require.Equal(t, map[string]int{one: 30}, w.called(conn))
	})
}

// sink is the gRPC side of a resolver.
type sink struct {
	gresolver.ClientConn
	mu     sync.Mutex
	states []gresolver.State
	errs   []error
}

func (s *sink) UpdateState(state gresolver.State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.states = append(s.states, state)
	return nil
}

func (s *sink) ReportError(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs = append(s.errs, err)
}

// seen returns and clears the received states.
func (s *sink) seen() ([]gresolver.State, []error) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	states, errs := s.states, s.errs
	s.states, s.errs = nil, nil
	return states, errs
}

func (w *fixture) resolve(target string) (*sink, gresolver.Resolver) {
	u, err := url.Parse(target)
	require.NoError(w.t, err)
	s := &sink{}
	r, err := resolver.New(w.c).Build(gresolver.Target{URL: *u}, s, gresolver.BuildOptions{})
	require.NoError(w.t, err)
	w.t.Cleanup(r.Close)
	return s, r
}

// TestNeverEmptyBecauseContactWasLost loses the peer, and the contact of the peer.
func TestNeverEmptyBecauseContactWasLost(t *testing.T) {
	bubble(t, func(t *testing.T, w *fixture) {
		w.instance(1, func(r *instance.Registration) { r.Spec.Weight = 7 })
		s, r := w.resolve("blackhole:///web")
		states, errs := s.seen()
		require.Empty(t, errs)
		require.Len(t, states, 1)
		e := states[0].Endpoints[0]
		require.Equal(t, "10.0.0.1:8080", e.Addresses[0].Addr)
		require.Equal(t, uint32(7), weight.FromEndpoint(e).Weight)
		i, ok := resolver.Instance(e)
		require.True(t, ok)
		require.Equal(t, "i1", i.ID)
		_, ok = resolver.Instance(gresolver.Endpoint{})
		require.False(t, ok)

		w.agent.Lose("no majority")
		_, err := w.agent.Deregister(t.Context(), i.Key)
		require.NoError(t, err)
		w.stop()
		time.Sleep(time.Minute)
		states, errs = s.seen()
		require.Empty(t, states)
		require.Empty(t, errs)
		w.agent.Find()
		w.start()
		time.Sleep(10 * time.Second)
		states, _ = s.seen()
		require.Len(t, states, 1)
		require.Empty(t, states[0].Endpoints, "it is known to be gone")
		r.ResolveNow(gresolver.ResolveNowOptions{})
		r.Close()
	})
}

// TestNoWatches expects polling of a peer that refuses watches.
func TestNoWatches(t *testing.T) {
	bubble(t, func(t *testing.T, w *fixture) {
		w.peer.Before = func(_ context.Context, method string) error {
			if method == "Watch" {
				return fault.New("test", fault.LimitReached, "1024 watches")
			}
			return nil
		}
		w.instance(1)
		s, r := w.resolve("blackhole:///web")
		states, errs := s.seen()
		require.Empty(t, errs)
		require.Len(t, states[0].Endpoints, 1)
		w.instance(2)
		time.Sleep(time.Minute)
		states, _ = s.seen()
		require.Len(t, states, 1)
		require.Len(t, states[0].Endpoints, 2)
		r.Close()
		w.stop()
		s, r = w.resolve("blackhole:///other")
		_, errs = s.seen()
		require.NotEmpty(t, errs)
		require.ErrorIs(t, errs[0], fault.Unavailable)
		r.Close()
	})
}

func TestParse(t *testing.T) {
	u, err := url.Parse("blackhole:///web?tag=v2&tag=b&zone=eu&prefer_zone=us&namespace=x&version=^1.2&environment=staging&dependency=db")
	require.NoError(t, err)
	q, err := resolver.Parse(*u)
	require.NoError(t, err)
	require.Equal(t, instance.Query{Name: instance.Name{Namespace: "x", Service: "web"}, Selector: instance.Selector{
		Tags: []string{"v2", "b"}, Zone: "eu", PreferZone: "us", Version: "^1.2", Environment: "staging", Dependency: "db",
	}}, q)
	for target, field := range map[string]string{
		"dns:///web":                      "target",
		"blackhole://host/web":            "target",
		"blackhole:///web?tags=x":         "target",
		"blackhole:///web?zone=a&zone=b":  "target",
		"blackhole:///web?zone=%zz":       "target",
		"blackhole:///":                   "service",
		"blackhole:///a/b":                "service",
		"blackhole:///web?namespace=A":    "namespace",
		"blackhole:///web?version=%5E%5E": "version",
	} {
		u, err := url.Parse(target)
		require.NoError(t, err)
		_, err = resolver.Parse(*u)
		require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Field: field}, target)
	}
	_, err = grpc.NewClient("blackhole:///", grpc.WithResolvers(resolver.New(&client.Client{})))
	require.Error(t, err)
}

func TestAddress(t *testing.T) {
	for want, s := range map[string]instance.Spec{
		"10.0.0.1:80":      {Host: "10.0.0.1", Port: 80},
		"[2001:db8::1]:80": {Host: "2001:db8::1", Port: 80},
		"10.0.0.2:9000":    {Host: "10.0.0.1", Port: 80, Interfaces: map[string]string{"REST": "http://x/", "gRPC": "10.0.0.2:9000"}},
		"10.0.0.3:9000":    {Interfaces: map[string]string{"grpc": "grpc://10.0.0.3:9000/"}},
		"10.0.0.4:80":      {Host: "10.0.0.4", Port: 80, Interfaces: map[string]string{"gRPC": "somewhere"}},
		"":                 {Interfaces: map[string]string{"REST": "http://10.0.0.1/", "gRPC": ":90"}},
	} {
		require.Equal(t, want, resolver.Address(&instance.Instance{Spec: s}))
	}
}
