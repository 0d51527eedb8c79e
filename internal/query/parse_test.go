package query

import (
	"encoding/json"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// values writes a query as URL parameters.
func values(q query.Query) url.Values {
	v := url.Values{}
	set := func(name string, value any, given bool) {
		if given {
			v.Set(name, fmt.Sprint(value))
		}
	}
	set("type", q.Type, true)
	set("subtype", q.Subtype, q.Subtype != "")
	if n := q.Near; n != nil {
		number := func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }
		set("near", number(n.Latitude)+","+number(n.Longitude), true)
		if n.RadiusKM != nil {
			set("radius_km", number(*n.RadiusKM), true)
		}
	}
	set("countries", strings.Join(q.Countries, ","), len(q.Countries) > 0)
	v["regions"] = q.Regions
	set("min_cpu_cores", q.MinCPUCores, q.MinCPUCores > 0)
	set("min_memory_mb", q.MinMemoryMB, q.MinMemoryMB > 0)
	set("require_gpu", "", q.RequireGPU)
	set("min_storage_gb", q.MinStorageGB, q.MinStorageGB > 0)
	set("min_bandwidth_mbps", q.MinBandwidthMbps, q.MinBandwidthMbps > 0)
	if q.MaxPrice != nil {
		set("max_price", *q.MaxPrice, true)
	}
	set("currency", q.Currency, q.Currency != "")
	set("price_unit", q.PriceUnit, q.PriceUnit != "")
	if q.MinUptime != nil {
		set("min_uptime", *q.MinUptime, true)
	}
	if q.MaxErrorRate != nil {
		set("max_error_rate", *q.MaxErrorRate, true)
	}
	set("health", q.Health, true)
	set("provider_id", q.ProviderID, true)
	for k, value := range q.Attributes {
		v.Set("attr."+k, value)
	}
	for _, c := range q.Where {
		v.Add("where", c.String())
	}
	if q.Volume != nil {
		set("volume", *q.Volume, true)
	}
	set("sort", q.Sort, true)
	set("claims", q.Claims, true)
	set("domain", q.Domain, true)
	set("limit", q.Limit, true)
	set("explain", q.Explain, true)
	set("exact_total", q.ExactTotal, true)
	set("seed", q.Seed, true)
	set("after", q.After, true)
	return v
}

func TestParseJSONRefuses(t *testing.T) {
	tests := map[string]struct{ input, field, message string }{
		"unknown":          {`{"type":"a","foo":1}`, "foo", "not a known field"},
		"unknown inside":   {`{"near":{"latitude":1,"longitude":2,"lat":3}}`, "near.lat", "not a known field"},
		"other case":       {`{"Type":"a"}`, "Type", "not a known field"},
		"twice":            {`{"type":"a","type":"b"}`, "type", "given twice"},
		"exclude":          {`{"Exclude":["a"]}`, "Exclude", "not a known field"},
		"number for text":  {`{"type":1}`, "type", "must be a string, not 1"},
		"text for number":  {`{"limit":"10"}`, "limit", `must be a whole number, not the string "10"`},
		"fraction":         {`{"limit":1.5}`, "limit", "must be a whole number, not 1.5"},
		"negative":         {`{"min_cpu_cores":-1}`, "min_cpu_cores", "0 to 4294967295, not -1"},
		"beyond 32 bits":   {`{"max_error_rate":4294967296}`, "max_error_rate", "0 to 4294967295"},
		"beyond float":     {`{"max_price":1e999}`, "max_price", "must be a finite number"},
		"text for bool":    {`{"explain":"yes"}`, "explain", "true or false"},
		"text for list":    {`{"countries":"DE"}`, "countries", "must be a list"},
		"number in list":   {`{"countries":["DE",1]}`, "countries[1]", "must be a string"},
		"list for object":  {`{"attributes":[]}`, "attributes", "must be an object"},
		"number in object": {`{"attributes":{"a":1}}`, "attributes.a", "must be a string"},
		"text for near":    {`{"near":"1,2"}`, "near", "must be an object"},
		"text in near":     {`{"near":{"latitude":"1","longitude":2}}`, "near.latitude", "must be a finite number"},
		"half a place":     {`{"near":{"latitude":1}}`, "near.longitude", "required"},
		"other half":       {`{"near":{"longitude":1}}`, "near.latitude", "required"},
		"null half":        {`{"near":{"latitude":null,"longitude":1}}`, "near.latitude", "required"},
		"cut short":        {`{"type":"a"`, "", "ends early"},
		"cut in value":     {`{"type":"a`, "type", "ends early"},
		"empty":            {``, "", "ends early"},
		"null":             {`null`, "", "must not be null"},
		"list":             {`[]`, "", "must be an object"},
		"behind":           {`{"type":"a"} {}`, "", "after top-level value"},
		"not JSON":         {`type=a`, "", "not JSON"},
		"no quotes":        {`{type:"a"}`, "", "not JSON"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			q, err := ParseJSON([]byte(test.input))
			require.Zero(t, q)
			require.ErrorIs(t, err, fault.Invalid)
			require.Equal(t, test.field, fault.FieldOf(err))
			require.Contains(t, fault.Message(err), test.message)
		})
	}
	_, err := ParseJSON([]byte(strings.Repeat(" ", MaxInput+1)))
	require.ErrorIs(t, err, fault.TooLarge)
	_, err = ParseJSON([]byte(`{"` + strings.Repeat("x", 1000) + `":1}`))
	require.Less(t, len(fault.FieldOf(err)), 100, "what strangers send is cut before it is shown")
}

func TestParseJSONTakesNullForLeftOut(t *testing.T) {
	q, err := ParseJSON([]byte(` {"type":"a","near":null,"max_price":null,"countries":null} `))
	require.NoError(t, err)
	require.Equal(t, query.Query{Type: "a"}, q)
}

func TestEveryFieldHasAName(t *testing.T) {
	near := names(reflect.TypeFor[query.Near]())
	for _, name := range names(reflect.TypeFor[query.Query]()) {
		q, n := new(query.Query), new(query.Near)
		require.Equal(t, slices.Contains(near, name), member(reflect.ValueOf(n).Elem(), name) != nil, name)
		require.Equal(t, !slices.Contains(near, name) && name != "attributes" && name != "where", member(reflect.ValueOf(q).Elem(), name) != nil, name)
	}
}

func TestParseValues(t *testing.T) {
	tests := map[string]struct {
		input string
		want  query.Query
	}{
		"place":      {"type=a&near=1.5,-2&radius_km=3", query.Query{Type: "a", Near: &query.Near{Latitude: 1.5, Longitude: -2, RadiusKM: ptr(3.0)}}},
		"parts":      {"near.latitude=0&near.longitude=-2&near.radius_km=3", query.Query{Near: &query.Near{Latitude: 0, Longitude: -2, RadiusKM: ptr(3.0)}}},
		"brackets":   {"near[latitude]=1&near[longitude]=2&radius_km=3", query.Query{Near: &query.Near{Latitude: 1, Longitude: 2, RadiusKM: ptr(3.0)}}},
		"no parts":   {"near.latitude=&near.longitude=&near[radius_km]=", query.Query{}},
		"spaces":     {"near=+1.5+,+2", query.Query{Near: &query.Near{Latitude: 1.5, Longitude: 2}}},
		"lists":      {"countries=DE,FR&countries=US&regions=", query.Query{Countries: []string{"DE", "FR", "US"}}},
		"attributes": {"attr.a=1&attributes[b.c]=2&attr.d=", query.Query{Attributes: map[string]string{"a": "1", "b.c": "2", "d": ""}}},
		"flags":      {"explain&require_gpu=false", query.Query{Explain: true}},
		"empty":      {"type=a&limit=&near=&radius_km=&max_price=&sort=", query.Query{Type: "a"}},
		"bounds":     {"max_price=0&max_error_rate=0&min_uptime=0", query.Query{Price: query.Price{MaxPrice: ptr(0.0)}, Quality: query.Quality{MinUptime: ptr(0.0), MaxErrorRate: ptr(uint32(0))}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			v, err := url.ParseQuery(test.input)
			require.NoError(t, err)
			got, err := ParseValues(v)
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}
}

func TestParseValuesRefuses(t *testing.T) {
	tests := map[string]struct{ input, field, message string }{
		"unknown":       {"foo=1", "foo", "not a known parameter"},
		"whole map":     {"attributes=a", "attributes", "not a known parameter"},
		"open bracket":  {"attributes[a=1", "attributes[a", "not a known parameter"},
		"twice":         {"type=a&type=b", "type", "given twice"},
		"radius twice":  {"near=1,2&radius_km=1&radius_km=2", "near.radius_km", "given twice"},
		"radius alone":  {"radius_km=1", "near", "required"},
		"radius again":  {"near=1,2&radius_km=1&near.radius_km=1", "near.radius_km", "given twice"},
		"place again":   {"near=1,2&near.latitude=1", "near.latitude", "given twice"},
		"one part":      {"near.latitude=1&radius_km=1", "near.longitude", "required"},
		"other part":    {"near[longitude]=1", "near.latitude", "required"},
		"no such part":  {"near.height=1", "near.height", "not a known parameter"},
		"part text":     {"near.latitude=x&near.longitude=1", "near.latitude", "number"},
		"radius text":   {"near=1,2&radius_km=far", "near.radius_km", "number"},
		"place text":    {"near=Berlin", "near", "LATITUDE,LONGITUDE"},
		"half a place":  {"near=1,", "near", "LATITUDE,LONGITUDE"},
		"three numbers": {"near=1,2,3", "near.longitude", "number"},
		"attribute":     {"attr.a=1&attributes[a]=2", "attributes.a", "twice"},
		"flag":          {"explain=maybe", "explain", "true or false"},
		"limit":         {"limit=ten", "limit", "whole number"},
		"overflow":      {"min_cpu_cores=4294967296", "min_cpu_cores", "within range"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			v, err := url.ParseQuery(test.input)
			require.NoError(t, err)
			q, err := ParseValues(v)
			require.Zero(t, q)
			require.ErrorIs(t, err, fault.Invalid)
			require.Equal(t, test.field, fault.FieldOf(err))
			require.Contains(t, fault.Message(err), test.message)
		})
	}
	_, err := ParseValues(url.Values{"type": {strings.Repeat("a", MaxInput)}})
	require.ErrorIs(t, err, fault.TooLarge)
	q, err := ParseValues(url.Values{"near": {"NaN,0"}, "type": {"a"}})
	require.NoError(t, err)
	_, err = Compile(q, Defaults{})
	require.Equal(t, "near.latitude", fault.FieldOf(err), "what parses as a number need not be one")
}

func TestFromProtoRefuses(t *testing.T) {
	tests := map[string]struct {
		message *pb.Query
		field   string
	}{
		"nothing":        {nil, "query"},
		"sort":           {&pb.Query{Sort: 8}, "sort"},
		"sort negative":  {&pb.Query{Sort: -1}, "sort"},
		"health":         {&pb.Query{Health: 4}, "health"},
		"limit":          {&pb.Query{Limit: 1 << 31}, "limit"},
		"of bad query":   {Proto(query.Query{Sort: "x"}), "sort"},
		"of bad health":  {Proto(query.Query{Quality: query.Quality{Health: "x"}}), "health"},
		"negative limit": {Proto(query.Query{Limit: -1}), "limit"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := FromProto(test.message)
			require.ErrorIs(t, err, fault.Invalid)
			require.Equal(t, test.field, fault.FieldOf(err))
		})
	}
}

func TestNamesOnTheWire(t *testing.T) {
	for _, s := range sorts() {
		require.Equal(t, "SORT_"+strings.ToUpper(string(s)), Proto(query.Query{Sort: s}).Sort.String())
	}
	for _, h := range healths() {
		require.Equal(t, "HEALTH_"+strings.ToUpper(string(h)), Proto(query.Query{Quality: query.Quality{Health: h}}).Health.String())
	}
	require.Len(t, pb.Sort_name, len(sorts())+1)
	require.Len(t, pb.Health_name, len(healths())+1)
}

// settle checks the invariants of every parsed query, valid or not.
func settle(t *testing.T, q query.Query) {
	AppendKey(nil, &q)
	p, err := Compile(q, Defaults{})
	if err != nil {
		require.ErrorIs(t, err, fault.Invalid)
		require.NotEmpty(t, fault.FieldOf(err))
		return
	}
	again, err := Compile(p.Query(), Defaults{})
	require.NoError(t, err)
	require.Equal(t, p.Key(), again.Key())
	over, err := FromProto(Proto(p.Query()))
	require.NoError(t, err)
	require.Equal(t, p.Key(), compile(t, over).Key())
	require.NotEmpty(t, p.Describe())
	_, err = proto.Marshal(Proto(p.Query()))
	require.NoError(t, err)
}

func FuzzParseJSON(f *testing.F) {
	f.Add([]byte(`{"type":"storage","near":{"latitude":1,"longitude":2,"radius_km":3},"countries":["DE"],"attributes":{"a":"b"}}`))
	f.Add([]byte(`{"type":"oracle","max_price":0.5,"currency":"EUR","price_unit":"per-request","sort":"random","seed":18446744073709551615}`))
	f.Add([]byte(` { "type" : "a" , "regions" : [ ] , "near" : { "longitude" : -0 , "latitude" : 0.50 } , "explain" : true , "limit" : 01 } `))
	f.Fuzz(func(t *testing.T, data []byte) {
		q, err := ParseJSON(data)
		if err != nil {
			require.Zero(t, q)
			return
		}
		var same query.Query
		require.NoError(t, json.Unmarshal(data, &same))
		require.Equal(t, same, q)
		settle(t, q)
	})
}

func FuzzParseValues(f *testing.F) {
	f.Add("type=storage&near=1,2&radius_km=3&countries=DE,FR&attr.a=b&explain")
	f.Add("type=compute&sort=price&max_price=NaN&limit=-1&attributes[x]=y")
	f.Fuzz(func(t *testing.T, text string) {
		v, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		q, err := ParseValues(v)
		if err != nil {
			require.Zero(t, q)
			require.True(t, fault.FieldOf(err) != "" || fault.KindOf(err) == fault.TooLarge || v.Has(""))
			return
		}
		settle(t, q)
	})
}

func FuzzFromProto(f *testing.F) {
	for _, q := range []query.Query{{Type: "storage"}, typical()} {
		raw, err := proto.Marshal(Proto(q))
		require.NoError(f, err)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var m pb.Query
		if proto.Unmarshal(raw, &m) != nil {
			return
		}
		if q, err := FromProto(&m); err == nil {
			settle(t, q)
		}
	})
}

// TestNamesOfTheSpecification: an unknown field says what it is called here, in both forms of a query.
func TestNamesOfTheSpecification(t *testing.T) {
	for name, meant := range map[string]string{
		"max_results": "limit", "MaxResults": "limit", "sort_by": "sort", "location": "near", "required_gpu": "require_gpu", "limits": "limit", "min_uptim": "min_uptime",
	} {
		_, err := ParseJSON([]byte(`{"type":"compute","` + name + `":1}`))
		require.Equal(t, name, fault.FieldOf(err))
		require.ErrorContains(t, err, "is not a known field; did you mean "+meant+"?")
		_, err = ParseValues(url.Values{name: {"1"}})
		require.ErrorContains(t, err, "is not a known parameter; did you mean "+meant+"?")
	}
	_, err := ParseJSON([]byte(`{"near":{"latitud":1}}`))
	require.Equal(t, "near.latitud", fault.FieldOf(err))
	require.ErrorContains(t, err, "is not a known field")
}
