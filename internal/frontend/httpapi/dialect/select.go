package dialect

import (
	"net/url"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// SelectorParameters returns the names of the parameters that Query reads.
func SelectorParameters() []string {
	return []string{"health", "zone", "version", "tags", "environment", "dependency", "prefer_zone", "namespace", "consistency"}
}

// Query reads the parameters of a lookup in the dialect of instances. Errors: Invalid, with the parameter.
func Query(values url.Values, service string) (instance.Query, error) {
	if len(values) == 0 {
		return instance.Query{Name: instance.Name{Namespace: instance.DefaultNamespace, Service: service}}, nil
	}
	q := instance.Query{Name: instance.Name{Namespace: Namespace(values), Service: service}, Selector: instance.Selector{
		Zone: values.Get("zone"), Version: values.Get("version"), Environment: values.Get("environment"),
		Dependency: values.Get("dependency"), PreferZone: values.Get("prefer_zone"),
	}}
	if tags := values.Get("tags"); tags != "" {
		q.Tags = strings.Split(tags, ",")
	}
	var err error
	if q.Consistency, err = Consistency(values); err != nil {
		return q, err
	}
	health := values.Get("health")
	if strings.EqualFold(health, "any") {
		q.AnyStatus = true
		return q, nil
	}
	q.Statuses, err = statuses("health", health, func(text string) ([]instance.Status, error) {
		s, err := instance.ParseStatus(text)
		return []instance.Status{s}, err
	})
	return q, err
}

// statuses reads a comma-separated list of statuses.
func statuses(field, text string, parse func(string) ([]instance.Status, error)) (all []instance.Status, err error) {
	if text == "" {
		return nil, nil
	}
	for one := range strings.SplitSeq(text, ",") {
		some, err := parse(one)
		if err != nil {
			return nil, fault.Invalidf(field, fault.ValueOf(err), "%s", fault.Message(err))
		}
		all = append(all, some...)
	}
	return all, nil
}

// Statuses reads the statuses of SAP-044. An empty text selects any status.
func Statuses(text string) (s instance.Selector, err error) {
	if text == "" {
		return instance.Selector{AnyStatus: true}, nil
	}
	s.Statuses, err = statuses("status", text, func(text string) ([]instance.Status, error) {
		switch text {
		case "up":
			return []instance.Status{instance.StatusUp}, nil
		case "down":
			return []instance.Status{instance.StatusDown, instance.StatusOutOfService}, nil
		case "unhealthy":
			return []instance.Status{instance.StatusUnhealthy}, nil
		case "unknown":
			return []instance.Status{instance.StatusUnknown, instance.StatusStarting}, nil
		default:
			return nil, fault.Invalidf("status", text, "must be up, down, unhealthy or unknown")
		}
	})
	return s, err
}

// Namespace returns the namespace of the parameters, or the default.
func Namespace(values url.Values) string {
	if given := values.Get("namespace"); given != "" {
		return given
	}
	return instance.DefaultNamespace
}

// Consistency returns the consistency of the parameters, by default local.
func Consistency(values url.Values) (instance.Consistency, error) {
	switch given := values.Get("consistency"); given {
	case "", "local":
		return instance.Local, nil
	case "linearizable":
		return instance.Linearizable, nil
	default:
		return instance.Local, fault.Invalidf("consistency", given, "must be local or linearizable")
	}
}
