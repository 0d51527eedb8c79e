package instance

import (
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// Proto converts a query.
func (q Query) Proto() *agentv1.DiscoverRequest {
	p := &agentv1.DiscoverRequest{
		ServiceName: q.Service, Namespace: q.Namespace, AnyHealth: q.AnyStatus, InstanceId: q.ID, Zone: q.Zone, Version: q.Version, Tags: q.Tags,
		Environment: q.Environment, Dependency: q.Dependency, PreferZone: q.PreferZone, Linearizable: q.Consistency == Linearizable,
	}
	for _, s := range q.Statuses {
		p.Health = append(p.Health, s.Proto())
	}
	return p
}

// QueryFromProto converts a query without validation of its names and texts.
// Errors: Invalid, field "status".
func QueryFromProto(p *agentv1.DiscoverRequest) (Query, error) {
	q := Query{
		Name: Name{Namespace: p.GetNamespace(), Service: p.GetServiceName()},
		Selector: Selector{
			AnyStatus: p.GetAnyHealth(), ID: p.GetInstanceId(), Zone: p.GetZone(), Version: p.GetVersion(), Tags: p.GetTags(),
			Environment: p.GetEnvironment(), Dependency: p.GetDependency(), PreferZone: p.GetPreferZone(),
		},
	}
	if p.GetLinearizable() {
		q.Consistency = Linearizable
	}
	for _, h := range p.GetHealth() {
		s, err := StatusFromProto(h)
		if err != nil {
			return Query{}, err
		}
		q.Statuses = append(q.Statuses, s)
	}
	return q, nil
}
