// Package dialect translates instances between JSON bodies and the domain: the low-level design
// "Service Discovery", which is the JSON view of package instance, and SAP-044 Registry.
//
// The package turns bodies into registrations, URL parameters into selectors, and instances into
// values for encoding/json. URL parameters are its only contact with HTTP.
package dialect

import (
	"cmp"
	"encoding/json"
	"strconv"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Parse reads a registration in the dialect of instances. The namespace of name may be empty. Without its own
// threshold an instance is removed as soon as it becomes unhealthy, like an expired lease, unless
// its check alone keeps it. The result still needs Normalize. Errors: Invalid, with the field.
func Parse(text []byte, name instance.Name) (instance.Registration, error) {
	var q instances.RegistrationJSON
	if err := input.Object(text, &q); err != nil {
		return instance.Registration{}, err
	}
	if q.Host == "" && len(q.Interfaces) == 0 {
		return instance.Registration{}, missing("host")
	}
	r, err := q.Registration(name)
	r.Spec.Lasting = r.Spec.RemoveAfter == 0
	r.Spec.RemoveAfter = cmp.Or(r.Spec.RemoveAfter, r.Spec.UnhealthyAfter, instance.DefaultUnhealthyAfter)
	return r, err
}

// missing has the words of SAP-044 Registry.
func missing(field string) error {
	return fault.Invalidf(field, nil, "Missing required field: %s", field)
}

// AppendList appends a service with its instances to dst.
func AppendList(dst []byte, service string, v *instance.View) []byte {
	dst = append(append(dst, `{"service":`...), JSON(service)...)
	dst = strconv.AppendUint(append(dst, `,"index":`...), v.Index, 10)
	dst = append(dst, `,"instances":[`...)
	for n, piece := range v.Pieces("dialect.Brief", 0, len(v.Instances), func(i *instance.Instance) []byte { return JSON(instances.Brief(i)) }) {
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, piece...)
	}
	return append(dst, "]}"...)
}

// JSON renders a value of a type that always has a JSON form, in one line.
func JSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("dialect: " + err.Error())
	}
	return b
}

// Changes are the changes of a batch.
type Changes struct {
	Index  uint64   `json:"index"`
	Events []Change `json:"events"`
}

// Change is one change of a watch.
type Change struct {
	Type     string               `json:"type"` // ADDED, MODIFIED, or DELETED from the result
	Instance *instances.BriefJSON `json:"instance"`
	Revision uint64               `json:"revision"`
}

// ChangeName is the name of a kind of change.
func ChangeName(t instance.EventType) string {
	return [...]string{instance.Added: "ADDED", instance.Modified: "MODIFIED", instance.Removed: "DELETED"}[t]
}

// ChangesOf renders the changes of a batch.
func ChangesOf(b instance.Batch) Changes {
	changes := Changes{Index: b.Index, Events: make([]Change, len(b.Events))}
	for n, e := range b.Events {
		changes.Events[n] = Change{ChangeName(e.Type), instances.Brief(e.Instance), e.Revision}
	}
	return changes
}
