package records_test

import (
	"encoding/json"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// offers returns one full offer of each kind.
func offers() []records.Offer {
	compute := records.Offer{
		ID:       "gpu-1",
		Metadata: records.Metadata{Type: "compute", Subtype: "gpu"},
		Capabilities: &records.Capabilities{Compute: &records.Compute{
			CPUCores: 32, MemoryMB: 256_000, RuntimeEngines: []string{"docker"}, MaxJobDuration: 3600,
			GPUs: []records.GPU{{Model: "A100", MemoryMB: 80_000, ComputeCapability: 80}, {Model: "L4", MemoryMB: 24_000, ComputeCapability: 89}},
		}},
		Location: &records.Location{Latitude: p(0.0), Longitude: p(0.0), ISP: "AS64496", Precision: 4},
		Pricing:  &records.Pricing{Currency: "EUR", BasePrice: p(0.0), PriceUnit: "per-hour", MinimumCommitment: p(10.0)},
		Health:   &records.Health{Status: "UNKNOWN", LastCheck: p(t0())},
	}
	cdn := records.Offer{
		ID:       "edge",
		Metadata: records.Metadata{Type: "cdn"},
		Capabilities: &records.Capabilities{CDN: &records.CDN{
			BandwidthMbps: 10_000, Regions: []string{"eu"}, CacheTypes: []string{"static"}, SSLSupported: true, HTTP2Supported: true,
		}},
	}
	vpn := records.Offer{
		ID:       "exit",
		Metadata: records.Metadata{Type: "bandwidth"},
		Capabilities: &records.Capabilities{Bandwidth: &records.Bandwidth{
			UploadMbps: 1, DownloadMbps: 2, Protocols: []string{"wireguard"}, ExitCountries: []string{"NL"},
		}},
	}
	return []records.Offer{storage(), compute, cdn, vpn}
}

func TestOffersRoundTrip(t *testing.T) {
	for _, o := range offers() {
		t.Run(o.ID, func(t *testing.T) {
			require.NoError(t, o.Validate())
			require.Equal(t, o, records.OfferOf(o.Service()))
			text, err := json.Marshal(o)
			require.NoError(t, err)
			parsed, err := records.ParseOffer(text)
			require.NoError(t, err)
			require.Equal(t, o, parsed)
			fromYAML, err := records.ParseOffersYAML(text) // YAML includes JSON
			require.NoError(t, err)
			require.Equal(t, []records.Offer{o}, fromYAML)
		})
	}
}

// The JSON names equal the schema's names, and cover every field.
func TestNamesAreTheSchemas(t *testing.T) {
	names := func(v any) map[string]bool {
		got := make(map[string]bool)
		for _, f := range reflect.VisibleFields(reflect.TypeOf(v)) {
			if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag != "" {
				got[tag] = true
			}
		}
		return got
	}
	for _, tt := range []struct {
		m     proto.Message
		v     any
		extra []string
	}{
		{&pb.ServiceRecord{}, records.View{}, []string{"key", "content_id"}},
		{&pb.ServiceMetadata{}, records.Metadata{}, nil},
		{&pb.ServiceCapabilities{}, records.Capabilities{}, nil},
		{&pb.StorageCapabilities{}, records.Storage{}, nil},
		{&pb.ComputeCapabilities{}, records.Compute{}, nil},
		{&pb.GPUInfo{}, records.GPU{}, nil},
		{&pb.CDNCapabilities{}, records.CDN{}, nil},
		{&pb.BandwidthCapabilities{}, records.Bandwidth{}, nil},
		{&pb.GeoLocation{}, records.Location{}, nil},
		{&pb.PricingInfo{}, records.Pricing{}, nil},
		{&pb.HealthStatus{}, records.Health{}, nil},
	} {
		want := make(map[string]bool)
		fields := tt.m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			want[string(fields.Get(i).Name())] = true
		}
		for _, name := range tt.extra {
			want[name] = true
		}
		require.Equal(t, want, names(tt.v), "%T", tt.v)
	}
}

// Each field of the schema survives the conversion to structs and back.
func TestNoFieldIsDropped(t *testing.T) {
	s := &pb.ServiceRecord{}
	fill(s.ProtoReflect())
	back := records.OfferOf(s).Service()
	for _, peers := range []protoreflect.Name{"provider_id", "created_at", "updated_at", "expires_at", "signature", "sequence", "withdrawn", "critical", "paused"} {
		s.ProtoReflect().Clear(s.ProtoReflect().Descriptor().Fields().ByName(peers))
	}
	require.True(t, proto.Equal(s, back), "%v\n%v", s, back)
}

// fill sets every field of a message.
func fill(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap():
			v := m.NewField(f)
			v.Map().Set(protoreflect.ValueOfString("k").MapKey(), something(f.MapValue()))
			m.Set(f, v)
		case f.IsList() && f.Message() != nil:
			fill(m.Mutable(f).List().AppendMutable().Message())
		case f.IsList():
			m.Mutable(f).List().Append(something(f))
		case f.Message() != nil:
			fill(m.Mutable(f).Message())
		default:
			m.Set(f, something(f))
		}
	}
}

func something(f protoreflect.FieldDescriptor) protoreflect.Value {
	n := int(f.Number())
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(string(f.Name()))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(f.Name()))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(n))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(n))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(2)
	default:
		panic("the schema has a new kind of field: " + f.Kind().String())
	}
}

func TestParseOfferRefuses(t *testing.T) {
	const meta = `"metadata":{"type":"other"}`
	for _, tt := range []struct{ name, text, field, message string }{
		{"nothing", ``, "", "is not JSON"},
		{"no JSON", `id: x`, "", "is not JSON"},
		{"cut short", `{"id":"x"`, "", "is not JSON"},
		{"a list", `[]`, "", "must be an object, not a list"},
		{"null", `null`, "", "must not be null"},
		{"trailing value", `{"id":"x",` + meta + `} {}`, "", "after top-level value"},
		{"trailing junk", `{"id":"x",` + meta + `} x`, "", "after top-level value"},
		{"trailing comma", `{"id":"x",` + meta + `,}`, "", "is not JSON"},
		{"unknown", `{"id":"x",` + meta + `,"price":1}`, "price", "is not a known field"},
		{"unknown within", `{"id":"x","metadata":{"type":"other","tag":[]}}`, "metadata.tag", "is not a known field"},
		{"other case", `{"ID":"x",` + meta + `}`, "ID", "is not a known field"},
		{"twice", `{"id":"x","id":"y",` + meta + `}`, "id", "is given twice"},
		{"twice in a map", `{"id":"x","metadata":{"type":"other","attributes":{"a":"1","a":"2"}}}`, "metadata.attributes.a", "is given twice"},
		{"long name", `{"` + strings.Repeat("n", 65) + `":1}`, strings.Repeat("n", 61) + "…", "is not a known field"},
		{"invalid UTF-8", "{\"id\":\"\xff\"}", "id", "invalid UTF-8"},
		{"number for text", `{"id":1,` + meta + `}`, "id", "must be a string, not 1"},
		{"text for object", `{"id":"x","metadata":"other"}`, "metadata", `must be an object, not the string "other"`},
		{"object for list", `{"id":"x","metadata":{"type":"other","endpoints":{}}}`, "metadata.endpoints", "must be a list, not an object"},
		{"null in a list", `{"id":"x","metadata":{"type":"other","endpoints":[null]}}`, "metadata.endpoints[0]", "must not be null"},
		{"number in a list", `{"id":"x","metadata":{"type":"other","endpoints":["a",2]}}`, "metadata.endpoints[1]", "must be a string, not 2"},
		{"null in a map", `{"pricing":{"tier_pricing":{"a":null}}}`, "pricing.tier_pricing.a", "must not be null"},
		{"number in a map", `{"metadata":{"attributes":{"a":true}}}`, "metadata.attributes.a", "must be a string, not true"},
		{"negative", `{"capabilities":{"compute":{"cpu_cores":-1}}}`, "capabilities.compute.cpu_cores", "a whole number of 0 to 4294967295, not -1"},
		{"too large", `{"capabilities":{"compute":{"cpu_cores":4294967296}}}`, "capabilities.compute.cpu_cores", "a whole number of 0 to 4294967295"},
		{"fraction", `{"capabilities":{"storage":{"total_space":1.5}}}`, "capabilities.storage.total_space", "a whole number of 0 to 18446744073709551615, not 1.5"},
		{"text for a whole number", `{"capabilities":{"storage":{"total_space":"5TB"}}}`, "capabilities.storage.total_space", `not the string "5TB"`},
		{"text for a number", `{"location":{"latitude":"1"}}`, "location.latitude", `must be a finite number, not the string "1"`},
		{"infinite number", `{"location":{"latitude":1e999}}`, "location.latitude", "must be a finite number, not 1e999"},
		{"text for a bool", `{"capabilities":{"cdn":{"ssl_supported":"yes"}}}`, "capabilities.cdn.ssl_supported", "must be true or false"},
		{"no time", `{"health":{"last_check":"yesterday"}}`, "health.last_check", "must be a time as in RFC 3339"},
		{"number for a time", `{"health":{"last_check":0}}`, "health.last_check", "must be a time as in RFC 3339, not 0"},
		{"unknown status", `{"id":"x",` + meta + `,"health":{"status":"healthy"}}`, "health.status", "must be UNKNOWN, HEALTHY"},
		{"list of GPUs", `{"capabilities":{"compute":{"gpus":[{},{"model":{}}]}}}`, "capabilities.compute.gpus[1].model", "must be a string, not an object"},
		{"content", `{"id":"a/b",` + meta + `}`, "id", "must contain only letters, digits and '._-'"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := records.ParseOffer([]byte(tt.text))
			require.ErrorIs(t, err, fault.Invalid)
			require.Equal(t, tt.field, fault.FieldOf(err))
			require.Contains(t, err.Error(), tt.message)
		})
	}
	_, err := records.ParseOffer(make([]byte, records.MaxOffer+1))
	require.ErrorIs(t, err, fault.TooLarge)
}

// TestPutBack: the view of a record is an offer again, as a program that edits its record sends it.
func TestPutBack(t *testing.T) {
	view, err := json.Marshal(sign(t, key(t, 1), storage(), stamp()).View())
	require.NoError(t, err)
	got, err := records.ParseOffer(view)
	require.NoError(t, err)
	require.Equal(t, storage(), got)
	for text, field := range map[string]string{
		`{"metadata":{"sequence":1}}`:                                     "metadata.sequence",
		`{"id":"x","metadata":{"type":"other"},"withdrawn":true}`:         "withdrawn",
		`{"id":"x","metadata":{"type":"other"},"provider_id":{"id":"y"}}`: "provider_id",
		`{"id":"x","metadata":{"type":"other"},"created_at":"yesterday"}`: "created_at",
	} {
		_, err := records.ParseOffer([]byte(text))
		require.Equal(t, []any{fault.Invalid, field}, []any{fault.KindOf(err), fault.FieldOf(err)}, "%v", err)
	}
}

func TestParseOffersYAML(t *testing.T) {
	text, err := os.ReadFile("testdata/offers.yaml")
	require.NoError(t, err)
	got, err := records.ParseOffersYAML(text)
	require.NoError(t, err)
	require.Len(t, got, 4)
	require.Equal(t, storage(), got[0])
	require.Equal(t, "NO", got[1].Location.Country, "not false")
	require.Equal(t, time.Date(2026, 3, 1, 11, 0, 0, 0, time.UTC), *got[1].Health.LastCheck)
	require.Equal(t, uint64(1_000_000_000_000), got[1].Capabilities.Storage.TotalSpace)
	require.Equal(t, got[2].Location, got[3].Location, "by an alias")

	none, err := records.ParseOffersYAML([]byte("---\n# nothing\n"))
	require.NoError(t, err)
	require.Empty(t, none)
}

func TestParseOffersYAMLRefuses(t *testing.T) {
	const good = "{id: a, metadata: {type: other}}\n"
	for _, tt := range []struct{ name, text, field, message string }{
		{"no YAML", "id: [", "", "is not YAML"},
		{"unknown anchor", "id: *x", "", "is not YAML"},
		{"a scalar", "x", "", `must be an object, not the string "x"`},
		{"single", "id: x\nmetadata: {type: X}", "metadata.type", "must contain only lower-case letters, digits and '-'"},
		{"second of a list", "- " + good + "- {id: b, metadata: {type: X}}", "[1].metadata.type", "must contain only lower-case letters, digits and '-'"},
		{"list of one", "- {id: b, metadata: {type: X}}", "[0].metadata.type", "must contain only lower-case letters, digits and '-'"},
		{"second document", good + "---\n{id: b, metadata: {type: X}}", "[1].metadata.type", "must contain only lower-case letters, digits and '-'"},
		{"null in a list", "- " + good + "- ", "[1]", "must not be null"},
		{"version as number", "{id: x, metadata: {type: other, version: 1.0}}", "metadata.version", "must be a string, not 1"},
		{"not a number", "{id: x, location: {latitude: .nan}}", "location.latitude", `must be a finite number, not the string ".nan"`},
		{"infinite", "{id: x, location: {latitude: -.inf}}", "location.latitude", "must be a finite number"},
		{"twice", "{id: x, id: y}", "id", "is given twice"},
		{"merge", "{id: x, <<: {id: y}}", "<<", "is not a known field"},
		{"name is a list", "{[a]: x}", "", "a name must be a scalar"},
		{"contains itself", "metadata: &m {attributes: *m}", "", "nested deeper than 16"},
		{"billion laughs", laughs(), "", "aliases counted in full"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := records.ParseOffersYAML([]byte(tt.text))
			require.Error(t, err)
			require.Contains(t, []fault.Kind{fault.Invalid, fault.TooLarge}, fault.KindOf(err))
			require.ErrorContains(t, err, tt.message)
			if tt.field != "" {
				require.Equal(t, tt.field, fault.FieldOf(err))
			}
		})
	}
	_, err := records.ParseOffersYAML(make([]byte, 2<<20))
	require.ErrorIs(t, err, fault.TooLarge)
}

// laughs returns a small text that expands to 10^8 values.
func laughs() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x]\n")
	for i := 1; i <= 8; i++ {
		d, c := string(rune('0'+i)), string(rune('0'+i-1))
		b.WriteString("a" + d + ": &a" + d + " [" + strings.Repeat("*a"+c+",", 9) + "*a" + c + "]\n")
	}
	return b.String()
}

func TestViews(t *testing.T) {
	r := sign(t, key(t, 1), storage(), stamp())
	v := r.View()
	require.Equal(t, storage(), v.Offer)
	require.Equal(t, provider, v.ProviderID)
	require.Equal(t, t0(), v.CreatedAt)
	require.Equal(t, r.Issued(), v.UpdatedAt)
	require.Equal(t, r.Expires(), v.ExpiresAt)
	require.Equal(t, r.Sequence(), v.Sequence)
	require.Equal(t, r.Service().Signature, v.Signature)
	require.Equal(t, r.Key().String(), v.Key)
	require.Equal(t, r.ContentID().String(), v.ContentID)

	text, err := json.Marshal(v)
	require.NoError(t, err)
	var back records.View
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, v, back)

	v.ContentID = ""
	require.Equal(t, v, records.ViewOfService(r.Service()))
	require.Empty(t, records.ViewOfService(&pb.ServiceRecord{}).Key)
	require.NotPanics(t, func() { records.ViewOfService(nil) })
}

// A message without an envelope may contain anything.
func TestViewsOfUnfitMessages(t *testing.T) {
	s := message(t)
	s.CreatedAt = &timestamppb.Timestamp{Seconds: math.MaxInt64}
	require.Zero(t, records.ViewOfService(s).CreatedAt)
	require.NotEmpty(t, records.ViewOfService(s).Key)
	for name, do := range map[string]func(){
		"id":       func() { s.Id = "../x" },
		"provider": func() { s.ProviderId = "x" },
		"key":      func() { s.ProviderId = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N" },
		"metadata": func() { s.Metadata = nil },
	} {
		t.Run(name, func(t *testing.T) {
			s = message(t)
			do()
			require.Empty(t, records.ViewOfService(s).Key)
		})
	}
}

func TestMeasuredJSON(t *testing.T) {
	for text, m := range map[string]records.Measured{
		`{"state":"reachable","round_trip_ms":1.25,"checked_at":"2026-03-01T12:00:00Z","by":"self"}`: {State: records.Reachable, RoundTrip: 1250 * time.Microsecond, CheckedAt: t0()},
		`{"state":"unreachable","since":"2026-03-01T12:00:00Z","by":"self"}`:                         {State: records.Unreachable, Since: t0()},
		`{"state":"busy","by":"peers","peers":3}`:                                                    {State: records.Busy, Peers: 3},
	} {
		got, err := json.Marshal(m)
		require.NoError(t, err)
		require.JSONEq(t, text, string(got))
		var back records.Measured
		require.NoError(t, json.Unmarshal(got, &back))
		require.Equal(t, m, back)
	}
	var m records.Measured
	require.Error(t, json.Unmarshal([]byte(`{"state":1}`), &m))
	text, err := json.Marshal(records.Stored{On: 7, Of: 10})
	require.NoError(t, err)
	require.JSONEq(t, `{"on":7,"of":10}`, string(text))
}
