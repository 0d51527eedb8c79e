package oracle

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	queries "github.com/blackhole/blackhole/internal/query"
)

// draws makes offers and questions of few values, so that records often match and values often tie.
type draws struct{ *rand.Rand }

func pick[T any](d draws, from ...T) T { return from[d.IntN(len(from))] }

// one of n times.
func (d draws) oneOf(n int) bool { return d.IntN(n) == 0 }

// some draws up to three different texts.
func (d draws) some() []string {
	list := words()
	d.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list[:d.IntN(4)]
}

// words are prefixes of others and differ in case, by rules of more than one alphabet.
func words() []string {
	return []string{"hot", "HOT", "hotter", "Île", "île-de", "\u212a1", "k1", "DE", "fr", "7", "10"}
}

func kinds() []string { return []string{"compute", "storage", "cdn", "bandwidth", "relay"} }

func (d draws) word() string { return pick(d, words()...) }

func (d draws) latitude() float64 {
	return pick(d, 0, math.Copysign(0, -1), 0.1, 52.5, 52.5, 90, -90, d.Float64()*180-90, 52+d.Float64())
}

func (d draws) longitude() float64 {
	return pick(d, 0, math.Copysign(0, -1), 0.1, 13.4, 13.4, 180, -180, 179.95, d.Float64()*360-180, 13+d.Float64())
}

// fields sets each of some fields of an object, n of 4 times.
func (d draws) fields(n int, all map[string]any) map[string]any {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if d.IntN(4) >= n {
			delete(all, name)
		}
	}
	return all
}

// offer draws the body of a registration.
func (d draws) offer(id string) Record {
	kind := pick(d, append(kinds(), "compute")...)
	meta := d.fields(2, map[string]any{
		"subtype": pick(d, "ssd", "gpu"), "name": d.word(), "description": "A " + d.word() + " one: model " + d.word() + ", K8s.", "version": d.word(), "protocols": d.some(),
		"domain": pick(d, "a.net", "b.net"), "attributes": map[string]string{pick(d, "a", "b"): pick(d, "x", "X", "7", "1e2"), "c": "x"},
	})
	meta["type"] = kind
	o := Record{"id": id, "metadata": meta}
	if !d.oneOf(4) {
		place := d.fields(2, map[string]any{"country": pick(d, "DE", "FR", "US"), "region": pick(d, "Berlin", "BERLIN", "Île-de-France", "ΣΑΣ", "σας"), "city": d.word(), "isp": d.word()})
		if !d.oneOf(4) {
			place["latitude"], place["longitude"] = d.latitude(), d.longitude()
		}
		o["location"] = place
	}
	if !d.oneOf(4) {
		price := d.fields(2, map[string]any{"minimum_commitment": pick(d, 0, 1, 10.0), "tier_pricing": map[string]float64{pick(d, "0-10", "11-100", "200+", "x"): pick(d, 0, 0.5, 2)}})
		if len(price) == 0 || !d.oneOf(3) {
			price["base_price"] = pick(d, 0, 0.5, 1, 2, 0.1*float64(d.IntN(20)))
		}
		price["currency"], price["price_unit"] = pick(d, "USDC", "usdc", "EUR"), pick(d, "per-gb-month", "per-hour", "Per-Hour", "per-gb")
		o["pricing"] = price
	}
	if !d.oneOf(4) {
		health := d.fields(3, map[string]any{"uptime_percent": pick(d, 0, 50, 99.9, 100), "response_time_ms": d.IntN(3), "error_rate": pick(d, 0, 10, 10000)})
		health["status"] = pick(d, "HEALTHY", "HEALTHY", "DEGRADED", "UNHEALTHY")
		o["health"] = health
	}
	if able := d.able(kind); able != nil {
		o["capabilities"] = map[string]any{kind: able}
	}
	return o
}

// able draws capabilities of a type.
func (d draws) able(kind string) map[string]any {
	switch kind {
	case "storage":
		return map[string]any{
			"total_space": int64(5e9), "available_space": pick(d, int64(0), 1e9-1, 1e9, 2e9), "max_object_size": d.IntN(3), "storage_classes": d.some(),
			"encryption_supported": d.oneOf(2), "versioning_supported": d.oneOf(2),
		}
	case "compute":
		gpus := []any{}
		for range d.IntN(4) {
			gpus = append(gpus, map[string]any{"model": d.word(), "memory_mb": d.IntN(4), "compute_capability": d.IntN(4)})
		}
		return map[string]any{"cpu_cores": d.IntN(3), "memory_mb": d.IntN(3), "gpus": gpus, "runtime_engines": d.some(), "max_job_duration": d.IntN(4)}
	case "cdn":
		return map[string]any{"bandwidth_mbps": d.IntN(3), "regions": d.some(), "cache_types": d.some(), "ssl_supported": d.oneOf(2), "http2_supported": d.oneOf(2)}
	case "bandwidth":
		return map[string]any{"upload_mbps": d.IntN(3), "download_mbps": d.IntN(3), "protocols": d.some(), "exit_countries": pick(d, nil, []string{"DE"}, []string{"DE", "FR"})}
	}
	return nil
}

// question draws a search over all filters, each seldom enough that records match. providers are ids.
func (d draws) question(providers []string) Question {
	q := d.filter(providers)
	q["limit"], q["sort"] = pick(d, 1.0, 5, 20, 1000), pick(d, "price", "uptime", "response_time", "score", "random", "stable", "distance")
	if q["sort"] == "distance" && q["near"] == nil {
		q["near"] = map[string]any{"latitude": d.latitude(), "longitude": d.longitude()}
	}
	if q["sort"] != "random" && q["sort"] != "stable" {
		q["claims"] = "trust" // what peers measure is not in documents, and the turns of providers go before values
	}
	if q["sort"] == "random" {
		q["seed"] = float64(1 + d.IntN(1000))
	}
	for _, name := range []string{"exact_total", "explain"} {
		if d.oneOf(2) {
			q[name] = true
		}
	}
	switch {
	case q["sort"] != "price" && q["max_price"] == nil:
	case q["types"] != nil || q["type"] == "relay":
		q["price_unit"] = "per-hour"
		fallthrough
	default:
		if d.oneOf(3) {
			q["currency"], q["price_unit"] = pick(d, "eur", "USDC"), pick(d, "per-HOUR", "per-gb")
		}
		if d.oneOf(3) {
			q["volume"] = pick(d, 0.5, 5, 20, 1000.0)
		}
	}
	if d.oneOf(20) {
		for _, name := range []string{"sort", "seed", "currency", "price_unit", "max_price"} {
			delete(q, name)
		}
		q["group_prices"], q["claims"] = true, "trust"
		return q
	}
	if d.oneOf(20) && q["sort"] != "price" && q["types"] == nil && q["max_price"] == nil {
		for _, name := range []string{"sort", "seed", "limit", "claims", "exact_total", "explain"} {
			delete(q, name)
		}
		q["cells"] = float64(1 + d.IntN(6))
	}
	return q
}

// filter draws what a search and a watch may ask for.
func (d draws) filter(providers []string) Question {
	q := Question{"type": pick(d, append(kinds(), "compute")...), "health": pick(d, "any", "healthy", "usable")}
	if d.oneOf(10) {
		q["types"] = kinds()[:2+d.IntN(3)]
		delete(q, "type")
	}
	number := pick(d, 0.0, 1, 2)
	filters := map[string]any{
		"subtype": pick(d, "ssd", "gpu"), "countries": []string{pick(d, "de", "FR"), "us"}, "regions": []string{pick(d, "berlin", "ÎLE-de-france", "σας")},
		"attr.c": "x", "provider_id": pick(d, providers...), "min_cpu_cores": number, "min_memory_mb": number, "require_gpu": true, "min_storage_gb": number,
		"min_bandwidth_mbps": number, "min_uptime": pick(d, 0.0, 50, 99.9), "max_error_rate": pick(d, 0.0, 10),
	}
	for _, name := range slices.Sorted(maps.Keys(filters)) {
		if d.oneOf(16) {
			q[name] = filters[name]
		}
	}
	if d.oneOf(3) {
		q["near"] = map[string]any{"latitude": d.latitude(), "longitude": d.longitude(), "radius_km": pick(d, 0.001, 20, 300, 6000, 20015.0)}
	}
	if q["types"] == nil && q["type"] != "relay" && d.oneOf(8) {
		q["max_price"] = pick(d, 0.0, 0.5, 1)
	}
	if d.oneOf(2) {
		var where []Clause
		for range 1 + d.IntN(2) {
			where = append(where, d.clause(text(q["type"])))
		}
		q["where"] = where
	}
	return q
}

// clause draws one about a field of a type.
func (d draws) clause(kind string) Clause {
	fields := slices.DeleteFunc(queries.Fields(), func(f queries.Field) bool {
		block, _, _ := strings.Cut(f.Name, ".")
		return slices.Contains(kinds(), block) && block != kind && kind != ""
	})
	f := pick(d, fields...)
	c := Clause{Field: strings.ReplaceAll(f.Name, "KEY", pick(d, "a", "b", "c")), Op: string(pick(d, f.Ops()...)), Not: d.oneOf(3)}
	if strings.HasPrefix(f.Name, "pricing.tier") {
		c.Field = strings.ReplaceAll(f.Name, "KEY", pick(d, "0-10", "200+"))
	}
	numbers := []float64{-1, 0, 0.5, 1, 2, 3, 10, 50, 100, 1e9, 4e9}
	switch {
	case c.Op == "stated":
		return c
	case c.Op == "range":
		low, high := pick(d, numbers...), pick(d, numbers...)
		low, high = min(low, high), max(low, high)
		switch d.IntN(3) {
		case 0:
			c.Min = &low
		case 1:
			c.Max = &high
		default:
			c.Min, c.Max = &low, &high
		}
	case f.Kind == queries.KindFlag:
		c.Values = []string{pick(d, "true", "false")}
	default:
		for range 1 + d.IntN(3) {
			value := d.word()
			switch {
			case f.Kind == queries.KindNumber:
				value = strconv.FormatFloat(pick(d, numbers...), 'g', -1, 64)
			case f.Name == "pricing.terms":
				value = pick(d, "usdc per-hour", "EUR Per-Hour", "USDC")
			case f.Name == "health.status":
				value = pick(d, "healthy", "DEGRADED", "un")
			case f.Name == "attributes.KEY":
				value = pick(d, "x", "X", "7")
			case f.Name == "domain":
				value = pick(d, "A.net", "b")
			case f.Name == "id":
				value = fmt.Sprint("s", d.IntN(20))
			case f.Name == "text":
				value = pick(d, value, "a hot one", "gpu", "s7", "MODEL 7", "8")
			case f.Name == "subtype":
				value = pick(d, "SSD", "g")
			}
			c.Values = append(c.Values, value)
		}
	}
	c.OrUnstated = d.oneOf(4)
	return c
}
