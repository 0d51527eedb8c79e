package records_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/blackhole/blackhole/internal/discovery/recordstest"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// refusal is a published example of what a verifier must answer for bytes that are not a valid record now.
type refusal struct {
	Name     string    `json:"name"`
	Network  string    `json:"network"`
	Now      time.Time `json:"now"`
	Result   string    `json:"result"` // of the table of docs/wire.md, or "valid"
	Blame    bool      `json:"blame"`  // whether the sender is at fault
	Core     bool      `json:"core"`   // whether a verifier that decodes the core alone gives this result
	Envelope string    `json:"envelope"`
}

// resultOf names an error of Open as docs/wire.md does.
func resultOf(err error) string {
	switch {
	case err == nil:
		return "valid"
	case records.OfOtherNetwork(err):
		return "of another network"
	}
	return map[fault.Kind]string{
		fault.TooLarge: "too large", fault.Unauthentic: "forged", fault.Unsupported: "unsupported", fault.Invalid: "invalid", fault.Conflict: "untimely",
	}[fault.KindOf(err)]
}

// brokenCore breaks one rule of the core each.
func brokenCore() map[string]func(*pb.ServiceRecord) {
	return map[string]func(*pb.ServiceRecord){
		"id is empty":                   func(s *pb.ServiceRecord) { s.Id = "" },
		"id is two dots":                func(s *pb.ServiceRecord) { s.Id = ".." },
		"id of 65 bytes":                func(s *pb.ServiceRecord) { s.Id = strings.Repeat("i", 65) },
		"type in upper case":            func(s *pb.ServiceRecord) { s.Metadata.Type = "Storage" },
		"subtype with a slash":          func(s *pb.ServiceRecord) { s.Metadata.Subtype = "a/b" },
		"latitude without longitude":    func(s *pb.ServiceRecord) { s.Location.Longitude = nil },
		"latitude above 90":             func(s *pb.ServiceRecord) { s.Location.Latitude = proto.Float64(90.5) },
		"precision of 3":                func(s *pb.ServiceRecord) { s.Location.Precision = 3 },
		"precision of 13":               func(s *pb.ServiceRecord) { s.Location.Precision = 13 },
		"precision without a place":     func(s *pb.ServiceRecord) { s.Location = &pb.GeoLocation{Precision: 6} },
		"no time of creation":           func(s *pb.ServiceRecord) { s.CreatedAt = nil },
		"created in the year 0":         func(s *pb.ServiceRecord) { s.CreatedAt = &timestamppb.Timestamp{Seconds: -62135596801} },
		"created after updated":         func(s *pb.ServiceRecord) { s.CreatedAt = timestamppb.New(t0().Add(time.Second)) },
		"expires when it is updated":    func(s *pb.ServiceRecord) { s.ExpiresAt = s.UpdatedAt },
		"lives longer than 48 h":        func(s *pb.ServiceRecord) { s.ExpiresAt = timestamppb.New(t0().Add(48*time.Hour + time.Second)) },
		"sequence of 0":                 func(s *pb.ServiceRecord) { s.Sequence = 0 },
		"a signature in the payload":    func(s *pb.ServiceRecord) { s.Signature = []byte{1} },
		"nine critical features":        func(s *pb.ServiceRecord) { s.Critical = strings.Split("a.b.c.d.e.f.g.h.i", ".") },
		"critical feature of 33":        func(s *pb.ServiceRecord) { s.Critical = []string{strings.Repeat("c", 33)} },
		"critical in upper case":        func(s *pb.ServiceRecord) { s.Critical = []string{"Auction"} },
		"nanoseconds of a whole second": func(s *pb.ServiceRecord) { s.UpdatedAt = &timestamppb.Timestamp{Seconds: t0().Unix(), Nanos: 1e9} },
	}
}

// brokenRest breaks one of the other rules each.
func brokenRest() map[string]func(*pb.ServiceRecord) {
	return map[string]func(*pb.ServiceRecord){
		"a tombstone with a name":       func(s *pb.ServiceRecord) { s.Withdrawn, s.Capabilities = true, nil },
		"a control character in a name": func(s *pb.ServiceRecord) { s.Metadata.Name = "a\x07b" },
		"a name that turns around":      func(s *pb.ServiceRecord) { s.Metadata.Name = "a\u202eb" },
		"a line separator in a name":    func(s *pb.ServiceRecord) { s.Metadata.Name = "a\u2028b" },
		"17 endpoints":                  func(s *pb.ServiceRecord) { s.Metadata.Endpoints = strings.Split(strings.Repeat("e ", 16)+"e", " ") },
		"capabilities of another type": func(s *pb.ServiceRecord) {
			s.Capabilities.Storage, s.Capabilities.Compute = nil, &pb.ComputeCapabilities{}
		},
		"more space available than there is": func(s *pb.ServiceRecord) {
			s.Capabilities.Storage.AvailableSpace = s.Capabilities.Storage.TotalSpace + 1
		},
		"a price without a currency":  func(s *pb.ServiceRecord) { s.Pricing.Currency = "" },
		"a country in lower case":     func(s *pb.ServiceRecord) { s.Location.Country = "us" },
		"an uptime above 100 percent": func(s *pb.ServiceRecord) { s.Health.UptimePercent = proto.Float64(100.5) },
	}
}

// refused makes the vectors of refusals: one for each row of the table of checks and each rule of the core, and some of
// the other rules.
func refused(t *testing.T) []refusal {
	t.Helper()
	k, good := key(t, 1), message(t)
	var all []refusal
	at := func(now time.Time, name, result string, envelope []byte) *refusal {
		all = append(all, refusal{Name: name, Network: "test", Now: now, Result: result, Core: true, Blame: result == "forged" || result == "too large",
			Envelope: hex.EncodeToString(envelope)})
		return &all[len(all)-1]
	}
	add := func(name, result string, envelope []byte) *refusal { return at(t0(), name, result, envelope) }
	sealed := func(of, codec string, payload []byte) []byte {
		return recordstest.Seal(t, k, recordstest.Content{Of: of, Type: codec, Payload: payload})
	}
	spoilt := func(spoil func(*pb.ServiceRecord)) []byte {
		s := proto.CloneOf(good)
		spoil(s)
		return recordstest.Sign(t, "test", k, s)
	}
	envelope := spoilt(func(*pb.ServiceRecord) {})
	payload := payloadOf(t, envelope)
	flipped := func(at int) []byte {
		b := bytes.Clone(envelope)
		b[at] ^= 1
		return b
	}

	add("untouched", "valid", envelope)
	add("too large", "too large", spoilt(func(s *pb.ServiceRecord) { s.Metadata.Description = strings.Repeat("d", records.MaxSize) }))
	add("nothing", "forged", nil)
	add("a length that is not the shortest", "forged", append([]byte{envelope[0], envelope[1] | 0x80, 0}, envelope[2:]...))
	add("an unknown field in the envelope", "forged", unknownField(bytes.Clone(envelope)))
	add("a field twice", "forged", append(bytes.Clone(envelope[:38]), envelope...))
	add("cut short", "forged", envelope[:len(envelope)-1])
	add("a key of another kind", "unsupported", flipped(3))
	add("another key", "forged", flipped(20))
	add("another payload", "forged", flipped(len(envelope)-100))
	add("another signature", "forged", flipped(len(envelope)-1))
	add("the domain of another network with the own codec", "forged", sealed("blackhole:other:service-record", codec, payload))
	add("another codec", "invalid", sealed(domain, "/blackhole/test/service-record/01", payload))
	add("a record of another network", "of another network", sealed("blackhole:other:service-record", "/blackhole/other/service-record/1", payload))
	add("a later version of another network", "of another network", sealed("blackhole:other:service-record", "/blackhole/other/service-record/2", payload))
	add("a later major version", "unsupported", sealed(domain, "/blackhole/test/service-record/2", payload))
	add("a payload that does not decode", "invalid", sealed(domain, codec, []byte{0x0a, 0xff}))
	add("an id that is not UTF-8", "invalid", sealed(domain, codec, append(bytes.Clone(payload), 0x0a, 1, 0xff))).Core = false
	add("of another provider", "forged", recordstest.Seal(t, key(t, 2), recordstest.Content{Of: domain, Type: codec, Payload: payload}))
	add("an unknown field", "valid", sealed(domain, codec, unknownField(bytes.Clone(payload))))
	add("the id twice: the last counts", "invalid", sealed(domain, codec, protowire.AppendString(append(bytes.Clone(payload), 0x0a), "..")))

	core, rest := brokenCore(), brokenRest()
	for _, name := range slices.Sorted(maps.Keys(core)) {
		add(name, "invalid", spoilt(core[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(rest)) {
		add(name, "invalid", spoilt(rest[name])).Core = false
	}

	issued, expires := good.UpdatedAt.AsTime(), good.ExpiresAt.AsTime()
	at(issued.Add(-records.ClockSkew), "issued 2 minutes ahead", "valid", envelope)
	at(issued.Add(-records.ClockSkew-time.Millisecond), "issued more than 2 minutes ahead", "untimely", envelope)
	at(expires.Add(-time.Millisecond), "just before its expiry", "valid", envelope)
	at(expires, "at its expiry", "untimely", envelope)
	at(expires, "forged and expired", "forged", flipped(20))
	at(expires, "of a later version and expired", "unsupported", sealed(domain, "/blackhole/test/service-record/2", payload))
	return all
}

// TestGoldenRefusals: other implementations blame whom this one blames. The vectors say so.
func TestGoldenRefusals(t *testing.T) {
	const path = "testdata/refused.json"
	made := refused(t)
	if f := flag.Lookup("update"); f != nil && f.Value.String() == "true" {
		text, err := json.MarshalIndent(made, "", "  ")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, append(text, '\n'), 0o644))
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var golden []refusal
	require.NoError(t, json.Unmarshal(text, &golden))
	require.Equal(t, made, golden)
	for _, v := range golden {
		t.Run(v.Name, func(t *testing.T) {
			envelope, err := hex.DecodeString(v.Envelope)
			require.NoError(t, err)
			_, err = records.Open("test", envelope, v.Now)
			require.Equal(t, v.Result, resultOf(err), "%v", err)
			require.Equal(t, v.Blame, err != nil && !records.Blameless(err))
		})
	}
}
