package query

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
)

// MaxInput bounds what ParseJSON and ParseValues read, in bytes.
const MaxInput = 64 << 10

// member gives a pointer to the field of a JSON name, or nil for a name that is none.
// The types of what it points to are those that setJSON and setText know.
func (q *Query) member(name string) any {
	switch name {
	case "type":
		return &q.Type
	case "subtype":
		return &q.Subtype
	case "near":
		return &q.Near
	case "countries":
		return &q.Countries
	case "regions":
		return &q.Regions
	case "provider_id":
		return &q.ProviderID
	case "attributes":
		return &q.Attributes
	case "sort":
		return (*string)(&q.Sort)
	case "limit":
		return &q.Limit
	case "explain":
		return &q.Explain
	case "exact_total":
		return &q.ExactTotal
	case "seed":
		return &q.Seed
	}
	return q.bound(name)
}

// bound is member for the fields that set a bound.
func (q *Query) bound(name string) any {
	switch name {
	case "min_cpu_cores":
		return &q.MinCPUCores
	case "min_memory_mb":
		return &q.MinMemoryMB
	case "require_gpu":
		return &q.RequireGPU
	case "min_storage_gb":
		return &q.MinStorageGB
	case "min_bandwidth_mbps":
		return &q.MinBandwidthMbps
	case "max_price":
		return &q.MaxPrice
	case "currency":
		return &q.Currency
	case "price_unit":
		return &q.PriceUnit
	case "min_uptime":
		return &q.MinUptime
	case "max_error_rate":
		return &q.MaxErrorRate
	case "health":
		return (*string)(&q.Health)
	}
	return nil
}

// member gives a pointer to the field of a JSON name, or nil.
func (n *Near) member(name string) any {
	switch name {
	case "latitude":
		return &n.Latitude
	case "longitude":
		return &n.Longitude
	case "radius_km":
		return &n.RadiusKM
	}
	return nil
}

// ParseJSON reads a query in its JSON form, as it stands: Compile validates. It is
// strict: an unknown or repeated name, a wrong type, a name in other case, or anything
// behind the object is a fault.Invalid error that names the field; more than MaxInput is
// fault.TooLarge. A null is as if left out.
func ParseJSON(data []byte) (Query, error) {
	const op = "query.ParseJSON"
	if len(data) > MaxInput {
		return Query{}, fault.New(op, fault.TooLarge, "a query of %d bytes is above the bound of %d", len(data), MaxInput)
	}
	if q, ok := quick(data); ok {
		return q, nil
	}
	var q Query
	if err := setObject(data, q.member); err != nil {
		return Query{}, fault.Wrap(op, err)
	}
	return q, nil
}

// setObject reads a JSON object whose fields member gives.
func setObject(data []byte, member func(name string) any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return syntax(err, "must be a JSON object")
	}
	seen := make(map[string]bool)
	for dec.More() {
		token, err := dec.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return syntax(err, "must have names as strings")
		}
		target := member(name)
		switch {
		case target == nil:
			return fault.Invalidf(shown(name), nil, "is not a field of a query")
		case seen[name]:
			return fault.Invalidf(name, nil, "is given more than once")
		}
		seen[name] = true
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return fault.In(name, syntax(err, ""))
		}
		if err := setJSON(target, value); err != nil {
			return fault.In(name, err)
		}
	}
	if _, err := dec.Token(); err != nil { // the closing brace
		return syntax(err, "")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fault.Invalidf("", nil, "must end with the JSON object")
	}
	return nil
}

// syntax is an error of the JSON text itself.
func syntax(err error, otherwise string) error {
	switch {
	case err == nil:
		return fault.Invalidf("", nil, "%s", otherwise)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fault.Invalidf("", nil, "ends early: not complete JSON")
	default:
		return fault.Invalidf("", nil, "is not JSON: %w", err)
	}
}

// setJSON stores one JSON value in a field.
func setJSON(target any, value json.RawMessage) error {
	if string(value) == "null" {
		return nil
	}
	if near, ok := target.(**Near); ok {
		return setNear(near, value)
	}
	err := json.Unmarshal(value, target)
	var mismatch *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &mismatch):
		return fault.Invalidf("", shown(mismatch.Value), "must be %s, not %s", wanted(target), shown(mismatch.Value))
	default:
		return syntax(err, "")
	}
}

func setNear(near **Near, value json.RawMessage) error {
	n := &Near{Latitude: math.NaN(), Longitude: math.NaN()}
	if err := setObject(value, n.member); err != nil {
		return err
	}
	switch {
	case math.IsNaN(n.Latitude): // JSON has no NaN: it was not given
		return fault.Invalidf("latitude", nil, "is required")
	case math.IsNaN(n.Longitude):
		return fault.Invalidf("longitude", nil, "is required")
	}
	*near = n
	return nil
}

// wanted describes the type of a field for people.
func wanted(target any) string {
	switch target.(type) {
	case *string:
		return "a string"
	case *bool:
		return "true or false"
	case *int:
		return "a whole number"
	case *uint32, **uint32, *uint64:
		return "a whole number of at least 0, within range"
	case *float64, **float64:
		return "a number"
	case *[]string:
		return "a list of strings"
	case *map[string]string:
		return "an object of strings"
	default:
		return "an object"
	}
}

// ParseValues reads a query from URL parameters, which have the names of the JSON fields,
// as it stands: Compile validates.
//
//   - near=LAT,LON, or near.latitude=LAT and near.longitude=LON; with it radius_km=KM or
//     near.radius_km=KM; near[NAME] is near.NAME;
//   - countries and regions: repeated, or with commas between, countries=DE,FR;
//   - attributes: attr.KEY=VALUE or attributes[KEY]=VALUE;
//   - explain, exact_total and require_gpu: true, false, 1, 0, or no value for true.
//
// An empty value of any other parameter is as if it were left out. Unknown parameters,
// repeated ones other than lists, and values of a wrong type are a fault.Invalid error
// that names the parameter; more than MaxInput bytes are fault.TooLarge.
func ParseValues(v url.Values) (Query, error) {
	const op = "query.ParseValues"
	if size := sizeOf(v); size > MaxInput {
		return Query{}, fault.New(op, fault.TooLarge, "a query of %d bytes is above the bound of %d", size, MaxInput)
	}
	var q Query
	for _, name := range slices.Sorted(maps.Keys(v)) {
		if _, ok := placeMember(name); ok {
			continue // belongs to near, below
		}
		if err := q.setParameter(name, v[name]); err != nil {
			return Query{}, fault.Wrap(op, err)
		}
	}
	if err := q.setPlace(v); err != nil {
		return Query{}, fault.Wrap(op, err)
	}
	return q, nil
}

// sizeOf is the number of bytes of all names and values.
func sizeOf(v url.Values) int {
	size := 0
	for name, values := range v {
		for _, s := range values {
			size += len(name) + len(s)
		}
	}
	return size
}

// setParameter stores all values of one parameter.
func (q *Query) setParameter(name string, values []string) error {
	if key, ok := attributeKey(name); ok {
		return q.setAttribute(key, values)
	}
	target := q.member(name)
	if _, whole := target.(*map[string]string); target == nil || whole {
		return fault.Invalidf(shown(name), nil, "is not a parameter of a query")
	}
	if list, ok := target.(*[]string); ok {
		for _, s := range values {
			*list = append(*list, splitList(s)...)
		}
		return nil
	}
	if len(values) > 1 {
		return fault.Invalidf(name, len(values), "is given more than once")
	}
	if len(values) == 0 {
		return nil
	}
	return fault.In(name, setText(target, values[0]))
}

// attributeKey gives KEY of attr.KEY and attributes[KEY].
func attributeKey(name string) (string, bool) {
	if key, ok := strings.CutPrefix(name, "attr."); ok {
		return key, true
	}
	if key, ok := strings.CutPrefix(name, "attributes["); ok {
		return strings.CutSuffix(key, "]")
	}
	return "", false
}

func (q *Query) setAttribute(key string, values []string) error {
	if _, twice := q.Attributes[key]; twice || len(values) != 1 {
		return fault.Invalidf("attributes."+shown(key), nil, "must be given once")
	}
	if q.Attributes == nil {
		q.Attributes = make(map[string]string)
	}
	q.Attributes[key] = values[0]
	return nil
}

// placeMember gives NAME of near.NAME and near[NAME], and radius_km.
func placeMember(name string) (string, bool) {
	if name == "radius_km" {
		return name, true
	}
	if member, ok := strings.CutPrefix(name, "near."); ok {
		return member, true
	}
	if member, ok := strings.CutPrefix(name, "near["); ok {
		return strings.CutSuffix(member, "]")
	}
	return "", false
}

// setPlace stores the parts of near that have parameters of their own, beside what near
// itself has set.
func (q *Query) setPlace(v url.Values) error {
	n, given := q.Near, map[string]bool{"latitude": q.Near != nil, "longitude": q.Near != nil}
	if n == nil {
		n = new(Near)
	}
	for _, name := range slices.Sorted(maps.Keys(v)) {
		member, ok := placeMember(name)
		if !ok {
			continue
		}
		target, values := n.member(member), v[name]
		switch {
		case target == nil:
			return fault.Invalidf(shown(name), nil, "is not a parameter of a query")
		case len(values) == 0 || len(values) == 1 && values[0] == "":
			continue
		case len(values) > 1 || given[member]:
			return fault.Invalidf("near."+member, len(values), "is given more than once")
		}
		given[member] = true
		if err := setText(target, values[0]); err != nil {
			return fault.In("near."+member, err)
		}
	}
	switch {
	case given["latitude"] && given["longitude"]:
		q.Near = n
	case given["latitude"]:
		return fault.Invalidf("near.longitude", nil, "is required")
	case given["longitude"]:
		return fault.Invalidf("near.latitude", nil, "is required")
	case given["radius_km"]:
		return fault.Invalidf("near", nil, "is required with radius_km")
	}
	return nil
}

// splitList gives the elements of a list with commas between, without those left empty.
func splitList(s string) []string {
	var list []string
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	return list
}

// setText stores the text of one value in a field.
func setText(target any, s string) error {
	flag, isFlag := target.(*bool)
	if s == "" && !isFlag {
		return nil
	}
	var err error
	switch t := target.(type) {
	case *string:
		*t = s
	case *bool:
		*flag, err = strconv.ParseBool(s)
		if s == "" {
			*flag, err = true, nil
		}
	case *int:
		*t, err = strconv.Atoi(s)
	case *uint32:
		*t, err = parseUint32(s)
	case **uint32:
		*t = new(uint32)
		**t, err = parseUint32(s)
	case *uint64:
		*t, err = strconv.ParseUint(s, 10, 64)
	case *float64:
		*t, err = strconv.ParseFloat(s, 64)
	case **float64:
		*t = new(float64)
		**t, err = strconv.ParseFloat(s, 64)
	case **Near:
		*t = new(Near)
		return (*t).setText(s)
	}
	if err != nil {
		return fault.Invalidf("", shown(s), "must be %s, not %q", wanted(target), shown(s))
	}
	return nil
}

func parseUint32(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err
}

// setText reads LAT,LON.
func (n *Near) setText(s string) error {
	lat, lon, ok := strings.Cut(s, ",")
	lat, lon = strings.TrimSpace(lat), strings.TrimSpace(lon)
	if !ok || lat == "" || lon == "" {
		return fault.Invalidf("", shown(s), "must be LATITUDE,LONGITUDE in degrees, not %q", shown(s))
	}
	if err := setText(&n.Latitude, lat); err != nil {
		return fault.In("latitude", err)
	}
	return fault.In("longitude", setText(&n.Longitude, lon))
}
