package records_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/blackhole/blackhole/internal/discovery/recordstest"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// spoil is one change of a valid record, harmful or harmless.
type spoil struct {
	field string // field at fault; "" if the record stays valid
	do    func(*pb.ServiceRecord)
}

func with(field string, do func(*pb.ServiceRecord)) spoil { return spoil{field, do} }

// as converts a storage record to another kind.
func as(s *pb.ServiceRecord, kind string) *pb.ServiceCapabilities {
	s.Metadata.Type = kind
	s.Capabilities = &pb.ServiceCapabilities{}
	switch kind {
	case "compute":
		s.Capabilities.Compute = &pb.ComputeCapabilities{}
	case "cdn":
		s.Capabilities.Cdn = &pb.CDNCapabilities{}
	case "bandwidth":
		s.Capabilities.Bandwidth = &pb.BandwidthCapabilities{}
	}
	return s.Capabilities
}

func ids(n int) []string { return slices.Repeat([]string{"x"}, n) }

func numbered(n int) map[string]string {
	m := make(map[string]string, n)
	for i := range n {
		m[fmt.Sprintf("k%d", i)] = ""
	}
	return m
}

func tiers(n int) map[string]float64 {
	m := make(map[string]float64, n)
	for i := range n {
		m[fmt.Sprintf("t%d", i)] = float64(i)
	}
	return m
}

func content() []spoil {
	long := func(n int) string { return strings.Repeat("a", n) }
	var rules []spoil
	for _, text := range []struct {
		field string
		set   func(*pb.ServiceRecord, string)
		limit int
	}{
		{"metadata.name", func(s *pb.ServiceRecord, v string) { s.Metadata.Name = v }, 128},
		{"metadata.description", func(s *pb.ServiceRecord, v string) { s.Metadata.Description = v }, 1024},
		{"metadata.version", func(s *pb.ServiceRecord, v string) { s.Metadata.Version = v }, 64},
		{"location.region", func(s *pb.ServiceRecord, v string) { s.Location.Region = v }, 128},
		{"location.city", func(s *pb.ServiceRecord, v string) { s.Location.City = v }, 128},
		{"location.isp", func(s *pb.ServiceRecord, v string) { s.Location.Isp = v }, 128},
		{"metadata.attributes.k", func(s *pb.ServiceRecord, v string) { s.Metadata.Attributes["k"] = v }, 256},
	} {
		rules = append(rules,
			with("", func(s *pb.ServiceRecord) { text.set(s, "") }),
			with("", func(s *pb.ServiceRecord) { text.set(s, "Köln, 日本") }),
			with("", func(s *pb.ServiceRecord) { text.set(s, long(text.limit)) }),
			with(text.field, func(s *pb.ServiceRecord) { text.set(s, long(text.limit+1)) }),
			with(text.field, func(s *pb.ServiceRecord) { text.set(s, "a\nb") }),
			with(text.field, func(s *pb.ServiceRecord) { text.set(s, "a\u009bb") }),
		)
	}
	for _, list := range []struct {
		field string
		set   func(*pb.ServiceRecord, []string)
		count int
		limit int
	}{
		{"metadata.endpoints", func(s *pb.ServiceRecord, v []string) { s.Metadata.Endpoints = v }, 16, 256},
		{"metadata.protocols", func(s *pb.ServiceRecord, v []string) { s.Metadata.Protocols = v }, 16, 64},
		{"capabilities.storage.storage_classes", func(s *pb.ServiceRecord, v []string) { s.Capabilities.Storage.StorageClasses = v }, 16, 64},
		{"capabilities.compute.runtime_engines", func(s *pb.ServiceRecord, v []string) { as(s, "compute").Compute.RuntimeEngines = v }, 16, 64},
		{"capabilities.cdn.regions", func(s *pb.ServiceRecord, v []string) { as(s, "cdn").Cdn.Regions = v }, 64, 64},
		{"capabilities.cdn.cache_types", func(s *pb.ServiceRecord, v []string) { as(s, "cdn").Cdn.CacheTypes = v }, 16, 64},
		{"capabilities.bandwidth.protocols", func(s *pb.ServiceRecord, v []string) { as(s, "bandwidth").Bandwidth.Protocols = v }, 16, 64},
	} {
		rules = append(rules,
			with("", func(s *pb.ServiceRecord) { list.set(s, nil) }),
			with("", func(s *pb.ServiceRecord) { list.set(s, ids(list.count)) }),
			with("", func(s *pb.ServiceRecord) { list.set(s, []string{long(list.limit)}) }),
			with(list.field, func(s *pb.ServiceRecord) { list.set(s, ids(list.count+1)) }),
			with(list.field+"[1]", func(s *pb.ServiceRecord) { list.set(s, []string{"x", long(list.limit + 1)}) }),
			with(list.field+"[0]", func(s *pb.ServiceRecord) { list.set(s, []string{""}) }),
			with(list.field+"[0]", func(s *pb.ServiceRecord) { list.set(s, []string{"\x00"}) }),
		)
	}
	return slices.Concat(rules, identity(), kinds(), places(), prices(), conditions())
}

func identity() []spoil {
	var rules []spoil
	for id, good := range map[string]bool{
		"": false, ".": false, "..": false, "a/b": false, "a b": false, "é": false, "a\x00": false, "_": true, "...": true,
		"A-z_0.9": true, strings.Repeat("a", 64): true, strings.Repeat("a", 65): false,
	} {
		field := "id"
		if good {
			field = ""
		}
		rules = append(rules, with(field, func(s *pb.ServiceRecord) { s.Id = id }))
	}
	for _, name := range []string{"GPU", "a_b", "a/b", "ü", strings.Repeat("a", 33)} {
		rules = append(rules,
			with("metadata.type", func(s *pb.ServiceRecord) { s.Capabilities = nil; s.Metadata.Type = name }),
			with("metadata.subtype", func(s *pb.ServiceRecord) { s.Metadata.Subtype = name }),
		)
	}
	return append(rules,
		with("metadata", func(s *pb.ServiceRecord) { s.Metadata = nil }),
		with("metadata.type", func(s *pb.ServiceRecord) { s.Metadata.Type = "" }),
		with("", func(s *pb.ServiceRecord) { s.Metadata.Subtype = "" }),
		with("", func(s *pb.ServiceRecord) { s.Metadata.Subtype = strings.Repeat("0", 32) }),
		with("", func(s *pb.ServiceRecord) { s.Metadata.Attributes = numbered(32) }),
		with("metadata.access", func(s *pb.ServiceRecord) { s.Metadata.Access = "peer" }),
		with("metadata.access", func(s *pb.ServiceRecord) { s.Metadata.Access, s.Metadata.Stock = "Peer", stock(2, 0, 0) }),
		with("", func(s *pb.ServiceRecord) { s.Metadata.Access, s.Metadata.Stock = "later", stock(2, 3600, 2) }),
		with("metadata.stock.total", func(s *pb.ServiceRecord) { s.Metadata.Stock = stock(0, 0, 0) }),
		with("metadata.stock.max_ttl", func(s *pb.ServiceRecord) { s.Metadata.Stock = stock(2, 30*24*3600+1, 0) }),
		with("metadata.stock.max_per_consumer", func(s *pb.ServiceRecord) { s.Metadata.Stock = stock(2, 0, 3) }),
		with("metadata.stock.unit", func(s *pb.ServiceRecord) { s.Metadata.Stock = &pb.Stock{Total: 1} }),
		with("metadata.domain", func(s *pb.ServiceRecord) { s.Metadata.Domain = "net" }),
		with("metadata.domain", func(s *pb.ServiceRecord) { s.Metadata.Domain = "Shop.net" }),
		with("metadata.domain", func(s *pb.ServiceRecord) { s.Metadata.Domain = "shop.net." }),
		with("metadata.domain", func(s *pb.ServiceRecord) { s.Metadata.Domain = "-shop.net" }),
		with("metadata.domain", func(s *pb.ServiceRecord) { s.Metadata.Domain = "shop.net:domain" }),
		with("metadata.domain", func(s *pb.ServiceRecord) { s.Metadata.Domain = "192.0.2.1" }),
		with("metadata.domain", func(s *pb.ServiceRecord) { s.Metadata.Domain = strings.Repeat("a", 64) + ".net" }),
		with("metadata.domain", func(s *pb.ServiceRecord) { s.Metadata.Domain = strings.Repeat("a.", 126) + "net" }),
		with("metadata.attributes", func(s *pb.ServiceRecord) { s.Metadata.Attributes = numbered(33) }),
		with("metadata.attributes", func(s *pb.ServiceRecord) { s.Metadata.Attributes[""] = "" }),
		with("metadata.attributes", func(s *pb.ServiceRecord) { s.Metadata.Attributes["a b"] = "" }),
		with("metadata.attributes", func(s *pb.ServiceRecord) { s.Metadata.Attributes[strings.Repeat("a", 65)] = "" }),
		with("", func(s *pb.ServiceRecord) { s.Metadata.Attributes["example.org/Rack_1-a"] = "" }),
	)
}

func kinds() []spoil {
	rules := []spoil{
		with("", func(s *pb.ServiceRecord) { s.Metadata.Type, s.Capabilities = "dns-relay", nil }),
		with("", func(s *pb.ServiceRecord) { as(s, "dns-relay") }),
		with("capabilities.storage", func(s *pb.ServiceRecord) { s.Metadata.Type = "dns-relay" }),
		with("capabilities.storage", func(s *pb.ServiceRecord) { s.Capabilities = nil }),
		with("capabilities.storage", func(s *pb.ServiceRecord) { s.Capabilities.Storage = nil }),
		with("capabilities.compute", func(s *pb.ServiceRecord) { s.Capabilities.Compute = &pb.ComputeCapabilities{} }),
		with("capabilities.cdn", func(s *pb.ServiceRecord) { s.Capabilities.Cdn = &pb.CDNCapabilities{} }),
		with("capabilities.bandwidth", func(s *pb.ServiceRecord) { s.Capabilities.Bandwidth = &pb.BandwidthCapabilities{} }),
		with("capabilities.storage.available_space", func(s *pb.ServiceRecord) { s.Capabilities.Storage.AvailableSpace = 5_000_000_000_001 }),
		with("", func(s *pb.ServiceRecord) { s.Capabilities.Storage.TotalSpace = 0 }),
	}
	for _, kind := range []string{"compute", "cdn", "bandwidth"} {
		rules = append(rules,
			with("", func(s *pb.ServiceRecord) { as(s, kind) }),
			with("capabilities."+kind, func(s *pb.ServiceRecord) { as(s, kind); s.Capabilities = nil }),
		)
	}
	gpus := func(n int) []*pb.GPUInfo { return slices.Repeat([]*pb.GPUInfo{{Model: "A100"}}, n) }
	countries := func(n int) []string { return slices.Repeat([]string{"NL"}, n) }
	return append(rules,
		with("", func(s *pb.ServiceRecord) { as(s, "compute").Compute.Gpus = gpus(64) }),
		with("capabilities.compute.gpus", func(s *pb.ServiceRecord) { as(s, "compute").Compute.Gpus = gpus(65) }),
		with("capabilities.compute.gpus[0].model", func(s *pb.ServiceRecord) {
			as(s, "compute").Compute.Gpus = []*pb.GPUInfo{{Model: strings.Repeat("a", 65)}}
		}),
		with("", func(s *pb.ServiceRecord) { as(s, "bandwidth").Bandwidth.ExitCountries = countries(256) }),
		with("capabilities.bandwidth.exit_countries", func(s *pb.ServiceRecord) { as(s, "bandwidth").Bandwidth.ExitCountries = countries(257) }),
		with("capabilities.bandwidth.exit_countries[1]", func(s *pb.ServiceRecord) {
			as(s, "bandwidth").Bandwidth.ExitCountries = []string{"NL", "nl"}
		}),
	)
}

func places() []spoil {
	at := func(lat, lon float64) func(*pb.ServiceRecord) {
		return func(s *pb.ServiceRecord) { s.Location.Latitude, s.Location.Longitude = &lat, &lon }
	}
	rules := []spoil{
		with("", func(s *pb.ServiceRecord) { s.Location = nil }),
		with("", func(s *pb.ServiceRecord) { s.Location = &pb.GeoLocation{} }),
		with("", at(0, 0)), with("", at(90, 180)), with("", at(-90, -180)),
		with("location.latitude", at(90.001, 0)), with("location.latitude", at(-90.001, 0)),
		with("location.longitude", at(0, 180.001)), with("location.longitude", at(0, -180.001)),
		with("location.latitude", at(math.NaN(), 0)), with("location.longitude", at(0, math.NaN())),
		with("location.latitude", at(math.Inf(1), 0)), with("location.longitude", at(0, math.Inf(-1))),
		with("location.latitude", func(s *pb.ServiceRecord) { s.Location.Latitude = nil }),
		with("location.longitude", func(s *pb.ServiceRecord) { s.Location.Longitude = nil }),
		with("location.precision", func(s *pb.ServiceRecord) { s.Location = &pb.GeoLocation{Precision: 6} }),
	}
	for precision, good := range map[uint32]bool{0: true, 1: false, 3: false, 4: true, 12: true, 13: false, math.MaxUint32: false} {
		field := "location.precision"
		if good {
			field = ""
		}
		rules = append(rules, with(field, func(s *pb.ServiceRecord) { s.Location.Precision = precision }))
	}
	for code, good := range map[string]bool{"": true, "DE": true, "de": false, "D": false, "DEU": false, "D1": false, "Ä": false} {
		field := "location.country"
		if good {
			field = ""
		}
		rules = append(rules, with(field, func(s *pb.ServiceRecord) { s.Location.Country = code }))
	}
	return rules
}

func prices() []spoil {
	rules := []spoil{
		with("", func(s *pb.ServiceRecord) { s.Pricing = nil }),
		with("", func(s *pb.ServiceRecord) { s.Pricing = &pb.PricingInfo{} }),
		with("pricing.currency", func(s *pb.ServiceRecord) { s.Pricing.Currency = "" }),
		with("pricing.price_unit", func(s *pb.ServiceRecord) { s.Pricing.PriceUnit = "" }),
		with("pricing.currency", func(s *pb.ServiceRecord) { s.Pricing.Currency = "US D" }),
		with("pricing.currency", func(s *pb.ServiceRecord) { s.Pricing.Currency = strings.Repeat("A", 17) }),
		with("pricing.price_unit", func(s *pb.ServiceRecord) { s.Pricing.PriceUnit = "per hour" }),
		with("pricing.price_unit", func(s *pb.ServiceRecord) { s.Pricing.PriceUnit = strings.Repeat("a", 33) }),
		with("pricing.price_unit", func(s *pb.ServiceRecord) { s.Pricing = &pb.PricingInfo{Currency: "EUR", BasePrice: p(1.0)} }),
		with("pricing.price_unit", func(s *pb.ServiceRecord) { s.Pricing = &pb.PricingInfo{Currency: "EUR", TierPricing: tiers(1)} }),
		with("pricing.currency", func(s *pb.ServiceRecord) { s.Pricing = &pb.PricingInfo{MinimumCommitment: p(1.0)} }),
		with("", func(s *pb.ServiceRecord) { s.Pricing = &pb.PricingInfo{Currency: "EUR", MinimumCommitment: p(1.0)} }),
		with("", func(s *pb.ServiceRecord) { s.Pricing.TierPricing = tiers(16) }),
		with("pricing.tier_pricing", func(s *pb.ServiceRecord) { s.Pricing.TierPricing = tiers(17) }),
		with("pricing.tier_pricing", func(s *pb.ServiceRecord) { s.Pricing.TierPricing = map[string]float64{"": 1} }),
		with("pricing.tier_pricing", func(s *pb.ServiceRecord) {
			s.Pricing.TierPricing = map[string]float64{strings.Repeat("1", 65): 1}
		}),
		with("pricing.tier_pricing.1+", func(s *pb.ServiceRecord) { s.Pricing.TierPricing = map[string]float64{"1+": -1} }),
	}
	for _, v := range []float64{-0.01, math.NaN(), math.Inf(1), math.Inf(-1)} {
		rules = append(rules,
			with("pricing.base_price", func(s *pb.ServiceRecord) { s.Pricing.BasePrice = &v }),
			with("pricing.minimum_commitment", func(s *pb.ServiceRecord) { s.Pricing.MinimumCommitment = &v }),
			with("pricing.tier_pricing.t", func(s *pb.ServiceRecord) { s.Pricing.TierPricing = map[string]float64{"t": v} }),
		)
	}
	return append(rules, with("", func(s *pb.ServiceRecord) { s.Pricing.BasePrice = p(0.0) }))
}

func conditions() []spoil {
	rules := []spoil{
		with("", func(s *pb.ServiceRecord) { s.Health = nil }),
		with("", func(s *pb.ServiceRecord) { s.Health = &pb.HealthStatus{} }),
		with("", func(s *pb.ServiceRecord) { s.Health.ErrorRate = p(uint32(10000)) }),
		with("health.error_rate", func(s *pb.ServiceRecord) { s.Health.ErrorRate = p(uint32(10001)) }),
		with("", func(s *pb.ServiceRecord) { s.Health.LastCheck = timestamppb.New(t0()) }),
		with("health.last_check", func(s *pb.ServiceRecord) { s.Health.LastCheck = &timestamppb.Timestamp{Seconds: math.MinInt64} }),
	}
	for v, good := range map[float64]bool{0: true, 100: true, -0.1: false, 100.1: false, math.Inf(1): false} {
		field := "health.uptime_percent"
		if good {
			field = ""
		}
		rules = append(rules, with(field, func(s *pb.ServiceRecord) { s.Health.UptimePercent = &v }))
	}
	return append(rules, with("health.uptime_percent", func(s *pb.ServiceRecord) { s.Health.UptimePercent = p(math.NaN()) }))
}

func stamps() []spoil {
	day := func(h time.Duration) *timestamppb.Timestamp { return timestamppb.New(t0().Add(h)) }
	broken := &timestamppb.Timestamp{Nanos: 1e9}
	return []spoil{
		with("created_at", func(s *pb.ServiceRecord) { s.CreatedAt = nil }),
		with("updated_at", func(s *pb.ServiceRecord) { s.UpdatedAt = nil }),
		with("expires_at", func(s *pb.ServiceRecord) { s.ExpiresAt = nil }),
		with("created_at", func(s *pb.ServiceRecord) { s.CreatedAt = broken }),
		with("updated_at", func(s *pb.ServiceRecord) { s.UpdatedAt = broken }),
		with("expires_at", func(s *pb.ServiceRecord) { s.ExpiresAt = broken }),
		with("created_at", func(s *pb.ServiceRecord) { s.CreatedAt = day(1) }),
		with("", func(s *pb.ServiceRecord) { s.CreatedAt = day(-10000 * time.Hour) }),
		with("expires_at", func(s *pb.ServiceRecord) { s.ExpiresAt = s.UpdatedAt }),
		with("expires_at", func(s *pb.ServiceRecord) { s.ExpiresAt = day(-time.Hour) }),
		with("expires_at", func(s *pb.ServiceRecord) { s.ExpiresAt = day(records.MaxTTL + 1) }),
		with("expires_at", func(s *pb.ServiceRecord) { s.ExpiresAt = &timestamppb.Timestamp{Seconds: 253402300799} }),
		with("", func(s *pb.ServiceRecord) { s.ExpiresAt = day(records.MaxTTL) }),
		with("sequence", func(s *pb.ServiceRecord) { s.Sequence = 0 }),
		with("signature", func(s *pb.ServiceRecord) { s.Signature = []byte{1} }),
		with("withdrawn", func(s *pb.ServiceRecord) { s.Withdrawn = true }),
	}
}

// check expects the error that a rule names, or none.
func check(t *testing.T, rule spoil, err error) {
	t.Helper()
	if rule.field == "" {
		require.NoError(t, err)
		return
	}
	require.ErrorIs(t, err, fault.Invalid)
	require.Equal(t, rule.field, fault.FieldOf(err))
}

func TestRules(t *testing.T) {
	for i, rule := range slices.Concat(content(), stamps()) {
		t.Run(fmt.Sprintf("%d %s", i, rule.field), func(t *testing.T) {
			s := message(t)
			rule.do(s)
			_, err := records.Open("test", recordstest.Sign(t, "test", key(t, 1), s), t0())
			check(t, rule, err)
		})
	}
}

func TestRulesOfOffers(t *testing.T) {
	for i, rule := range content() {
		t.Run(fmt.Sprintf("%d %s", i, rule.field), func(t *testing.T) {
			s := storage().Service()
			rule.do(s)
			if rule.field != "metadata" { // an offer always has metadata
				check(t, rule, records.OfferOf(s).Validate())
				_, err := records.Sign("test", key(t, 1), records.OfferOf(s), stamp())
				check(t, rule, err)
			}
		})
	}
}

func TestOffersOfTheProgramAreText(t *testing.T) {
	o := storage()
	o.Metadata.Name = "\xff"
	require.Equal(t, "metadata.name", fault.FieldOf(o.Validate()))
	o = storage()
	o.Health.Status = "FINE"
	_, err := records.Sign("test", key(t, 1), o, stamp())
	require.Equal(t, "health.status", fault.FieldOf(err))
}

func TestTombstonesAreBare(t *testing.T) {
	gone := func() *pb.ServiceRecord {
		s := message(t)
		return &pb.ServiceRecord{
			Id: s.Id, ProviderId: s.ProviderId, CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt, ExpiresAt: s.ExpiresAt,
			Sequence: 7, Withdrawn: true,
			Metadata: &pb.ServiceMetadata{Type: "storage", Subtype: "ssd"},
			Location: &pb.GeoLocation{Latitude: p(1.0), Longitude: p(2.0), Precision: 5},
		}
	}
	for name, rule := range map[string]spoil{
		"bare":            with("", func(*pb.ServiceRecord) {}),
		"without a place": with("", func(s *pb.ServiceRecord) { s.Location = nil }),
		"with a name":     with("withdrawn", func(s *pb.ServiceRecord) { s.Metadata.Name = "x" }),
		"with attributes": with("withdrawn", func(s *pb.ServiceRecord) { s.Metadata.Attributes = numbered(1) }),
		"with storage": with("withdrawn", func(s *pb.ServiceRecord) {
			s.Capabilities = &pb.ServiceCapabilities{Storage: &pb.StorageCapabilities{}}
		}),
		"with a country": with("withdrawn", func(s *pb.ServiceRecord) { s.Location.Country = "NL" }),
		"with a price":   with("withdrawn", func(s *pb.ServiceRecord) { s.Pricing = &pb.PricingInfo{} }),
		"with health":    with("withdrawn", func(s *pb.ServiceRecord) { s.Health = &pb.HealthStatus{} }),
		"without a type": with("metadata.type", func(s *pb.ServiceRecord) { s.Metadata.Type = "" }),
	} {
		t.Run(name, func(t *testing.T) {
			s := gone()
			rule.do(s)
			r, err := records.Open("test", recordstest.Sign(t, "test", key(t, 1), s), t0())
			check(t, rule, err)
			if err == nil {
				require.True(t, r.Withdrawn())
			}
		})
	}
}

func stock(total, maxTTL, one uint32) *pb.Stock {
	return &pb.Stock{Unit: "gpu", Total: total, MaxTtl: maxTTL, MaxPerConsumer: one}
}
