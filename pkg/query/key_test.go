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
)

// variants lists, for each JSON name, queries that differ in that field alone.
func variants(tb require.TestingT) map[string][]func(*Query) {
	return map[string][]func(*Query){
		"type":               {func(q *Query) { q.Type = "compute" }, func(q *Query) { q.Type = "storagessd" }},
		"types":              {func(q *Query) { q.Type, q.Types = "", []string{"storage", "cdn"} }, func(q *Query) { q.Type, q.Types = "", []string{"storagecdn"} }},
		"volume":             {func(q *Query) { q.MaxPrice, q.Volume = ptr(0.0), ptr(1.0) }, func(q *Query) { q.MaxPrice, q.Volume = ptr(0.0), ptr(10.0) }},
		"group_prices":       {func(q *Query) { q.GroupPrices = true }},
		"cells":              {func(q *Query) { q.Cells = 1 }, func(q *Query) { q.Cells = 2 }},
		"where":              whereVariants(),
		"subtype":            {func(q *Query) { q.Subtype = "ssd" }},
		"near":               {func(q *Query) { q.Near = &Near{} }},
		"latitude":           {func(q *Query) { q.Near = &Near{Latitude: 1} }},
		"longitude":          {func(q *Query) { q.Near = &Near{Longitude: 1} }},
		"radius_km":          {func(q *Query) { q.Near = &Near{RadiusKM: ptr(1.0)} }, func(q *Query) { q.Near = &Near{RadiusKM: ptr(1.5)} }},
		"countries":          {func(q *Query) { q.Countries = []string{"DE"} }, func(q *Query) { q.Countries = []string{"DE", "FR"} }},
		"regions":            {func(q *Query) { q.Regions = []string{"DE"} }, func(q *Query) { q.Regions = []string{"DE", "FR"} }, func(q *Query) { q.Regions = []string{"DE,FR"} }},
		"min_cpu_cores":      {func(q *Query) { q.MinCPUCores = 1 }, func(q *Query) { q.MinCPUCores = 300 }},
		"min_memory_mb":      {func(q *Query) { q.MinMemoryMB = 1 }},
		"require_gpu":        {func(q *Query) { q.RequireGPU = true }},
		"min_storage_gb":     {func(q *Query) { q.MinStorageGB = 1 }},
		"min_bandwidth_mbps": {func(q *Query) { q.MinBandwidthMbps = 1 }},
		"max_price":          {func(q *Query) { q.MaxPrice = ptr(0.0) }, func(q *Query) { q.MaxPrice = ptr(0.004) }},
		"currency":           {func(q *Query) { q.MaxPrice, q.Currency = ptr(0.0), "EUR" }},
		"price_unit":         {func(q *Query) { q.MaxPrice, q.PriceUnit = ptr(0.0), "per-gb" }},
		"min_uptime":         {func(q *Query) { q.MinUptime = ptr(0.0) }, func(q *Query) { q.MinUptime = ptr(99.0) }},
		"max_error_rate":     {func(q *Query) { q.MaxErrorRate = ptr(uint32(0)) }, func(q *Query) { q.MaxErrorRate = ptr(uint32(5)) }},
		"health":             {func(q *Query) { q.Health = HealthAny }, func(q *Query) { q.Health = HealthHealthy }},
		"provider_id":        {func(q *Query) { q.ProviderID = idOf(tb, 1).String() }, func(q *Query) { q.ProviderID = idOf(tb, 2).String() }},
		"attributes": {
			func(q *Query) { q.Attributes = map[string]string{"a": "b"} }, func(q *Query) { q.Attributes = map[string]string{"ab": ""} },
			func(q *Query) { q.Attributes = map[string]string{"a": "B"} }, func(q *Query) { q.Attributes = map[string]string{"a": "b", "c": "d"} },
		},
		"sort":        {func(q *Query) { q.Sort = SortPrice }, func(q *Query) { q.Sort = SortUptime }, func(q *Query) { q.Sort = SortRandom }},
		"claims":      {func(q *Query) { q.Claims = ClaimsCheck }},
		"domain":      {func(q *Query) { q.Domain = AnyDomain }, func(q *Query) { q.Domain = "a.net" }},
		"limit":       {func(q *Query) { q.Limit = 7 }},
		"explain":     {func(q *Query) { q.Explain = true }},
		"exact_total": {func(q *Query) { q.ExactTotal = true }},
		"after": {
			func(q *Query) { q.Sort, q.After = SortStable, "global/"+idOf(tb, 1).String()+"/a" }, func(q *Query) { q.Sort, q.After = SortStable, "u33dc0rr/"+idOf(tb, 1).String()+"/a" },
		},
		"seed": {func(q *Query) { q.Sort, q.Seed = SortRandom, 1 }},
	}
}

// whereVariants differ in one part of one clause, or in the number of clauses.
func whereVariants() []func(*Query) {
	base := Clause{Field: "compute.gpus.model", Op: OpAny, Values: []string{"a"}}
	size := Clause{Field: "compute.gpus.memory_mb", Op: OpRange, Min: ptr(1.0)}
	lists := [][]Clause{{base}, {size}, {base, size}}
	for _, change := range []func(c *Clause){
		func(c *Clause) { c.Field = "storage.storage_classes" }, func(c *Clause) { c.Op = OpAll }, func(c *Clause) { c.Op = OpPrefix },
		func(c *Clause) { c.Values = []string{"b"} }, func(c *Clause) { c.Values = []string{"a", "b"} }, func(c *Clause) { c.Values = []string{"ab"} },
		func(c *Clause) { c.Not = true }, func(c *Clause) { c.OrUnstated = true }, func(c *Clause) { *c = Clause{Field: c.Field, Op: OpStated} },
		func(c *Clause) { *c = size; c.Min, c.Max = nil, ptr(1.0) }, func(c *Clause) { *c = size; c.Max = ptr(1.0) }, func(c *Clause) { *c = size; c.Min = ptr(2.0) },
	} {
		c := base.clone()
		change(&c)
		lists = append(lists, []Clause{c})
	}
	var all []func(*Query)
	for _, list := range lists {
		all = append(all, func(q *Query) { q.Where = list })
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
	keys := map[string]string{string(AppendKey(nil, &Query{Type: "storage"})): "nothing"}
	for _, name := range names(reflect.TypeFor[Query]()) {
		require.NotEmpty(t, all[name], "no variant of %s", name)
		for _, vary := range all[name] {
			q := Query{Type: "storage"}
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
func respell(rt *rapid.T, tb require.TestingT, q Query) Query {
	q = q.clone()
	q.Countries, q.Regions = shuffle(rt, q.Countries), shuffle(rt, q.Regions)
	q.Where = respellWhere(rt, q.Where)
	q.Currency, q.PriceUnit = strings.ToLower(q.Currency), strings.ToUpper(q.PriceUnit)
	q.Sort, q.Health = q.order(), q.health()
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
		if q.Sort != SortStable {
			q.After = "" // the variant may have changed the order
		}
		if !q.usesPrices() {
			q.Currency, q.PriceUnit, q.Volume = "", "", nil
		} else if _, unit := q.pricing(); unit == "" {
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
	base := Query{Type: "storage", Near: &Near{Longitude: 180}, Countries: []string{"DE", "FR"}}
	same := map[string]func(*Query){
		"seed of no random": func(q *Query) { q.Seed = 4 },
		"default order":     func(q *Query) { q.Sort = SortDistance },
		"default health":    func(q *Query) { q.Health = HealthUsable },
		"repetition":        func(q *Query) { q.Countries = []string{"FR", "de", "DE", "fr"} },
		"meridian":          func(q *Query) { q.Near = &Near{Longitude: -180} },
		"negative zero":     func(q *Query) { q.Near = &Near{Longitude: 180, Latitude: math.Copysign(0, -1)} },
	}
	for name, change := range same {
		q := base
		change(&q)
		require.Equal(t, AppendKey(nil, &base), AppendKey(nil, &q), name)
	}
	free, minus := Query{Type: "cdn", Price: Price{MaxPrice: ptr(0.0)}}, Query{Type: "cdn", Price: Price{MaxPrice: ptr(math.Copysign(0, -1))}}
	require.Equal(t, AppendKey(nil, &free), AppendKey(nil, &minus), "negative zero price")
	a, b := Query{Type: "cdn", Sort: SortPrice}, Query{Type: "cdn", Sort: SortPrice, Price: Price{Currency: "usdc", PriceUnit: "Per-GB"}}
	require.Equal(t, AppendKey(nil, &a), AppendKey(nil, &b), "default prices")
}

func TestKeyHasNoMapOrder(t *testing.T) {
	q := Query{Type: "a", Attributes: map[string]string{}}
	for _, key := range strings.Split("abcdefghij", "") {
		q.Attributes[key] = key
	}
	want := AppendKey(nil, &q)
	for range 50 {
		require.Equal(t, want, AppendKey(nil, ptr(q.clone())))
	}
}

func TestAppendKeyAppends(t *testing.T) {
	q := Query{Type: "a"}
	require.Equal(t, "x"+string(AppendKey(nil, &q)), string(AppendKey([]byte("x"), &q)))
}

func TestAppendKeyDoesNotAllocate(t *testing.T) {
	q, buf := typical(), make([]byte, 0, 512)
	require.Zero(t, testing.AllocsPerRun(100, func() { buf = AppendKey(buf[:0], &q) }))
}

// typical returns a query with many filters.
func typical() Query {
	return Query{
		Type: "storage", Subtype: "ssd",
		Near:      &Near{Latitude: 37.7749, Longitude: -122.4194, RadiusKM: ptr(50.0)},
		Countries: []string{"US", "DE", "FR"}, Regions: []string{"California"},
		Capacity:   Capacity{MinStorageGB: 1000},
		Price:      Price{MaxPrice: ptr(0.06)},
		Quality:    Quality{MinUptime: ptr(99.0), MaxErrorRate: ptr(uint32(100))},
		Attributes: map[string]string{"tier": "premium", "datacenter": "us-west-1"},
		Sort:       SortPrice, Limit: 10,
	}
}

func TestJSONAndProtoRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		q := queryGen(t).Draw(rt, "query")
		want := compile(t, q).Query()

		back, err := FromProto(want.Proto())
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
