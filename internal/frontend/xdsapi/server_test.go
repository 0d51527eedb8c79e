package xdsapi

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/frontend/budget"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	xdsv1 "github.com/blackhole/blackhole/proto/blackhole/xds/v1"
)

// catalog is a Catalog with the result that a test sets, of every service.
type catalog struct {
	instances.Catalog
	mu     sync.Mutex
	result instance.Result
	moved  chan struct{}
	over   chan string // the service of each ended watch
}

func (c *catalog) set(stale bool, list ...*instance.Instance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	index := c.result.Index
	if !stale {
		index++
	}
	c.result = instance.Result{View: &instance.View{Index: index, Instances: list}, Contact: instance.Contact{Stale: stale}}
	close(c.moved)
	c.moved = make(chan struct{})
}

func (c *catalog) Discover(context.Context, instance.Query) (instance.Result, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.result, nil
}

func (c *catalog) Await(ctx context.Context, q instance.Query, after uint64) (instance.Result, error) {
	for first := true; ; first = false {
		c.mu.Lock()
		r, moved := c.result, c.moved
		c.mu.Unlock()
		if r.Index > after || !first {
			return r, nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			c.over <- q.Service
			return instance.Result{}, ctx.Err()
		}
	}
}

// stream opens a stream to a server, which may follow two services.
func stream(t *testing.T) (*catalog, grpc.ClientStream, context.CancelFunc) {
	c := &catalog{result: instance.Result{View: &instance.View{}}, moved: make(chan struct{}), over: make(chan string, 8)}
	closing, stop := context.WithCancel(t.Context())
	s := grpc.NewServer()
	s.RegisterService(Desc(), &Server{Catalog: c, Watches: access.NewPool("watches", 2, nil), Closing: closing, Logger: slog.New(slog.DiscardHandler)})
	l := bufconn.Listen(1 << 16)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { stop(); s.Stop(); <-done })
	conn, err := grpc.NewClient("passthrough:///", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	wire, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, Method)
	require.NoError(t, err)
	return c, wire, stop
}

func ask(t *testing.T, wire grpc.ClientStream, kind, nonce string, names ...string) {
	require.NoError(t, wire.SendMsg(&xdsv1.DiscoveryRequest{TypeUrl: kind, ResponseNonce: nonce, ResourceNames: names}))
}

func answer(t *testing.T, wire grpc.ClientStream) *xdsv1.DiscoveryResponse {
	t.Helper()
	got := &xdsv1.DiscoveryResponse{}
	require.NoError(t, wire.RecvMsg(got))
	return got
}

func instanceOf(id, host string, port, weight int, zone string) *instance.Instance {
	return &instance.Instance{Key: instance.Key{Namespace: "default", Service: "web", ID: id}, Status: instance.StatusUp, Spec: instance.Spec{Host: host, Port: port, Weight: weight, Zone: zone}}
}

// An answer follows each change of the wanted names, and no confirmation.
func TestConfirmations(t *testing.T) {
	_, wire, _ := stream(t)
	ask(t, wire, listenerType, "", "web", "Not A Name")
	first := answer(t, wire)
	require.Len(t, first.GetResources(), 1, "a name that no service can have has no listener")
	ask(t, wire, listenerType, first.GetNonce(), "Not A Name", "web") // confirms
	ask(t, wire, clusterType, "", "web")
	second := answer(t, wire)
	require.Equal(t, clusterType, second.GetTypeUrl())
	ask(t, wire, listenerType, second.GetNonce(), "web", "shop") // overtaken: not the last answer of its type
	ask(t, wire, listenerType, first.GetNonce(), "web", "shop")
	third := answer(t, wire)
	require.Equal(t, listenerType, third.GetTypeUrl())
	require.Len(t, third.GetResources(), 2)
	require.NoError(t, wire.SendMsg(&xdsv1.DiscoveryRequest{TypeUrl: listenerType, ResponseNonce: third.GetNonce(), ResourceNames: []string{"shop", "web"}, ErrorDetail: &xdsv1.Status{Message: "no"}}))
	ask(t, wire, routeType, "", "a/b")
	require.Equal(t, routeType, answer(t, wire).GetTypeUrl(), "a refused answer is not sent again")
	require.NoError(t, wire.CloseSend())
	require.Error(t, wire.RecvMsg(&xdsv1.DiscoveryResponse{}))
}

func TestEndpointsFollowTheCatalog(t *testing.T) {
	c, wire, _ := stream(t)
	ask(t, wire, endpointType, "", "web")
	b := instanceOf("b", "10.0.0.2", 80, 3, "z")
	c.set(false, instanceOf("a", "10.0.0.1", 80, 0, ""), b)
	require.Equal(t, []string{"/: 10.0.0.1:80*1 =1", "/z: 10.0.0.2:80*3 =3"}, listed(t, answer(t, wire)))
	c.set(true) // of the contact alone
	c.set(false, b, instanceOf("c", "10.0.0.2", 80, 9, "z"))
	second := answer(t, wire)
	require.Equal(t, []string{"/z: 10.0.0.2:80*3 =3"}, listed(t, second), "an address stands once")
	ask(t, wire, endpointType, second.GetNonce(), "till")
	require.Equal(t, "web", <-c.over)
	require.Len(t, listed(t, answer(t, wire)), 1)
	c.set(false)
	require.Empty(t, listed(t, answer(t, wire)))
}

// TestSilentReaders: streams that nobody reads hold no more than their budget, a stream without room builds nothing
// and ends with the name of the pool, and a reader with room has its endpoints.
func TestSilentReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &catalog{result: instance.Result{View: &instance.View{}}, moved: make(chan struct{}), over: make(chan string, 99)}
		for n := range 2000 {
			c.result.Instances = append(c.result.Instances, instanceOf(fmt.Sprint(n), fmt.Sprint(strings.Repeat("h", 200), n), 80, 1, "z"))
		}
		c.result.Index = 1
		size := c.result.Bytes()
		answers := access.NewPool("answer_bytes", 8*size, nil)
		b := budget.Budget{Answers: answers, AtOnce: access.NewPool("calls", 99, nil), Op: "test"}
		s := &Server{Catalog: c, Watches: access.NewPool("watches", 99, nil), Closing: t.Context(), Logger: slog.New(slog.DiscardHandler)}
		sent := make(chan string, 41)
		ask := func(caller string, silent bool) error {
			ctx, cancel := context.WithTimeout(access.With(t.Context(), access.Principal{Name: caller}), 20*time.Second)
			defer cancel()
			w := &wire{ctx: ctx, asked: make(chan *xdsv1.DiscoveryRequest, 1), silent: silent, sent: func() { sent <- caller }}
			w.asked <- &xdsv1.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: []string{"web"}}
			return b.Stream(s, w, nil, func(srv any, ss grpc.ServerStream) error { return srv.(*Server).Stream(ss) })
		}
		refused := make(chan error, 40)
		for range 40 {
			go func() { refused <- ask("greedy", true) }()
		}
		synctest.Wait()
		require.LessOrEqual(t, answers.Used(), 6*size)
		without := 40 - len(sent)
		require.Positive(t, without)
		for len(sent) > 0 {
			<-sent
		}
		over := make(chan error, 1)
		go func() { over <- ask("honest", false) }()
		time.Sleep(6 * time.Second)
		synctest.Wait()
		require.Equal(t, "honest", <-sent)
		require.Empty(t, sent)
		require.Len(t, refused, without, "they waited for room before they built what they would send")
		require.Equal(t, "pool.answer_bytes.share", fault.FieldOf(<-refused))
		require.ErrorIs(t, <-over, context.DeadlineExceeded)
	})
}

// wire is the stream of a client that reads what it is sent, or nothing at all.
type wire struct {
	grpc.ServerStream
	ctx    context.Context
	asked  chan *xdsv1.DiscoveryRequest
	silent bool
	sent   func()
}

func (w *wire) Context() context.Context { return w.ctx }

func (w *wire) RecvMsg(m any) error {
	select {
	case r := <-w.asked:
		proto.Merge(m.(proto.Message), r)
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

func (w *wire) SendMsg(m any) error {
	w.sent()
	if w.silent {
		<-w.ctx.Done()
	}
	budget.Written(m)
	return w.ctx.Err()
}

func listed(t *testing.T, r *xdsv1.DiscoveryResponse) (lines []string) {
	require.Len(t, r.GetResources(), 1)
	all := &xdsv1.ClusterLoadAssignment{}
	require.NoError(t, proto.Unmarshal(r.GetResources()[0].GetValue(), all))
	for _, p := range all.GetEndpoints() {
		line := p.GetLocality().GetRegion() + "/" + p.GetLocality().GetZone() + ":"
		for _, e := range p.GetLbEndpoints() {
			at := e.GetEndpoint().GetAddress().GetSocketAddress()
			line += fmt.Sprintf(" %s:%d*%d", at.GetAddress(), at.GetPortValue(), e.GetLoadBalancingWeight().GetValue())
		}
		lines = append(lines, fmt.Sprintf("%s =%d", line, p.GetLoadBalancingWeight().GetValue()))
	}
	return lines
}

func TestRefusals(t *testing.T) {
	many := make([]string, maxNames+1)
	for n := range many {
		many[n] = fmt.Sprint("s", n)
	}
	for name, c := range map[string]struct {
		kind  string
		names []string
		want  string
	}{
		"type":    {scheme + "envoy.config.core.v3.Node", nil, "type_url"},
		"names":   {listenerType, many, "resource_names"},
		"watches": {endpointType, []string{"a", "b", "c"}, "watches"},
	} {
		t.Run(name, func(t *testing.T) {
			_, wire, _ := stream(t)
			ask(t, wire, c.kind, "", c.names...)
			require.ErrorContains(t, wire.RecvMsg(&xdsv1.DiscoveryResponse{}), c.want)
		})
	}
}

func TestClosing(t *testing.T) {
	c, wire, stop := stream(t)
	ask(t, wire, endpointType, "", "web")
	c.set(false)
	answer(t, wire)
	stop()
	require.ErrorContains(t, wire.RecvMsg(&xdsv1.DiscoveryResponse{}), "shutting down")
	require.Equal(t, "web", <-c.over)
}

func TestAddressOf(t *testing.T) {
	for name, c := range map[string]struct {
		spec instance.Spec
		host string
		port uint32
		ok   bool
	}{
		"host and port":      {instance.Spec{Host: "10.0.0.1", Port: 80}, "10.0.0.1", 80, true},
		"interface":          {instance.Spec{Host: "10.0.0.1", Port: 80, Interfaces: map[string]string{"gRPC": "[::1]:81"}}, "::1", 81, true},
		"interface, no port": {instance.Spec{Host: "10.0.0.1", Port: 80, Interfaces: map[string]string{"gRPC": "somewhere"}}, "10.0.0.1", 80, true},
		"other interfaces":   {instance.Spec{Interfaces: map[string]string{"REST": "http://a"}}, "", 0, false},
	} {
		host, port, ok := addressOf(c.spec)
		require.Equal(t, c.host, host, name)
		require.Equal(t, c.port, port, name)
		require.Equal(t, c.ok, ok, name)
	}
}
