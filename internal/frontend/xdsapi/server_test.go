package xdsapi

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/instance"
	xdsv1 "github.com/blackhole/blackhole/proto/blackhole/xds/v1"
)

// catalog is a Catalog whose watches tell what a test sends.
type catalog struct {
	instance.Catalog
	batches chan instance.Batch
	over    chan string // the service of each ended watch
}

func (c *catalog) Watch(ctx context.Context, q instance.Query, _ uint64, send func(instance.Batch) error) error {
	defer func() { c.over <- q.Service }()
	for {
		select {
		case b := <-c.batches:
			if err := send(b); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stream opens a stream to a server, which may follow two services.
func stream(t *testing.T) (*catalog, grpc.ClientStream, context.CancelFunc) {
	c := &catalog{batches: make(chan instance.Batch), over: make(chan string, 8)}
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
	c.batches <- instance.Batch{Reset: true, Events: []instance.Event{{Type: instance.Added, Instance: instanceOf("a", "10.0.0.1", 80, 0, "")}, {Type: instance.Added, Instance: instanceOf("b", "10.0.0.2", 80, 3, "z")}}}
	require.Equal(t, []string{"/: 10.0.0.1:80*1 =1", "/z: 10.0.0.2:80*3 =3"}, listed(t, answer(t, wire)))
	c.batches <- instance.Batch{Contact: instance.Contact{Stale: true}} // progress
	again := instanceOf("c", "10.0.0.2", 80, 9, "z")
	c.batches <- instance.Batch{Events: []instance.Event{{Type: instance.Removed, Instance: instanceOf("a", "10.0.0.1", 80, 0, "")}, {Type: instance.Added, Instance: again}}}
	second := answer(t, wire)
	require.Equal(t, []string{"/z: 10.0.0.2:80*3 =3"}, listed(t, second), "an address stands once")
	ask(t, wire, endpointType, second.GetNonce(), "till")
	require.Equal(t, "web", <-c.over)
	c.batches <- instance.Batch{Reset: true}
	require.Empty(t, listed(t, answer(t, wire)))
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
	c.batches <- instance.Batch{Reset: true}
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
