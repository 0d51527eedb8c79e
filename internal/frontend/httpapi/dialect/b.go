package dialect

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/pkg/records/jsonform"
)

// record is the body of a registration in dialect B. Its schema leaves other fields open, and
// has some that only the registry writes: they are passed over.
type record struct {
	shared
	Name string `json:"name"`
}

// ParseService reads the body of a registration in dialect B; a namespace that is not empty is
// that of the request. Errors: Invalid with the field. It does not do what Registration.Normalize
// does.
func ParseService(text []byte, namespace string) (instance.Registration, error) {
	var q record
	if err := input.Open(text, &q); err != nil {
		return instance.Registration{}, unshared(err)
	}
	for _, required := range []struct{ field, given string }{{"name", q.Name}, {"version", q.Version}} {
		if required.given == "" {
			return instance.Registration{}, missing(required.field)
		}
	}
	if q.Interfaces == nil {
		return instance.Registration{}, missing("interfaces")
	}
	if len(q.Interfaces) == 0 {
		return instance.Registration{}, fault.Invalidf("interfaces", nil, "must have at least one")
	}
	if q.ID != "" && !serviceID(q.ID) {
		return instance.Registration{}, fault.Invalidf("id", input.Quote(q.ID), "Invalid instance id: must be alphanumeric with hyphens")
	}
	r, err := q.registration(instance.Name{Namespace: namespace, Service: q.Name})
	if err != nil {
		return r, err
	}
	return r, q.describe(&r.Spec)
}

func missing(field string) error {
	return fault.Invalidf(field, nil, "Missing required field: %s", field)
}

// serviceID reports whether an id is one of dialect B's schema.
func serviceID(id string) bool {
	return !strings.ContainsFunc(id, func(c rune) bool { return notLabel(c) && (c < 'A' || c > 'Z') })
}

// describe reads the metadata: those of the schema, and others, which are text.
func (q *record) describe(s *instance.Spec) error {
	for _, known := range []struct {
		name string
		into any
	}{
		{"dependencies", &s.Dependencies}, {"description", &s.Description}, {"environment", &s.Environment},
		{"owner", &s.Owner}, {"region", &s.Region}, {"tags", &s.Tags},
	} {
		text, ok := q.Metadata[known.name]
		if !ok {
			continue
		}
		if err := json.Unmarshal(text, known.into); err != nil {
			return fault.Invalidf("metadata."+known.name, nil, "is of the wrong type")
		}
		delete(q.Metadata, known.name)
	}
	for n, tag := range s.Tags {
		if tag == "" || strings.ContainsFunc(tag, notLabel) {
			return fault.Invalidf("metadata.tags["+strconv.Itoa(n)+"]", input.Quote(tag), "must be lowercase alphanumeric with hyphens")
		}
	}
	var err error
	s.Metadata, err = plain(q.Metadata)
	return err
}

// notLabel reports whether a character may not be in a tag of dialect B.
func notLabel(c rune) bool { return c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') }

// Renamed gives an error the field names of dialect B.
func Renamed(err error) error {
	field := fault.FieldOf(err)
	name := field
	root, _, _ := cut(field)
	switch root {
	case "service":
		name = "name"
	case "description", "dependencies", "tags", "environment", "region", "owner":
		name = "metadata." + field
	}
	if name == field {
		return err
	}
	return &fault.Error{Kind: fault.KindOf(err), Field: name, Value: fault.ValueOf(err), Err: err}
}

// cut splits a path of fields behind its first name.
func cut(path string) (first, rest string, found bool) {
	for i := range len(path) {
		if path[i] == '.' || path[i] == '[' {
			return path[:i], path[i:], true
		}
	}
	return path, "", false
}

// ServiceStatus gives a status as dialect B has it: who is starting is not known to serve, and
// who is out of service does not.
func ServiceStatus(s instance.Status) string {
	switch s {
	case instance.StatusUp:
		return "up"
	case instance.StatusDown, instance.StatusOutOfService:
		return "down"
	case instance.StatusUnhealthy:
		return "unhealthy"
	default:
		return "unknown"
	}
}

// Service is an instance in dialect B.
type Service struct {
	Name       string            `json:"name"`
	ID         string            `json:"id"`
	Version    string            `json:"version"`
	Interfaces map[string]string `json:"interfaces"`
	// Metadata are the instance's with its dependencies and tags, always, and its description,
	// environment, owner and region, where there are any.
	Metadata      map[string]any `json:"metadata"`
	Status        string         `json:"status"`
	LastHeartbeat *time.Time     `json:"last_heartbeat,omitempty"` // known by the peer that answers for it
	RegisteredAt  time.Time      `json:"registered_at"`
	Namespace     string         `json:"namespace,omitempty"` // unless it is the default
	Host          string         `json:"host,omitempty"`
	Port          int            `json:"port,omitempty"`
	Zone          string         `json:"zone,omitempty"`
	Weight        int            `json:"weight,omitempty"` // unless it is the default
}

// ServiceOf gives the form of an instance in dialect B; the zero time is a heartbeat that is not
// known.
func ServiceOf(i *instance.Instance, lastBeat time.Time) Service {
	metadata := make(map[string]any, len(i.Metadata)+6)
	for k, v := range i.Metadata {
		metadata[k] = v
	}
	for k, v := range described(i) {
		metadata[k] = v
	}
	metadata["dependencies"], metadata["tags"] = listed(i.Dependencies), listed(i.Tags)
	s := Service{
		Name: i.Service, ID: i.ID, Version: i.Version, Interfaces: i.Interfaces, Metadata: metadata, Status: ServiceStatus(i.Status),
		LastHeartbeat: shownBeat(lastBeat), RegisteredAt: shownTime(i.RegisteredAt), Host: i.Host, Port: i.Port, Zone: i.Zone,
	}
	if s.Interfaces == nil {
		s.Interfaces = map[string]string{}
	}
	if i.Namespace != instance.DefaultNamespace {
		s.Namespace = i.Namespace
	}
	if i.Weight > instance.DefaultWeight {
		s.Weight = i.Weight
	}
	return s
}

// described are the fields of an instance that dialect B has in the metadata, where they are set.
func described(i *instance.Instance) map[string]string {
	fields := map[string]string{"description": i.Description, "environment": i.Environment, "owner": i.Owner, "region": i.Region}
	maps.DeleteFunc(fields, func(_, text string) bool { return text == "" })
	return fields
}

func listed(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// AppendService appends the text of ServiceOf.
func AppendService(dst []byte, i *instance.Instance, lastBeat time.Time) []byte {
	dst = jsonform.AppendString(append(dst, `{"name":`...), i.Service)
	dst = jsonform.AppendString(append(dst, `,"id":`...), i.ID)
	dst = jsonform.AppendString(append(dst, `,"version":`...), i.Version)
	dst = appendStrings(append(dst, `,"interfaces":`...), i.Interfaces)
	dst = appendDescribed(append(dst, `,"metadata":`...), i)
	dst = appendText(dst, "status", ServiceStatus(i.Status))
	if !lastBeat.IsZero() {
		dst = appendTime(append(dst, `,"last_heartbeat":`...), lastBeat)
	}
	dst = appendTime(append(dst, `,"registered_at":`...), i.RegisteredAt)
	if i.Namespace != instance.DefaultNamespace {
		dst = appendText(dst, "namespace", i.Namespace)
	}
	dst = appendText(dst, "host", i.Host)
	if i.Port != 0 {
		dst = strconv.AppendInt(append(dst, `,"port":`...), int64(i.Port), 10)
	}
	dst = appendText(dst, "zone", i.Zone)
	if i.Weight > instance.DefaultWeight {
		dst = strconv.AppendInt(append(dst, `,"weight":`...), int64(i.Weight), 10)
	}
	return append(dst, '}')
}

// appendDescribed appends the metadata of dialect B.
func appendDescribed(dst []byte, i *instance.Instance) []byte {
	fields := [...]struct{ name, text string }{ // ascending
		{"description", i.Description}, {"environment", i.Environment}, {"owner", i.Owner}, {"region", i.Region},
	}
	keys := append(make([]string, 0, len(i.Metadata)+6), "dependencies", "tags")
	keys = slices.AppendSeq(keys, maps.Keys(i.Metadata))
	for _, f := range fields {
		if f.text != "" {
			keys = append(keys, f.name)
		}
	}
	slices.Sort(keys)
	dst = append(dst, '{')
	for n, k := range slices.Compact(keys) {
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = append(jsonform.AppendString(dst, k), ':')
		at, text := slices.IndexFunc(fields[:], func(f struct{ name, text string }) bool { return f.name == k }), i.Metadata[k]
		switch {
		case k == "dependencies":
			dst = appendArray(dst, i.Dependencies)
			continue
		case k == "tags":
			dst = appendArray(dst, i.Tags)
			continue
		case at >= 0 && fields[at].text != "":
			text = fields[at].text
		}
		dst = jsonform.AppendString(dst, text)
	}
	return append(dst, '}')
}
