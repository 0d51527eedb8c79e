package query

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

func TestCompileRefusesBadInput(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	near := func(lat, lon float64, radius *float64) func(*query.Query) {
		return func(q *query.Query) { q.Near = &query.Near{Latitude: lat, Longitude: lon, RadiusKM: radius} }
	}
	price := func(f float64) func(*query.Query) { return func(q *query.Query) { q.MaxPrice = &f } }
	uptime := func(f float64) func(*query.Query) { return func(q *query.Query) { q.MinUptime = &f } }
	long := strings.Repeat("x", 300)
	tests := map[string]struct {
		spoil   func(*query.Query)
		field   string
		message string // part of the message
	}{
		"no type":             {func(q *query.Query) { q.Type = "" }, "type", "required"},
		"type in capitals":    {func(q *query.Query) { q.Type = "Storage" }, "type", "lower-case"},
		"type with a slash":   {func(q *query.Query) { q.Type = "a/b" }, "type", "lower-case"},
		"long type":           {func(q *query.Query) { q.Type = long }, "type", "at most 32 bytes"},
		"subtype _":           {func(q *query.Query) { q.Subtype = records.AnySubtype }, "subtype", "lower-case"},
		"latitude 91":         {near(91, 0, nil), "near.latitude", "-90 and 90"},
		"latitude NaN":        {near(nan, 0, nil), "near.latitude", "-90 and 90"},
		"longitude -181":      {near(0, -181, nil), "near.longitude", "-180 and 180"},
		"longitude Inf":       {near(0, inf, nil), "near.longitude", "-180 and 180"},
		"radius 0":            {near(0, 0, ptr(0.0)), "near.radius_km", "0.001 and 20015.115"},
		"radius negative":     {near(0, 0, ptr(-5.0)), "near.radius_km", "0.001 and 20015.115"},
		"radius too large":    {near(0, 0, ptr(20016.0)), "near.radius_km", "0.001 and 20015.115"},
		"radius NaN":          {near(0, 0, &nan), "near.radius_km", "0.001 and 20015.115"},
		"country name":        {func(q *query.Query) { q.Countries = []string{"DE", "Germany"} }, "countries[1]", "two letters"},
		"country empty":       {func(q *query.Query) { q.Countries = []string{""} }, "countries[0]", "two letters"},
		"country not ASCII":   {func(q *query.Query) { q.Countries = []string{"ä"} }, "countries[0]", "two letters"},
		"many countries":      {func(q *query.Query) { q.Countries = make([]string, 65) }, "countries", "at most 64"},
		"region empty":        {func(q *query.Query) { q.Regions = []string{""} }, "regions[0]", "empty"},
		"region long":         {func(q *query.Query) { q.Regions = []string{long} }, "regions[0]", "128 bytes"},
		"region not UTF-8":    {func(q *query.Query) { q.Regions = []string{"\xff"} }, "regions[0]", "UTF-8"},
		"many regions":        {func(q *query.Query) { q.Regions = make([]string, 65) }, "regions", "at most 64"},
		"storage overflow":    {func(q *query.Query) { q.MinStorageGB = math.MaxUint64 / 1000 }, "min_storage_gb", "at most"},
		"price negative":      {price(-1), "max_price", "at least 0"},
		"price NaN":           {price(nan), "max_price", "at least 0"},
		"price Inf":           {price(inf), "max_price", "at least 0"},
		"unit of other type":  {func(q *query.Query) { q.Type, q.MaxPrice = "oracle", ptr(1.0) }, "price_unit", "required"},
		"idle currency":       {func(q *query.Query) { q.Currency = "EUR" }, "currency", "max_price"},
		"idle unit":           {func(q *query.Query) { q.PriceUnit = "per-gb" }, "price_unit", "max_price"},
		"currency long":       {func(q *query.Query) { q.Sort, q.Currency = query.SortPrice, long }, "currency", "at most 16"},
		"unit with a space":   {func(q *query.Query) { q.Sort, q.PriceUnit = query.SortPrice, "per gb" }, "price_unit", "without spaces"},
		"uptime 101":          {uptime(101), "min_uptime", "0 and 100"},
		"uptime NaN":          {uptime(nan), "min_uptime", "0 and 100"},
		"error rate":          {func(q *query.Query) { q.MaxErrorRate = ptr(uint32(10001)) }, "max_error_rate", "10000"},
		"health":              {func(q *query.Query) { q.Health = "good" }, "health", "any, usable, healthy"},
		"provider":            {func(q *query.Query) { q.ProviderID = "nobody" }, "provider_id", "peer id"},
		"attribute key empty": {func(q *query.Query) { q.Attributes = map[string]string{"": "x"} }, "attributes", "empty key"},
		"attribute value":     {func(q *query.Query) { q.Attributes = map[string]string{"k": long} }, "attributes.k", "256 bytes"},
		"attribute not UTF-8": {func(q *query.Query) { q.Attributes = map[string]string{"k": "\xff"} }, "attributes.k", "UTF-8"},
		"sort":                {func(q *query.Query) { q.Sort = "best" }, "sort", "score, distance, price, uptime, response_time, random"},
		"distance from where": {func(q *query.Query) { q.Sort = query.SortDistance }, "near", "required"},
		"limit negative":      {func(q *query.Query) { q.Limit = -1 }, "limit", "between 1 and 1000"},
		"limit too large":     {func(q *query.Query) { q.Limit = MaxLimit + 1 }, "limit", "between 1 and 1000"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			q := query.Query{Type: "storage"}
			test.spoil(&q)
			p, err := Compile(q, Defaults{})
			require.Nil(t, p)
			require.ErrorIs(t, err, fault.Invalid)
			require.Equal(t, test.field, fault.FieldOf(err))
			require.Contains(t, fault.Message(err), test.message)
		})
	}
}

func TestCompileAppliesDefaults(t *testing.T) {
	compile := func(q query.Query, d Defaults) query.Query {
		p, err := Compile(q, d)
		require.NoError(t, err)
		require.Equal(t, p.Query().Limit, p.Limit())
		return p.Query()
	}
	q := compile(query.Query{Type: "storage", Seed: 7}, Defaults{})
	require.Equal(t, query.Query{
		Type: "storage", Sort: query.SortScore, Limit: DefaultLimit, Claims: query.ClaimsTrust, Quality: query.Quality{Health: query.HealthUsable},
	}, q)

	q = compile(query.Query{Type: "storage", Near: &query.Near{Longitude: 180}}, Defaults{Limit: 5, MaxLimit: 50, RadiusKM: 30})
	require.Equal(t, &query.Near{Longitude: -180, RadiusKM: ptr(30.0)}, q.Near)
	require.Equal(t, query.SortDistance, q.Sort)
	require.Equal(t, 5, q.Limit)

	require.Equal(t, 50, compile(query.Query{Type: "a"}, Defaults{MaxLimit: 50}).Limit, "a default above the maximum is cut")
	_, err := Compile(query.Query{Type: "a", Limit: 51}, Defaults{MaxLimit: 50})
	require.Equal(t, "limit", fault.FieldOf(err))

	_, err = Compile(query.Query{Type: "a", Near: &query.Near{}}, Defaults{RadiusKM: math.Inf(1)})
	require.Equal(t, "near.radius_km", fault.FieldOf(err))
}

func TestFillGivesThePlansKey(t *testing.T) {
	d := Defaults{Limit: 5, RadiusKM: 30}
	for _, q := range []query.Query{
		{Type: "a"}, {Type: "a", Limit: 7}, {Type: "a", Near: &query.Near{}}, {Type: "a", Near: &query.Near{RadiusKM: ptr(1.0)}},
	} {
		p, err := Compile(q, d)
		require.NoError(t, err)
		filled := d.Fill(q)
		require.Equal(t, p.Key(), string(AppendKey(nil, &filled)))
	}
	q := query.Query{Type: "a", Near: &query.Near{}}
	d.Fill(q)
	require.Nil(t, q.Near.RadiusKM, "the input is left as it was")
}

func TestPricesCompareInTheUnitOfTheType(t *testing.T) {
	for kind, unit := range map[string]string{
		"storage": "per-gb-month", "compute": "per-hour", "cdn": "per-gb", "bandwidth": "per-gb",
	} {
		p, err := Compile(query.Query{Type: kind, Sort: query.SortPrice}, Defaults{})
		require.NoError(t, err)
		require.Equal(t, query.Price{Currency: DefaultCurrency, PriceUnit: unit}, p.Query().Price)
		require.Contains(t, p.Describe(), "prices compared in USDC "+unit+" only")
	}
	p, err := Compile(query.Query{Type: "oracle", Price: query.Price{MaxPrice: ptr(0.0), Currency: "eur", PriceUnit: "Per-Request"}}, Defaults{})
	require.NoError(t, err)
	require.Equal(t, query.Price{MaxPrice: ptr(0.0), Currency: "EUR", PriceUnit: "per-request"}, p.Query().Price)
	require.Equal(t, "eur", p.Filter().Currency)
}

func TestPlanSharesNothing(t *testing.T) {
	q := query.Query{
		Type: "compute", Near: &query.Near{RadiusKM: ptr(1.0)},
		Countries: []string{"FR", "de"}, Regions: []string{"B", "a"},
		Price:      query.Price{MaxPrice: ptr(1.0)},
		Quality:    query.Quality{MinUptime: ptr(1.0), MaxErrorRate: ptr(uint32(1))},
		Attributes: map[string]string{"k": "v"},
	}
	p, err := Compile(q, Defaults{})
	require.NoError(t, err)
	require.Equal(t, []string{"FR", "de"}, q.Countries, "the input is left as it was")
	spoil := func(q query.Query) {
		*q.Near.RadiusKM, *q.MaxPrice, *q.MinUptime, *q.MaxErrorRate = 9, 9, 9, 9
		q.Countries[0], q.Regions[0], q.Attributes["k"] = "x", "x", "x"
	}
	want := p.Query()
	spoil(q)
	spoil(p.Query())
	require.Equal(t, want, p.Query())
	require.Equal(t, string(AppendKey(nil, &want)), p.Key())
	require.Equal(t, []string{"de", "fr"}, p.Filter().Countries)
}
