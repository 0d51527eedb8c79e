package query

import (
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/query"
)

// variants lists, for each JSON name, queries that differ in that field alone.
func variants(tb require.TestingT) map[string][]func(*query.Query) {
	return map[string][]func(*query.Query){
		"type":               {func(q *query.Query) { q.Type = "compute" }, func(q *query.Query) { q.Type = "storagessd" }},
		"types":              {func(q *query.Query) { q.Type, q.Types = "", []string{"storage", "cdn"} }, func(q *query.Query) { q.Type, q.Types = "", []string{"storagecdn"} }},
		"volume":             {func(q *query.Query) { q.MaxPrice, q.Volume = ptr(0.0), ptr(1.0) }, func(q *query.Query) { q.MaxPrice, q.Volume = ptr(0.0), ptr(10.0) }},
		"group_prices":       {func(q *query.Query) { q.GroupPrices = true }},
		"cells":              {func(q *query.Query) { q.Cells = 1 }, func(q *query.Query) { q.Cells = 2 }},
		"where":              whereVariants(),
		"subtype":            {func(q *query.Query) { q.Subtype = "ssd" }},
		"near":               {func(q *query.Query) { q.Near = &query.Near{} }},
		"latitude":           {func(q *query.Query) { q.Near = &query.Near{Latitude: 1} }},
		"longitude":          {func(q *query.Query) { q.Near = &query.Near{Longitude: 1} }},
		"radius_km":          {func(q *query.Query) { q.Near = &query.Near{RadiusKM: ptr(1.0)} }, func(q *query.Query) { q.Near = &query.Near{RadiusKM: ptr(1.5)} }},
		"countries":          {func(q *query.Query) { q.Countries = []string{"DE"} }, func(q *query.Query) { q.Countries = []string{"DE", "FR"} }},
		"regions":            {func(q *query.Query) { q.Regions = []string{"DE"} }, func(q *query.Query) { q.Regions = []string{"DE", "FR"} }, func(q *query.Query) { q.Regions = []string{"DE,FR"} }},
		"min_cpu_cores":      {func(q *query.Query) { q.MinCPUCores = 1 }, func(q *query.Query) { q.MinCPUCores = 300 }},
		"min_memory_mb":      {func(q *query.Query) { q.MinMemoryMB = 1 }},
		"require_gpu":        {func(q *query.Query) { q.RequireGPU = true }},
		"min_storage_gb":     {func(q *query.Query) { q.MinStorageGB = 1 }},
		"min_bandwidth_mbps": {func(q *query.Query) { q.MinBandwidthMbps = 1 }},
		"max_price":          {func(q *query.Query) { q.MaxPrice = ptr(0.0) }, func(q *query.Query) { q.MaxPrice = ptr(0.004) }},
		"currency":           {func(q *query.Query) { q.MaxPrice, q.Currency = ptr(0.0), "EUR" }},
		"price_unit":         {func(q *query.Query) { q.MaxPrice, q.PriceUnit = ptr(0.0), "per-gb" }},
		"min_uptime":         {func(q *query.Query) { q.MinUptime = ptr(0.0) }, func(q *query.Query) { q.MinUptime = ptr(99.0) }},
		"max_error_rate":     {func(q *query.Query) { q.MaxErrorRate = ptr(uint32(0)) }, func(q *query.Query) { q.MaxErrorRate = ptr(uint32(5)) }},
		"health":             {func(q *query.Query) { q.Health = query.HealthAny }, func(q *query.Query) { q.Health = query.HealthHealthy }},
		"provider_id":        {func(q *query.Query) { q.ProviderID = idOf(tb, 1).String() }, func(q *query.Query) { q.ProviderID = idOf(tb, 2).String() }},
		"attributes": {
			func(q *query.Query) { q.Attributes = map[string]string{"a": "b"} }, func(q *query.Query) { q.Attributes = map[string]string{"ab": ""} },
			func(q *query.Query) { q.Attributes = map[string]string{"a": "B"} }, func(q *query.Query) { q.Attributes = map[string]string{"a": "b", "c": "d"} },
		},
		"sort":        {func(q *query.Query) { q.Sort = query.SortPrice }, func(q *query.Query) { q.Sort = query.SortUptime }, func(q *query.Query) { q.Sort = query.SortRandom }},
		"claims":      {func(q *query.Query) { q.Claims = query.ClaimsCheck }},
		"domain":      {func(q *query.Query) { q.Domain = AnyDomain }, func(q *query.Query) { q.Domain = "a.net" }},
		"limit":       {func(q *query.Query) { q.Limit = 7 }},
		"explain":     {func(q *query.Query) { q.Explain = true }},
		"exact_total": {func(q *query.Query) { q.ExactTotal = true }},
		"after": {
			func(q *query.Query) { q.Sort, q.After = query.SortStable, "global/"+idOf(tb, 1).String()+"/a" }, func(q *query.Query) { q.Sort, q.After = query.SortStable, "u33dc0rr/"+idOf(tb, 1).String()+"/a" },
		},
		"seed": {func(q *query.Query) { q.Sort, q.Seed = query.SortRandom, 1 }},
	}
}

// whereVariants differ in one part of one clause, or in the number of clauses.
func whereVariants() []func(*query.Query) {
	base := query.Clause{Field: "compute.gpus.model", Op: query.OpAny, Values: []string{"a"}}
	size := query.Clause{Field: "compute.gpus.memory_mb", Op: query.OpRange, Min: ptr(1.0)}
	lists := [][]query.Clause{{base}, {size}, {base, size}}
	for _, change := range []func(c *query.Clause){
		func(c *query.Clause) { c.Field = "storage.storage_classes" }, func(c *query.Clause) { c.Op = query.OpAll }, func(c *query.Clause) { c.Op = query.OpPrefix },
		func(c *query.Clause) { c.Values = []string{"b"} }, func(c *query.Clause) { c.Values = []string{"a", "b"} }, func(c *query.Clause) { c.Values = []string{"ab"} },
		func(c *query.Clause) { c.Not = true }, func(c *query.Clause) { c.OrUnstated = true }, func(c *query.Clause) { *c = query.Clause{Field: c.Field, Op: query.OpStated} },
		func(c *query.Clause) { *c = size; c.Min, c.Max = nil, ptr(1.0) }, func(c *query.Clause) { *c = size; c.Max = ptr(1.0) }, func(c *query.Clause) { *c = size; c.Min = ptr(2.0) },
	} {
		c := cloneClause(&base)
		change(&c)
		lists = append(lists, []query.Clause{c})
	}
	var all []func(*query.Query)
	for _, list := range lists {
		all = append(all, func(q *query.Query) { q.Where = list })
	}
	return all
}

// names returns the JSON names of all fields, including embedded and nested structs.
func names(t reflect.Type) []string {
	var list []string
	for i := range t.NumField() {
		f := t.Field(i)
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			list = append(list, name)
		}
		inner := f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct {
			list = append(list, names(inner)...)
		}
	}
	return list
}

// A new field without a place in the key fails this test.
func TestEveryFieldIsInTheKey(t *testing.T) {
	all := variants(t)
	keys := map[string]string{string(AppendKey(nil, &query.Query{Type: "storage"})): "nothing"}
	for _, name := range names(reflect.TypeFor[query.Query]()) {
		require.NotEmpty(t, all[name], "no variant of %s", name)
		for _, vary := range all[name] {
			q := query.Query{Type: "storage"}
			vary(&q)
			key := string(AppendKey(nil, &q))
			require.Empty(t, keys[key], "%s has the key of another question", name)
			keys[key] = name
		}
	}
}

// Two queries have equal keys exactly if they compile to equal queries.
func TestKeyIsCanonical(t *testing.T) {
	var same int
	rapid.Check(t, func(rt *rapid.T) {
		a := queryGen(t).Draw(rt, "a")
		b := queryGen(t).Draw(rt, "b")
		if rapid.Bool().Draw(rt, "related") {
			b = respell(rt, t, a)
		}
		pa, pb := compile(t, a), compile(t, b)
		qa, qb := pa.Query(), pb.Query()
		want := reflect.DeepEqual(qa, qb)
		require.Equal(rt, want, pa.Key() == pb.Key())
		if a.Limit == b.Limit {
			require.Equal(rt, want, string(AppendKey(nil, &a)) == string(AppendKey(nil, &b)))
		}
		if want {
			same++
		}
		again := compile(t, pa.Query())
		require.Equal(rt, pa, again, "compiling the normal form changes nothing")
		require.Equal(rt, pa.Key(), string(AppendKey(nil, ptr(pa.Query()))))
	})
	require.NotZero(t, same)
}

// respell rewrites a query in an equivalent form, and sometimes changes one field.
func respell(rt *rapid.T, tb require.TestingT, q query.Query) query.Query {
	q = cloneQuery(&q)
	q.Countries, q.Regions = shuffle(rt, q.Countries), shuffle(rt, q.Regions)
	q.Where = respellWhere(rt, q.Where)
	q.Currency, q.PriceUnit = strings.ToLower(q.Currency), strings.ToUpper(q.PriceUnit)
	q.Sort, q.Health = orderOf(&q), healthOf(&q)
	if n := q.Near; n != nil && n.Longitude == 180 {
		n.Longitude = -180
	}
	if q.ProviderID != "" && rapid.Bool().Draw(rt, "cid") {
		id, err := peer.Decode(q.ProviderID)
		require.NoError(tb, err)
		q.ProviderID = peer.ToCid(id).String()
	}
	if rapid.Bool().Draw(rt, "change") {
		all := variants(tb)
		name := rapid.SampledFrom(slices.Sorted(mapKeys(all))).Draw(rt, "field")
		vary := rapid.SampledFrom(all[name]).Draw(rt, "variant")
		if vary(&q); len(q.Types) > 1 || q.GroupPrices || q.Cells > 0 {
			q.Type, q.Types, q.GroupPrices, q.Cells = "storage", nil, false, 0 // only for Split
		}
		if q.Sort != query.SortStable {
			q.After = "" // the variant may have changed the order
		}
		if !usesPrices(&q) {
			q.Currency, q.PriceUnit, q.Volume = "", "", nil
		} else if _, unit := pricingOf(&q); unit == "" {
			q.PriceUnit = "per-hour"
		}
	}
	return q
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// shuffle permutes a list, repeats elements and changes their case.
func shuffle(rt *rapid.T, list []string) []string {
	if len(list) == 0 {
		return nil
	}
	list = append(rapid.Permutation(list).Draw(rt, "order"), list[rapid.IntRange(0, len(list)-1).Draw(rt, "again")])
	for i := range list {
		if isASCII(list[i]) && rapid.Bool().Draw(rt, "capitals") {
			list[i] = strings.ToUpper(list[i])
		}
	}
	return list
}

func TestKeyIgnores(t *testing.T) {
	base := query.Query{Type: "storage", Near: &query.Near{Longitude: 180}, Countries: []string{"DE", "FR"}}
	same := map[string]func(*query.Query){
		"seed of no random": func(q *query.Query) { q.Seed = 4 },
		"default order":     func(q *query.Query) { q.Sort = query.SortDistance },
		"default health":    func(q *query.Query) { q.Health = query.HealthUsable },
		"repetition":        func(q *query.Query) { q.Countries = []string{"FR", "de", "DE", "fr"} },
		"meridian":          func(q *query.Query) { q.Near = &query.Near{Longitude: -180} },
		"negative zero":     func(q *query.Query) { q.Near = &query.Near{Longitude: 180, Latitude: math.Copysign(0, -1)} },
	}
	for name, change := range same {
		q := base
		change(&q)
		require.Equal(t, AppendKey(nil, &base), AppendKey(nil, &q), name)
	}
	free, minus := query.Query{Type: "cdn", Price: query.Price{MaxPrice: ptr(0.0)}}, query.Query{Type: "cdn", Price: query.Price{MaxPrice: ptr(math.Copysign(0, -1))}}
	require.Equal(t, AppendKey(nil, &free), AppendKey(nil, &minus), "negative zero price")
	a, b := query.Query{Type: "cdn", Sort: query.SortPrice}, query.Query{Type: "cdn", Sort: query.SortPrice, Price: query.Price{Currency: "usdc", PriceUnit: "Per-GB"}}
	require.Equal(t, AppendKey(nil, &a), AppendKey(nil, &b), "default prices")
}

func TestKeyHasNoMapOrder(t *testing.T) {
	q := query.Query{Type: "a", Attributes: map[string]string{}}
	for _, key := range strings.Split("abcdefghij", "") {
		q.Attributes[key] = key
	}
	want := AppendKey(nil, &q)
	for range 50 {
		require.Equal(t, want, AppendKey(nil, ptr(cloneQuery(&q))))
	}
}

func TestAppendKeyAppends(t *testing.T) {
	q := query.Query{Type: "a"}
	require.Equal(t, "x"+string(AppendKey(nil, &q)), string(AppendKey([]byte("x"), &q)))
}

func TestAppendKeyDoesNotAllocate(t *testing.T) {
	q, buf := typical(), make([]byte, 0, 512)
	require.Zero(t, testing.AllocsPerRun(100, func() { buf = AppendKey(buf[:0], &q) }))
}

// typical returns a query with many filters.
func typical() query.Query {
	return query.Query{
		Type: "storage", Subtype: "ssd",
		Near:      &query.Near{Latitude: 37.7749, Longitude: -122.4194, RadiusKM: ptr(50.0)},
		Countries: []string{"US", "DE", "FR"}, Regions: []string{"California"},
		Capacity:   query.Capacity{MinStorageGB: 1000},
		Price:      query.Price{MaxPrice: ptr(0.06)},
		Quality:    query.Quality{MinUptime: ptr(99.0), MaxErrorRate: ptr(uint32(100))},
		Attributes: map[string]string{"tier": "premium", "datacenter": "us-west-1"},
		Sort:       query.SortPrice, Limit: 10,
	}
}

func TestJSONAndProtoRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		q := queryGen(t).Draw(rt, "query")
		want := compile(t, q).Query()

		back, err := FromProto(Proto(want))
		require.NoError(rt, err)
		require.Equal(rt, want, back)

		raw, err := json.Marshal(want)
		require.NoError(rt, err)
		back, err = ParseJSON(raw)
		require.NoError(rt, err)
		require.Equal(rt, want, back)

		back, err = ParseValues(values(want))
		require.NoError(rt, err)
		require.Equal(rt, want, compile(t, back).Query())
	})
}
