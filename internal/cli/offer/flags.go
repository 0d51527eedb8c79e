package offer

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/platform/cities"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// Place is the type of the flags --near and --city: LAT,LON or a city.
type Place struct {
	near *query.Near
	city string // that was found; "" for coordinates
}

// String implements pflag.Value.
func (p *Place) String() string {
	if p.near == nil {
		return ""
	}
	return term.Number(p.near.Latitude) + "," + term.Number(p.near.Longitude)
}

// Type implements pflag.Value.
func (p *Place) Type() string { return "PLACE" }

// Set implements pflag.Value.
func (p *Place) Set(s string) error {
	first, second, ok := strings.Cut(s, ",")
	lat, latErr := strconv.ParseFloat(strings.TrimSpace(first), 64)
	lon, lonErr := strconv.ParseFloat(strings.TrimSpace(second), 64)
	switch {
	case ok && latErr == nil && lonErr == nil:
		*p = Place{near: &query.Near{Latitude: lat, Longitude: lon}}
		return nil
	case latErr == nil:
		return fault.Invalidf("", s, "needs LATITUDE,LONGITUDE in degrees (52.52,13.40) or a city, not %q", s)
	}
	c, err := cities.Named(s)
	if err != nil {
		return err
	}
	*p = Place{near: &query.Near{Latitude: c.Point.Lat, Longitude: c.Point.Lon}, city: c.Name + ", " + c.Country}
	return nil
}

// Location returns the place in the form of an offer. The place must be set.
func (p *Place) Location() *records.Location {
	l := &records.Location{Latitude: &p.near.Latitude, Longitude: &p.near.Longitude}
	if i := strings.LastIndex(p.city, ", "); i >= 0 {
		l.City, l.Country = p.city[:i], p.city[i+2:]
	}
	return l
}

// CompleteCity offers the shell the cities that begin so.
func CompleteCity(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	all, err := cities.All()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for i := range all {
		if strings.HasPrefix(strings.ToLower(all[i].Name), strings.ToLower(begun)) {
			names = append(names, all[i].Name)
		}
	}
	slices.Sort(names)
	return names, cobra.ShellCompDirectiveNoFileComp
}

// distance is the type of the flag --radius: a number with km, m or mi, alone kilometres.
type distance struct{ km *float64 }

// String implements pflag.Value.
func (d *distance) String() string {
	if d.km == nil {
		return ""
	}
	return term.Number(*d.km) + "km"
}

// Type implements pflag.Value.
func (d *distance) Type() string { return "DISTANCE" }

// Set implements pflag.Value. The query checks the range.
func (d *distance) Set(s string) error {
	text, perKM := strings.ToLower(strings.TrimSpace(s)), 1.0
	units := []struct {
		suffix string
		perKM  float64
	}{{"km", 1}, {"mi", 1 / 1.609344}, {"m", 1000}} // the international mile; km before m
	for _, u := range units {
		if cut, ok := strings.CutSuffix(text, u.suffix); ok {
			text, perKM = strings.TrimSpace(cut), u.perKM
			break
		}
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return fault.Invalidf("", s, "needs a distance (100km, 500m, 60mi), not %q", s)
	}
	km := v / perKM
	d.km = &km
	return nil
}

// queryFlags holds the flags of offer find and offer watch.
type queryFlags struct {
	q            query.Query
	near         Place
	radius       distance
	maxPrice     float64
	minUptime    float64
	maxErrorRate uint32
	volume       float64
	attributes   []string
}

// OfferTypes are the types of the specification.
func OfferTypes() []string { return []string{"storage", "compute", "cdn", "bandwidth"} }

// newQueryFlags adds the flags that filter records.
func newQueryFlags(cmd *cobra.Command) *queryFlags {
	s := new(queryFlags)
	q, f := &s.q, cmd.Flags()
	f.StringSliceVar(&q.Types, "type", nil, "storage, compute, cdn, bandwidth or another (required; several: repeat, or commas)")
	f.StringVar(&q.Subtype, "subtype", "", "specialisation within the type")
	f.Var(&s.near, "near", "place: a city (berlin, \"San Jose, US\") or degrees (52.52,13.40)")
	f.Var(&s.radius, "radius", "largest distance from --near: 100km, 500m, 60mi; a plain number means km")
	f.StringSliceVar(&q.Countries, "country", nil, "country, a code (ISO 3166-1 alpha-2) or an English name (repeat, or commas)")
	f.StringArrayVar(&q.Regions, "region", nil, "region (repeat)")
	f.Uint32Var(&q.MinCPUCores, "min-cpu", 0, "minimum CPU cores")
	f.Uint64Var(&q.MinMemoryMB, "min-memory-mb", 0, "minimum memory, MB")
	f.BoolVar(&q.RequireGPU, "gpu", false, "require a GPU")
	f.Uint64Var(&q.MinStorageGB, "min-storage-gb", 0, "minimum available storage, GB")
	f.Uint64Var(&q.MinBandwidthMbps, "min-bandwidth-mbps", 0, "minimum bandwidth, Mbit/s")
	f.Float64Var(&s.maxPrice, "max-price", 0, "maximum base price, in --currency per --price-unit")
	f.StringVar(&q.Currency, "currency", "", "currency of prices (default "+queries.DefaultCurrency+")")
	f.StringVar(&q.PriceUnit, "price-unit", "", "unit of prices: per-gb-month, per-hour, ... (default: the usual unit of the type)")
	f.Float64Var(&s.minUptime, "min-uptime", 0, "minimum uptime, percent")
	f.Uint32Var(&s.maxErrorRate, "max-error-rate", 0, "maximum errors in 10000 requests")
	f.StringVar(&q.ProviderID, "provider", "", "peer id of the provider")
	f.StringArrayVar(&s.attributes, "attr", nil, "attribute KEY=VALUE (repeat)")
	addClauses(cmd, &q.Where)
	f.StringVar(&q.Domain, "domain", "", "only offers of this domain, or of any one for '"+queries.AnyDomain+"', that is checked to name the provider")
	f.Float64Var(&s.volume, "volume", 0, "price units to buy: prices count tiers and minimum commitment")
	f.StringVar((*string)(&q.Health), "health", "", "any, usable or healthy (default usable)")
	f.StringVar((*string)(&q.Claims), "claims", "", "whether scores and orders believe claims: check or trust (default: the peer's, check)")
	command.Complete(cmd, "claims", "check", "trust")
	command.Complete(cmd, "type", OfferTypes()...)
	command.CompleteBy(cmd, "near", CompleteCity)
	command.Complete(cmd, "health", "any", "usable", "healthy")
	return s
}

// addOrder adds the flags that order and limit answers.
func (s *queryFlags) addOrder(cmd *cobra.Command) {
	q, f := &s.q, cmd.Flags()
	f.StringVar((*string)(&q.Sort), "sort", "", "distance, price, uptime, response_time, random, stable or score (default distance with --near, else score)")
	f.StringVar(&q.After, "after", "", "with --sort stable: the page after this one, the NEXT of an answer")
	f.BoolVar(&q.GroupPrices, "group-prices", false, "show the cheapest of each currency and unit, --limit of each")
	f.IntVar(&q.Cells, "cells", 0, "count the offers of each cell with a geohash of this length, 1 to "+strconv.Itoa(queries.MaxCellLength)+", in place of results; with --sort price also their least price")
	f.Uint64Var(&q.Seed, "seed", 0, "seed of --sort random; 0 draws a new seed")
	f.IntVar(&q.Limit, "limit", 0, "maximum number of results, up to "+strconv.Itoa(queries.MaxLimit)+" (default: the peer's setting)")
	f.BoolVar(&q.Explain, "explain", false, "explain each score, and the excluded records")
	f.BoolVar(&q.ExactTotal, "exact-total", false, "count all matches even if the best are found sooner")
	command.Complete(cmd, "sort", "distance", "price", "uptime", "response_time", "random", "stable", "score")
}

// query returns the valid query of the flags. Errors name the flag.
func (s *queryFlags) query(cmd *cobra.Command) (query.Query, error) {
	q := s.q
	if s.radius.km != nil && s.near.near == nil {
		return query.Query{}, fault.Invalidf("--near", nil, "is required with --radius")
	}
	if s.near.near != nil {
		q.Near = &query.Near{Latitude: s.near.near.Latitude, Longitude: s.near.near.Longitude, RadiusKM: s.radius.km}
	}
	if cmd.Flags().Changed("max-price") {
		q.MaxPrice = &s.maxPrice
	}
	if cmd.Flags().Changed("min-uptime") {
		q.MinUptime = &s.minUptime
	}
	if cmd.Flags().Changed("max-error-rate") {
		q.MaxErrorRate = &s.maxErrorRate
	}
	if cmd.Flags().Changed("volume") {
		q.Volume = &s.volume
	}
	if len(q.Types) == 1 {
		q.Type, q.Types = q.Types[0], nil
	}
	var err error
	q.Countries = slices.Clone(q.Countries) // the flags stay as they were given
	for i, name := range q.Countries {
		if q.Countries[i], err = cities.Country(name); err != nil {
			return query.Query{}, fault.In("--country", err)
		}
	}
	if q.Attributes, err = command.Assignments("--attr", s.attributes); err != nil {
		return query.Query{}, err
	}
	return q, queryFields().Rename(queries.Check(q, queries.Defaults{}))
}

// queryFields names the flags for the fields of a query.
func queryFields() exit.Fields {
	return exit.Fields{
		"near.latitude": "--near", "near.longitude": "--near", "near.radius_km": "--radius", "countries": "--country", "regions": "--region",
		"min_cpu_cores": "--min-cpu", "require_gpu": "--gpu", "provider_id": "--provider", "attributes": "--attr", "types": "--type",
		"type": "", "subtype": "", "near": "", "min_memory_mb": "", "min_storage_gb": "", "min_bandwidth_mbps": "", "max_price": "",
		"currency": "", "price_unit": "", "min_uptime": "", "max_error_rate": "", "health": "", "sort": "", "claims": "", "seed": "", "limit": "",
		"explain": "", "exact_total": "", "after": "", "where": "", "volume": "", "group_prices": "", "cells": "", "domain": "",
	}
}

// clauses is the type of flags that add clauses to a query: --where in text form, and the flags of
// common fields, which contain the field and the operator.
type clauses struct {
	to    *[]query.Clause
	begin string // field and operator; "" for a whole clause
	name  string // of the type in help texts
}

// String implements pflag.Value.
func (c *clauses) String() string { return "" }

// Type implements pflag.Value.
func (c *clauses) Type() string { return c.name }

// Set implements pflag.Value.
func (c *clauses) Set(s string) error {
	parsed, err := queries.ParseClause(c.begin + s)
	if err == nil {
		err = queries.CheckClause(&parsed)
	}
	if err != nil {
		return err
	}
	*c.to = append(*c.to, parsed)
	return nil
}

// commonClauses lists the flags of common fields.
func commonClauses() []struct{ flag, begin, name, usage string } {
	return []struct{ flag, begin, name, usage string }{
		{"gpu-model", "compute.gpus.model^=", "LIST", "GPU whose model begins so: H100,A100"},
		{"gpu-memory-mb", "compute.gpus.memory_mb>=", "MB", "minimum memory of a GPU"},
		{"gpus", "compute.gpus.count>=", "N", "minimum number of such GPUs"},
		{"engine", "compute.runtime_engines=", "LIST", "runtime engine: docker, wasm, ..."},
		{"storage-class", "storage.storage_classes=", "LIST", "storage class: hot, cold, archive, ..."},
		{"cdn-region", "cdn.regions=", "LIST", "region served by a CDN"},
		{"exit-country", "bandwidth.exit_countries=", "LIST", "country of an exit: DE,FR"},
		{"tunnel", "bandwidth.protocols=", "LIST", "protocol of a bandwidth service: wireguard, openvpn, ..."},
		{"protocol", "protocols=", "LIST", "protocol of the endpoints: https, grpc, ..."},
	}
}

// addClauses adds the flags of clauses.
func addClauses(cmd *cobra.Command, to *[]query.Clause) {
	f := cmd.Flags()
	f.Var(&clauses{to: to, name: "CLAUSE"}, "where",
		"test of a field: compute.gpus.memory_mb>=24000, location.country!=DE, ... (repeat; see "+command.Program+" offer fields)")
	command.CompleteBy(cmd, "where", func(_ *cobra.Command, _ []string, begun string) (names []string, _ cobra.ShellCompDirective) {
		for _, x := range queries.Fields() {
			if strings.HasPrefix(x.Name, begun) {
				names = append(names, x.Name+"\t"+x.Help)
			}
		}
		return names, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	})
	for _, c := range commonClauses() {
		f.Var(&clauses{to: to, begin: c.begin, name: c.name}, c.flag, c.usage)
	}
}

// fieldView is the JSON form of a field of records.
type fieldView struct {
	Name string       `json:"name"`
	Kind queries.Kind `json:"kind"`
	Unit string       `json:"unit,omitempty"`
	Ops  []query.Op   `json:"ops"`
	Help string       `json:"help"`
}

func offerFields(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "fields", Short: "Show the fields that --where can test", Args: command.NoArgs,
		Long: "Show the fields that --where can test.\n\n" +
			"  FIELD=A,B       one of these            FIELD&=A,B   all of these\n" +
			"  FIELD^=A,B      begins with one of these\n" +
			"  FIELD>=N        also <=N and >=N<=M     FIELD        stated, or true\n\n" +
			"A \"!\" before the operator, or before the field alone, negates. A record that does not\n" +
			"state the field fails every test, negated ones too; FIELD?!=A lets it pass.\n" +
			"Tests of GPUs are met by one GPU together.",
	}
	var f term.Format
	command.Output(cmd, &f)
	cmd.RunE = func(*cobra.Command, []string) error {
		var list []fieldView
		var rows [][]string
		for _, x := range queries.Fields() {
			ops := make([]string, len(x.Ops()))
			for i, op := range x.Ops() {
				ops[i] = string(op)
			}
			list = append(list, fieldView{x.Name, x.Kind, x.Unit, x.Ops(), x.Help})
			rows = append(rows, []string{x.Name, string(x.Kind), term.OrDash(x.Unit), strings.Join(ops, " "), x.Help})
		}
		return f.Print(con, term.Document{
			Value: map[string]any{"fields": list}, Items: term.Items(list),
			Table: term.Table([]string{"FIELD", "KIND", "UNIT", "OPERATIONS", "MEANING"}, rows),
		})
	}
	return cmd
}
