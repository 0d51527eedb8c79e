package instances

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// The JSON view of an instance, with the names of the low-level design "Service
// Discovery". Registration bodies, REST answers, the command line and its files
// use these types; other dialects are renderings of them.

// RegistrationJSON is a registration.
type RegistrationJSON struct {
	ID             string                     `json:"id,omitempty"`
	Namespace      string                     `json:"namespace,omitempty"`
	Host           string                     `json:"host,omitempty"`
	Port           int                        `json:"port,omitempty"`
	Version        string                     `json:"version,omitempty"`
	Zone           string                     `json:"zone,omitempty"`
	Weight         int                        `json:"weight,omitempty"`
	Interfaces     map[string]string          `json:"interfaces,omitempty"`
	Metadata       map[string]json.RawMessage `json:"metadata,omitempty"` // strings, numbers, truths; null is left out
	Tags           []string                   `json:"tags,omitempty"`
	Dependencies   []string                   `json:"dependencies,omitempty"`
	Environment    string                     `json:"environment,omitempty"`
	Region         string                     `json:"region,omitempty"`
	Owner          string                     `json:"owner,omitempty"`
	Description    string                     `json:"description,omitempty"`
	Status         string                     `json:"status,omitempty"` // STARTING or ""
	HealthCheck    *CheckJSON                 `json:"health_check,omitempty"`
	UnhealthyAfter durationJSON               `json:"unhealthy_after,omitzero"`
	RemoveAfter    durationJSON               `json:"remove_after,omitzero"`
	Offer          json.RawMessage            `json:"offer,omitempty"`
}

// CheckJSON is a health check.
type CheckJSON struct {
	Type               instance.CheckType `json:"type"` // in either case
	Endpoint           endpointJSON       `json:"endpoint,omitempty"`
	Interval           durationJSON       `json:"interval,omitzero"`
	Timeout            durationJSON       `json:"timeout,omitzero"`
	HealthyThreshold   int                `json:"healthy_threshold,omitempty"`
	UnhealthyThreshold int                `json:"unhealthy_threshold,omitempty"`
}

// BriefJSON is an instance in a list.
type BriefJSON struct {
	ID     string `json:"id"`
	Host   string `json:"host,omitempty"`
	Port   int    `json:"port,omitempty"`
	Health string `json:"health"`
	// Metadata includes the version, the zone, and the weight as a number unless
	// it is the default.
	Metadata     map[string]any    `json:"metadata"`
	Interfaces   map[string]string `json:"interfaces,omitempty"`
	Tags         []string          `json:"tags,omitempty"`
	Dependencies []string          `json:"dependencies,omitempty"`
	Environment  string            `json:"environment,omitempty"`
	Region       string            `json:"region,omitempty"`
	Owner        string            `json:"owner,omitempty"`
	Description  string            `json:"description,omitempty"`
}

// DetailJSON is an instance with all its fields.
type DetailJSON struct {
	*BriefJSON
	Service        string          `json:"service"`
	Namespace      string          `json:"namespace"`
	Weight         int             `json:"weight"`
	HealthCheck    *CheckJSON      `json:"health_check,omitempty"`
	UnhealthyAfter durationJSON    `json:"unhealthy_after"`
	RemoveAfter    durationJSON    `json:"remove_after"`
	Lasting        bool            `json:"lasting,omitempty"` // only heartbeats that stop remove it, not its check
	Offer          json.RawMessage `json:"offer,omitempty"`
	Override       string          `json:"override,omitempty"` // status set by hand
	RegisteredAt   time.Time       `json:"registered_at"`
	LastHeartbeat  *time.Time      `json:"last_heartbeat,omitempty"` // known to the peer that answers for the instance
	LeaseID        string          `json:"lease_id,omitempty"`       // for the holder of the lease alone; Detail leaves it out
	Peer           string          `json:"peer,omitempty"`
	LastChecks     []LastCheck     `json:"last_checks,omitempty"` // newest first; known to the peer that checks, for its operators; Detail leaves them out
	Problems       []string        `json:"problems,omitempty"`    // for people; known to the peer that answers for the instance; Detail leaves them out
	Revision       uint64          `json:"revision"`
}

// MaxLastChecks bounds the last checks of one instance.
const MaxLastChecks = 10

// LastCheck is the end of one of the last checks of an instance. The cause is for operators: it would let an
// application explore the network of the peer that checks.
type LastCheck struct {
	At      time.Time `json:"at"`
	TookMs  float64   `json:"took_ms"`
	Passing bool      `json:"passing"`
	// State is what the check found, in the words for the endpoints of offers: answers, closed, refuses, wrong, "no
	// such name", certificate, silent, or unmeasured. It is empty from a peer of an earlier version.
	State  string          `json:"state,omitempty"`
	Status instance.Status `json:"status"`          // what the checks made of the instance from then on
	Cause  string          `json:"cause,omitempty"` // of a failure, at most 200 bytes
}

// Brief returns the list view of an instance.
func Brief(i *instance.Instance) *BriefJSON {
	metadata := make(map[string]any, len(i.Spec.Metadata)+3)
	for k, v := range i.Spec.Metadata {
		metadata[k] = v
	}
	if i.Spec.Version != "" {
		metadata["version"] = i.Spec.Version
	}
	if i.Spec.Zone != "" {
		metadata["zone"] = i.Spec.Zone
	}
	if i.Spec.Weight > instance.DefaultWeight {
		metadata["weight"] = i.Spec.Weight
	}
	return &BriefJSON{
		ID: i.ID, Host: i.Spec.Host, Port: i.Spec.Port, Health: i.Status.String(), Metadata: metadata, Interfaces: i.Spec.Interfaces,
		Tags: i.Spec.Tags, Dependencies: i.Spec.Dependencies, Environment: i.Spec.Environment, Region: i.Spec.Region, Owner: i.Spec.Owner, Description: i.Spec.Description,
	}
}

// Detail returns the full view of an instance. A zero lastBeat is unknown.
func Detail(i *instance.Instance, lastBeat time.Time) *DetailJSON {
	d := &DetailJSON{
		BriefJSON: Brief(i), Service: i.Service, Namespace: i.Namespace, Weight: i.Spec.Weight,
		UnhealthyAfter: durationJSON(i.Spec.UnhealthyAfter), RemoveAfter: durationJSON(i.Spec.RemoveAfter), Lasting: i.Spec.Lasting, Offer: i.Spec.Offer,
		RegisteredAt: ShownTime(i.RegisteredAt), Peer: i.Peer, Revision: i.Revision,
	}
	if !lastBeat.IsZero() {
		shown := ShownTime(lastBeat)
		d.LastHeartbeat = &shown
	}
	if i.Override != instance.StatusUnknown {
		d.Override = i.Override.String()
	}
	if c := i.Spec.Check; c != nil {
		d.HealthCheck = &CheckJSON{
			c.Type, endpointJSON(c.Endpoint), durationJSON(c.Interval), durationJSON(c.Timeout), c.HealthyThreshold, c.UnhealthyThreshold,
		}
	}
	return d
}

// MarshalJSON implements json.Marshaler.
func (r Removal) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		*BriefJSON
		Service   string     `json:"service"`
		Namespace string     `json:"namespace"`
		Peer      string     `json:"peer,omitempty"`
		RemovedAt time.Time  `json:"removed_at"`
		Cause     string     `json:"cause"`
		LastCheck *LastCheck `json:"last_check,omitempty"`
	}{Brief(r.Instance), r.Service, r.Namespace, r.Peer, ShownTime(r.At), r.Cause, r.LastCheck})
}

// ShownTime rounds a time for people: UTC, to the millisecond.
func ShownTime(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

// Registration converts a registration of a service. An empty namespace of name
// is the body's, or the default. Version, zone and weight may also be metadata.
// The result still needs Normalize. Errors: Invalid, with the field.
func (j *RegistrationJSON) Registration(name instance.Name) (instance.Registration, error) {
	r := instance.Registration{
		Key: instance.Key{Namespace: name.Namespace, Service: name.Service, ID: j.ID},
		Spec: instance.Spec{
			Host: j.Host, Port: j.Port, Version: j.Version, Zone: j.Zone, Weight: j.Weight, Interfaces: j.Interfaces,
			Tags: j.Tags, Dependencies: j.Dependencies, Environment: j.Environment, Region: j.Region, Owner: j.Owner, Description: j.Description,
			UnhealthyAfter: time.Duration(j.UnhealthyAfter), RemoveAfter: time.Duration(j.RemoveAfter),
		},
	}
	switch {
	case j.Namespace == "" && r.Namespace == "":
		r.Namespace = instance.DefaultNamespace
	case r.Namespace == "":
		r.Namespace = j.Namespace
	case j.Namespace != "" && j.Namespace != r.Namespace:
		return r, fault.Invalidf("namespace", shorten(j.Namespace), "differs from the namespace of the request, %q", r.Namespace)
	}
	if string(j.Offer) != "null" {
		r.Spec.Offer = j.Offer
	}
	if c := j.HealthCheck; c != nil {
		kind, err := instance.ParseCheckType(string(c.Type))
		if err != nil {
			return r, fault.In("health_check", err)
		}
		r.Spec.Check = &instance.Check{
			Type: kind, Endpoint: string(c.Endpoint), Interval: time.Duration(c.Interval), Timeout: time.Duration(c.Timeout),
			HealthyThreshold: c.HealthyThreshold, UnhealthyThreshold: c.UnhealthyThreshold,
		}
	}
	var err error
	if j.Status != "" {
		if r.Status, err = instance.ParseStatus(j.Status); err != nil {
			return r, err
		}
	}
	if r.Spec.Metadata, err = TextMetadata(j.Metadata); err != nil {
		return r, err
	}
	return r, liftMetadata(&r.Spec)
}

// liftMetadata moves version, zone and weight from the metadata to their fields.
func liftMetadata(s *instance.Spec) error {
	if text, ok := s.Metadata["weight"]; ok {
		n, err := strconv.Atoi(text)
		if err != nil || n == 0 {
			return fault.Invalidf("metadata.weight", shorten(text), "must be a number from 1 to 100")
		}
		if s.Weight != 0 && s.Weight != n {
			return fault.Invalidf("metadata.weight", n, "differs from weight")
		}
		s.Weight = n
		delete(s.Metadata, "weight")
	}
	for _, lifted := range []struct {
		name  string
		field *string
	}{{"version", &s.Version}, {"zone", &s.Zone}} {
		text, ok := s.Metadata[lifted.name]
		if !ok {
			continue
		}
		if *lifted.field != "" && *lifted.field != text {
			return fault.Invalidf("metadata."+lifted.name, shorten(text), "differs from %s", lifted.name)
		}
		*lifted.field = text
		delete(s.Metadata, lifted.name)
	}
	return nil
}

// TextMetadata converts JSON metadata to text: strings without quotes, numbers
// and truths as written. Null values are left out. Errors: Invalid, with the
// field; the least field of several.
func TextMetadata(metadata map[string]json.RawMessage) (map[string]string, error) {
	texts := make(map[string]string, len(metadata))
	var first error
	for k, value := range metadata {
		var text string
		var err error
		switch {
		case len(value) == 0 || value[0] == 'n':
			continue
		case value[0] == '{' || value[0] == '[':
			err = fault.Invalidf("metadata."+shorten(k), nil, "must be a string, a number, true or false")
		case value[0] != '"':
			text = string(value)
		default:
			if e := json.Unmarshal(value, &text); e != nil {
				err = fault.Invalidf("metadata."+shorten(k), nil, "is not a JSON string: %w", e)
			}
		}
		if err != nil && (first == nil || fault.FieldOf(err) < fault.FieldOf(first)) {
			first = err
		}
		texts[k] = text
	}
	return texts, first
}

// durationJSON is a duration: "10s", a number of seconds, or "never".
type durationJSON time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d durationJSON) MarshalText() ([]byte, error) {
	return []byte(d.String()), nil
}

// String returns the text of time.Duration, or "never".
func (d durationJSON) String() string {
	if time.Duration(d) == instance.Never {
		return "never"
	}
	return time.Duration(d).String()
}

// UnmarshalJSON implements json.Unmarshaler.
func (d *durationJSON) UnmarshalJSON(b []byte) error {
	var text string
	var seconds float64
	switch {
	case string(b) == "null":
		return nil
	case json.Unmarshal(b, &text) == nil:
		if text == "never" {
			*d = durationJSON(instance.Never)
			return nil
		}
		if given, err := time.ParseDuration(text); err == nil {
			*d = durationJSON(given)
			return nil
		}
	case json.Unmarshal(b, &seconds) == nil && -1e9 < seconds && seconds < 1e9:
		*d = durationJSON(seconds * float64(time.Second))
		return nil
	}
	return &json.UnmarshalTypeError{Value: string(b)}
}

// endpointJSON is the endpoint of a check: text, or a port as a number.
type endpointJSON string

// UnmarshalJSON implements json.Unmarshaler.
func (e *endpointJSON) UnmarshalJSON(b []byte) error {
	var text string
	var port uint16
	switch {
	case json.Unmarshal(b, &text) == nil:
		*e = endpointJSON(text)
	case json.Unmarshal(b, &port) == nil:
		*e = endpointJSON(strconv.Itoa(int(port)))
	default:
		return &json.UnmarshalTypeError{Value: string(b)}
	}
	return nil
}

// shorten cuts a text of a caller for an error.
func shorten(text string) string { return clean.Text(text, 128) }
