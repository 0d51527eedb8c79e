package service

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// serviceAnnotation names the service of here whose instances a service of the cluster gets.
const serviceAnnotation = "blackholed/service"

const maxSlice = 1000 // endpoints of a slice, by the API of Kubernetes

// exporter keeps EndpointSlices of a cluster equal to the instances of here. It writes slices that carry its label
// alone, of services without selector that ask for it, so it replaces nothing of others. A slice is owned by its
// service, and goes with it.
type exporter struct {
	to   *kubernetes
	find func(context.Context, instance.Query) (instance.Result, error)
}

// clusterService is the part of a v1 Service that an exporter reads.
type clusterService struct {
	Metadata objectMeta
	Spec     struct {
		Type     string
		Selector map[string]string
		Ports    []port
	}
}

// round writes what differs, and deletes the slices of services that ask no longer.
func (e *exporter) round(ctx context.Context) (report, error) {
	ours, err := e.written(ctx)
	if err != nil {
		return report{}, fault.In("--to", err)
	}
	did, refused := report{what: "%d instances here, %d slices changed there"}, failures{by: "the cluster"}
	err = pages(ctx, e.to, e.to.path(servicesAPI, e.to.namespace), nil, func(s *clusterService) error {
		name := s.Metadata.Annotations[serviceAnnotation]
		if name == "" {
			return nil
		}
		id := s.Metadata.Namespace + "/" + s.Metadata.Name
		kept := ours[id]
		delete(ours, id)
		if len(s.Spec.Selector) > 0 || s.Spec.Type == "ExternalName" {
			refused.add(id, fault.New("", fault.Invalid, "has a selector or a name outside, so its endpoints are not ours to write"))
			return nil
		}
		found, err := e.find(ctx, queryOf(name))
		if err != nil {
			if !refused.add(id, err) {
				return refused.err()
			}
			return nil
		}
		if found.Stale { // nothing is taken away on old knowledge
			did.note = fmt.Sprintf("%s stays as it is: the peer says %s", id, found.Reason)
			return nil
		}
		want, count, left := s.slices(found.Instances)
		if did.found += count; left > 0 {
			did.note = fmt.Sprintf("%s lacks %d instances: others do not reach their hosts, or they serve none of its ports", id, left)
		}
		changed, err := e.put(ctx, want, kept)
		did.changed += changed
		if err != nil && !refused.add(id, err) {
			return refused.err()
		}
		return nil
	})
	if err != nil {
		return report{}, fault.In("--to", err)
	}
	for id, kept := range ours {
		changed, err := e.put(ctx, nil, kept)
		did.changed += changed
		if err != nil && !refused.add(id, err) {
			break
		}
	}
	return did, refused.err()
}

// queryOf returns the question for service or namespace/service, of any status.
func queryOf(name string) instance.Query {
	q := instance.Query{Name: instance.Name{Namespace: instance.DefaultNamespace, Service: name}, Selector: instance.Selector{AnyStatus: true}}
	if namespace, service, ok := strings.Cut(name, "/"); ok {
		q.Namespace, q.Service = namespace, service
	}
	return q
}

// written returns the slices that carry the exporter's label, by namespace/service and name.
func (e *exporter) written(ctx context.Context) (map[string]map[string]endpointSlice, error) {
	ours, count := make(map[string]map[string]endpointSlice), 0
	query := url.Values{"labelSelector": {managedLabel + "=" + manager}}
	err := pages(ctx, e.to, e.to.path(slicesAPI, e.to.namespace), query, func(s *endpointSlice) error {
		id := s.Metadata.Namespace + "/" + s.Metadata.Labels[serviceLabel]
		if ours[id] == nil {
			ours[id] = make(map[string]endpointSlice)
		}
		ours[id][s.Metadata.Name] = *s
		if count++; count > maxEndpoints {
			return fault.New("", fault.LimitReached, "has more than %d slices of this program: synchronize it by namespaces", maxEndpoints)
		}
		return nil
	})
	return ours, err
}

// put makes the slices of a service what they should be, and returns how many changed.
func (e *exporter) put(ctx context.Context, want []endpointSlice, have map[string]endpointSlice) (changed int, err error) {
	gone := make(map[string]string) // path by name
	for name, s := range have {
		gone[name] = e.to.path(slicesAPI, s.Metadata.Namespace) + "/" + name
	}
	for _, s := range want {
		name := s.Metadata.Name
		delete(gone, name)
		old, ok := have[name]
		if ok && reflect.DeepEqual(old.Endpoints, s.Endpoints) && reflect.DeepEqual(old.Ports, s.Ports) {
			continue
		}
		path := e.to.path(slicesAPI, s.Metadata.Namespace) + "/" + name
		if err := e.to.call(ctx, http.MethodPatch, path, url.Values{"fieldManager": {manager}, "force": {"true"}}, s, nil); err != nil {
			return changed, err
		}
		changed++
	}
	for _, path := range gone {
		if err := e.to.call(ctx, http.MethodDelete, path, nil, nil, nil); err != nil {
			return changed, err
		}
		changed++
	}
	return changed, nil
}

// group is what the endpoints of one slice have in common.
type group struct {
	family, name, protocol string
	port                   int
}

// slices returns the EndpointSlices of a service: one for each family of addresses and each port, or several if it is
// large. It returns the number of instances in them, too, and of those that are left out though no cluster has them.
func (s *clusterService) slices(list []*instance.Instance) (all []endpointSlice, count, left int) {
	groups := make(map[group][]endpoint)
	for _, i := range list {
		if i.Spec.Metadata[sourceKey] == fromKubernetes {
			continue
		}
		family, served := reachable(i.Spec.Host), false
		ready := i.Status == instance.StatusUp
		for _, p := range s.Spec.Ports {
			if family != "" && i.Spec.Port != 0 && (len(s.Spec.Ports) == 1 || slices.Contains(i.Spec.Tags, p.Name)) {
				served = true
				g := group{family: family, name: p.Name, protocol: cmp.Or(p.Protocol, "TCP"), port: i.Spec.Port}
				groups[g] = append(groups[g], endpoint{Addresses: []string{i.Spec.Host}, Conditions: conditions{Ready: &ready}, Zone: i.Spec.Zone})
			}
		}
		if served {
			count++
		} else {
			left++
		}
	}
	for g, list := range groups {
		slices.SortFunc(list, func(a, b endpoint) int { return strings.Compare(a.Addresses[0], b.Addresses[0]) })
		for n, part := range slices.Collect(slices.Chunk(list, maxSlice)) {
			all = append(all, s.slice(g, n, part))
		}
	}
	return all, count, left
}

func (s *clusterService) slice(g group, n int, endpoints []endpoint) endpointSlice {
	words := []string{s.Metadata.Name, manager, strings.ToLower(g.family), strings.ToLower(g.protocol), g.name, fmt.Sprint(g.port), fmt.Sprint(n)}
	name := strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), "-")
	return endpointSlice{
		APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice",
		Metadata: objectMeta{
			Name: name, Namespace: s.Metadata.Namespace,
			Labels:          map[string]string{serviceLabel: s.Metadata.Name, managedLabel: manager},
			OwnerReferences: []ownerReference{{APIVersion: "v1", Kind: "Service", Name: s.Metadata.Name, UID: s.Metadata.UID}},
		},
		AddressType: g.family, Endpoints: endpoints, Ports: []port{{Name: g.name, Port: g.port, Protocol: g.protocol}},
	}
}

// reachable returns the family of an address that the API of Kubernetes takes as an endpoint, else "".
func reachable(host string) string {
	a, err := netip.ParseAddr(host)
	if err != nil || a.Zone() != "" || a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() {
		return ""
	}
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}
