// Package resolver finds the instances of a service for gRPC. A program dials a service by its
// name, and gRPC distributes calls over the current instances.
//
//	c, err := client.New("")
//	conn, err := grpc.NewClient("blackhole:///payment?tag=v2&zone=eu",
//		grpc.WithResolvers(resolver.New(c)), grpc.WithDefaultServiceConfig(resolver.RoundRobin), ...)
//
// The target is blackhole:///SERVICE. A query string may have tag (repeated for several tags),
// zone, prefer_zone, version, environment, dependency and namespace.
//
// The interface "gRPC" is the address of an instance; without one, host and port are. After a loss of the peer or of its group, the last instances stay; only an instance
// that was certainly removed disappears.
package resolver

import (
	"context"
	"errors"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/experimental/balancer/weight"
	"google.golang.org/grpc/resolver"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Scheme is the scheme of targets.
const Scheme = "blackhole"

// RoundRobin is a service configuration that distributes calls over all instances. By default,
// gRPC uses a single instance.
const RoundRobin = `{"loadBalancingConfig":[{"round_robin":{}}]}`

// New returns a builder for grpc.WithResolvers, whose resolvers use the peer of c. Close c after
// the connections.
func New(c *client.Client) resolver.Builder {
	return &builder{services: c.Services(), last: make(map[string]*instance.View)}
}

// Instance returns the instance of an endpoint from a resolver of this package.
func Instance(e resolver.Endpoint) (*instance.Instance, bool) {
	i, ok := e.Attributes.Value(instanceKey{}).(*instance.Instance)
	return i, ok
}

type instanceKey struct{}

// maxRemembered bounds the targets with remembered instances.
const maxRemembered = 1024

// builder remembers the last instances of each target: gRPC closes the resolver of a connection
// after half an hour without calls, and builds another for the next call.
type builder struct {
	services *client.Services

	mu   sync.Mutex // guards last
	last map[string]*instance.View
}

func (b *builder) lastView(target string) *instance.View {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last[target]
}

func (b *builder) remember(target string, v *instance.View) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.last[target]; known || len(b.last) < maxRemembered {
		b.last[target] = v
	}
}

// Scheme implements resolver.Builder.
func (b *builder) Scheme() string { return Scheme }

// Build implements resolver.Builder.
func (b *builder) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	q, err := Parse(target.URL)
	if err != nil {
		return nil, fault.Wrap("resolver.Build", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	f := &serviceResolver{builder: b, target: target.URL.String(), cc: cc, stop: stop}
	f.task.Go(func() { f.run(ctx, q) })
	return f, nil
}

// Parse reads a target. Errors: Invalid, with field "target" or a field of the query.
func Parse(target url.URL) (instance.Query, error) {
	if target.Scheme != Scheme {
		return instance.Query{}, fault.Invalidf("target", target.Scheme, "must begin with %s:///", Scheme)
	}
	if target.Host != "" {
		return instance.Query{}, fault.Invalidf("target", target.Host, "must not name a host: write %s:///SERVICE; the client selects the peer", Scheme)
	}
	q := instance.Query{Name: instance.Name{Namespace: instance.DefaultNamespace, Service: strings.TrimPrefix(target.Path, "/")}}
	values, err := url.ParseQuery(target.RawQuery)
	if err != nil {
		return instance.Query{}, fault.Invalidf("target", target.RawQuery, "%w", err)
	}
	texts := map[string]*string{
		"namespace": &q.Namespace, "zone": &q.Zone, "prefer_zone": &q.PreferZone, "version": &q.Version,
		"environment": &q.Environment, "dependency": &q.Dependency,
	}
	for name, list := range values {
		switch text := texts[name]; {
		case name == "tag":
			q.Tags = list
		case text == nil:
			return instance.Query{}, fault.Invalidf("target", name, "%q is not a known parameter", name)
		case len(list) > 1:
			return instance.Query{}, fault.Invalidf("target", name, "has %q twice", name)
		default:
			*text = list[0]
		}
	}
	if err := q.Name.Validate(); err != nil {
		return instance.Query{}, err
	}
	_, err = q.Compile()
	return q, err
}

// serviceResolver resolves one target.
type serviceResolver struct {
	*builder
	target string
	cc     resolver.ClientConn
	stop   context.CancelFunc
	task   sync.WaitGroup
	last   *instance.View // last published view; used by the task only
}

// ResolveNow implements resolver.Resolver. The watch delivers changes without requests.
func (f *serviceResolver) ResolveNow(resolver.ResolveNowOptions) {}

// Close implements resolver.Resolver.
func (f *serviceResolver) Close() {
	f.stop()
	f.task.Wait()
}

// pollInterval is the time between queries of a peer that refuses watches.
const pollInterval = 10 * time.Second

// run publishes results until the resolver is closed. Services.Follow ends earlier only if the
// peer refuses watches: run then polls.
func (f *serviceResolver) run(ctx context.Context, q instance.Query) {
	for {
		for r, err := range f.services.Follow(ctx, q) {
			if err != nil {
				r, err = f.services.Discover(ctx, q)
			}
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				f.cc.ReportError(err)
			default:
				f.update(r)
			}
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			return
		}
	}
}

// update publishes a changed result. A stale empty result is not a change: the instances are
// unknown then.
func (f *serviceResolver) update(r instance.Result) {
	if r.Index == 0 { // no answer of the peer yet
		if r.View = f.lastView(f.target); r.View == nil {
			f.cc.ReportError(fault.New("resolver", fault.Unavailable, "%s", r.Reason))
			return
		}
	}
	switch {
	case f.last != nil && slices.EqualFunc(r.Instances, f.last.Instances, (*instance.Instance).Same), r.Stale && len(r.Instances) == 0 && f.last != nil:
	default:
		f.last = r.View
		f.remember(f.target, r.View)
		f.publish(r)
	}
}

// publish passes the endpoints to gRPC. After a refusal, gRPC calls ResolveNow by itself.
func (f *serviceResolver) publish(r instance.Result) {
	var endpoints []resolver.Endpoint
	for _, i := range r.Instances {
		if address := Address(i); address != "" {
			e := resolver.Endpoint{Addresses: []resolver.Address{{Addr: address}}}
			e.Attributes = e.Attributes.WithValue(instanceKey{}, i)
			endpoints = append(endpoints, weight.Set(e, weight.EndpointInfo{Weight: uint32(max(i.Spec.Weight, 1))}))
		}
	}
	_ = f.cc.UpdateState(resolver.State{Endpoints: endpoints})
}

// Address returns the gRPC address of an instance: its interface "gRPC", or its host and port.
// It returns "" for an instance with neither.
func Address(i *instance.Instance) string {
	names := make([]string, 0, len(i.Spec.Interfaces))
	for name := range i.Spec.Interfaces {
		if strings.EqualFold(name, "gRPC") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if address, err := hostPort(i.Spec.Interfaces[name]); err == nil {
			return address
		}
	}
	if i.Spec.Host == "" || i.Spec.Port == 0 {
		return ""
	}
	return net.JoinHostPort(i.Spec.Host, strconv.Itoa(i.Spec.Port))
}

// hostPort reads host:port with an optional scheme.
func hostPort(text string) (string, error) {
	if _, rest, ok := strings.Cut(text, "://"); ok {
		text = strings.TrimSuffix(rest, "/")
	}
	host, port, err := net.SplitHostPort(text)
	if err == nil && (host == "" || port == "") {
		err = errors.New("must have a host and a port")
	}
	return text, err
}
