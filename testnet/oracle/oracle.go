// Package oracle judges answers of the HTTP API by the documents of records alone: it reads fields by their names in JSON and follows
// docs/api.md and the U06 Service Discovery Protocol. It shares no code with the query engine, so that both must be wrong alike to agree.
package oracle

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Record is the document of a record in an answer. Its numbers are float64.
type Record map[string]any

// Question is the body of a search.
type Question map[string]any

// name orders records of one value.
func (r Record) name() string { return text(r["provider_id"]) + "/" + text(r["id"]) }

// position orders records for pages: by their place, then by name.
func (r Record) position() string {
	cell, lat := "", r.at("location", "latitude")
	if lat != nil {
		lon, _ := r.number("location", "longitude")
		cell = geohash(lat.(float64), lon, 8)
	}
	return cell + "/" + r.name()
}

func text(v any) string { s, _ := v.(string); return s }

// at reads a path of names; nil for what is not there.
func (r Record) at(path ...string) any {
	var v any = map[string]any(r)
	for _, name := range path {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return v
}

// number reads a path; false for what is not stated.
func (r Record) number(path ...string) (float64, bool) {
	n, ok := r.at(path...).(float64)
	return n, ok
}

// edge is a distance from a limit, in km, below which rounding decides.
const edge = 1e-6

// Matches reports whether a record is an answer to a question about its type. Unsure: it stands at the edge of the disc.
func (q Question) Matches(r Record) (match, unsure bool) {
	if km, limit := q.distance(r), q.number("radius_km", "near"); limit > 0 {
		if unsure = math.Abs(km-limit) < edge; !(km <= limit) {
			return false, unsure
		}
	}
	for _, passes := range []func(Record) bool{q.kind, q.place, q.capacity, q.quality, q.price} {
		if !passes(r) {
			return false, unsure
		}
	}
	return q.where(r), unsure
}

// number reads a parameter, in an object if one is named; 0 for an absent one.
func (q Question) number(name string, in ...string) float64 {
	if len(in) > 0 {
		q, _ = q[in[0]].(map[string]any)
	}
	n, _ := q[name].(float64)
	return n
}

func (q Question) list(name string) []string {
	list, _ := q[name].([]string)
	if decoded, ok := q[name].([]any); ok {
		for _, s := range decoded {
			list = append(list, text(s))
		}
	}
	return list
}

// Document returns a question, a record or an answer as it is in JSON.
func Document[T Question | Record | Answer](of any) (as T, err error) {
	b, err := json.Marshal(of)
	if err == nil {
		err = read(b, &as)
	}
	return as, err
}

func (q Question) kind(r Record) bool {
	kind := text(r.at("metadata", "type"))
	for key, value := range q {
		if of, ok := strings.CutPrefix(key, "attr."); ok {
			if got, stated := r.at("metadata", "attributes", of).(string); !stated || got != value {
				return false
			}
		}
	}
	return (kind == q["type"] || slices.Contains(q.list("types"), kind)) &&
		(q["subtype"] == nil || r.at("metadata", "subtype") == q["subtype"]) &&
		(q["provider_id"] == nil || r["provider_id"] == q["provider_id"])
}

func (q Question) place(r Record) bool {
	for param, field := range map[string]string{"countries": "country", "regions": "region"} {
		stated := text(r.at("location", field))
		if list := q.list(param); len(list) > 0 && !slices.ContainsFunc(list, func(s string) bool { return strings.EqualFold(s, stated) }) {
			return false
		}
	}
	return true
}

func (q Question) capacity(r Record) bool {
	const gigabyte = 1e9
	space, _ := r.number("capabilities", "storage", "available_space")
	cores, _ := r.number("capabilities", "compute", "cpu_cores")
	memory, _ := r.number("capabilities", "compute", "memory_mb")
	gpus, _ := r.at("capabilities", "compute", "gpus").([]any)
	up, both := r.number("capabilities", "bandwidth", "upload_mbps")
	down, _ := r.number("capabilities", "bandwidth", "download_mbps")
	if down = min(up, down); !both {
		down, _ = r.number("capabilities", "cdn", "bandwidth_mbps")
	}
	return math.Floor(space/gigabyte) >= q.number("min_storage_gb") && cores >= q.number("min_cpu_cores") && memory >= q.number("min_memory_mb") &&
		(q["require_gpu"] == nil || len(gpus) > 0) && down >= q.number("min_bandwidth_mbps")
}

func (q Question) quality(r Record) bool {
	status := text(r.at("health", "status"))
	switch q["health"] {
	case "any":
	case "healthy":
		if status != "HEALTHY" {
			return false
		}
	default:
		if status == "UNHEALTHY" {
			return false
		}
	}
	uptime, stated := r.number("health", "uptime_percent")
	if q["min_uptime"] != nil && !(stated && uptime >= q.number("min_uptime")) {
		return false
	}
	errors, stated := r.number("health", "error_rate")
	return q["max_error_rate"] == nil || stated && errors <= q.number("max_error_rate")
}

func (q Question) price(r Record) bool {
	return q["max_price"] == nil || q.rate(r) <= q.number("max_price")
}

// rate is the price of one unit in the currency and unit of the question; +Inf for none.
func (q Question) rate(r Record) float64 {
	kind := text(r.at("metadata", "type"))
	usual := map[string]string{"storage": "per-gb-month", "compute": "per-hour", "cdn": "per-gb", "bandwidth": "per-gb"}[kind]
	currency, unit := cmp.Or(text(q["currency"]), "USDC"), cmp.Or(text(q["price_unit"]), usual)
	if !strings.EqualFold(text(r.at("pricing", "currency")), currency) || !strings.EqualFold(text(r.at("pricing", "price_unit")), unit) {
		return math.Inf(1)
	}
	rate, priced := r.number("pricing", "base_price")
	if !priced {
		rate = math.Inf(1)
	}
	volume := q.number("volume")
	if volume == 0 {
		return rate
	}
	tiers, _ := r.at("pricing", "tier_pricing").(map[string]any)
	for tier, price := range tiers {
		low, high, ranged := strings.Cut(strings.TrimSuffix(tier, "+"), "-")
		from, err := strconv.ParseFloat(low, 64)
		to := math.Inf(1)
		if ranged && err == nil {
			to, err = strconv.ParseFloat(high, 64)
		}
		if err == nil && from <= volume && volume <= to {
			rate, _ = price.(float64)
		}
	}
	if least, bound := r.number("pricing", "minimum_commitment"); bound && !math.IsInf(rate, 1) {
		rate = max(rate, least/volume)
	}
	return rate
}

// distance is that of the question's place, in km, by the haversine formula; +Inf without one.
func (q Question) distance(r Record) float64 {
	lat, placed := r.number("location", "latitude")
	if q["near"] == nil || !placed {
		return math.Inf(1)
	}
	lon, _ := r.number("location", "longitude")
	const radius, degree = 6371.0088, math.Pi / 180
	a, b := q.number("latitude", "near")*degree, lat*degree
	sinLat, sinLon := math.Sin((b-a)/2), math.Sin((lon-q.number("longitude", "near"))*degree/2)
	h := sinLat*sinLat + math.Cos(a)*math.Cos(b)*sinLon*sinLon
	return 2 * radius * math.Asin(math.Sqrt(min(1, h)))
}

// Value ranks a record in the order of the question: smaller is better, +Inf is unknown. It returns false for the orders that only the
// engine defines.
func (q Question) Value(r Record) (float64, bool) {
	switch q["sort"] {
	case "distance":
		return q.distance(r), true
	case "price":
		return q.rate(r), true
	case "uptime":
		uptime, ok := r.number("health", "uptime_percent")
		return orInf(-uptime, ok), true
	case "response_time":
		took, ok := r.number("health", "response_time_ms")
		return orInf(took, ok), true
	}
	return 0, false
}

func orInf(v float64, ok bool) float64 {
	if !ok {
		return math.Inf(1)
	}
	return v
}

// Answer is what a search returned.
type Answer struct {
	Results []struct {
		Record Record
	}
	Total    int      `json:"total"`
	AtLeast  bool     `json:"total_at_least"`
	Complete bool     `json:"complete"`
	Reason   string   `json:"incomplete_reason"`
	Next     string   `json:"next"`
	Source   string   `json:"source"`
	Notes    []string `json:"notes"` // of the question's explain
	Groups   []struct {
		Currency  string `json:"currency"`
		PriceUnit string `json:"price_unit"`
		First     int    `json:"first"`
		Results   int    `json:"results"`
		Total     int    `json:"total"`
		AtLeast   bool   `json:"total_at_least"`
	} `json:"price_groups"`
	Cells *struct {
		Length int
		Counts []struct {
			Cell  string
			Count int
		}
		Unplaced int
	} `json:"cells"`
}

// Judge compares a complete answer with all records that are offered. It returns what is wrong with it. Unsure: rounding decides whether a record
// matches, so the answer is not judged.
func Judge(q Question, all []Record, a *Answer) (unsure bool, wrong error) {
	var matches []Record
	for _, r := range all {
		match, edge := q.Matches(r)
		if edge {
			return true, nil
		}
		if match {
			matches = append(matches, r)
		}
	}
	switch {
	case a.Cells != nil:
		return false, judgeCells(matches, a)
	case q["group_prices"] != nil:
		return false, judgeGroups(q, matches, a)
	}
	return false, judgeResults(q, matches, a)
}

func judgeResults(q Question, matches []Record, a *Answer) error {
	limit := int(q.number("limit"))
	if want := min(limit, len(matches)); len(a.Results) != want {
		return fmt.Errorf("%d results instead of %d: %s", len(a.Results), want, difference(matches, a))
	}
	if len(matches) != a.Total && !(a.AtLeast && q["exact_total"] == nil && a.Total <= len(matches)) {
		return fmt.Errorf("a total of %d instead of %d", a.Total, len(matches))
	}
	return judgeOrder(q, matches, a)
}

func difference(matches []Record, a *Answer) string {
	var names []string
	for _, r := range matches {
		if !slices.ContainsFunc(a.Results, func(got struct{ Record Record }) bool { return got.Record.name() == r.name() }) {
			names = append(names, "without "+r.name())
		}
	}
	return strings.Join(names[:min(3, len(names))], ", ")
}

func judgeOrder(q Question, matches []Record, a *Answer) error {
	left := make(map[string]Record)
	for _, r := range matches {
		left[r.name()] = r
	}
	last, lastName := math.Inf(-1), ""
	for n, got := range a.Results {
		r, ok := left[got.Record.name()]
		if !ok {
			return fmt.Errorf("result %d, %s, is no match, or is there twice", n, got.Record.name())
		}
		delete(left, r.name())
		v, known := q.Value(r)
		if known && worse(last, lastName, v, r.name()) {
			return fmt.Errorf("result %d, %s with %v, stands behind one with %v", n, r.name(), v, last)
		}
		if q["sort"] == "stable" && n > 0 && a.Results[n-1].Record.position() > r.position() {
			return fmt.Errorf("result %d, %s, stands behind one of a later position", n, r.name())
		}
		last, lastName = v, r.name()
	}
	for name, r := range left {
		if v, known := q.Value(r); known && worse(last, lastName, v, name) {
			return fmt.Errorf("%s with %v is left out, and one with %v is not", name, v, last)
		}
	}
	return nil
}

// worse reports whether a value stands behind another one that it should precede. Values that rounding may exchange do not.
func worse(last float64, lastName string, v float64, name string) bool {
	if v == last {
		return name < lastName
	}
	return v < last-edge*max(1, math.Abs(v))
}

// judgeGroups takes an answer apart: one for each currency and unit, of the records that have a price in them.
func judgeGroups(q Question, matches []Record, a *Answer) error {
	of := make(map[string][]Record)
	for _, r := range matches {
		one := maps.Clone(q)
		one["currency"], one["price_unit"] = r.at("pricing", "currency"), r.at("pricing", "price_unit")
		if one["currency"] != nil && !math.IsInf(one.rate(r), 1) {
			terms := strings.ToUpper(text(one["currency"])) + " " + strings.ToLower(text(one["price_unit"]))
			of[terms] = append(of[terms], r)
		}
	}
	for _, g := range a.Groups {
		one, terms := maps.Clone(q), g.Currency+" "+g.PriceUnit
		delete(one, "group_prices")
		one["sort"], one["currency"], one["price_unit"] = "price", g.Currency, g.PriceUnit
		part := Answer{Results: a.Results[g.First : g.First+g.Results], Total: g.Total, AtLeast: g.AtLeast}
		if err := judgeResults(one, of[terms], &part); err != nil {
			return fmt.Errorf("in %s: %w", terms, err)
		}
		delete(of, terms)
	}
	if len(of) > 0 {
		return fmt.Errorf("no groups of %v", slices.Sorted(maps.Keys(of)))
	}
	return nil
}

func judgeCells(matches []Record, a *Answer) error {
	counts, unplaced := make(map[string]int), 0
	for _, r := range matches {
		lat, placed := r.number("location", "latitude")
		if !placed {
			unplaced++
			continue
		}
		lon, _ := r.number("location", "longitude")
		counts[geohash(lat, lon, a.Cells.Length)]++
	}
	for _, c := range a.Cells.Counts {
		if counts[c.Cell] != c.Count {
			return fmt.Errorf("%d records in cell %s instead of %d", c.Count, c.Cell, counts[c.Cell])
		}
		delete(counts, c.Cell)
	}
	if len(counts) > 0 || unplaced != a.Cells.Unplaced {
		return fmt.Errorf("no counts of %v; %d without a place instead of %d", counts, a.Cells.Unplaced, unplaced)
	}
	return nil
}

// geohash names the cell of a place, by Niemeyer's definition. 180 and -180 degrees are one meridian, of the cells in the west.
func geohash(lat, lon float64, length int) string {
	const alphabet = "0123456789bcdefghjkmnpqrstuvwxyz"
	if lon == 180 {
		lon = -180
	}
	low, high := [2]float64{-180, -90}, [2]float64{180, 90}
	var name []byte
	for bit, char := 0, 0; len(name) < length; bit++ {
		axis := bit % 2
		middle, upper := (low[axis]+high[axis])/2, 0
		if [2]float64{lon, lat}[axis] >= middle {
			low[axis], upper = middle, 1
		} else {
			high[axis] = middle
		}
		if char = 2*char + upper; bit%5 == 4 {
			name, char = append(name, alphabet[char]), 0
		}
	}
	return string(name)
}

// read decodes JSON into documents.
func read(b []byte, into any) error {
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%.200s: %w", b, err)
	}
	return nil
}
