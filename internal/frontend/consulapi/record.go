package consulapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// recordKey is the metadata key of an instance under which this front keeps, as JSON, what an instance of this program does not have. The
// directory thus shows it at every peer.
const recordKey = "consul"

// record is what Consul knows of a service besides the instance.
type record struct {
	ID          string             `json:",omitempty"` // of the service, where an instance cannot have it
	Checks      []*check           `json:",omitempty"`
	Maintenance *string            `json:",omitempty"` // its reason; nil: none
	Warning     int                `json:",omitempty"` // weight while a check warns
	Override    bool               `json:",omitempty"` // EnableTagOverride
	Peer        string             `json:",omitempty"` // on whose host a loopback address of the service is
	Addresses   map[string]address `json:",omitempty"` // TaggedAddresses
	Order       []int              `json:",omitempty"` // of the tags, by their places among those of the instance, which are ascending; nil: the same
}

type address struct {
	Address string
	Port    int
}

// check is a check of a service: with a TTL, or one that its peer runs.
type check struct {
	ID     string
	Name   string          `json:",omitempty"`
	Notes  string          `json:",omitempty"`
	Type   string          // ttl, http, tcp or grpc
	TTL    time.Duration   `json:",omitempty"`
	Run    *instance.Check `json:",omitempty"` // nil: with a TTL
	Remove time.Duration   `json:",omitempty"` // DeregisterCriticalServiceAfter
	Status string          `json:",omitempty"`
	Output string          `json:",omitempty"` // at the last change of the status
}

// Statuses of checks.
const (
	passing  = "passing"
	warning  = "warning"
	critical = "critical"
)

const (
	maxOutput = 512     // bytes kept of a check's output
	maxRecord = 4 << 10 // bytes, as of all metadata
)

// text is the record as metadata. Many checks have shorter outputs; what is still too long, the registry refuses.
func (r *record) text() (string, error) {
	text, err := json.Marshal(r)
	for most := maxOutput; err == nil && len(text) > maxRecord && most > 0; text, err = json.Marshal(r) {
		most /= 2
		for _, c := range r.Checks {
			c.Output = clean.Lines(c.Output, most)
		}
	}
	return string(text), err
}

// recordOf reads the record of an instance; nil without one: another front end registered it.
func recordOf(i *instance.Instance) *record {
	text, ok := i.Spec.Metadata[recordKey]
	rec := new(record)
	if !ok || json.Unmarshal([]byte(text), rec) != nil {
		return nil
	}
	return rec
}

// idOf is the id of the service of an instance.
func idOf(i *instance.Instance, rec *record) string { return cmp.Or(rec.ID, i.ID) }

// orderOf is the order of tags, of which an instance keeps each once and ascending. A tag that occurs twice has two places.
func orderOf(tags []string) (order []int) {
	ascending := slices.Compact(slices.Sorted(slices.Values(tags)))
	if slices.Equal(ascending, tags) {
		return nil
	}
	for _, tag := range tags {
		n, _ := slices.BinarySearch(ascending, tag)
		order = append(order, n)
	}
	return order
}

// tagsOf are the tags of a service in the order of its registration. After another front end has changed their number they are ascending.
func tagsOf(i *instance.Instance, rec *record) []string {
	all := i.Spec.Tags
	if len(rec.Order) == 0 || slices.Max(rec.Order) != len(all)-1 {
		return append([]string{}, all...)
	}
	tags := []string{}
	for _, n := range rec.Order {
		if n < 0 {
			return append([]string{}, all...)
		}
		tags = append(tags, all[n])
	}
	return tags
}

// instanceID is the id of the instance of a service: the same, or one made of it where an instance cannot have it.
func instanceID(id string) string {
	if len(id) <= 128 && (instance.Key{Namespace: instance.DefaultNamespace, Service: "any", ID: id}).Validate() == nil {
		return id
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	kept := strings.Map(func(c rune) rune {
		if c < 128 && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._:-", c)) {
			return c
		}
		return '.'
	}, id)
	return fmt.Sprintf("%s:%016x", kept[:min(len(kept), 100)], h.Sum64())
}

// override is the status that checks and maintenance force upon an instance; StatusUp: none.
func (r *record) override() instance.Status {
	if r.Maintenance != nil {
		return instance.StatusOutOfService
	}
	if slices.ContainsFunc(r.Checks, func(c *check) bool { return c.Status == critical }) {
		return instance.StatusDown
	}
	return instance.StatusUp
}

// check returns a check by its id.
func (r *record) check(id string) *check {
	if at := slices.IndexFunc(r.Checks, func(c *check) bool { return c.ID == id }); at >= 0 {
		return r.Checks[at]
	}
	return nil
}

// lenient drops fields without a value, which would have no effect, and the underscores of names: Consul takes both ways to write them.
func lenient(text []byte) ([]byte, error) {
	var fields, kept = map[string]json.RawMessage{}, map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, fault.Invalidf("body", nil, "must be a JSON object")
	}
	for name, value := range fields {
		if v := string(bytes.TrimSpace(value)); !slices.Contains([]string{"null", `""`, "false", "0", "{}", "[]"}, v) {
			kept[strings.ReplaceAll(name, "_", "")] = value
		}
	}
	return json.Marshal(kept)
}

// checkDefinition is a check as clients define it.
type checkDefinition struct{ checkFields }

type checkFields struct {
	CheckID, ID, Name, Notes, Status, ServiceID string
	TTL, Interval, Timeout                      duration
	DeregisterCriticalServiceAfter              duration
	HTTP, Method, TCP, GRPC                     string
	SuccessBeforePassing                        int
	FailuresBeforeCritical                      int
}

// UnmarshalJSON implements json.Unmarshaler.
func (d *checkDefinition) UnmarshalJSON(text []byte) error {
	text, err := lenient(text)
	if err != nil {
		return err
	}
	return decode(text, &d.checkFields)
}

// check returns the check with a default id.
func (d *checkDefinition) check(id, service string) (*check, error) {
	c := &check{
		ID: cmp.Or(d.CheckID, d.ID, id), Name: cmp.Or(d.Name, fmt.Sprintf("Service '%s' check", service)), Notes: d.Notes, TTL: time.Duration(d.TTL),
		Remove: time.Duration(d.DeregisterCriticalServiceAfter), Status: cmp.Or(d.Status, critical),
	}
	kinds := 0
	for kind, given := range map[string]bool{"ttl": d.TTL > 0, "http": d.HTTP != "", "tcp": d.TCP != "", "grpc": d.GRPC != ""} {
		if given {
			kinds, c.Type = kinds+1, kind
		}
	}
	switch {
	case kinds != 1:
		return nil, fault.Invalidf("Check", nil, "needs one of TTL, HTTP, TCP and GRPC; the other kinds of Consul are not supported here")
	case c.Status != passing && c.Status != warning && c.Status != critical:
		return nil, fault.Invalidf("Status", d.Status, "must be passing, warning or critical")
	case c.TTL > 0:
		return c, nil
	case d.Method != "" && d.Method != "GET":
		return nil, fault.Invalidf("Method", d.Method, "must be GET")
	case d.Interval == 0:
		return nil, fault.Invalidf("Interval", nil, "is missing")
	}
	c.Run = &instance.Check{
		Type: instance.HTTP, Endpoint: d.HTTP + d.TCP + d.GRPC, Interval: time.Duration(d.Interval), Timeout: time.Duration(d.Timeout),
		HealthyThreshold: max(d.SuccessBeforePassing, 1), UnhealthyThreshold: max(d.FailuresBeforeCritical, 1),
	}
	if kind, err := instance.ParseCheckType(c.Type); err == nil {
		c.Run.Type = kind
	}
	return c, nil
}

// serviceDefinition is a service as clients register it.
type serviceDefinition struct {
	ID, Name, Address string
	Port              int
	Tags              []string
	Meta              map[string]string
	TaggedAddresses   map[string]address
	EnableTagOverride bool
	Weights           *struct{ Passing, Warning int }
	Check             *checkDefinition
	Checks            []*checkDefinition
}

// registration returns what the agent plane registers. Checks of the service before stay, unless they are to be replaced; one with the same id keeps
// its status. It fails for what this program cannot carry.
func (d *serviceDefinition) registration(before *instance.Instance, replace bool, node string) (reg instance.Registration, rec *record, err error) {
	if d.Name == "" {
		return reg, nil, fault.New("", fault.Invalid, "Missing service name")
	}
	if _, taken := d.Meta[recordKey]; taken {
		return reg, nil, fault.Invalidf("Meta", recordKey, "is the name of this front's own record: use another one")
	}
	id := cmp.Or(d.ID, d.Name)
	reg.Key = instance.Key{Namespace: instance.DefaultNamespace, Service: d.Name, ID: instanceID(id)}
	reg.Spec = instance.Spec{Host: cmp.Or(d.Address, node), Port: d.Port, Tags: d.Tags, Metadata: map[string]string{}}
	for name, value := range d.Meta {
		reg.Spec.Metadata[name] = value
	}
	old := &record{}
	if before != nil {
		if was := recordOf(before); was != nil {
			old = was
		}
	}
	rec = &record{Override: d.EnableTagOverride, Addresses: d.TaggedAddresses, Maintenance: old.Maintenance, Order: orderOf(d.Tags)}
	if id != reg.ID {
		rec.ID = id
	}
	if d.Weights != nil {
		reg.Spec.Weight, rec.Warning = d.Weights.Passing, d.Weights.Warning
	}
	all := d.Checks
	if d.Check != nil {
		all = append([]*checkDefinition{d.Check}, all...)
	}
	for n, one := range all {
		name := "service:" + id
		if len(all) > 1 {
			name += fmt.Sprint(":", n+1)
		}
		c, err := one.check(name, d.Name)
		if err == nil && rec.check(c.ID) != nil {
			err = fault.Invalidf("CheckID", c.ID, "occurs twice")
		}
		if err != nil {
			return reg, nil, fault.In(fmt.Sprintf("Checks[%d]", n), err)
		}
		if was := old.check(c.ID); was != nil && was.Type == c.Type {
			c.Status, c.Output = was.Status, was.Output
		}
		rec.Checks = append(rec.Checks, c)
	}
	for _, c := range old.Checks {
		if !replace && rec.check(c.ID) == nil {
			rec.Checks = append(rec.Checks, c)
		}
	}
	return reg, rec, nil
}
