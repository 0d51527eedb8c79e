// Package dialect is how instances are written in JSON: in the words of the low-level design
// "Service Discovery" (dialect A) and in those of the SAP-044 Registry (dialect B).
//
// It translates bodies into registrations, parameters into selectors and instances into text,
// and knows nothing of HTTP but parameters. The texts that it appends are those which
// encoding/json makes of Instance, Detail and Service, so that these are what they document.
package dialect

import (
	"encoding/json"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// shared are the fields of a registration that both dialects have under the same names.
type shared struct {
	ID             string          `json:"id"`
	Namespace      string          `json:"namespace"`
	Host           string          `json:"host"`
	Port           int             `json:"port"`
	Version        string          `json:"version"`
	Zone           string          `json:"zone"`
	Weight         int             `json:"weight"`
	HealthCheck    json.RawMessage `json:"health_check"`
	UnhealthyAfter duration        `json:"unhealthy_after"`
	RemoveAfter    duration        `json:"remove_after"`
	Offer          json.RawMessage `json:"offer"`

	Interfaces map[string]string          `json:"interfaces"`
	Metadata   map[string]json.RawMessage `json:"metadata"`
}

// unshared takes the name of the struct out of a path: it is none of the API's.
func unshared(err error) error {
	field, ok := strings.CutPrefix(fault.FieldOf(err), "shared.")
	if !ok {
		return err
	}
	return fault.Invalidf(field, nil, "%s", fault.Message(err))
}

// registration gives all but the metadata.
func (s *shared) registration(name instance.Name) (instance.Registration, error) {
	r := instance.Registration{
		Key: instance.Key{Namespace: name.Namespace, Service: name.Service, ID: s.ID},
		Spec: instance.Spec{
			Host: s.Host, Port: s.Port, Version: s.Version, Zone: s.Zone, Weight: s.Weight, Interfaces: s.Interfaces,
			UnhealthyAfter: time.Duration(s.UnhealthyAfter), RemoveAfter: time.Duration(s.RemoveAfter), Offer: present(s.Offer),
		},
	}
	var err error
	r.Check, err = parseCheck(s.HealthCheck)
	if err != nil {
		return r, fault.In("health_check", err)
	}
	return r, s.space(&r)
}

// space settles the namespace: that of the request, the body's, or the default.
func (s *shared) space(r *instance.Registration) error {
	switch {
	case s.Namespace == "" && r.Namespace == "":
		r.Namespace = instance.DefaultNamespace
	case r.Namespace == "":
		r.Namespace = s.Namespace
	case s.Namespace != "" && s.Namespace != r.Namespace:
		return fault.Invalidf("namespace", input.Quote(s.Namespace), "differs from the parameter of that name, %q", r.Namespace)
	}
	return nil
}

// present is a text that is not null.
func present(text json.RawMessage) json.RawMessage {
	if string(text) == "null" {
		return nil
	}
	return text
}

// parseCheck reads a health check; null and nothing are none.
func parseCheck(text json.RawMessage) (*instance.Check, error) {
	if len(present(text)) == 0 {
		return nil, nil
	}
	var c struct {
		Type               string   `json:"type"`
		Endpoint           endpoint `json:"endpoint"`
		Interval           duration `json:"interval"`
		Timeout            duration `json:"timeout"`
		HealthyThreshold   int      `json:"healthy_threshold"`
		UnhealthyThreshold int      `json:"unhealthy_threshold"`
	}
	if err := input.Object(text, &c); err != nil {
		return nil, bare(err)
	}
	kind := instance.CheckType(c.Type)
	for _, known := range []instance.CheckType{instance.HTTP, instance.TCP, instance.GRPC, instance.Script} {
		if strings.EqualFold(c.Type, string(known)) {
			kind = known
		}
	}
	return &instance.Check{
		Type: kind, Endpoint: string(c.Endpoint), Interval: time.Duration(c.Interval), Timeout: time.Duration(c.Timeout),
		HealthyThreshold: c.HealthyThreshold, UnhealthyThreshold: c.UnhealthyThreshold,
	}, nil
}

// bare takes the field "body" off an error about a part of one.
func bare(err error) error {
	if fault.FieldOf(err) != "body" {
		return err
	}
	return fault.New("", fault.Invalid, "must be an object")
}

// duration is a text such as "10s", or a number of seconds.
type duration time.Duration

// UnmarshalJSON implements json.Unmarshaler.
func (d *duration) UnmarshalJSON(b []byte) error {
	var text string
	var seconds float64
	switch {
	case string(b) == "null":
		return nil
	case json.Unmarshal(b, &text) == nil:
		given, err := time.ParseDuration(text)
		if err != nil {
			return mistaken(b)
		}
		*d = duration(given)
	case json.Unmarshal(b, &seconds) == nil && -1e9 < seconds && seconds < 1e9:
		*d = duration(seconds * float64(time.Second))
	default:
		return mistaken(b)
	}
	return nil
}

// endpoint is a text, or a port as a number.
type endpoint string

// UnmarshalJSON implements json.Unmarshaler.
func (e *endpoint) UnmarshalJSON(b []byte) error {
	var text string
	var port uint16
	switch {
	case json.Unmarshal(b, &text) == nil:
		*e = endpoint(text)
	case json.Unmarshal(b, &port) == nil:
		*e = endpoint(strconv.Itoa(int(port)))
	default:
		return mistaken(b)
	}
	return nil
}

// mistaken is an error to which the decoder adds the field.
func mistaken(b []byte) error { return &json.UnmarshalTypeError{Value: string(b)} }

// plain gives the values of metadata as text: strings as they are, numbers and truths as they
// are written. Those that are null are left out.
func plain(metadata map[string]json.RawMessage) (map[string]string, error) {
	keys := make([]string, 0, len(metadata))
	for k := range metadata {
		keys = append(keys, k)
	}
	sort.Strings(keys) // the first error is always the same
	out := make(map[string]string, len(keys))
	for _, k := range keys {
		value := metadata[k]
		var text string
		switch {
		case len(value) == 0 || value[0] == 'n':
		case value[0] == '{' || value[0] == '[':
			return nil, fault.Invalidf("metadata."+input.Quote(k), nil, "must be a string, a number, true or false")
		case value[0] != '"':
			out[k] = string(value)
		default:
			if err := json.Unmarshal(value, &text); err != nil {
				return nil, fault.Invalidf("metadata."+input.Quote(k), nil, "is no string: %w", err)
			}
			out[k] = text
		}
	}
	return out, nil
}

// Seconds are whole ones, rounded down: nobody is promised more time than there is.
func Seconds(d time.Duration) int64 { return int64(d / time.Second) }
