package records_test

import (
	"encoding/json"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/discovery/recordstest"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// alike checks that both paths to a record's JSON yield the same bytes.
func alike(t require.TestingT, r *records.Record) {
	want, err := json.Marshal(r.View())
	require.NoError(t, err)
	require.Equal(t, "before "+string(want), string(r.AppendJSON([]byte("before "))))
}

// direct checks that AppendJSON did not decode a message, which would allocate.
func direct(t require.TestingT, r *records.Record) {
	dst := make([]byte, 0, 64<<10)
	require.Zero(t, testing.AllocsPerRun(5, func() { r.AppendJSON(dst) }))
}

func TestAppendJSON(t *testing.T) {
	for _, o := range offers() {
		r := sign(t, key(t, 1), o, stamp())
		alike(t, r)
		direct(t, r)
		for _, p := range []*records.Pause{{Stopped: true, Since: t0()}, {Since: t0(), Until: t0().Add(time.Hour)}} {
			st := stamp()
			st.Paused = p
			paused := sign(t, key(t, 1), o, st)
			require.Equal(t, p, paused.Paused())
			require.Equal(t, pb.HealthStatus_UNHEALTHY, paused.Facts().Status)
			alike(t, paused)
			direct(t, paused)
		}
		gone, err := records.Tombstone(key(t, 1), r, records.Stamp{Sequence: r.Sequence() + 1, Issued: t0(), Expires: t0().Add(time.Hour)})
		require.NoError(t, err)
		alike(t, gone)
		direct(t, gone)
	}
}

// Records signed by this program never need decoding, whatever their content.
func TestAppendJSONOfAnyRecord(t *testing.T) {
	k := key(t, 1)
	rapid.Check(t, func(t *rapid.T) {
		s := serviceGen().Draw(t, "service")
		s.ProviderId = provider
		r, err := records.Seal("test", k, s)
		if err != nil { // too many long texts
			t.Skip(err)
		}
		alike(t, r)
		direct(t, r)
	})
}

// Other programs may encode the same message differently.
func TestAppendJSONOfOtherEncoders(t *testing.T) {
	k, opened := key(t, 1), 0
	st := stamp()
	st.Issued = st.Issued.Add(time.Nanosecond)
	for _, o := range offers() {
		payload := payloadOf(t, sign(t, k, o, st).Envelope())
		for _, other := range spellings(payload, (&pb.ServiceRecord{}).ProtoReflect().Descriptor()) {
			if r, err := records.Open("test", recordstest.Seal(t, k, recordstest.Content{Of: domain, Type: codec, Payload: other}), st.Issued); err == nil {
				alike(t, r)
				opened++
			}
		}
	}
	require.Greater(t, opened, 400) // few break the rules, for example by an extra endpoint
}

// spellings returns all encodings of a message of the given kind with a change in one field,
// also of nested messages: the field occurs twice, last, or twice and last, or its number is
// longer than necessary or beyond 32 bits.
func spellings(message []byte, kind protoreflect.MessageDescriptor) [][]byte {
	var all [][]byte
	for at := 0; at < len(message); {
		number, wire, size := protowire.ConsumeTag(message[at:])
		n := protowire.ConsumeFieldValue(number, wire, message[at+size:])
		before, value, after := message[:at+size:at+size], message[at+size:at+size+n], message[at+size+n:]
		field := message[at : at+size+n]
		at += size + n
		all = append(all,
			slices.Concat(before, value, field, after), slices.Concat(before, value, after, field),
			slices.Concat(message[:at-len(field)], after, field))
		if v, n := protowire.ConsumeVarint(value); wire == protowire.VarintType && n > 0 {
			long := append(slices.Clone(value), 0)
			long[n-1] |= 0x80
			all = append(all, slices.Concat(before, long, after),
				slices.Concat(before, protowire.AppendVarint(nil, v|1<<40), after))
		}
		if inner := kind.Fields().ByNumber(number).Message(); inner != nil {
			text, _ := protowire.ConsumeBytes(value)
			for _, other := range append(spellings(text, inner), nil) {
				all = append(all, slices.Concat(before, protowire.AppendBytes(nil, other), after))
			}
		}
	}
	return all
}

// maybe draws a pointer, nil half of the time.
func maybe[T any](t *rapid.T, name string, g *rapid.Generator[T]) *T {
	return rapid.Ptr(g, true).Draw(t, name)
}

// textGen draws valid text, with characters that JSON and HTML escape.
func textGen(limit int) *rapid.Generator[string] {
	r := rapid.OneOf(
		rapid.SampledFrom([]rune(`ab "\<>&/'`+"é日😀\u2027\ufffd")),
		rapid.Rune().Filter(func(r rune) bool { return fault.Text("", string(r), 4) == nil }),
	)
	return rapid.StringOfN(r, 0, limit/4, limit)
}

func wordGen(limit int) *rapid.Generator[string] {
	return textGen(limit).Filter(func(s string) bool { return s != "" })
}

func wordsGen() *rapid.Generator[[]string] { return rapid.SliceOfN(wordGen(64), 0, 3) }

// priceGen draws amounts at every limit of the number formats.
func priceGen() *rapid.Generator[float64] {
	return rapid.OneOf(
		rapid.SampledFrom([]float64{
			0, math.Copysign(0, -1), 0.05, 1, 1e-6, 9.9e-7, 1e-7, 1e-10, 1.5e-9, 1e-100, math.SmallestNonzeroFloat64,
			1e20, 1e21, 1.5e21, 1e22, 1e100, math.MaxFloat64, 123456789.125,
		}),
		rapid.Float64Min(0),
	)
}

// degreesGen draws a coordinate.
func degreesGen(most float64) *rapid.Generator[float64] {
	return rapid.OneOf(
		rapid.SampledFrom([]float64{0, math.Copysign(0, -1), most, -most, 1e-7, -1e-7, 37.7749}),
		rapid.Float64Range(-most, most),
	)
}

// serviceGen draws a valid record without its provider.
func serviceGen() *rapid.Generator[*pb.ServiceRecord] {
	return rapid.Custom(func(t *rapid.T) *pb.ServiceRecord {
		s := &pb.ServiceRecord{
			Id: rapid.StringMatching(`[A-Za-z0-9_-]{1,64}`).Draw(t, "id"),
			Metadata: &pb.ServiceMetadata{
				Type:        rapid.SampledFrom([]string{"storage", "compute", "cdn", "bandwidth", "other"}).Draw(t, "type"),
				Subtype:     rapid.SampledFrom([]string{"", "ssd"}).Draw(t, "subtype"),
				Name:        textGen(128).Draw(t, "name"),
				Description: textGen(256).Draw(t, "description"),
				Version:     textGen(64).Draw(t, "version"),
				Endpoints:   wordsGen().Draw(t, "endpoints"),
				Protocols:   wordsGen().Draw(t, "protocols"),
				Domain:      rapid.SampledFrom([]string{"", "a.net", "xn--bcher-kva.shop.net"}).Draw(t, "domain"),
				Attributes:  rapid.MapOfN(rapid.StringMatching(`[A-Za-z0-9._/-]{1,8}`), textGen(64), 0, 4).Draw(t, "attributes"),
			},
			Sequence: rapid.Uint64Min(1).Draw(t, "sequence"),
			Location: locationGen().Draw(t, "location"),
			Pricing:  pricingGen().Draw(t, "pricing"),
			Health:   healthGen().Draw(t, "health"),
		}
		if rapid.Bool().Draw(t, "stocked") {
			s.Metadata.Stock = &pb.Stock{Unit: "gpu", Total: rapid.Uint32Min(1).Draw(t, "total"), MaxTtl: rapid.Uint32Max(3600).Draw(t, "max_ttl"), MaxPerConsumer: rapid.Uint32Max(1).Draw(t, "one")}
			s.Metadata.Access = rapid.SampledFrom([]string{"", "peer", "later"}).Draw(t, "access")
		}
		s.Capabilities = drawCapabilities(t, s.Metadata.Type)
		drawTimes(t, s)
		return s
	})
}

// timeGen draws a time with room for an earlier time and for two later days.
func timeGen() *rapid.Generator[time.Time] {
	return rapid.Custom(func(t *rapid.T) time.Time {
		seconds := rapid.OneOf(
			rapid.SampledFrom([]int64{time.Time{}.Unix(), 0, -1, t0().Unix()}),
			rapid.Int64Range(time.Time{}.Unix(), 253402300799-200_000),
		).Draw(t, "seconds")
		nanos := rapid.OneOf(rapid.Just[int64](0), rapid.Int64Range(0, 999_999_999)).Draw(t, "nanos")
		return time.Unix(seconds, nanos)
	})
}

func drawTimes(t *rapid.T, s *pb.ServiceRecord) {
	created, updated := timeGen().Draw(t, "created_at"), timeGen().Draw(t, "updated_at")
	if created.After(updated) {
		created, updated = updated, created
	}
	ttl := time.Duration(rapid.Int64Range(1, int64(records.MaxTTL)).Draw(t, "ttl"))
	s.CreatedAt, s.UpdatedAt = timestamppb.New(created), timestamppb.New(updated)
	s.ExpiresAt = timestamppb.New(updated.Add(ttl))
}

func drawCapabilities(t *rapid.T, kind string) *pb.ServiceCapabilities {
	amount, narrow := rapid.Uint64(), rapid.Uint32()
	switch kind {
	case "storage":
		total := amount.Draw(t, "total")
		return &pb.ServiceCapabilities{Storage: &pb.StorageCapabilities{
			TotalSpace: total, AvailableSpace: rapid.Uint64Range(0, total).Draw(t, "available"), MaxObjectSize: narrow.Draw(t, "object"),
			StorageClasses:      wordsGen().Draw(t, "classes"),
			EncryptionSupported: rapid.Bool().Draw(t, "encryption"), VersioningSupported: rapid.Bool().Draw(t, "versioning"),
		}}
	case "compute":
		c := &pb.ComputeCapabilities{
			CpuCores: narrow.Draw(t, "cores"), MemoryMb: amount.Draw(t, "memory"),
			RuntimeEngines: wordsGen().Draw(t, "engines"), MaxJobDuration: narrow.Draw(t, "duration"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "gpus") {
			c.Gpus = append(c.Gpus, &pb.GPUInfo{
				Model: textGen(64).Draw(t, "model"), MemoryMb: narrow.Draw(t, "memory"), ComputeCapability: narrow.Draw(t, "capability"),
			})
		}
		return &pb.ServiceCapabilities{Compute: c}
	case "cdn":
		return &pb.ServiceCapabilities{Cdn: &pb.CDNCapabilities{
			BandwidthMbps: amount.Draw(t, "bandwidth"), Regions: wordsGen().Draw(t, "regions"), CacheTypes: wordsGen().Draw(t, "types"),
			SslSupported: rapid.Bool().Draw(t, "ssl"), Http2Supported: rapid.Bool().Draw(t, "http2"),
		}}
	case "bandwidth":
		return &pb.ServiceCapabilities{Bandwidth: &pb.BandwidthCapabilities{
			UploadMbps: amount.Draw(t, "up"), DownloadMbps: amount.Draw(t, "down"), Protocols: wordsGen().Draw(t, "protocols"),
			ExitCountries: rapid.SliceOfN(rapid.SampledFrom([]string{"NL", "DE"}), 0, 3).Draw(t, "countries"),
		}}
	}
	return rapid.SampledFrom([]*pb.ServiceCapabilities{nil, {}}).Draw(t, "capabilities")
}

// seldomNil draws an optional part of a record.
func seldomNil[T any](draw func(*rapid.T) *T) *rapid.Generator[*T] {
	return rapid.Custom(func(t *rapid.T) *T {
		if rapid.IntRange(0, 3).Draw(t, "given") == 0 {
			return nil
		}
		return draw(t)
	})
}

func locationGen() *rapid.Generator[*pb.GeoLocation] {
	return seldomNil(func(t *rapid.T) *pb.GeoLocation {
		l := &pb.GeoLocation{
			Country: rapid.SampledFrom([]string{"", "US"}).Draw(t, "country"),
			Region:  textGen(128).Draw(t, "region"), City: textGen(128).Draw(t, "city"), Isp: textGen(128).Draw(t, "isp"),
		}
		if rapid.Bool().Draw(t, "placed") {
			l.Latitude, l.Longitude = p(degreesGen(90).Draw(t, "latitude")), p(degreesGen(180).Draw(t, "longitude"))
			l.Precision = rapid.SampledFrom([]uint32{0, 4, 6, 11, 12}).Draw(t, "precision")
		}
		return l
	})
}

func pricingGen() *rapid.Generator[*pb.PricingInfo] {
	return seldomNil(func(t *rapid.T) *pb.PricingInfo {
		if rapid.Bool().Draw(t, "empty") {
			return &pb.PricingInfo{}
		}
		return &pb.PricingInfo{
			Currency: "USDC", PriceUnit: "per-gb/month",
			BasePrice: maybe(t, "base_price", priceGen()), MinimumCommitment: maybe(t, "minimum_commitment", priceGen()),
			TierPricing: rapid.MapOfN(wordGen(64), priceGen(), 0, 4).Draw(t, "tiers"),
		}
	})
}

func healthGen() *rapid.Generator[*pb.HealthStatus] {
	return seldomNil(func(t *rapid.T) *pb.HealthStatus {
		h := &pb.HealthStatus{
			Status:         pb.HealthStatus_Status(rapid.Int32Range(0, 3).Draw(t, "status")),
			UptimePercent:  maybe(t, "uptime_percent", rapid.Float64Range(0, 100)),
			ResponseTimeMs: maybe(t, "response_time_ms", rapid.Uint64()),
			ErrorRate:      maybe(t, "error_rate", rapid.Uint32Range(0, 10_000)),
		}
		if rapid.Bool().Draw(t, "checked") {
			h.LastCheck = timestamppb.New(timeGen().Draw(t, "last_check"))
		}
		return h
	})
}
