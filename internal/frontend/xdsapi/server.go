// Package xdsapi is the front end for clients of xDS v3, above all gRPC without a proxy: "xds:///web" leads a client to the instances of
// the service web that are UP. It is a service of the gRPC API, with its credentials, roles and bounds.
//
// The package serves the aggregated stream with the state of the world. Delta streams and Envoy's own listeners are not served.
package xdsapi

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/frontend/budget"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	xdsv1 "github.com/blackhole/blackhole/proto/blackhole/xds/v1"
)

// Service is the name of the aggregated discovery service of xDS v3.
const Service = "envoy.service.discovery.v3.AggregatedDiscoveryService"

// Method is the full name of its stream. Requests have fields that this package does not know.
const Method = "/" + Service + "/StreamAggregatedResources"

const (
	op       = "xdsapi.Stream"
	maxNames = 256 // of one type on a stream
	maxText  = 200 // bytes of a client's error in the log
)

// Server serves streams.
type Server struct {
	Catalog instances.Catalog
	Watches *access.Pool    // a place for each service that a stream follows
	Closing context.Context // done when the server closes; ends streams
	Logger  *slog.Logger
}

// aggregated is what grpc demands of an implementation.
type aggregated interface {
	Stream(grpc.ServerStream) error
}

// Desc describes the service for a server of gRPC.
func Desc() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: Service, HandlerType: (*aggregated)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: "StreamAggregatedResources", ServerStreams: true, ClientStreams: true,
			Handler: func(srv any, ss grpc.ServerStream) error { return srv.(aggregated).Stream(ss) },
		}},
	}
}

// File describes the service for clients that ask by reflection. Its messages have names of our own.
func File() *descriptorpb.FileDescriptorProto {
	pack, name, of := Service[:strings.LastIndexByte(Service, '.')], Service[strings.LastIndexByte(Service, '.')+1:], xdsv1.File_blackhole_xds_v1_xds_proto
	return &descriptorpb.FileDescriptorProto{
		Name: proto.String(Service + ".proto"), Syntax: proto.String("proto3"), Package: &pack, Dependency: []string{of.Path()},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: &name, Method: []*descriptorpb.MethodDescriptorProto{{
			Name: proto.String("StreamAggregatedResources"), ClientStreaming: proto.Bool(true), ServerStreaming: proto.Bool(true),
			InputType: proto.String("." + string(of.Package()) + ".DiscoveryRequest"), OutputType: proto.String("." + string(of.Package()) + ".DiscoveryResponse"),
		}}}},
	}
}

// Stream answers until the client closes its side, its call ends, or the server closes.
func (s *Server) Stream(wire grpc.ServerStream) error {
	ctx, cancel := context.WithCancel(wire.Context())
	c := &client{Server: s, wire: wire, ctx: ctx, kinds: map[string]*kind{}, follows: map[string]*follow{}, news: make(chan news)}
	defer c.watches.Wait()
	defer cancel()
	asked, ended := make(chan *xdsv1.DiscoveryRequest), make(chan error, 1)
	go func() { // ends with the stream's call, which unblocks RecvMsg
		for {
			r := &xdsv1.DiscoveryRequest{}
			if err := wire.RecvMsg(r); err != nil {
				ended <- err
				return
			}
			select {
			case asked <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		var err error
		select {
		case r := <-asked:
			err = c.take(r)
		case n := <-c.news:
			err = c.tell(n)
		case err = <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
		case <-s.Closing.Done():
			err = fault.New(op, fault.Unavailable, "the peer is shutting down")
		}
		if err != nil {
			return err
		}
	}
}

// client is one stream. Its fields belong to the goroutine of Stream.
type client struct {
	*Server
	wire    grpc.ServerStream
	ctx     context.Context
	kinds   map[string]*kind   // by type
	follows map[string]*follow // by the name of a service
	watches sync.WaitGroup
	news    chan news
	sent    uint64 // answers so far: the next nonce
	refused bool   // the log tells of an answer that the client refused
}

// kind is what a client wants of one type.
type kind struct {
	names []string // valid and ascending
	nonce string   // of the last answer
}

// news is that a watch has found other instances, or why it ended.
type news struct {
	name string
	err  error
}

// follow is the watch of a service.
type follow struct {
	of    instance.Name
	end   context.CancelFunc
	index uint64 // of the result that was sent last
}

// take answers a request, unless it only confirms the last answer.
func (c *client) take(r *xdsv1.DiscoveryRequest) error {
	switch r.GetTypeUrl() {
	case listenerType, routeType, clusterType, endpointType:
	default:
		return fault.Wrap(op, fault.Invalidf("type_url", r.GetTypeUrl(), "is not served: ask for listeners, routes, clusters and endpoints"))
	}
	k := c.kinds[r.GetTypeUrl()]
	if k == nil {
		k = &kind{}
		c.kinds[r.GetTypeUrl()] = k
	}
	if r.GetResponseNonce() != "" && r.GetResponseNonce() != k.nonce {
		return nil // overtaken: the client answers the newer one, too
	}
	if e := r.GetErrorDetail(); e != nil && !c.refused {
		c.refused = true
		c.Logger.WarnContext(c.ctx, "a client of xDS refused an answer; further ones of its stream are not told", "type", r.GetTypeUrl(), "error", clean.Text(e.GetMessage(), maxText))
	}
	if n := len(r.GetResourceNames()); n > maxNames {
		return fault.Wrap(op, fault.Invalidf("resource_names", nil, "are %d, limit %d: use another stream", n, maxNames))
	}
	// A client holds a name without a resource for unknown.
	names := slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(r.GetResourceNames()))), func(name string) bool {
		_, err := nameOf(name)
		return err != nil
	})
	if k.nonce != "" && slices.Equal(names, k.names) {
		return nil
	}
	k.names = names
	if r.GetTypeUrl() == endpointType {
		return c.follow(names)
	}
	var list []*xdsv1.Any
	for _, name := range names {
		list = append(list, fixed(r.GetTypeUrl(), name))
	}
	return c.send(r.GetTypeUrl(), list)
}

// follow begins and ends watches, so that they are those of names. Each tells its service at once.
func (c *client) follow(names []string) error {
	for name, f := range c.follows {
		if !slices.Contains(names, name) {
			f.end()
			delete(c.follows, name)
		}
	}
	for _, name := range names {
		if c.follows[name] != nil {
			continue
		}
		n, err := nameOf(name)
		if err != nil {
			return err
		}
		release, err := c.Watches.Take(c.ctx, op)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(c.ctx)
		c.follows[name] = &follow{of: n, end: cancel}
		c.watches.Go(func() {
			defer release()
			defer cancel()
			c.watch(ctx, name, n)
		})
	}
	return nil
}

// watch tells of each change of a service until ctx ends, and keeps no instances: a client may never read of them.
func (c *client) watch(ctx context.Context, name string, n instance.Name) {
	tell := func(n news) {
		select {
		case c.news <- n:
		case <-ctx.Done():
		}
	}
	for known := uint64(0); ctx.Err() == nil; {
		r, err := c.Catalog.Await(ctx, instance.Query{Name: n}, known)
		if err != nil && ctx.Err() == nil {
			tell(news{err: err}) // the stream ends
		}
		if err != nil {
			return
		}
		if index := r.Index; index != known {
			known = index
			tell(news{name: name})
		}
	}
}

// tell sends the present instances of a service, unless they were sent. The news of a watch that was ended meanwhile
// are none.
func (c *client) tell(n news) error {
	f := c.follows[n.name]
	switch {
	case n.err != nil:
		return n.err
	case f == nil:
		return nil
	}
	r, err := c.Catalog.Discover(c.ctx, instance.Query{Name: f.of})
	if err != nil || r.Index == f.index {
		return err
	}
	if err := budget.Grow(c.wire.Context(), r.Bytes()); err != nil {
		return err
	}
	f.index = r.Index
	return c.send(endpointType, []*xdsv1.Any{endpoints(n.name, r.Instances)})
}

func (c *client) send(kind string, list []*xdsv1.Any) error {
	c.sent++
	number := strconv.FormatUint(c.sent, 10)
	c.kinds[kind].nonce = number
	return c.wire.SendMsg(&xdsv1.DiscoveryResponse{VersionInfo: number, TypeUrl: kind, Nonce: number, Resources: list})
}
