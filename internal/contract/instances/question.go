package instances

import (
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// Question returns the query as a requirement keeps it: the service and the
// selector of the instances that count. Errors: Invalid, field "namespace",
// "service", or one of the selector such as "selector.version".
func Question(q instance.Query) ([]byte, error) {
	if _, err := countable(q); err != nil {
		return nil, err
	}
	q.Consistency = instance.Local
	return proto.MarshalOptions{Deterministic: true}.Marshal(q.Proto())
}

// countable compiles the query of a requirement.
func countable(q instance.Query) (instance.Matcher, error) {
	if err := q.Name.Validate(); err != nil {
		return instance.Matcher{}, err
	}
	if q.PreferZone != "" {
		return instance.Matcher{}, fault.Invalidf("selector.prefer_zone", q.PreferZone, "orders and does not select")
	}
	m, err := q.Compile()
	return m, fault.In("selector", err)
}

// ParseQuestion decodes and validates the bytes of Question. Errors: as
// Question; Unauthentic for bytes that are not a message.
func ParseQuestion(question []byte) (instance.Query, error) {
	q, _, err := parseQuestion(question)
	return q, fault.Wrap("instances.ParseQuestion", err)
}

func parseQuestion(question []byte) (instance.Query, instance.Matcher, error) {
	var p agentv1.DiscoverRequest
	if err := proto.Unmarshal(question, &p); err != nil {
		return instance.Query{}, instance.Matcher{}, fault.As("", fault.Unauthentic, err)
	}
	q, err := instance.QueryFromProto(&p)
	if err != nil {
		return instance.Query{}, instance.Matcher{}, fault.In("selector", err)
	}
	m, err := countable(q)
	return q, m, err
}

// Counter decodes a question for a reader that handles instances as bytes. It
// returns the names of the service, also beside an error in the selector, and a
// function that reports whether the bytes of Marshal count. Unreadable bytes do
// not count. Errors: as ParseQuestion.
func Counter(question []byte) (namespace, service string, counts func(value []byte) bool, err error) {
	q, m, err := parseQuestion(question)
	return q.Namespace, q.Service, func(value []byte) bool {
		i, err := instance.Unmarshal(value)
		return err == nil && m.Match(i)
	}, err
}
