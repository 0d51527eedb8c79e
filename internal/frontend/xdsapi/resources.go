package xdsapi

import (
	"cmp"
	"net"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/blackhole/blackhole/pkg/instance"
	xdsv1 "github.com/blackhole/blackhole/proto/blackhole/xds/v1"
)

// Types of resources, and of what stands in a listener.
const (
	scheme       = "type.googleapis.com/"
	listenerType = scheme + "envoy.config.listener.v3.Listener"
	routeType    = scheme + "envoy.config.route.v3.RouteConfiguration"
	clusterType  = scheme + "envoy.config.cluster.v3.Cluster"
	endpointType = scheme + "envoy.config.endpoint.v3.ClusterLoadAssignment"
	managerType  = scheme + "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
	routerType   = scheme + "envoy.extensions.filters.http.router.v3.Router"
)

// Values of Envoy's enums.
const (
	versionV3 = 2
	typeEDS   = 3
	healthy   = 1
)

// nameOf reads SERVICE or NAMESPACE/SERVICE.
func nameOf(resource string) (instance.Name, error) {
	n := instance.Name{Namespace: instance.DefaultNamespace, Service: resource}
	if namespace, service, ok := strings.Cut(resource, "/"); ok {
		n = instance.Name{Namespace: namespace, Service: service}
	}
	return n, n.Validate()
}

// fixed returns the resource of a type other than endpointType. Its name is the name of the service, and it depends on nothing else: a
// listener leads to the route of its name, this to the cluster, and this to the endpoints.
func fixed(kind, name string) *xdsv1.Any {
	source := &xdsv1.ConfigSource{Ads: &xdsv1.AggregatedConfigSource{}, ResourceApiVersion: versionV3}
	switch kind {
	case listenerType:
		return enclosed(kind, &xdsv1.Listener{Name: name, ApiListener: &xdsv1.ApiListener{ApiListener: enclosed(managerType, &xdsv1.HttpConnectionManager{
			Rds:         &xdsv1.Rds{ConfigSource: source, RouteConfigName: name},
			HttpFilters: []*xdsv1.HttpFilter{{Name: "router", TypedConfig: enclosed(routerType, &xdsv1.Router{})}},
		})}})
	case routeType:
		return enclosed(kind, &xdsv1.RouteConfiguration{Name: name, VirtualHosts: []*xdsv1.VirtualHost{{
			Name: name, Domains: []string{"*"},
			Routes: []*xdsv1.Route{{Match: &xdsv1.RouteMatch{Prefix: proto.String("")}, Route: &xdsv1.RouteAction{Cluster: name}}},
		}}})
	default:
		return enclosed(kind, &xdsv1.Cluster{Name: name, Type: typeEDS, EdsClusterConfig: &xdsv1.EdsClusterConfig{EdsConfig: source}})
	}
}

// endpoints returns the instances of a service, sorted by id, by region and zone. A place has the weight of its
// instances: Envoy's protocol gives the calls of a place without one to nobody.
func endpoints(name string, up []*instance.Instance) *xdsv1.Any {
	all := &xdsv1.ClusterLoadAssignment{ClusterName: name}
	places, taken := map[place]*xdsv1.LocalityEndpoints{}, map[string]bool{}
	for _, i := range up {
		host, port, ok := addressOf(i.Spec)
		address := net.JoinHostPort(host, strconv.Itoa(int(port)))
		if !ok || taken[address] { // clients refuse an address that stands twice
			continue
		}
		taken[address] = true
		at := place{i.Spec.Region, i.Spec.Zone}
		p := places[at]
		if p == nil {
			p = &xdsv1.LocalityEndpoints{Locality: &xdsv1.Locality{Region: at.region, Zone: at.zone}, LoadBalancingWeight: wrapperspb.UInt32(0)}
			places[at] = p
			all.Endpoints = append(all.Endpoints, p)
		}
		weight := uint32(cmp.Or(i.Spec.Weight, instance.DefaultWeight))
		p.LoadBalancingWeight.Value += weight
		p.LbEndpoints = append(p.LbEndpoints, &xdsv1.LbEndpoint{
			Endpoint:     &xdsv1.Endpoint{Address: &xdsv1.Address{SocketAddress: &xdsv1.SocketAddress{Address: host, PortValue: port}}},
			HealthStatus: healthy, LoadBalancingWeight: wrapperspb.UInt32(weight),
		})
	}
	return enclosed(endpointType, all)
}

type place struct{ region, zone string }

// addressOf returns where an instance answers gRPC: its interface of that name, or else its host and port.
func addressOf(s instance.Spec) (host string, port uint32, ok bool) {
	if host, text, err := net.SplitHostPort(s.Interfaces["gRPC"]); err == nil && host != "" {
		if n, err := strconv.ParseUint(text, 10, 16); err == nil && n > 0 {
			return host, uint32(n), true
		}
	}
	return s.Host, uint32(s.Port), s.Host != "" && s.Port != 0
}

// enclosed packs a message under the name of its type in Envoy.
func enclosed(kind string, m proto.Message) *xdsv1.Any {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic("xdsapi: a message of the package has no encoding: " + err.Error()) // impossible: texts are valid UTF-8
	}
	return &xdsv1.Any{TypeUrl: kind, Value: value}
}
