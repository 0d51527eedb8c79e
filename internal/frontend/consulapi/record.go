package consulapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// noteMark begins the notes of this front, which keep as JSON what an instance of this program does not have. The
// directory thus shows it at every peer.
const noteMark = Front + " "

// record is what Consul knows of a service besides the instance.
type record struct {
	ID          string             `json:",omitempty"` // of the service, where that of the instance does not tell it
	Checks      []*check           `json:",omitempty"`
	Maintenance *string            `json:",omitempty"` // its reason; nil: none
	Warning     int                `json:",omitempty"` // weight while a check warns
	Override    bool               `json:",omitempty"` // EnableTagOverride
	Here        bool               `json:",omitempty"` // it was registered from this host without an address, so it is there
	Addresses   map[string]address `json:",omitempty"` // TaggedAddresses
	Blank       bool               `json:",omitempty"` // without an address: it is at its node
	Locality    *locality          `json:",omitempty"`
	Outside     *outside           `json:",omitempty"` // of an instance that no peer answers for
	Order       []int              `json:",omitempty"` // of the tags, by their places among those of the instance, which are ascending; nil: the same

	broken string // why a part of it did not pass and is left out; "": all passed
}

type locality struct{ Region, Zone string }

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
	TLS    bool            `json:",omitempty"` // of Probe, as Head
	Head   bool            `json:",omitempty"`
	Remove time.Duration   `json:",omitempty"` // DeregisterCriticalServiceAfter
	Status string          `json:",omitempty"`
	Output string          `json:",omitempty"` // at the last change of the status

	Definition json.RawMessage `json:",omitempty"` // of an outside check, for who runs it
}

// Statuses of checks.
const (
	passing  = "passing"
	warning  = "warning"
	critical = "critical"
)

const (
	maxOutput = 512 // bytes kept of a check's output
	maxChecks = 64  // of a service
	maxPlaces = 2 * instance.MaxTags
	maxWeight = 65535
)

// note is the record as a note of its instance. Many checks have shorter outputs; what is still too long, the registry
// refuses.
func (r *record) note() (string, error) {
	text, err := json.Marshal(r)
	for most := maxOutput; err == nil && len(noteMark)+len(text) > instance.MaxNote && most > 0; text, err = json.Marshal(r) {
		most /= 2
		for _, c := range r.Checks {
			c.Output = clean.Lines(c.Output, most)
		}
	}
	if err == nil && len(noteMark)+len(text) > instance.MaxNote {
		err = fault.Invalidf("Checks", nil, "and what belongs to them take %d bytes, limit %d: shorten names and notes, or define fewer", len(text), instance.MaxNote-len(noteMark))
	}
	return noteMark + string(text), err
}

// recordOf reads the record of an instance; nil without one: another front end registered it. Another member of the
// group may have written the note, so the rules of a registration hold for each part of it, and what breaks them is
// left out.
func recordOf(i *instance.Instance) *record {
	text, ok := strings.CutPrefix(i.Spec.Note, noteMark)
	if !ok {
		return nil
	}
	rec := new(record)
	if err := json.Unmarshal([]byte(text), rec); err != nil {
		return &record{broken: "it is no record: " + err.Error()}
	}
	rec.sift(i)
	return rec
}

// sift leaves out what breaks the rules of a registration.
func (r *record) sift(i *instance.Instance) {
	bad := func(is bool, what string) bool {
		if is {
			r.broken = cmp.Or(r.broken, what)
		}
		return is
	}
	if bad((r.Outside != nil) != (i.Peer == directory.Outside), "Outside is not what it is") {
		r.Outside = nil
	}
	if bad(r.ID != "" && r.Outside == nil && r.ID != i.ID && instanceID(r.ID, i.Peer) != i.ID, "ID is that of another service") {
		r.ID = ""
	}
	if bad(r.Maintenance != nil && len(*r.Maintenance) > maxOutput, "Maintenance is too long") {
		*r.Maintenance = clean.Lines(*r.Maintenance, maxOutput)
	}
	if bad(r.Warning < 0 || r.Warning > maxWeight, "Warning is no weight") {
		r.Warning = 0
	}
	if bad(len(r.Order) > maxPlaces || len(r.Order) > 0 && slices.Min(r.Order) < 0, "Order has no such tags") {
		r.Order = nil
	}
	maps.DeleteFunc(r.Addresses, func(_ string, a address) bool { return bad(a.Port < 0 || a.Port > 65535, "Addresses has no such port") })
	seen := map[string]bool{}
	r.Checks = slices.DeleteFunc(r.Checks, func(c *check) bool {
		if bad(c == nil || len(seen) == maxChecks, "Checks has too many, or none where one must be") {
			return true
		}
		err := c.told()
		if r.Outside == nil && err == nil {
			err = c.validate()
		}
		if err != nil {
			return bad(true, "Checks: "+fault.FieldOf(err)+" "+fault.Message(err))
		}
		if bad(seen[c.ID], "Checks has an id twice") {
			return true
		}
		seen[c.ID] = true
		return false
	})
}

// told applies the rules that hold for each check, whoever runs it.
func (c *check) told() error {
	switch {
	case c.ID == "":
		return fault.Invalidf("CheckID", nil, "is missing")
	case c.Status != passing && c.Status != warning && c.Status != critical:
		return fault.Invalidf("Status", c.Status, "must be passing, warning or critical")
	}
	c.Output = clean.Lines(c.Output, maxOutput)
	return nil
}

// validate applies the rules that hold for each check that a peer runs or hears of.
func (c *check) validate() error {
	switch {
	case c.TTL < 0 || c.Remove < 0:
		return fault.Invalidf("TTL", nil, "must not be negative")
	case (c.TTL > 0) == (c.Run != nil) || (c.TTL > 0) != (c.Type == "ttl"):
		return fault.Invalidf("Check", nil, "needs one of TTL, HTTP, TCP and GRPC")
	}
	if c.Run == nil {
		return nil
	}
	if !strings.EqualFold(string(c.Run.Type), c.Type) || c.Run.Type == instance.Script {
		return fault.Invalidf("Check", nil, "needs one of TTL, HTTP, TCP and GRPC")
	}
	return c.Run.Normalize()
}

// idOf is the id of the service of an instance.
func idOf(i *instance.Instance, rec *record) string {
	if rec == nil {
		return i.ID // as another front end registered it
	}
	return cmp.Or(rec.ID, plainID(i.ID, i.Peer))
}

// orderOf is the order of tags, of which an instance keeps each once and ascending. A tag that occurs twice has two
// places.
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

// tagsOf are the tags of a service in the order of its registration. After another front end has changed their number
// they are ascending.
func tagsOf(i *instance.Instance, rec *record) []string {
	all := i.Spec.Tags
	if len(rec.Order) == 0 || slices.Max(rec.Order) != len(all)-1 {
		return append([]string{}, all...)
	}
	tags := []string{}
	for _, n := range rec.Order {
		tags = append(tags, all[n])
	}
	return tags
}

// endOf ends the ids of the instances of a peer. Tables show peers by the same characters.
func endOf(peer string) string { return "-" + peer[max(len(peer)-8, 0):] }

// plainID is the id of an instance without the end of its peer.
func plainID(id, peer string) string { return strings.TrimSuffix(id, endOf(peer)) }

// instanceID is the id of the instance of a service. That of the service is unique at its peer alone, so the end of the
// peer stands behind it, or behind one made of it where an instance cannot have it.
func instanceID(id, peer string) string {
	whole := instance.Key{Namespace: instance.DefaultNamespace, Service: "any", ID: id + endOf(peer)}
	if whole.Validate() == nil {
		return whole.ID
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	kept := strings.Map(func(c rune) rune {
		if c < 128 && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._:-", c)) {
			return c
		}
		return '.'
	}, id)
	return fmt.Sprintf("%s:%016x%s", kept[:min(len(kept), 100)], h.Sum64(), endOf(peer))
}

// override is the status that checks and maintenance force upon an instance; StatusUp: none.
func (r *record) override() instance.Status {
	if r.Maintenance != nil {
		return instance.StatusOutOfService
	}
	if r.broken != "" || slices.ContainsFunc(r.Checks, func(c *check) bool { return c.Status == critical }) {
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

// unsupported are fields of Consul that change what a service or a check is: without them it would be another one than
// its client thinks. What else is unknown here has no effect on an answer, and is left out as Consul leaves out what it
// does not know.
var errMesh = errors.New("is not supported here, and left out it would mislead: there is no service mesh")

func unsupported(field string) error {
	switch field {
	case "kind", "proxy", "connect":
		return errMesh
	case "args", "script", "scriptargs":
		return errors.New("is not supported here: name the command in the setting agent.checks.scripts of the peer, and register the instance by its own API")
	case "dockercontainerid", "aliasnode", "aliasservice", "udp", "h2ping", "osservice":
		return errors.New("is not supported here: use a check by TTL, HTTP, TCP or GRPC")
	case "header", "body", "socketpath", "proxyhttp":
		return errors.New("is not supported here, and left out it would mislead")
	}
	return nil
}

// void reports whether a value has no effect.
func void(value json.RawMessage) bool {
	var v any
	if json.Unmarshal(value, &v) != nil {
		return false
	}
	var none func(v any) bool
	none = func(v any) bool {
		switch v := v.(type) {
		case map[string]any:
			return !slices.ContainsFunc(slices.Collect(maps.Values(v)), func(v any) bool { return !none(v) })
		case []any:
			return len(v) == 0
		}
		return v == nil || v == "" || v == false || v == 0.0
	}
	return none(v)
}

// strictly reports whether a value has no other fields than those of an object.
func strictly(value json.RawMessage, object any) bool {
	d := json.NewDecoder(bytes.NewReader(value))
	d.DisallowUnknownFields()
	return d.Decode(object) == nil
}

// lenient drops fields without a value, which would have no effect, and the underscores of names: Consul takes both
// ways to write them.
func lenient(text []byte) ([]byte, error) {
	var fields, kept = map[string]json.RawMessage{}, map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, fault.Invalidf("body", nil, "must be a JSON object")
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		plain := strings.ReplaceAll(name, "_", "")
		// That a service speaks for itself in a mesh, which is not here, changes nothing else about it.
		if native := (struct{ Native bool }{}); void(fields[name]) || strings.EqualFold(plain, "connect") && strictly(fields[name], &native) {
			continue
		}
		if err := unsupported(strings.ToLower(plain)); err != nil {
			return nil, fault.Invalidf(name, nil, "%w", err)
		}
		kept[plain] = fields[name]
	}
	return json.Marshal(kept)
}

// scope names a namespace and a partition. There is one of each, default.
type scope struct{ Namespace, Partition string }

// checkDefinition is a check as clients define it.
type checkDefinition struct{ checkFields }

type checkFields struct {
	CheckID, ID, Name, Notes, Status, ServiceID string
	TTL, Interval, Timeout                      duration
	DeregisterCriticalServiceAfter              duration
	HTTP, Method, TCP, GRPC, TLSServerName      string
	GRPCUseTLS, TLSSkipVerify                   bool
	SuccessBeforePassing                        int
	FailuresBeforeCritical                      int
	scope
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
	case d.Method != "" && !strings.EqualFold(d.Method, http.MethodGet) && !strings.EqualFold(d.Method, http.MethodHead):
		return nil, fault.Invalidf("Method", d.Method, "must be GET or HEAD")
	case d.Interval == 0:
		return nil, fault.Invalidf("Interval", nil, "is missing")
	}
	c.TLS, c.Head = d.GRPC != "" && d.GRPCUseTLS, d.HTTP != "" && strings.EqualFold(d.Method, http.MethodHead)
	scheme, _, _ := strings.Cut(d.HTTP, "://")
	if secure := c.TLS || strings.EqualFold(scheme, "https"); secure && (d.TLSSkipVerify || d.TLSServerName != "") {
		field := "TLSSkipVerify"
		if !d.TLSSkipVerify {
			field = "TLSServerName"
		}
		return nil, fault.Invalidf(field, nil, "is not supported here: the peer verifies the certificate, by its own roots and the host of the service")
	}
	interval := max(time.Duration(d.Interval), time.Second) // as Consul does; it also takes a longer timeout
	c.Run = &instance.Check{
		Type: instance.HTTP, Endpoint: d.HTTP + d.TCP + d.GRPC, Interval: interval, Timeout: min(time.Duration(d.Timeout), interval),
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
	Locality          *locality
	Weights           *struct{ Passing, Warning int }
	Check             *checkDefinition
	Checks            []*checkDefinition
	Ports             []struct {
		Port    int
		Default bool
	}
	scope
}

// registration returns what the agent plane registers. Checks of the service before stay, unless they are to be
// replaced; one with the same id keeps its status. It fails for what this program cannot carry. The definition has an
// id.
func (d *serviceDefinition) registration(
	before *instance.Instance, replace bool, peer, address string,
) (reg instance.Registration, rec *record, err error) {
	if d.Name == "" {
		return reg, nil, fault.New("", fault.Invalid, "Missing service name")
	}
	if d.Name == nodeService {
		return reg, nil, fault.Invalidf("Name", d.Name, "stands for nodes: choose another one")
	}
	for _, p := range d.Ports { // the first one, or the default; an instance has one
		if d.Port == 0 || p.Default {
			d.Port = p.Port
		}
	}
	if len(d.Tags) > maxPlaces {
		return reg, nil, fault.Invalidf("Tags", nil, "must be at most %d", maxPlaces)
	}
	reg.Key = instance.Key{Namespace: instance.DefaultNamespace, Service: d.Name, ID: instanceID(d.ID, peer)}
	reg.Spec = instance.Spec{Host: cmp.Or(d.Address, address), Port: d.Port, Tags: d.Tags, Metadata: map[string]string{}}
	maps.Copy(reg.Spec.Metadata, d.Meta)
	old := &record{}
	if before != nil {
		reg.Key = before.Key
		if was := recordOf(before); was != nil {
			old = was
		}
	}
	rec = &record{Override: d.EnableTagOverride, Blank: d.Address == "", Locality: d.Locality, Addresses: d.TaggedAddresses, Maintenance: old.Maintenance, Order: orderOf(d.Tags)}
	if plainID(reg.ID, peer) != d.ID {
		rec.ID = d.ID
	}
	if d.Weights != nil {
		reg.Spec.Weight, rec.Warning = d.Weights.Passing, d.Weights.Warning
	}
	all := d.Checks
	if d.Check != nil {
		all = append([]*checkDefinition{d.Check}, all...)
	}
	for n, one := range all {
		if one == nil {
			return reg, nil, fault.Invalidf(fmt.Sprintf("Checks[%d]", n), nil, "must be an object")
		}
		name := "service:" + d.ID
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
