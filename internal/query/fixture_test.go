package query

import (
	"bytes"
	"crypto/ed25519"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// The generators draw from small sets, so that records often match and values often tie.

func t0() time.Time { return time.Date(2025, 6, 1, 12, 0, 0, 0, time.UTC) }

func ptr[T any](v T) *T { return &v }

// key returns the key of the n-th provider.
func key(tb require.TestingT, n byte) crypto.PrivKey {
	raw := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, ed25519.SeedSize))
	k, err := crypto.UnmarshalEd25519PrivateKey(raw)
	require.NoError(tb, err)
	return k
}

func idOf(tb require.TestingT, n byte) peer.ID {
	id, err := peer.IDFromPrivateKey(key(tb, n))
	require.NoError(tb, err)
	return id
}

// seal completes and signs a record of the n-th provider.
func seal(tb require.TestingT, n byte, s *pb.ServiceRecord) *records.Record {
	s.ProviderId = idOf(tb, n).String()
	s.CreatedAt, s.UpdatedAt = timestamppb.New(t0()), timestamppb.New(t0())
	s.ExpiresAt = timestamppb.New(t0().Add(time.Hour))
	s.Sequence = uint64(t0().UnixMilli())
	r, err := records.Seal("test", key(tb, n), s)
	require.NoError(tb, err)
	return r
}

func compile(tb require.TestingT, q query.Query) *Plan {
	p, err := Compile(q, Defaults{})
	require.NoError(tb, err)
	return p
}

// maybe draws a nil pointer half of the time.
func maybe[T any](g *rapid.Generator[T]) *rapid.Generator[*T] {
	return rapid.Ptr(g, true)
}

// seldom draws the zero value most of the time.
func seldom[T any](g *rapid.Generator[T]) *rapid.Generator[T] {
	return rapid.Custom(func(t *rapid.T) T {
		var zero T
		if rapid.IntRange(0, 4).Draw(t, "set") > 0 {
			return zero
		}
		return g.Draw(t, "value")
	})
}

// typeGen draws types. Only "relay" has neither capabilities nor a usual price unit.
func typeGen() *rapid.Generator[string] {
	return rapid.SampledFrom([]string{"compute", "compute", "storage", "cdn", "bandwidth", "relay"})
}

func subtypeGen() *rapid.Generator[string] {
	return rapid.SampledFrom([]string{"", "ssd", "gpu"})
}
func latGen() *rapid.Generator[float64] {
	return rapid.SampledFrom([]float64{0, math.Copysign(0, -1), 0.1, 52.5, 90, -90})
}
func lonGen() *rapid.Generator[float64] {
	return rapid.SampledFrom([]float64{0, math.Copysign(0, -1), 0.1, 13.4, 180, -180, 179.95})
}
func countryGen() *rapid.Generator[string] {
	return rapid.SampledFrom([]string{"DE", "de", "FR", "fr", "Us"})
}
func regionGen() *rapid.Generator[string] {
	return rapid.SampledFrom([]string{"Berlin", "BERLIN", "Île-de-France", "île-de-france", "ΣΑΣ", "σας", "K", "\u212a"})
}
func priceGen() *rapid.Generator[float64] {
	return rapid.SampledFrom([]float64{0, math.Copysign(0, -1), 0.5, 1, 2})
}
func currencyGen() *rapid.Generator[string] {
	return rapid.SampledFrom([]string{"USDC", "usdc", "EUR"})
}
func unitGen() *rapid.Generator[string] {
	return rapid.SampledFrom([]string{"per-gb-month", "per-hour", "Per-Hour", "per-gb"})
}
func uptimeGen() *rapid.Generator[float64] {
	return rapid.SampledFrom([]float64{0, 50, 99.9, 100})
}
func rateGen() *rapid.Generator[uint32] {
	return rapid.SampledFrom([]uint32{0, 10, 1000, 10000})
}
func attributesGen() *rapid.Generator[map[string]string] {
	return rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.SampledFrom([]string{"", "x", "X"}), 0, 2)
}

// queryGen draws valid queries.
func queryGen(tb require.TestingT) *rapid.Generator[query.Query] {
	return rapid.Custom(func(t *rapid.T) query.Query {
		q := query.Query{
			Type:      typeGen().Draw(t, "type"),
			Subtype:   seldom(subtypeGen()).Draw(t, "subtype"),
			Countries: seldom(rapid.SliceOfN(countryGen(), 0, 3)).Draw(t, "countries"),
			Regions:   seldom(rapid.SliceOfN(regionGen(), 0, 3)).Draw(t, "regions"),
			Capacity: query.Capacity{
				MinCPUCores:      seldom(rapid.Uint32Range(0, 2)).Draw(t, "min_cpu_cores"),
				MinMemoryMB:      seldom(rapid.Uint64Range(0, 2)).Draw(t, "min_memory_mb"),
				RequireGPU:       seldom(rapid.Bool()).Draw(t, "require_gpu"),
				MinStorageGB:     seldom(rapid.Uint64Range(0, 2)).Draw(t, "min_storage_gb"),
				MinBandwidthMbps: seldom(rapid.Uint64Range(0, 2)).Draw(t, "min_bandwidth_mbps"),
			},
			Quality: query.Quality{
				MinUptime:    seldom(maybe(uptimeGen())).Draw(t, "min_uptime"),
				MaxErrorRate: seldom(maybe(rateGen())).Draw(t, "max_error_rate"),
				Health:       rapid.SampledFrom(append(healths(), query.HealthDefault)).Draw(t, "health"),
			},
			Attributes: seldom(attributesGen()).Draw(t, "attributes"),
			Where:      seldom(rapid.SliceOfN(clauseGen(), 0, 3)).Draw(t, "where"),
			Domain:     seldom(rapid.SampledFrom([]string{"a.net", AnyDomain})).Draw(t, "domain"),
			Sort:       rapid.SampledFrom(append(sorts(), query.SortDefault)).Draw(t, "sort"),
			Claims:     rapid.SampledFrom(append(weights(), "")).Draw(t, "claims"),
			Limit:      rapid.IntRange(0, 5).Draw(t, "limit"),
			Explain:    rapid.Bool().Draw(t, "explain"),
			ExactTotal: rapid.Bool().Draw(t, "exact total"),
			Seed:       rapid.Uint64Range(0, 3).Draw(t, "seed"),
		}
		if q.Sort == query.SortStable && rapid.Bool().Draw(t, "later page") {
			q.After = rapid.SampledFrom([]string{"global", "s0000000", "u33dc0rr", "7zzzzzzz"}).Draw(t, "after cell") + "/" +
				idOf(tb, rapid.ByteRange(1, 4).Draw(t, "after")).String() + "/s" + strconv.Itoa(rapid.IntRange(0, 5).Draw(t, "after id"))
		}
		q.Price.MaxPrice = seldom(maybe(priceGen())).Draw(t, "max_price")
		if usesPrices(&q) {
			q.Currency = seldom(currencyGen()).Draw(t, "currency")
			q.PriceUnit = seldom(unitGen()).Draw(t, "price_unit")
			if q.PriceUnit == "" && q.Type == "relay" {
				q.PriceUnit = "per-hour"
			}
		}
		if usesPrices(&q) {
			q.Volume = seldom(maybe(rapid.SampledFrom([]float64{0.5, 1, 10, 50, 100, 1000}))).Draw(t, "volume")
		}
		if q.Sort == query.SortDistance || rapid.Bool().Draw(t, "placed") {
			q.Near = &query.Near{
				Latitude: latGen().Draw(t, "latitude"), Longitude: lonGen().Draw(t, "longitude"),
				RadiusKM: maybe(rapid.SampledFrom([]float64{0.001, 20, 6000, 20015.115})).Draw(t, "radius_km"),
			}
		}
		if n := seldom(rapid.ByteRange(0, 3)).Draw(t, "provider"); n > 0 {
			q.ProviderID = idOf(tb, n).String()
		}
		return q
	})
}

// serviceGen draws contents of records with many missing parts.
func serviceGen() *rapid.Generator[*pb.ServiceRecord] {
	return rapid.Custom(func(t *rapid.T) *pb.ServiceRecord {
		s := &pb.ServiceRecord{Metadata: &pb.ServiceMetadata{
			Type:       typeGen().Draw(t, "type"),
			Subtype:    subtypeGen().Draw(t, "subtype"),
			Attributes: attributesGen().Draw(t, "attributes"),
			Domain:     seldom(rapid.SampledFrom([]string{"a.net", "b.net"})).Draw(t, "domain"),
		}}
		if rapid.Bool().Draw(t, "stocked") {
			s.Metadata.Access = rapid.SampledFrom([]string{"", "peer", "a"}).Draw(t, "access")
			s.Metadata.Stock = &pb.Stock{
				Unit: rapid.SampledFrom([]string{"gpu", "a"}).Draw(t, "stock_unit"), Total: rapid.Uint32Range(1, 3).Draw(t, "total"),
				MaxTtl: rapid.Uint32Range(0, 3).Draw(t, "max_ttl"), MaxPerConsumer: rapid.Uint32Range(0, 1).Draw(t, "one"),
			}
		}
		if rapid.Bool().Draw(t, "located") {
			s.Location = locationGen().Draw(t, "location")
		}
		if rapid.Bool().Draw(t, "priced") {
			s.Pricing = &pb.PricingInfo{
				Currency: currencyGen().Draw(t, "currency"), PriceUnit: unitGen().Draw(t, "price_unit"),
				BasePrice: maybe(priceGen()).Draw(t, "base_price"),
			}
		}
		if rapid.Bool().Draw(t, "healthy") {
			s.Health = &pb.HealthStatus{
				Status:         pb.HealthStatus_Status(rapid.Int32Range(0, 3).Draw(t, "status")),
				UptimePercent:  maybe(uptimeGen()).Draw(t, "uptime_percent"),
				ResponseTimeMs: maybe(rapid.Uint64Range(0, 2)).Draw(t, "response_time_ms"),
				ErrorRate:      maybe(rateGen()).Draw(t, "error_rate"),
			}
		}
		s.Capabilities = drawCapabilities(t, s.Metadata.Type)
		drawDetails(t, s)
		return s
	})
}

func locationGen() *rapid.Generator[*pb.GeoLocation] {
	return rapid.Custom(func(t *rapid.T) *pb.GeoLocation {
		l := &pb.GeoLocation{
			Country: strings.ToUpper(seldom(countryGen()).Draw(t, "country")),
			Region:  seldom(regionGen()).Draw(t, "region"),
		}
		if rapid.Bool().Draw(t, "placed") {
			l.Latitude, l.Longitude = ptr(latGen().Draw(t, "latitude")), ptr(lonGen().Draw(t, "longitude"))
		}
		return l
	})
}

func drawCapabilities(t *rapid.T, kind string) *pb.ServiceCapabilities {
	amount := rapid.Uint64Range(0, 2)
	switch kind {
	case "storage":
		space := rapid.SampledFrom([]uint64{0, gigabyte - 1, gigabyte, 2 * gigabyte}).Draw(t, "space")
		return &pb.ServiceCapabilities{Storage: &pb.StorageCapabilities{TotalSpace: 5 * gigabyte, AvailableSpace: space}}
	case "compute":
		c := &pb.ComputeCapabilities{
			CpuCores: rapid.Uint32Range(0, 2).Draw(t, "cores"), MemoryMb: amount.Draw(t, "memory"),
		}
		if rapid.Bool().Draw(t, "gpu") {
			c.Gpus = []*pb.GPUInfo{{Model: "x"}}
		}
		return &pb.ServiceCapabilities{Compute: c}
	case "cdn":
		return &pb.ServiceCapabilities{Cdn: &pb.CDNCapabilities{BandwidthMbps: amount.Draw(t, "bandwidth")}}
	case "bandwidth":
		return &pb.ServiceCapabilities{Bandwidth: &pb.BandwidthCapabilities{
			UploadMbps: amount.Draw(t, "up"), DownloadMbps: amount.Draw(t, "down"),
		}}
	default:
		return nil
	}
}

// recordsGen draws sealed records with their sources.
func recordsGen(tb require.TestingT, most int) *rapid.Generator[[]sample] {
	return rapid.Custom(func(t *rapid.T) []sample {
		list := make([]sample, rapid.IntRange(0, most).Draw(t, "records"))
		for i := range list {
			s := serviceGen().Draw(t, "service")
			s.Id = "s" + strconv.Itoa(i)
			list[i] = sample{service: s, record: seal(tb, rapid.ByteRange(1, 3).Draw(t, "provider"), s)}
		}
		return list
	})
}

// sample is a record with its signed message.
type sample struct {
	service *pb.ServiceRecord
	record  *records.Record
}

// naiveCell is the geohash by which a record stands on pages; "" without a place.
func naiveCell(s *pb.ServiceRecord) string {
	l := s.GetLocation()
	if l == nil || l.Latitude == nil || l.Longitude == nil {
		return ""
	}
	return string(geo.CellOf(geo.Point{Lat: *l.Latitude, Lon: *l.Longitude}, placeLen))
}

// naiveMatch implements Plan.Match directly from the specification, filter by filter.
func naiveMatch(q query.Query, s *pb.ServiceRecord) bool {
	m, c, h := s.Metadata, s.GetCapabilities(), s.GetHealth()
	if m.Type != q.Type || q.Subtype != "" && m.Subtype != q.Subtype {
		return false
	}
	if q.After != "" {
		parts := strings.Split(q.After, "/")
		last, _ := peer.Decode(parts[1])
		here, _ := peer.Decode(s.ProviderId)
		if slices.Compare([]string{naiveCell(s), string(here), s.Id}, []string{strings.TrimPrefix(parts[0], "global"), string(last), parts[2]}) <= 0 {
			return false
		}
	}
	if q.Domain == AnyDomain && m.Domain == "" || q.Domain != "" && q.Domain != AnyDomain && m.Domain != q.Domain {
		return false
	}
	if q.Near != nil && q.Near.RadiusKM != nil {
		if km := naiveDistance(q, s) / 1000; !(km <= *q.Near.RadiusKM) {
			return false
		}
	}
	if !anyFold(q.Countries, s.GetLocation().GetCountry()) || !anyFold(q.Regions, s.GetLocation().GetRegion()) {
		return false
	}
	compute, storage := c.GetCompute(), c.GetStorage()
	if q.MinCPUCores > 0 && (compute == nil || compute.CpuCores < q.MinCPUCores) ||
		q.MinMemoryMB > 0 && (compute == nil || compute.MemoryMb < q.MinMemoryMB) ||
		q.RequireGPU && len(compute.GetGpus()) == 0 ||
		q.MinStorageGB > 0 && (storage == nil || storage.AvailableSpace/gigabyte < q.MinStorageGB) ||
		q.MinBandwidthMbps > 0 && naiveBandwidth(c) < q.MinBandwidthMbps {
		return false
	}
	if q.MaxPrice != nil && !(naivePrice(q, s) <= *q.MaxPrice) {
		return false
	}
	if q.MinUptime != nil && (h.GetUptimePercent() < *q.MinUptime || h == nil || h.UptimePercent == nil) ||
		q.MaxErrorRate != nil && (h.GetErrorRate() > *q.MaxErrorRate || h == nil || h.ErrorRate == nil) {
		return false
	}
	if q.ProviderID != "" && q.ProviderID != s.ProviderId {
		return false
	}
	for k, v := range q.Attributes {
		if got, ok := m.Attributes[k]; !ok || got != v {
			return false
		}
	}
	return naiveHealth(q.Health, h.GetStatus()) && naiveWhere(q.Where, s)
}

// naiveBandwidth returns 0 for an unknown bandwidth.
func naiveBandwidth(c *pb.ServiceCapabilities) uint64 {
	if b := c.GetBandwidth(); b != nil {
		return min(b.UploadMbps, b.DownloadMbps)
	}
	return c.GetCdn().GetBandwidthMbps()
}

func naiveHealth(asked query.Health, status pb.HealthStatus_Status) bool {
	switch asked {
	case query.HealthAny:
		return true
	case query.HealthHealthy:
		return status == pb.HealthStatus_HEALTHY
	default:
		return status != pb.HealthStatus_UNHEALTHY
	}
}

func anyFold(list []string, s string) bool {
	for _, x := range list {
		if strings.EqualFold(x, s) {
			return true
		}
	}
	return len(list) == 0
}

// naivePrice returns +Inf for an unknown price or another currency or unit.
func naivePrice(q query.Query, s *pb.ServiceRecord) float64 {
	currency, unit := q.Currency, q.PriceUnit
	if currency == "" {
		currency = "USDC"
	}
	if unit == "" {
		unit = map[string]string{"storage": "per-gb-month", "compute": "per-hour", "cdn": "per-gb", "bandwidth": "per-gb"}[q.Type]
	}
	p := s.GetPricing()
	if p == nil || !strings.EqualFold(p.Currency, currency) || !strings.EqualFold(p.PriceUnit, unit) {
		return math.Inf(1)
	}
	return naiveRate(p, q.Volume)
}

// naiveDistance returns +Inf if either place is unknown.
func naiveDistance(q query.Query, s *pb.ServiceRecord) float64 {
	l := s.GetLocation()
	if q.Near == nil || l == nil || l.Latitude == nil {
		return math.Inf(1)
	}
	return geo.Distance(geo.Point{Lat: q.Near.Latitude, Lon: q.Near.Longitude}, geo.Point{Lat: *l.Latitude, Lon: *l.Longitude})
}

// naiveValue implements Plan.Value for the orders without arithmetic. It returns false for the
// others.
func naiveValue(q query.Query, s *pb.ServiceRecord) (float64, bool) {
	h := s.GetHealth()
	switch {
	case q.Sort == query.SortDistance || q.Sort == query.SortDefault && q.Near != nil:
		return naiveDistance(q, s), true
	case q.Sort == query.SortPrice:
		return naivePrice(q, s), true
	case q.Claims == query.ClaimsCheck && (q.Sort == query.SortUptime || q.Sort == query.SortResponseTime):
		return 0, false // measurements alone rank
	case q.Sort == query.SortUptime && h != nil && h.UptimePercent != nil:
		return -*h.UptimePercent, true
	case q.Sort == query.SortResponseTime && h != nil && h.ResponseTimeMs != nil:
		return float64(*h.ResponseTimeMs), true
	case q.Sort == query.SortUptime || q.Sort == query.SortResponseTime:
		return math.Inf(1), true
	default:
		return 0, false
	}
}
