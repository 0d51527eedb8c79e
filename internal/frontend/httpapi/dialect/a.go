package dialect

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/pkg/records/jsonform"
)

// request is the body of a registration in dialect A.
type request struct {
	shared
	Tags         []string `json:"tags"`
	Dependencies []string `json:"dependencies"`
	Environment  string   `json:"environment"`
	Region       string   `json:"region"`
	Owner        string   `json:"owner"`
	Description  string   `json:"description"`
	Status       string   `json:"status"`
}

// Parse reads the body of a registration in dialect A, of a service whose namespace may be
// empty. What dialect A has in the metadata, version, zone and weight, becomes fields. Without
// a threshold of its own an instance is removed when it becomes unhealthy, as a lease that
// ends. Errors: Invalid, with the field. It does not do what Registration.Normalize does.
func Parse(text []byte, name instance.Name) (instance.Registration, error) {
	var q request
	if err := input.Object(text, &q); err != nil {
		return instance.Registration{}, unshared(err)
	}
	if q.Host == "" && len(q.Interfaces) == 0 {
		return instance.Registration{}, missing("host")
	}
	r, err := q.registration(name)
	if err != nil {
		return r, err
	}
	r.Tags, r.Dependencies = q.Tags, q.Dependencies
	r.Environment, r.Region, r.Owner, r.Description = q.Environment, q.Region, q.Owner, q.Description
	if q.Status != "" {
		if r.Status, err = instance.ParseStatus(q.Status); err != nil {
			return r, err
		}
	}
	if r.Metadata, err = plain(q.Metadata); err != nil {
		return r, err
	}
	if r.RemoveAfter == 0 {
		if r.RemoveAfter = r.UnhealthyAfter; r.RemoveAfter == 0 {
			r.RemoveAfter = instance.DefaultUnhealthyAfter
		}
	}
	return r, lift(&r.Spec)
}

// lift takes version, zone and weight out of the metadata.
func lift(s *instance.Spec) error {
	if text, ok := s.Metadata["weight"]; ok {
		n, err := strconv.Atoi(text)
		if err != nil || n == 0 {
			return fault.Invalidf("metadata.weight", input.Quote(text), "must be a number from 1 to 100")
		}
		if s.Weight != 0 && s.Weight != n {
			return fault.Invalidf("metadata.weight", n, "differs from weight")
		}
		s.Weight = n
	}
	for key, field := range map[string]*string{"version": &s.Version, "zone": &s.Zone} {
		switch text, ok := s.Metadata[key]; {
		case !ok:
		case *field != "" && *field != text:
			return fault.Invalidf("metadata."+key, input.Quote(text), "differs from %s", key)
		default:
			*field = text
		}
	}
	for _, key := range lifted() {
		delete(s.Metadata, key)
	}
	return nil
}

// lifted are the metadata of dialect A that are fields of an instance, ascending.
func lifted() []string { return []string{"version", "weight", "zone"} }

// Instance is an instance in a list of dialect A.
type Instance struct {
	ID     string `json:"id"`
	Host   string `json:"host,omitempty"`
	Port   int    `json:"port,omitempty"`
	Health string `json:"health"`
	// Metadata are the instance's with its version, its zone, and its weight as a number unless
	// that is the default.
	Metadata     map[string]any    `json:"metadata"`
	Interfaces   map[string]string `json:"interfaces,omitempty"`
	Tags         []string          `json:"tags,omitempty"`
	Dependencies []string          `json:"dependencies,omitempty"`
	Environment  string            `json:"environment,omitempty"`
	Region       string            `json:"region,omitempty"`
	Owner        string            `json:"owner,omitempty"`
	Description  string            `json:"description,omitempty"`
}

// Of gives the form of an instance in dialect A.
func Of(i *instance.Instance) Instance {
	metadata := make(map[string]any, len(i.Metadata)+3)
	for k, v := range i.Metadata {
		metadata[k] = v
	}
	if i.Version != "" {
		metadata["version"] = i.Version
	}
	if i.Zone != "" {
		metadata["zone"] = i.Zone
	}
	if i.Weight > instance.DefaultWeight {
		metadata["weight"] = i.Weight
	}
	return Instance{
		ID: i.ID, Host: i.Host, Port: i.Port, Health: i.Status.String(), Metadata: metadata, Interfaces: i.Interfaces,
		Tags: i.Tags, Dependencies: i.Dependencies, Environment: i.Environment, Region: i.Region, Owner: i.Owner, Description: i.Description,
	}
}

// Detail is one instance in dialect A, with all that is known of it.
type Detail struct {
	Instance
	Service        string          `json:"service"`
	Namespace      string          `json:"namespace"`
	Weight         int             `json:"weight"`
	HealthCheck    *Check          `json:"health_check,omitempty"`
	UnhealthyAfter string          `json:"unhealthy_after"`
	RemoveAfter    string          `json:"remove_after"`
	Offer          json.RawMessage `json:"offer,omitempty"`
	Override       string          `json:"override,omitempty"` // status set by hand
	RegisteredAt   time.Time       `json:"registered_at"`
	LastHeartbeat  *time.Time      `json:"last_heartbeat,omitempty"` // known by the peer that answers for it
	Peer           string          `json:"peer,omitempty"`
	Revision       uint64          `json:"revision"`
}

// Check is a health check.
type Check struct {
	Type               instance.CheckType `json:"type"`
	Endpoint           string             `json:"endpoint,omitempty"`
	Interval           string             `json:"interval"`
	Timeout            string             `json:"timeout"`
	HealthyThreshold   int                `json:"healthy_threshold"`
	UnhealthyThreshold int                `json:"unhealthy_threshold"`
}

// DetailOf gives the whole form of an instance; the zero time is a heartbeat that is not known.
func DetailOf(i *instance.Instance, lastBeat time.Time) Detail {
	d := Detail{
		Instance: Of(i), Service: i.Service, Namespace: i.Namespace, Weight: i.Weight,
		UnhealthyAfter: i.UnhealthyAfter.String(), RemoveAfter: i.RemoveAfter.String(), Offer: i.Offer,
		RegisteredAt: shownTime(i.RegisteredAt), LastHeartbeat: shownBeat(lastBeat), Peer: i.Peer, Revision: i.Revision,
	}
	if i.Override != instance.StatusUnknown {
		d.Override = i.Override.String()
	}
	if c := i.Check; c != nil {
		d.HealthCheck = &Check{c.Type, c.Endpoint, c.Interval.String(), c.Timeout.String(), c.HealthyThreshold, c.UnhealthyThreshold}
	}
	return d
}

// AppendList appends a service with its instances, {"service":..,"index":..,"instances":[..]}.
func AppendList(dst []byte, service string, v *instance.View) []byte {
	dst = append(dst, `{"service":`...)
	dst = jsonform.AppendString(dst, service)
	dst = append(dst, `,"index":`...)
	dst = strconv.AppendUint(dst, v.Index, 10)
	dst = append(dst, `,"instances":[`...)
	for n, i := range v.Instances {
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = Append(dst, i)
	}
	return append(dst, "]}"...)
}

// Append appends the text of Of.
func Append(dst []byte, i *instance.Instance) []byte {
	dst = jsonform.AppendString(append(dst, `{"id":`...), i.ID)
	dst = appendText(dst, "host", i.Host)
	if i.Port != 0 {
		dst = strconv.AppendInt(append(dst, `,"port":`...), int64(i.Port), 10)
	}
	dst = appendText(dst, "health", i.Status.String())
	dst = appendMetadata(append(dst, `,"metadata":`...), i)
	if len(i.Interfaces) > 0 {
		dst = appendStrings(append(dst, `,"interfaces":`...), i.Interfaces)
	}
	dst = appendTexts(dst, "tags", i.Tags)
	dst = appendTexts(dst, "dependencies", i.Dependencies)
	dst = appendText(dst, "environment", i.Environment)
	dst = appendText(dst, "region", i.Region)
	dst = appendText(dst, "owner", i.Owner)
	dst = appendText(dst, "description", i.Description)
	return append(dst, '}')
}

// appendMetadata appends the metadata of dialect A.
func appendMetadata(dst []byte, i *instance.Instance) []byte {
	if i.Version == "" && i.Zone == "" && i.Weight <= instance.DefaultWeight {
		return appendStrings(dst, i.Metadata)
	}
	keys := slices.AppendSeq(make([]string, 0, len(i.Metadata)+3), maps.Keys(i.Metadata))
	if i.Version != "" {
		keys = append(keys, "version")
	}
	if i.Weight > instance.DefaultWeight {
		keys = append(keys, "weight")
	}
	if i.Zone != "" {
		keys = append(keys, "zone")
	}
	slices.Sort(keys)
	dst = append(dst, '{')
	for n, k := range slices.Compact(keys) {
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = append(jsonform.AppendString(dst, k), ':')
		switch {
		case k == "version" && i.Version != "":
			dst = jsonform.AppendString(dst, i.Version)
		case k == "weight" && i.Weight > instance.DefaultWeight:
			dst = strconv.AppendInt(dst, int64(i.Weight), 10)
		case k == "zone" && i.Zone != "":
			dst = jsonform.AppendString(dst, i.Zone)
		default:
			dst = jsonform.AppendString(dst, i.Metadata[k])
		}
	}
	return append(dst, '}')
}
