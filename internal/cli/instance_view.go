package cli

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// specView is what an application says of an instance, as files have it and as it is shown.
type specView struct {
	Namespace      string            `json:"namespace,omitempty" yaml:"namespace"`
	Service        string            `json:"service" yaml:"service"`
	ID             string            `json:"id" yaml:"id"`
	Host           string            `json:"host,omitempty" yaml:"host"`
	Port           int               `json:"port,omitempty" yaml:"port"`
	Version        string            `json:"version,omitempty" yaml:"version"`
	Interfaces     map[string]string `json:"interfaces,omitempty" yaml:"interfaces"`
	Metadata       map[string]string `json:"metadata,omitempty" yaml:"metadata"`
	Tags           []string          `json:"tags,omitempty" yaml:"tags"`
	Dependencies   []string          `json:"dependencies,omitempty" yaml:"dependencies"`
	Environment    string            `json:"environment,omitempty" yaml:"environment"`
	Region         string            `json:"region,omitempty" yaml:"region"`
	Owner          string            `json:"owner,omitempty" yaml:"owner"`
	Description    string            `json:"description,omitempty" yaml:"description"`
	Zone           string            `json:"zone,omitempty" yaml:"zone"`
	Weight         int               `json:"weight,omitempty" yaml:"weight"`
	HealthCheck    *checkView        `json:"health_check,omitempty" yaml:"health_check"`
	UnhealthyAfter period            `json:"unhealthy_after,omitempty" yaml:"unhealthy_after"`
	RemoveAfter    period            `json:"remove_after,omitempty" yaml:"remove_after"`
	Offer          any               `json:"offer,omitempty" yaml:"offer"`
}

// checkView is a health check.
type checkView struct {
	Type               string `json:"type" yaml:"type"`
	Endpoint           string `json:"endpoint,omitempty" yaml:"endpoint"`
	Interval           period `json:"interval,omitempty" yaml:"interval"`
	Timeout            period `json:"timeout,omitempty" yaml:"timeout"`
	HealthyThreshold   int    `json:"healthy_threshold,omitempty" yaml:"healthy_threshold"`
	UnhealthyThreshold int    `json:"unhealthy_threshold,omitempty" yaml:"unhealthy_threshold"`
}

// registrationView is one instance in a file.
type registrationView struct {
	specView `yaml:",inline"`
	Status   string `json:"status,omitempty" yaml:"status"` // STARTING, or "" for none
}

// instanceView is an instance as it is shown.
type instanceView struct {
	specView
	Status       string    `json:"status"`
	Override     string    `json:"override,omitempty"` // status set by hand
	RegisteredAt time.Time `json:"registered_at"`
	Lease        string    `json:"lease_id,omitempty"`
	Peer         string    `json:"peer,omitempty"`
	Revision     uint64    `json:"revision"`
}

// period is a time, written 10s or 1m30s.
type period time.Duration

// MarshalText implements encoding.TextMarshaler.
func (p period) MarshalText() ([]byte, error) { return []byte(time.Duration(p).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *period) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	*p = period(d)
	if err != nil {
		return fault.Invalidf("", string(text), "must be a time (500ms, 10s, 2m), not %q", text)
	}
	return nil
}

// registration gives what a file says in the words of package instance.
func (v *registrationView) registration() (instance.Registration, error) {
	r := instance.Registration{
		Key: instance.Key{Namespace: v.Namespace, Service: v.Service, ID: v.ID}.WithDefaults(),
		Spec: instance.Spec{
			Host: v.Host, Port: v.Port, Version: v.Version, Interfaces: v.Interfaces, Metadata: v.Metadata, Tags: v.Tags,
			Dependencies: v.Dependencies, Environment: v.Environment, Region: v.Region, Owner: v.Owner, Description: v.Description,
			Zone: v.Zone, Weight: v.Weight, UnhealthyAfter: time.Duration(v.UnhealthyAfter), RemoveAfter: time.Duration(v.RemoveAfter),
		},
	}
	if c := v.HealthCheck; c != nil {
		r.Check = &instance.Check{
			Endpoint: c.Endpoint, Interval: time.Duration(c.Interval), Timeout: time.Duration(c.Timeout),
			HealthyThreshold: c.HealthyThreshold, UnhealthyThreshold: c.UnhealthyThreshold,
		}
		var err error
		if r.Check.Type, err = instance.ParseCheckType(c.Type); err != nil {
			return r, fault.In("health_check", err)
		}
	}
	if v.Offer != nil {
		offer, err := json.Marshal(v.Offer)
		if err != nil {
			return r, fault.Invalidf("offer", nil, "%w", err)
		}
		r.Offer = offer
	}
	if v.Status != "" {
		var err error
		if r.Status, err = instance.ParseStatus(v.Status); err != nil {
			return r, err
		}
	}
	return r, r.Normalize()
}

func showInstance(i *instance.Instance) instanceView {
	v := instanceView{
		specView: specView{
			Namespace: i.Namespace, Service: i.Service, ID: i.ID, Host: i.Host, Port: i.Port, Version: i.Version,
			Interfaces: i.Interfaces, Metadata: i.Metadata, Tags: i.Tags, Dependencies: i.Dependencies,
			Environment: i.Environment, Region: i.Region, Owner: i.Owner, Description: i.Description, Zone: i.Zone, Weight: i.Weight,
			UnhealthyAfter: period(i.UnhealthyAfter), RemoveAfter: period(i.RemoveAfter),
		},
		Status: i.Status.String(), RegisteredAt: i.RegisteredAt, Lease: i.Lease, Peer: i.Peer, Revision: i.Revision,
	}
	if len(i.Offer) > 0 {
		v.Offer = i.Offer
	}
	if i.Override != instance.StatusUnknown {
		v.Override = i.Override.String()
	}
	if c := i.Check; c != nil {
		v.HealthCheck = &checkView{
			Type: string(c.Type), Endpoint: c.Endpoint, Interval: period(c.Interval), Timeout: period(c.Timeout),
			HealthyThreshold: c.HealthyThreshold, UnhealthyThreshold: c.UnhealthyThreshold,
		}
	}
	return v
}

func showInstances(list []*instance.Instance) []instanceView {
	views := make([]instanceView, len(list))
	for n, i := range list {
		views[n] = showInstance(i)
	}
	return views
}

// address is where an instance is, as far as one line has room.
func (v *instanceView) address() string {
	switch {
	case v.Host != "":
		return net.JoinHostPort(v.Host, strconv.Itoa(v.Port))
	case len(v.Interfaces) > 0:
		return fmt.Sprintf("%d interfaces", len(v.Interfaces))
	}
	return "-"
}

func instanceHeader() []string {
	return []string{"ID", "STATUS", "ADDRESS", "VERSION", "ZONE", "TAGS", "PEER"}
}

func (v *instanceView) row() []string {
	return []string{v.ID, v.Status, v.address(), orDash(v.Version), orDash(v.Zone), orDash(strings.Join(v.Tags, " ")), shortPeer(v.Peer)}
}

func instanceTable(views []instanceView) string {
	rows := make([][]string, len(views))
	for n := range views {
		rows[n] = views[n].row()
	}
	return table(instanceHeader(), rows)
}

// instanceDetail shows all that is known of one instance.
func instanceDetail(v *instanceView) string {
	rows := [][]string{
		{"service", v.Service}, {"namespace", v.Namespace}, {"id", v.ID}, {"status", v.Status}, {"override", v.Override},
		{"address", v.address()}, {"version", v.Version}, {"zone", v.Zone}, {"weight", strconv.Itoa(v.Weight)},
		{"tags", strings.Join(v.Tags, " ")}, {"interfaces", assignments(v.Interfaces)}, {"metadata", assignments(v.Metadata)},
		{"depends on", strings.Join(v.Dependencies, " ")}, {"environment", v.Environment}, {"region", v.Region}, {"owner", v.Owner},
		{"check", v.HealthCheck.line()},
		{"thresholds", fmt.Sprintf("unhealthy after %s, removed after %s", time.Duration(v.UnhealthyAfter), time.Duration(v.RemoveAfter))},
		{"registered", at(v.RegisteredAt)}, {"lease", v.Lease}, {"peer", v.Peer},
	}
	said := rows[:0]
	for _, row := range rows {
		if row[1] != "" {
			said = append(said, row)
		}
	}
	return pairs(said)
}

func (c *checkView) line() string {
	if c == nil {
		return "none: heartbeats alone keep it"
	}
	return strings.Join(strings.Fields(fmt.Sprintf("%s %s every %s", c.Type, c.Endpoint, time.Duration(c.Interval))), " ")
}
