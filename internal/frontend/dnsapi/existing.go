package dnsapi

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/instance"
)

const (
	zonesFor      = time.Second // lifetime of a cached list of zones
	maxNamespaces = 64          // in each half of the cache
)

// existingNames finds the empty non-terminals: namespaces and zones with instances, above the names of
// services. A resolver that asks label by label (RFC 9156) stops below a name that does not exist.
type existingNames struct {
	catalog instances.Catalog

	mu    sync.Mutex // guards zones
	zones *recent[zoneSet]
}

// zoneSet holds the zones of a namespace, in lower case.
type zoneSet struct {
	at    time.Time
	zones map[string]struct{}
}

// exist reports whether the namespace and the zone of a name have instances. The default namespace
// without a zone always exists.
func (p *existingNames) exist(ctx context.Context, n name, now time.Time) (bool, error) {
	namespace := n.inNamespace()
	if n.zone == "" && namespace == instance.DefaultNamespace {
		return true, nil
	}
	services, err := p.catalog.Services(ctx, namespace)
	if err != nil || len(services.Services) == 0 {
		return false, err
	}
	return n.zone == "" || p.zone(ctx, namespace, n.zone, now), nil
}

// zone reports whether a namespace has instances in a zone. Without an answer of the catalog it has none.
func (p *existingNames) zone(ctx context.Context, namespace, zone string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	set, ok := p.zones.get([]byte(namespace))
	if since := now.Sub(set.at); !ok || since >= zonesFor || since < 0 {
		set = p.load(ctx, namespace, now)
		p.zones.put([]byte(namespace), set)
	}
	_, ok = set.zones[zone]
	return ok
}

func (p *existingNames) load(ctx context.Context, namespace string, now time.Time) zoneSet {
	set := zoneSet{at: now, zones: make(map[string]struct{})}
	result, err := p.catalog.List(ctx, instances.ListQuery{Namespace: namespace, Selector: instance.Selector{AnyStatus: true}})
	if err != nil {
		return set
	}
	for _, i := range result.Instances {
		set.zones[strings.ToLower(i.Zone())] = struct{}{}
	}
	return set
}
