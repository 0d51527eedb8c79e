package query

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// Limits of the parts of a query. Limits of single values equal the limits of records, because
// no record states a greater value.
const (
	maxPlaces     = 64
	maxPlaceName  = 128
	maxCurrency   = 16
	maxPriceUnit  = 32
	maxAttributes = 32
	maxKey        = 64
	maxValue      = 256
	maxErrorRate  = 10000
	gigabyte      = 1_000_000_000
)

// The range of Near.RadiusKM.
const (
	MinRadiusKM = geo.MinRadius / 1000.0
	MaxRadiusKM = geo.MaxRadius / 1000.0
)

// Defaults complete a query. The zero value means DefaultLimit, MaxLimit and no radius.
type Defaults struct {
	Limit    int          // for a query without a limit; 0 means DefaultLimit, or MaxLimit if smaller
	MaxLimit int          // largest limit of a query; 0 means the constant MaxLimit
	RadiusKM float64      // for a place without a radius; 0 means no radius
	Claims   query.Claims // for a query without; empty means ClaimsTrust
}

// limits returns the default and the largest limit.
func (d Defaults) limits() (limit, most int) {
	limit, most = d.Limit, d.MaxLimit
	if most <= 0 {
		most = MaxLimit
	}
	if limit <= 0 {
		limit = DefaultLimit
	}
	return min(limit, most), most
}

// Fill adds the default limit, radius and weight of claims. Then AppendKey yields the key of the plan that Compile
// makes. The result shares lists with q. Fill never changes the values behind q's pointers.
func (d Defaults) Fill(q query.Query) query.Query {
	if q.Limit == 0 {
		q.Limit, _ = d.limits()
	}
	if q.Claims == "" {
		q.Claims = d.Claims
	}
	if q.Near != nil && q.Near.RadiusKM == nil && d.RadiusKM != 0 {
		q.Near = &query.Near{Latitude: q.Near.Latitude, Longitude: q.Near.Longitude, RadiusKM: &d.RadiusKM}
	}
	return q
}

// Compile validates a query and applies the defaults. The plan shares no memory with q. Errors
// are fault.Invalid and name the JSON field.
func Compile(q query.Query, d Defaults) (*Plan, error) {
	const op = "query.Compile"
	filled := d.Fill(q)
	filled.Type, filled.Types = kindsOf(&filled)
	p := &Plan{query: cloneQuery(&filled)}
	n := &p.query
	_, most := d.limits()
	if err := validate(n, most); err != nil {
		return nil, fault.Wrap(op, err)
	}
	if err := normalise(n); err != nil {
		return nil, fault.Wrap(op, err)
	}
	p.derive()
	return p, nil
}

// cloneQuery returns a deep copy.
func cloneQuery(q *query.Query) query.Query {
	c := *q
	if q.Near != nil {
		c.Near = &query.Near{Latitude: q.Near.Latitude, Longitude: q.Near.Longitude, RadiusKM: clonePtr(q.Near.RadiusKM)}
	}
	c.Countries = slices.Clone(q.Countries)
	c.Regions = slices.Clone(q.Regions)
	c.MaxPrice = clonePtr(q.MaxPrice)
	c.MinUptime = clonePtr(q.MinUptime)
	c.MaxErrorRate = clonePtr(q.MaxErrorRate)
	c.Attributes = maps.Clone(q.Attributes)
	c.Types = slices.Clone(q.Types)
	c.Volume = clonePtr(q.Volume)
	c.Where = slices.Clone(q.Where)
	for i := range c.Where {
		c.Where[i] = cloneClause(&c.Where[i])
	}
	return c
}

func clonePtr[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

// validate returns the first error.
func validate(q *query.Query, maxLimit int) error {
	return cmp.Or(
		validateSingle(q),
		records.CheckType("type", q.Type),
		optional(q.Subtype, func() error { return records.CheckType("subtype", q.Subtype) }),
		fault.In("near", validateNear(q.Near)),
		validatePlaces(q),
		validateCapacity(&q.Capacity),
		validatePrice(q),
		validateQuality(&q.Quality),
		validateAttributes(q),
		validateWhere(q.Where),
		validateDomain(q),
		validateOrder(q),
		validateAfter(q),
		validateLimit(q, maxLimit),
	)
}

// validateNear checks a place. Its errors name fields without "near".
func validateNear(n *query.Near) error {
	if n == nil {
		return nil
	}
	if _, err := geo.NewPoint(n.Latitude, n.Longitude); err != nil {
		return err
	}
	if r := n.RadiusKM; r != nil && !(*r >= MinRadiusKM && *r <= MaxRadiusKM) {
		return fault.Invalidf("radius_km", *r, "must be between %v and %v kilometres", MinRadiusKM, MaxRadiusKM)
	}
	return nil
}

func validatePlaces(q *query.Query) error {
	return cmp.Or(
		eachOf("countries", q.Countries, country),
		eachOf("regions", q.Regions, func(s string) error {
			if s == "" {
				return fault.Invalidf("", nil, "must not be empty")
			}
			return fault.Text("", s, maxPlaceName)
		}),
	)
}

func validateCapacity(c *query.Capacity) error {
	if c.MinStorageGB > math.MaxUint64/gigabyte {
		return fault.Invalidf("min_storage_gb", c.MinStorageGB, "must be at most %d", uint64(math.MaxUint64/gigabyte))
	}
	return nil
}

func validatePrice(q *query.Query) error {
	if err := cmp.Or(records.CheckNumber("max_price", q.MaxPrice, 0, math.MaxFloat64), validateVolume(q)); err != nil {
		return err
	}
	if !usesPrices(q) {
		const idle = "needs max_price or sort=price, because only those compare prices"
		switch {
		case q.Currency != "":
			return fault.Invalidf("currency", q.Currency, idle)
		case q.PriceUnit != "":
			return fault.Invalidf("price_unit", q.PriceUnit, idle)
		}
		return nil
	}
	currency, unit := pricingOf(q)
	if unit == "" {
		return fault.Invalidf("price_unit", nil, "is required for prices of type %s: the type has no default unit", q.Type)
	}
	return cmp.Or(code("currency", currency, maxCurrency), code("price_unit", unit, maxPriceUnit))
}

func validateQuality(q *query.Quality) error {
	if err := records.CheckNumber("min_uptime", q.MinUptime, 0, 100); err != nil {
		return err
	}
	if r := q.MaxErrorRate; r != nil && *r > maxErrorRate {
		return fault.Invalidf("max_error_rate", *r, "must be at most %d of 10000 requests", maxErrorRate)
	}
	if q.Health != query.HealthDefault && !slices.Contains(healths(), q.Health) {
		return fault.Invalidf("health", clip(string(q.Health)), "must be one of %s", oneOf(healths()))
	}
	return nil
}

func validateAttributes(q *query.Query) error {
	if n := len(q.Attributes); n > maxAttributes {
		return fault.Invalidf("attributes", n, "must be at most %d", maxAttributes)
	}
	for _, key := range slices.Sorted(maps.Keys(q.Attributes)) {
		if key == "" {
			return fault.Invalidf("attributes", nil, "contains an empty key")
		}
		if err := fault.Text("attributes", key, maxKey); err != nil {
			return err
		}
		if err := fault.Text("attributes."+key, q.Attributes[key], maxValue); err != nil {
			return err
		}
	}
	return nil
}

func validateDomain(q *query.Query) error {
	if q.Domain == "" || q.Domain == AnyDomain {
		return nil
	}
	return records.Metadata{Domain: q.Domain}.CheckDomain()
}

// allClauses are what records must pass: Where, and the claim of a domain.
func allClauses(q *query.Query) []query.Clause {
	switch q.Domain {
	case "":
		return q.Where
	case AnyDomain:
		return append(slices.Clip(q.Where), query.Clause{Field: "domain", Op: query.OpStated})
	default:
		return append(slices.Clip(q.Where), query.Clause{Field: "domain", Op: query.OpAny, Values: []string{q.Domain}})
	}
}

func validateOrder(q *query.Query) error {
	if q.Sort != query.SortDefault && !slices.Contains(sorts(), q.Sort) {
		return fault.Invalidf("sort", clip(string(q.Sort)), "must be one of %s", oneOf(sorts()))
	}
	if q.Claims != "" && !slices.Contains(weights(), q.Claims) {
		return fault.Invalidf("claims", clip(string(q.Claims)), "must be one of %s", oneOf(weights()))
	}
	if q.Sort == query.SortDistance && q.Near == nil {
		return fault.Invalidf("near", nil, "is required to sort by distance")
	}
	return nil
}

func validateLimit(q *query.Query, most int) error {
	if q.Limit < 1 || q.Limit > most {
		return fault.Invalidf("limit", q.Limit, "must be between 1 and %d, or 0 for the default", most)
	}
	return nil
}

// normalise converts a valid query to its canonical form, with the defaults that need no
// configuration.
func normalise(q *query.Query) error {
	q.Sort, q.Health, q.Seed, q.Claims = orderOf(q), healthOf(q), permutationOf(q), claimsOf(q)
	currency, unit := pricingOf(q)
	q.Currency, q.PriceUnit = upper(currency), Fold(unit)
	if q.Near != nil {
		p, err := geo.NewPoint(q.Near.Latitude, q.Near.Longitude)
		if err != nil {
			return fault.In("near", err)
		}
		q.Near.Latitude, q.Near.Longitude = p.Lat, p.Lon
	}
	if len(q.Attributes) == 0 {
		q.Attributes = nil
	}
	q.Where = canonicalWhere(q.Where)
	q.Countries = canonicalSet(q.Countries, upper)
	q.Regions = canonicalSet(q.Regions, Fold)
	return normaliseProvider(q)
}

func normaliseProvider(q *query.Query) error {
	if q.ProviderID == "" {
		return nil
	}
	id, err := peer.Decode(q.ProviderID)
	if err != nil {
		return fault.Invalidf("provider_id", clip(q.ProviderID), "must be a peer id: %w", err)
	}
	q.ProviderID = id.String()
	return nil
}

// canonicalSet spells, sorts and compacts a list in place. An empty list becomes nil.
func canonicalSet(list []string, spell func(string) string) []string {
	if len(list) == 0 {
		return nil
	}
	for i, s := range list {
		list[i] = spell(s)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// derive computes the plan's fields from the normalised query.
func (p *Plan) derive() {
	q := &p.query
	p.key = string(AppendKey(nil, q))
	if q.Near != nil {
		p.placed = true
		p.center = geo.Point{Lat: q.Near.Latitude, Lon: q.Near.Longitude}
		if q.Near.RadiusKM != nil {
			p.bounded = true
			p.radius = *q.Near.RadiusKM * 1000
		}
	}
	p.currency, p.unit = Fold(q.Currency), Fold(q.PriceUnit)
	p.filter = filterOf(q)
	p.where = testsOf(allClauses(q))
	p.columns = p.filter
	p.columns.Tiered = q.Volume != nil
	p.after = parsePosition(q.After)
	p.columns.Partial = p.columns.Tiered || !p.where.empty() || q.After != ""
	if q.Volume != nil {
		p.columns.MaxPrice, p.columns.Currency, p.columns.PriceUnit = math.Inf(1), "", ""
		p.columns.Need &^= records.KnownPrice
	}
	p.mixedSeed = mix(q.Seed)
	p.words = wordsFor(q)
}

// code checks a currency or price unit: printable ASCII without spaces.
func code(field, s string, limit int) error {
	if len(s) > limit || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fault.Invalidf(field, clip(s), "must be at most %d ASCII characters without spaces", limit)
	}
	return nil
}

// country checks an ISO 3166-1 alpha-2 code in either case.
func country(s string) error {
	letter := func(c byte) bool { return 'a' <= lower(c) && lower(c) <= 'z' }
	if len(s) != 2 || !letter(s[0]) || !letter(s[1]) {
		return fault.Invalidf("", clip(s), "must be a country code of two letters (ISO 3166-1 alpha-2)")
	}
	return nil
}

// eachOf checks a list of places. Errors name the element: "countries[1]".
func eachOf(field string, list []string, check func(string) error) error {
	if n := len(list); n > maxPlaces {
		return fault.Invalidf(field, n, "must be at most %d", maxPlaces)
	}
	for i, s := range list {
		if err := check(s); err != nil {
			return fault.In(indexed(field, i), err)
		}
	}
	return nil
}

func optional(s string, check func() error) error {
	if s == "" {
		return nil
	}
	return check()
}

// sorts returns the orders other than the default.
func sorts() []query.Sort {
	return []query.Sort{query.SortScore, query.SortDistance, query.SortPrice, query.SortUptime, query.SortResponseTime, query.SortRandom, query.SortStable}
}

// healths returns the health filters other than the default.
func healths() []query.Health {
	return []query.Health{query.HealthAny, query.HealthUsable, query.HealthHealthy}
}

// weights returns the weights of claims.
func weights() []query.Claims { return []query.Claims{query.ClaimsTrust, query.ClaimsCheck} }

// oneOf joins names for an error message.
func oneOf[T ~string](names []T) string {
	list := make([]string, len(names))
	for i, n := range names {
		list[i] = string(n)
	}
	return strings.Join(list, ", ")
}

// clip shortens a value for an error message.
func clip(s string) string {
	const most = 80
	return clean.Text(s, most)
}

// attributesOf sorts the attribute filters by key, in the order of a record's attributes.
func attributesOf(m map[string]string) []records.Attribute {
	list := make([]records.Attribute, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		list = append(list, records.Attribute{Key: key, Value: m[key]})
	}
	return list
}
