package records

import (
	"cmp"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// Lengths of the geohash in a record's own key.
const (
	MinPrecision     = 4
	MaxPrecision     = 12
	DefaultPrecision = 6 // for the value 0 in a record
)

// Limits of a record's parts; lengths in bytes.
const (
	maxID          = 64
	maxType        = 32
	maxName        = 128
	maxDescription = 1024
	maxVersion     = 64
	maxEndpoints   = 16
	maxEndpoint    = 256
	maxDomain      = 253
	maxLabel       = 63 // bytes of a part of a domain
	maxWords       = 16 // in a list of protocols, classes or engines
	maxWord        = 64
	maxAttributes  = 32
	maxAttribute   = 256
	maxRegions     = 64
	maxCountries   = 256
	maxGPUs        = 64
	maxPlaceName   = 128
	maxTiers       = 16
	maxCurrency    = 16
	maxPriceUnit   = 32
	maxErrorRate   = 10000
)

const (
	lower   = "abcdefghijklmnopqrstuvwxyz"
	upper   = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits  = "0123456789"
	idChars = upper + lower + digits + "._-"
)

// validate checks a whole message except its signer and the current time. It returns the first
// Invalid error, with the field's JSON name.
func validate(s *pb.ServiceRecord) error {
	if err := cmp.Or(validateStamp(s), validateCritical(s.Critical), validatePause(s), validateContent(s)); err != nil || !s.Withdrawn {
		return err
	}
	if known := withoutUnknown(s); !proto.Equal(known, bare(known)) {
		return fault.Invalidf("withdrawn", nil, "a withdrawn record may carry only identity, type, subtype, place, times and sequence")
	}
	return nil
}

// validateContent checks the provider's part. A withdrawn record may lack its capabilities.
func validateContent(s *pb.ServiceRecord) error {
	return cmp.Or(
		CheckID("id", s.Id),
		fault.In("metadata", validateMetadata(s.Metadata)),
		fault.In("capabilities", validateCapabilities(s)),
		fault.In("location", validateLocation(s.Location)),
		fault.In("pricing", validatePricing(s.Pricing)),
		fault.In("health", validateHealth(s.Health)),
	)
}

// validateStamp checks the part added at signing.
func validateStamp(s *pb.ServiceRecord) error {
	if err := cmp.Or(
		instant("created_at", s.CreatedAt),
		instant("updated_at", s.UpdatedAt),
		instant("expires_at", s.ExpiresAt),
	); err != nil {
		return err
	}
	created, updated, expires := s.CreatedAt.AsTime(), s.UpdatedAt.AsTime(), s.ExpiresAt.AsTime()
	ttl := expires.Sub(updated)
	switch {
	case created.After(updated):
		return fault.Invalidf("created_at", created, "must not be after updated_at")
	case ttl <= 0:
		return fault.Invalidf("expires_at", expires, "must be after updated_at")
	case ttl > MaxTTL:
		return fault.Invalidf("expires_at", expires, "must be at most %v after updated_at", MaxTTL)
	case s.Sequence == 0:
		return fault.Invalidf("sequence", s.Sequence, "must be positive")
	case len(s.Signature) > 0:
		return fault.Invalidf("signature", nil, "must be empty before signing")
	}
	return nil
}

// validatePause checks that readers of every version leave a paused record out.
func validatePause(s *pb.ServiceRecord) error {
	p := s.Paused
	switch {
	case p == nil:
		return nil
	case s.Health.GetStatus() != pb.HealthStatus_UNHEALTHY:
		return fault.Invalidf("paused", nil, "needs the claimed health UNHEALTHY")
	case p.Until == nil:
		return fault.In("paused", instant("since", p.Since))
	}
	return fault.In("paused", cmp.Or(instant("since", p.Since), instant("until", p.Until)))
}

// CheckID checks the id of a record. Errors name the field.
func CheckID(field, id string) error {
	if id == "." || id == ".." {
		return fault.Invalidf(field, id, "must not be a path step, . or ..")
	}
	return token(field, id, maxID, idChars)
}

func validateMetadata(m *pb.ServiceMetadata) error {
	if m == nil {
		return fault.Invalidf("", nil, "is required")
	}
	return cmp.Or(
		CheckType("type", m.Type),
		optional(m.Subtype, func() error { return CheckType("subtype", m.Subtype) }),
		fault.Text("name", m.Name, maxName),
		fault.Text("description", m.Description, maxDescription),
		fault.Text("version", m.Version, maxVersion),
		list("endpoints", m.Endpoints, maxEndpoints, maxEndpoint),
		list("protocols", m.Protocols, maxWords, maxWord),
		validateAttributes(m.Attributes),
		optional(m.Domain, func() error { return checkDomain("domain", m.Domain) }),
		fault.In("stock", validateStock(m.Stock)),
		validateAccess(m),
	)
}

// Times of one grant.
const (
	DefaultGrantTTL = time.Hour
	MaxGrantTTL     = 30 * 24 * time.Hour
)

func validateStock(s *pb.Stock) error {
	switch longest := uint32(MaxGrantTTL / time.Second); {
	case s == nil:
		return nil
	case s.Total == 0:
		return fault.Invalidf("total", s.Total, "must be at least 1")
	case s.MaxTtl > longest:
		return fault.Invalidf("max_ttl", s.MaxTtl, "must be at most %d seconds", longest)
	case s.MaxPerConsumer > s.Total:
		return fault.Invalidf("max_per_consumer", s.MaxPerConsumer, "must be at most total, %d", s.Total)
	}
	return CheckType("unit", s.Unit)
}

// validateAccess allows ways of access that this version does not know, in the form of a type: a reader takes them for none.
func validateAccess(m *pb.ServiceMetadata) error {
	if m.Access == "" {
		return nil
	}
	if m.Stock == nil {
		return fault.Invalidf("access", m.Access, "needs stock: only holders of grants have access")
	}
	return CheckType("access", m.Access)
}

// CheckDomain requires Domain to be a domain name: at most 253 bytes, two or more parts of 1 to 63 lower-case letters, digits and inner
// "-", the last of which begins with a letter. The error is Invalid and names the field "domain".
func (m Metadata) CheckDomain() error { return checkDomain("domain", m.Domain) }

func checkDomain(field, s string) error {
	parts := strings.Split(s, ".")
	if last := parts[len(parts)-1]; len(parts) < 2 || last == "" || strings.Contains(digits, last[:1]) {
		return fault.Invalidf(field, s, "must be a domain name, such as shop.example.com")
	}
	for _, part := range parts {
		if part == "" || strings.HasPrefix(part, "-") || strings.HasSuffix(part, "-") || len(part) > maxLabel {
			return fault.Invalidf(field, s, "must have parts of 1 to %d letters, digits and inner '-', separated by dots", maxLabel)
		}
	}
	return token(field, s, maxDomain, lower+digits+"-.")
}

// CheckType requires a service type or subtype: 1 to 32 lower-case letters, digits and "-". The
// error is Invalid and names the field.
func CheckType(field, s string) error { return token(field, s, maxType, lower+digits+"-") }

func validateAttributes(attributes map[string]string) error {
	if len(attributes) > maxAttributes {
		return fault.Invalidf("attributes", len(attributes), "must be at most %d", maxAttributes)
	}
	for _, key := range sortedKeys(attributes) {
		if err := token("attributes", key, maxID, idChars+"/"); err != nil {
			return err
		}
		if err := fault.Text(key, attributes[key], maxAttribute); err != nil {
			return fault.In("attributes", err)
		}
	}
	return nil
}

// validateCapabilities requires the capabilities of the type and refuses all others.
func validateCapabilities(s *pb.ServiceRecord) error {
	c := s.Capabilities
	kinds := [...]struct {
		name  string
		given bool
	}{
		{"storage", c.GetStorage() != nil},
		{"compute", c.GetCompute() != nil},
		{"cdn", c.GetCdn() != nil},
		{"bandwidth", c.GetBandwidth() != nil},
	}
	for _, kind := range kinds {
		switch wanted := kind.name == s.Metadata.GetType(); {
		case kind.given && !wanted:
			return fault.Invalidf(kind.name, nil, "does not belong to a service of type %q", s.Metadata.GetType())
		case wanted && !kind.given && !s.Withdrawn:
			return fault.Invalidf(kind.name, nil, "is required for a service of type %q", kind.name)
		}
	}
	return cmp.Or(
		fault.In("storage", validateStorage(c.GetStorage())),
		fault.In("compute", validateCompute(c.GetCompute())),
		fault.In("cdn", validateCDN(c.GetCdn())),
		fault.In("bandwidth", validateBandwidth(c.GetBandwidth())),
	)
}

func validateStorage(c *pb.StorageCapabilities) error {
	if c.GetTotalSpace() > 0 && c.GetAvailableSpace() > c.GetTotalSpace() {
		return fault.Invalidf("available_space", c.GetAvailableSpace(), "must be at most total_space, %d", c.GetTotalSpace())
	}
	return list("storage_classes", c.GetStorageClasses(), maxWords, maxWord)
}

func validateCompute(c *pb.ComputeCapabilities) error {
	if n := len(c.GetGpus()); n > maxGPUs {
		return fault.Invalidf("gpus", n, "must be at most %d", maxGPUs)
	}
	for i, gpu := range c.GetGpus() {
		if err := fault.Text("model", gpu.GetModel(), maxWord); err != nil {
			return fault.In("gpus", fault.In(index(i), err))
		}
	}
	return list("runtime_engines", c.GetRuntimeEngines(), maxWords, maxWord)
}

func validateCDN(c *pb.CDNCapabilities) error {
	return cmp.Or(
		list("regions", c.GetRegions(), maxRegions, maxWord),
		list("cache_types", c.GetCacheTypes(), maxWords, maxWord),
	)
}

func validateBandwidth(c *pb.BandwidthCapabilities) error {
	if n := len(c.GetExitCountries()); n > maxCountries {
		return fault.Invalidf("exit_countries", n, "must be at most %d", maxCountries)
	}
	for i, code := range c.GetExitCountries() {
		if err := country("", code); err != nil {
			return fault.In("exit_countries", fault.In(index(i), err))
		}
	}
	return list("protocols", c.GetProtocols(), maxWords, maxWord)
}

func validateLocation(l *pb.GeoLocation) error {
	if l == nil {
		return nil
	}
	switch {
	case l.Latitude == nil && l.Longitude != nil:
		return fault.Invalidf("latitude", nil, "is required with longitude")
	case l.Longitude == nil && l.Latitude != nil:
		return fault.Invalidf("longitude", nil, "is required with latitude")
	case l.Precision != 0 && l.Latitude == nil:
		return fault.Invalidf("precision", l.Precision, "needs latitude and longitude")
	case l.Precision != 0 && (l.Precision < MinPrecision || l.Precision > MaxPrecision):
		return fault.Invalidf("precision", l.Precision, "must be 0 or %d to %d", MinPrecision, MaxPrecision)
	}
	if l.Latitude != nil {
		if _, err := geo.NewPoint(*l.Latitude, *l.Longitude); err != nil {
			return err
		}
	}
	return cmp.Or(
		optional(l.Country, func() error { return country("country", l.Country) }),
		fault.Text("region", l.Region, maxPlaceName),
		fault.Text("city", l.City, maxPlaceName),
		fault.Text("isp", l.Isp, maxPlaceName),
	)
}

func validatePricing(p *pb.PricingInfo) error {
	if p == nil {
		return nil
	}
	rated := p.BasePrice != nil || len(p.TierPricing) > 0
	switch {
	case p.Currency == "" && (rated || p.MinimumCommitment != nil):
		return fault.Invalidf("currency", nil, "is required with a price")
	case p.PriceUnit == "" && rated:
		return fault.Invalidf("price_unit", nil, "is required with a price")
	case len(p.TierPricing) > maxTiers:
		return fault.Invalidf("tier_pricing", len(p.TierPricing), "must be at most %d", maxTiers)
	}
	for _, tier := range sortedKeys(p.TierPricing) {
		price := p.TierPricing[tier]
		if err := word("tier_pricing", tier, maxWord); err != nil {
			return err
		}
		if err := CheckNumber(tier, &price, 0, math.MaxFloat64); err != nil {
			return fault.In("tier_pricing", err)
		}
	}
	return cmp.Or(
		optional(p.Currency, func() error { return token("currency", p.Currency, maxCurrency, idChars) }),
		optional(p.PriceUnit, func() error { return token("price_unit", p.PriceUnit, maxPriceUnit, idChars+"/") }),
		CheckNumber("base_price", p.BasePrice, 0, math.MaxFloat64),
		CheckNumber("minimum_commitment", p.MinimumCommitment, 0, math.MaxFloat64),
	)
}

func validateHealth(h *pb.HealthStatus) error {
	if h == nil {
		return nil
	}
	if h.GetErrorRate() > maxErrorRate {
		return fault.Invalidf("error_rate", h.GetErrorRate(), "must be at most %d", maxErrorRate)
	}
	if h.LastCheck != nil {
		if err := instant("last_check", h.LastCheck); err != nil {
			return err
		}
	}
	return CheckNumber("uptime_percent", h.UptimePercent, 0, 100)
}

// optional runs a check unless s is empty.
func optional(s string, check func() error) error {
	if s == "" {
		return nil
	}
	return check()
}

// token requires 1 to limit characters of the given ASCII set.
func token(field, s string, limit int, chars string) error {
	switch {
	case s == "":
		return fault.Invalidf(field, nil, "is required")
	case len(s) > limit:
		return fault.Invalidf(field, nil, "must be at most %d bytes, not %d", limit, len(s))
	}
	for i := range len(s) {
		if strings.IndexByte(chars, s[i]) < 0 {
			return fault.Invalidf(field, s, "must contain only %s", describe(chars))
		}
	}
	return nil
}

// describe names a character set by its case and punctuation.
func describe(chars string) string {
	punctuation := strings.TrimLeft(chars, upper+lower+digits)
	if !strings.Contains(chars, upper) {
		return "lower-case letters, digits and '" + punctuation + "'"
	}
	return "letters, digits and '" + punctuation + "'"
}

// word checks a non-empty text.
func word(field, s string, limit int) error {
	if s == "" {
		return fault.Invalidf(field, nil, "must not be empty")
	}
	return fault.Text(field, s, limit)
}

// list limits the number and length of words.
func list(field string, words []string, count, limit int) error {
	if len(words) > count {
		return fault.Invalidf(field, len(words), "must be at most %d", count)
	}
	for i, s := range words {
		if err := word("", s, limit); err != nil {
			return fault.In(field, fault.In(index(i), err))
		}
	}
	return nil
}

// country requires the form of an ISO 3166-1 alpha-2 code.
func country(field, code string) error {
	if len(code) != 2 || strings.Trim(code, upper) != "" {
		return fault.Invalidf(field, code, "must be two upper-case letters (ISO 3166-1 alpha-2)")
	}
	return nil
}

// CheckNumber requires a finite value between low and high. Nil passes. The error is Invalid and
// names the field.
func CheckNumber(field string, v *float64, low, high float64) error {
	switch {
	case v == nil, *v >= low && *v <= high: // false for NaN
		return nil
	case high == math.MaxFloat64:
		return fault.Invalidf(field, *v, "must be a number of at least %v", low)
	default:
		return fault.Invalidf(field, *v, "must be between %v and %v", low, high)
	}
}

// instant requires a time of the years 1 to 9999.
func instant(field string, t *timestamppb.Timestamp) error {
	if t == nil {
		return fault.Invalidf(field, nil, "is required")
	}
	if err := t.CheckValid(); err != nil {
		return fault.Invalidf(field, nil, "must be a time in the years 1 to 9999")
	}
	return nil
}
