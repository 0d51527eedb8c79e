package instance

import (
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
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

// Question returns the query as a requirement keeps it: the service and the
// selector of the instances that count. Errors: Invalid, field "namespace",
// "service", or one of the selector such as "selector.version".
func (q Query) Question() ([]byte, error) {
	if _, err := q.countable(); err != nil {
		return nil, err
	}
	q.Consistency = Local
	return proto.MarshalOptions{Deterministic: true}.Marshal(q.Proto())
}

// countable compiles the query of a requirement.
func (q Query) countable() (Matcher, error) {
	if err := q.Name.Validate(); err != nil {
		return Matcher{}, err
	}
	if q.PreferZone != "" {
		return Matcher{}, fault.Invalidf("selector.prefer_zone", q.PreferZone, "orders and does not select")
	}
	m, err := q.Compile()
	return m, fault.In("selector", err)
}

// ParseQuestion decodes and validates the bytes of Question. Errors: as
// Question; Unauthentic for bytes that are not a message.
func ParseQuestion(question []byte) (Query, error) {
	q, _, err := parseQuestion(question)
	return q, fault.Wrap("instance.ParseQuestion", err)
}

func parseQuestion(question []byte) (Query, Matcher, error) {
	var p agentv1.DiscoverRequest
	if err := proto.Unmarshal(question, &p); err != nil {
		return Query{}, Matcher{}, fault.As("", fault.Unauthentic, err)
	}
	q, err := QueryFromProto(&p)
	if err != nil {
		return Query{}, Matcher{}, fault.In("selector", err)
	}
	m, err := q.countable()
	return q, m, err
}

// Counter decodes a question for a reader that handles instances as bytes. It
// returns the names of the service, also beside an error in the selector, and a
// function that reports whether the bytes of Marshal count. Unreadable bytes do
// not count. Errors: as ParseQuestion.
func Counter(question []byte) (namespace, service string, counts func(value []byte) bool, err error) {
	q, m, err := parseQuestion(question)
	return q.Namespace, q.Service, func(value []byte) bool {
		i, err := Unmarshal(value)
		return err == nil && m.Match(i)
	}, err
}
