package dialect

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// record is a registration in SAP-044. Its schema allows unknown fields and includes fields
// that only the registry writes: both are ignored.
type record struct {
	*instances.RegistrationJSON
	Name string `json:"name"`

	HealthCheck json.RawMessage `json:"health_check"` // read by itself, without unknown fields

	// SAP-044 has these fields in the metadata only, and ignores them here.
	Tags         json.RawMessage `json:"tags"`
	Dependencies json.RawMessage `json:"dependencies"`
	Environment  json.RawMessage `json:"environment"`
	Region       json.RawMessage `json:"region"`
	Owner        json.RawMessage `json:"owner"`
	Description  json.RawMessage `json:"description"`
	Status       json.RawMessage `json:"status"`
}

// ParseService reads a registration in SAP-044. The namespace parameter of the request, if not
// empty, must match the body.
// The result still needs Normalize. Errors: Invalid, with the field.
func ParseService(text []byte, namespace string) (instance.Registration, error) {
	q := record{RegistrationJSON: new(instances.RegistrationJSON)}
	if err := input.Open(text, &q); err != nil {
		return instance.Registration{}, err
	}
	if err := q.check(); err != nil {
		return instance.Registration{}, err
	}
	metadata := q.Metadata
	q.Metadata = nil // SAP-044 does not lift version, zone and weight
	r, err := q.Registration(instance.Name{Namespace: namespace, Service: q.Name})
	if err != nil {
		return r, err
	}
	return r, describe(&r.Spec, metadata)
}

// check applies the schema of SAP-044 and reads the health check.
func (q *record) check() error {
	switch {
	case q.Name == "":
		return missing("name")
	case strings.ContainsFunc(q.Name, notLabel):
		return fault.Invalidf("service", input.Quote(q.Name), "must be lowercase alphanumeric with hyphens")
	case q.Version == "":
		return missing("version")
	case q.Interfaces == nil:
		return missing("interfaces")
	case len(q.Interfaces) == 0:
		return fault.Invalidf("interfaces", nil, "must have at least one interface")
	case strings.ContainsFunc(q.ID, func(c rune) bool { return notLabel(c) && (c < 'A' || c > 'Z') }):
		return fault.Invalidf("id", input.Quote(q.ID), "Invalid instance id: must be alphanumeric with hyphens")
	case len(q.HealthCheck) == 0 || string(q.HealthCheck) == "null":
		return nil
	}
	q.RegistrationJSON.HealthCheck = new(instances.CheckJSON)
	return input.Part("health_check", q.HealthCheck, q.RegistrationJSON.HealthCheck)
}

// describe moves the metadata of the schema to their fields and the rest to the metadata.
func describe(s *instance.Spec, metadata map[string]json.RawMessage) error {
	for name, into := range map[string]any{
		"dependencies": &s.Dependencies, "description": &s.Description, "environment": &s.Environment,
		"owner": &s.Owner, "region": &s.Region, "tags": &s.Tags,
	} {
		text, ok := metadata[name]
		if !ok {
			continue
		}
		if err := json.Unmarshal(text, into); err != nil {
			return fault.Invalidf("metadata."+name, nil, "has the wrong type: send lists of strings for dependencies and tags, strings for the others")
		}
		delete(metadata, name)
	}
	for n, service := range s.Dependencies {
		if strings.ContainsFunc(service, notLabel) {
			field := "metadata.dependencies[" + strconv.Itoa(n) + "]"
			return fault.Invalidf(field, input.Quote(service), "must be lowercase alphanumeric with hyphens")
		}
	}
	for n, tag := range s.Tags {
		if tag == "" || strings.ContainsFunc(tag, notLabel) {
			return fault.Invalidf("metadata.tags["+strconv.Itoa(n)+"]", input.Quote(tag), "must be lowercase alphanumeric with hyphens")
		}
	}
	var err error
	s.Metadata, err = instances.TextMetadata(metadata)
	return err
}

// notLabel reports whether a name or a tag of SAP-044 excludes a character.
func notLabel(c rune) bool { return c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') }

// Renamed replaces the field of an error by its name in SAP-044.
func Renamed(err error) error {
	field := fault.FieldOf(err)
	name := field
	root := field
	if i := strings.IndexAny(field, ".["); i >= 0 {
		root = field[:i]
	}
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

// ServiceStatus returns the name of a status in SAP-044. STARTING is unknown and OUT_OF_SERVICE
// is down.
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

// service is the rendering of an instance in SAP-044, without the last heartbeat.
type service struct {
	Name       string            `json:"name"`
	ID         string            `json:"id"`
	Version    string            `json:"version"`
	Interfaces map[string]string `json:"interfaces"`
	// Metadata includes the dependencies and tags, and the description, environment, owner and
	// region unless they are empty.
	Metadata     map[string]any `json:"metadata"`
	Status       string         `json:"status"`
	RegisteredAt time.Time      `json:"registered_at"`
	Namespace    string         `json:"namespace,omitempty"` // unless the default
	Host         string         `json:"host,omitempty"`
	Port         int            `json:"port,omitempty"`
	Zone         string         `json:"zone,omitempty"`
	Weight       int            `json:"weight,omitempty"` // unless the default
}

// Beats returns the last heartbeat of an instance, known to the peer that answers for it.
type Beats func(instance.Key) (time.Time, bool)

// AppendServices appends the instances of a view from a position to another, as an array.
func AppendServices(dst []byte, v *instance.View, from, to int, beats Beats) []byte {
	dst = append(dst, '[')
	for n, piece := range v.Pieces("dialect.Service", from, to, render) {
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = appendService(dst, piece, v.Instances[from+n].Key, beats)
	}
	return append(dst, ']')
}

// AppendService appends an instance.
func AppendService(dst []byte, i *instance.Instance, beats Beats) []byte {
	return appendService(dst, render(i), i.Key, beats)
}

// appendService appends a rendering with the last heartbeat. The marker is a field's name: within
// strings JSON escapes quotes, and no map follows the field.
func appendService(dst, piece []byte, k instance.Key, beats Beats) []byte {
	last, known := beats(k)
	if !known {
		return append(dst, piece...)
	}
	at := bytes.LastIndex(piece, []byte(`"registered_at":`))
	dst = append(append(dst, piece[:at]...), `"last_heartbeat":"`...)
	dst = instances.ShownTime(last).AppendFormat(dst, time.RFC3339Nano)
	return append(append(dst, `",`...), piece[at:]...)
}

func render(i *instance.Instance) []byte {
	metadata := make(map[string]any, len(i.Spec.Metadata)+6)
	for k, v := range i.Spec.Metadata {
		metadata[k] = v
	}
	for k, v := range map[string]string{"description": i.Spec.Description, "environment": i.Spec.Environment, "owner": i.Spec.Owner, "region": i.Spec.Region} {
		if v != "" {
			metadata[k] = v
		}
	}
	metadata["dependencies"], metadata["tags"] = append([]string{}, i.Spec.Dependencies...), append([]string{}, i.Spec.Tags...)
	s := service{
		Name: i.Service, ID: i.ID, Version: i.Spec.Version, Interfaces: i.Spec.Interfaces, Metadata: metadata, Status: ServiceStatus(i.Status),
		RegisteredAt: instances.ShownTime(i.RegisteredAt), Host: i.Spec.Host, Port: i.Spec.Port, Zone: i.Spec.Zone,
	}
	if s.Interfaces == nil {
		s.Interfaces = map[string]string{}
	}
	if i.Namespace != instance.DefaultNamespace {
		s.Namespace = i.Namespace
	}
	if i.Spec.Weight > instance.DefaultWeight {
		s.Weight = i.Spec.Weight
	}
	return JSON(s)
}
