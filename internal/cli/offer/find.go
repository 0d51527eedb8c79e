package offer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/operator"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
)

func offerFind(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "find --type TYPE", Short: "Find offers in the network", Args: command.NoArgs,
		Long: "Find offers by type, place, capabilities, price and quality.\n\n" +
			"A filter on a value excludes offers that do not state the value. An incomplete\n" +
			"answer has correct results, but lacks others: a warning gives the reason.\n\n" +
			"--fresh asks the providers of the first " + strconv.Itoa(client.MaxQuotes) + " results, for two seconds, what is free and what it costs now.\n" +
			"--reserve takes units, in the order of the answer and of as few offers as it can. It lets two at a time hold\n" +
			"units, gives back what is not needed, and says why an offer gave nothing. With too few units all is given back.",
		Example: "  " + command.Program + " offer find --type compute --near berlin --radius 100km --min-cpu 8 --gpu\n" +
			"  " + command.Program + " offer find --type storage --max-price 0.05 --sort price --limit 10 -o json\n" +
			"  " + command.Program + " offer find --type compute --gpu-model H100,A100 --gpu-memory-mb 80000 --gpus 8\n" +
			"  " + command.Program + " offer find --type bandwidth --where 'bandwidth.exit_countries=DE' --where 'location.country!=US'\n" +
			"  " + command.Program + " offer find --type compute --gpu --max-price 0.5 --reserve 2 --for 1h",
	}
	flags := newQueryFlags(cmd)
	flags.addOrder(cmd)
	var must, fresh bool
	var want client.Want
	f := cmd.Flags()
	f.BoolVar(&fresh, "fresh", false, "ask providers what is free, and the price now")
	f.Uint32Var(&want.Units, "reserve", 0, "take so many units, for at most the price found, or --max-price")
	f.DurationVar(&want.For, "for", 0, "with --reserve: longest time of a grant; 0: as long as each offer allows")
	f.BoolVar(&want.Hold, "hold", false, "with --reserve: hold the units for a minute, until the first connection")
	remote.MustFind(cmd, &must)
	for _, other := range []string{"fresh", "cells", "group-prices", "exit-code"} {
		cmd.MarkFlagsMutuallyExclusive("reserve", other)
	}
	cmd.MarkFlagsMutuallyExclusive("fresh", "cells")
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Calls(func(ctx context.Context, c *operator.Client, _ []string) error {
		q, err := flags.query(cmd)
		if fault.FieldOf(err) == "--price-unit" && q.Type == "gpu" {
			return fault.Invalidf("--type", q.Type, "is no standard type: use --type compute --gpu, or name --price-unit")
		}
		if err != nil {
			return err
		}
		if flags.near.city != "" {
			r.Say("near %s", flags.near.city)
		}
		reserve := cmd.Flags().Changed("reserve")
		for _, name := range []string{"for", "hold"} {
			if !reserve && cmd.Flags().Changed(name) {
				return fault.Invalidf("--reserve", nil, "is required with --%s", name)
			}
		}
		if reserve {
			return reserveFound(ctx, r, c, q, want)
		}
		answer, err := c.Offers().Query(ctx, q)
		if err != nil {
			return queryFields().Rename(err)
		}
		items := term.Items(answer.Results)
		if answer.Cells != nil {
			items = term.Items(answer.Cells.Counts)
		}
		doc := term.Document{Value: answer, Items: items, Table: answerTable(answer, r.Now())}
		if fresh {
			if doc, err = quoted(ctx, c, answer, doc.Table.(term.Grid)); err != nil {
				return err
			}
		}
		if err := r.Print(doc); err != nil {
			return err
		}
		summarise(r, answer)
		if (q.MaxPrice != nil || q.Sort == query.SortPrice) && (q.Currency == "" || len(answer.Results) == 0) && r.Format == term.AsTable {
			tellCurrencies(ctx, r, c, q)
		}
		if none := answer.Total == 0 || answer.Cells == nil && len(answer.Results) == 0; none && r.Format == term.AsTable && q.After == "" && !q.Explain {
			explainNoOffer(ctx, r, c, q)
		}
		return remote.Found(nil, must, answer.Total)
	})
}

// reserveFound takes units of what a query finds.
func reserveFound(ctx context.Context, r *remote.Peer, c *operator.Client, q query.Query, want client.Want) error {
	if want.Units == 0 {
		return fault.Invalidf("--reserve", want.Units, "must be at least 1")
	}
	t, err := take(ctx, r, c, q, want)
	if err != nil {
		return err
	}
	refused := make([]map[string]string, len(t.Refused))
	for i, x := range t.Refused {
		refused[i] = map[string]string{"key": x.Key, "reason": exit.OneLine(x.Err)}
	}
	return r.Print(term.Document{
		Value: map[string]any{"grants": t.Grants, "refused": refused}, Items: term.Items(t.Grants), Table: grantTable(false, t.Grants...),
	})
}

// freshResult is a result with what its provider says now; nil for an offer without stock, which nobody is asked for.
type freshResult struct {
	query.ResultView
	Quote *freshQuote `json:"quote"`
}

type freshQuote struct {
	client.Quote
	Refusal string `json:"refusal,omitempty"`
}

// quoted returns an answer with quotes.
func quoted(ctx context.Context, c *operator.Client, a query.AnswerView, g term.Grid) (d term.Document, err error) {
	var keys []string
	for i := range a.Results {
		if v := &a.Results[i].Record; v.Metadata.Stock != nil && len(keys) < client.MaxQuotes {
			keys = append(keys, v.Key)
		}
	}
	var quotes []client.Quote
	if len(keys) > 0 {
		if quotes, err = c.Offers().Quote(ctx, keys...); err != nil {
			return d, err
		}
	}
	all, free, price := make([]freshResult, len(a.Results)), make([]string, len(a.Results)), make([]string, len(a.Results))
	for i, r := range a.Results {
		all[i].ResultView = r
		free[i], price[i] = "none", "none"
		if r.Record.Metadata.Stock == nil {
			continue
		}
		q := &freshQuote{client.Quote{Key: r.Record.Key}, fmt.Sprintf("not asked: %d offers are at most", client.MaxQuotes)}
		if len(quotes) > 0 {
			q.Quote, quotes = quotes[0], quotes[1:]
			if q.Refusal = ""; q.Err != nil {
				q.Refusal = exit.OneLine(q.Err)
			}
		}
		all[i].Quote = q
		free[i], price[i] = "unknown", "unknown"
		if q.Refusal != "" {
			g.Below[i] = append(g.Below[i], "no quote: "+q.Refusal)
			continue
		}
		free[i] = fmt.Sprintf("%d of %d %s", q.Free, q.Total, r.Record.Metadata.Stock.Unit)
		if q.Most < q.Free {
			free[i] += fmt.Sprintf(", %d for you", q.Most)
		}
		price[i] = agreedPrice(q.Price, q.Currency, q.PriceUnit)
		if q.Sequence != r.Record.Sequence {
			g.Below[i] = append(g.Below[i], fmt.Sprintf("the provider has version %d of the offer, and version %d was found: %s offer show %s",
				q.Sequence, r.Record.Sequence, command.Program, q.Key))
		}
	}
	g = g.Beside("PRICE", []string{"FREE", "PRICE NOW"}, free, price)
	return term.Document{Value: struct {
		query.AnswerView
		Results []freshResult `json:"results"`
	}{a, all}, Items: term.Items(all), Table: g}, nil
}

// tellCurrencies tells how many offers a comparison of prices left out because of their currency or unit.
func tellCurrencies(ctx context.Context, r *remote.Peer, c *operator.Client, q query.Query) {
	plan, err := queries.Compile(q, queries.Defaults{})
	if err != nil {
		return // several types: each has a unit of its own
	}
	compared := plan.Query().Price
	q.MaxPrice, q.Currency, q.PriceUnit, q.Sort, q.GroupPrices, q.Limit, q.After = nil, "", "", query.SortPrice, true, 1, ""
	all, err := c.Offers().Query(ctx, q)
	if err != nil {
		return
	}
	for _, g := range all.Groups {
		if g.Currency != compared.Currency || g.PriceUnit != compared.PriceUnit {
			r.Say("not compared: %s priced in %s %s; --currency and --price-unit name others", fault.Counted(g.Total, "offer"), g.Currency, g.PriceUnit)
		}
	}
}

// summarise tells the user the total, the source and the completeness of an answer.
func summarise(r *remote.Peer, a query.AnswerView) {
	if r.Format == term.AsTable {
		from := "from the network"
		switch a.Source {
		case query.SourceCache:
			from = "from the cache, found " + duration(a.AgeMs) + " ago"
		case query.SourceLocal:
			from = "from this peer's index"
		}
		of := strconv.Itoa(a.Total)
		if a.AtLeast {
			of = "at least " + of
		}
		shown := fmt.Sprintf("%d of %s", len(a.Results), of)
		if a.Cells != nil {
			shown = of + " counted"
		}
		r.Say("%s, %s, in %s", shown, from, duration(a.TookMs))
	}
	if a.Next != "" {
		r.Say("more: --after %s", a.Next)
	}
	if a.ExcludedTotal > 0 {
		r.Say("%s", excludedLine(a))
	}
	if a.Beyond != nil {
		r.Say("%s", a.Beyond)
	}
	if !a.Complete {
		r.Say("warning: the answer is incomplete: %s", term.OrDash(a.Reason))
	}
}

// duration shows milliseconds with about three digits.
func duration(ms float64) string {
	d := time.Duration(ms * float64(time.Millisecond))
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	default:
		return d.Round(100 * time.Millisecond).String()
	}
}

// OfferOf returns the offer with a key, or the own one with an id.
func OfferOf(ctx context.Context, c *operator.Client, id string) (client.Record, error) {
	if strings.HasPrefix(id, "/") {
		return c.Offers().Resolve(ctx, id)
	}
	return c.Offers().Get(ctx, id)
}

func offerShow(con *term.Console) *cobra.Command {
	r := remote.New(con, &cobra.Command{Use: "show ID", Short: "Show all fields of an own offer, or of the offer with a key", Args: command.OneArg("ID")}, remote.DefaultTimeout)
	return r.Calls(func(ctx context.Context, c *operator.Client, args []string) error {
		rec, err := OfferOf(ctx, c, args[0])
		if fault.KindOf(err) == fault.NotFound && !strings.HasPrefix(args[0], "/") {
			return fault.Refused(fault.NotFound, "ID", "this peer has no offer with this id; %s show %s%s looks at offers of others too", command.Program, args[0], r.Given())
		}
		if err != nil {
			return exit.Rename(err, "ID")
		}
		if !strings.HasPrefix(args[0], "/") {
			sayUnseen(ctx, r, c, rec.View)
		}
		return r.Print(term.FieldsOf(rec.View))
	})
}

func offerWatch(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "watch --type TYPE", Short: "Follow the offers that match a query", Args: command.NoArgs,
		Long: "Show the matching offers, then all changes until interrupted.\n\n" +
			"Events: added, updated, withdrawn (by the provider), expired (not renewed), removed\n" +
			"(still offered, but outside the query), reset (discard earlier results: the current\n" +
			"ones follow) and progress (nothing changed; not in tables). With -o ndjson each line\n" +
			"has a cursor for --after, which resumes the watch there. --timeout ends the watch\n" +
			"with exit code 0. A warning says how many offers need a newer version of the peer.",
	}
	flags := newQueryFlags(cmd)
	after := cmd.Flags().String("after", "", "cursor of the last event seen")
	r := remote.New(con, cmd, 0)
	return r.Calls(func(ctx context.Context, c *operator.Client, _ []string) error {
		q, err := flags.query(cmd)
		if err != nil {
			return err
		}
		w, err := c.Offers().Watch(ctx, q, *after)
		if err != nil {
			return queryFields().Rename(err)
		}
		return followOffers(r, w)
	})
}

// followOffers prints events until the watch ends. A timeout after the first event is the end
// that the user asked for; a timeout before it means that no peer answered.
func followOffers(r *remote.Peer, w *client.Watcher) error {
	warned := ""
	for seen := false; ; seen = true {
		ev, err := w.Next()
		if seen && fault.KindOf(err) == fault.Timeout {
			return nil
		}
		if err != nil {
			return queryFields().Rename(err)
		}
		if ev.Kind == query.Progress {
			why := ev.Beyond.String()
			if !ev.Complete {
				why = "matches may be missing: " + cmp.Or(ev.Reason, "the search is not complete")
			}
			if why != "" && why != warned {
				r.Say("warning: %s", why)
			}
			warned = why
		}
		d := term.Document{Value: ev}
		switch {
		case ev.Record != nil:
			d.Table = term.Plain(eventLine(string(ev.Kind), &ev.Record.View, ev.Reason))
		case ev.Kind == "reset":
			d.Table = term.Plain("reset\n")
		}
		if err := r.PrintNext(d); err != nil {
			return err
		}
	}
}

// relaxation is a filter of a query for offers, with the name of its flag, or its clauses.
type relaxation struct {
	flag string
	set  bool
	keep func(q *query.Query) // adds the filter of the query to one without filters
}

// relaxations lists the filters of a query.
func relaxations(q query.Query) []relaxation {
	clauses := make([]string, len(q.Where)) // --where has them, or flags like --gpu-model
	for i, c := range q.Where {
		clauses[i] = c.String()
	}
	return []relaxation{
		{"--radius", q.Near != nil && q.Near.RadiusKM != nil, func(to *query.Query) { to.Near = q.Near }},
		{"--subtype", q.Subtype != "", func(to *query.Query) { to.Subtype = q.Subtype }},
		{"--country", len(q.Countries) > 0, func(to *query.Query) { to.Countries = q.Countries }},
		{"--region", len(q.Regions) > 0, func(to *query.Query) { to.Regions = q.Regions }},
		{"--gpu, --min-...", q.Capacity != query.Capacity{}, func(to *query.Query) { to.Capacity = q.Capacity }},
		{"--max-price", q.MaxPrice != nil, func(to *query.Query) { to.Price = q.Price; to.GroupPrices = false }},
		{"--min-uptime, --max-error-rate", q.MinUptime != nil || q.MaxErrorRate != nil, func(to *query.Query) {
			to.MinUptime, to.MaxErrorRate = q.MinUptime, q.MaxErrorRate
		}},
		{"--health (usable without the flag)", q.Health != query.HealthAny, func(to *query.Query) { to.Health = q.Health }},
		{"--provider", q.ProviderID != "", func(to *query.Query) { to.ProviderID = q.ProviderID }},
		{"--domain", q.Domain != "", func(to *query.Query) { to.Domain = q.Domain }},
		{"--attr", len(q.Attributes) > 0, func(to *query.Query) { to.Attributes = q.Attributes }},
		{strings.Join(clauses, " and "), len(q.Where) > 0, func(to *query.Query) { to.Where = q.Where }},
	}
}

// explainNoOffer tells on standard error why a query found no offer: how many each filter leaves out, and how far the nearest one
// is, or which types have offers. What cannot be found out is left out: the answer itself stands.
func explainNoOffer(ctx context.Context, r *remote.Peer, c *operator.Client, q query.Query) {
	types := q.Types
	if q.Type != "" {
		types = []string{q.Type}
	}
	bare := query.Query{Type: q.Type, Types: q.Types, Quality: query.Quality{Health: query.HealthAny}, ExactTotal: true, Limit: 1}
	all, err := c.Offers().Query(ctx, bare)
	if err != nil {
		return
	}
	kind := strings.Join(types, " or ")
	if all.Total == 0 {
		r.Say("no offer of type %s%s", kind, otherTypes(ctx, c, bare))
		return
	}
	var left []string
	for _, f := range relaxations(q) {
		if !f.set {
			continue
		}
		only := bare
		f.keep(&only)
		a, err := c.Offers().Query(ctx, only)
		if err != nil || a.Total >= all.Total {
			continue
		}
		text := fmt.Sprintf("%d by %s", all.Total-a.Total, f.flag)
		if f.flag == "--radius" && a.Total == 0 {
			text += nearestOffer(ctx, c, bare, *q.Near)
		}
		left = append(left, text)
	}
	if len(left) == 0 {
		return // it came meanwhile
	}
	r.Say("%s of type %s, none passes; left out: %s", fault.Counted(all.Total, "offer"), kind, strings.Join(left, ", "))
	if models := otherModels(ctx, c, bare, q.Where); len(models) > 0 {
		r.Say("GPU models that contain it: %s; --gpu-model takes the beginning of a model, with its spaces", strings.Join(models, ", "))
	}
}

// otherModels returns the first models on offer that contain a text which the query expects at their beginning, or
// alone; spaces and hyphens do not count.
func otherModels(ctx context.Context, c *operator.Client, bare query.Query, where []query.Clause) (models []string) {
	const field, most = "compute.gpus.model", 5
	where = slices.DeleteFunc(slices.Clone(where), func(w query.Clause) bool { return w.Field != field || w.Not || len(w.Values) == 0 })
	if len(where) == 0 {
		return nil
	}
	plain := func(model string) string { return strings.NewReplacer(" ", "", "-", "").Replace(queries.Fold(model)) }
	near := func(model string) bool {
		has := func(w query.Clause, as func(string) string, is func(s, part string) bool) bool {
			return slices.ContainsFunc(w.Values, func(v string) bool { return is(as(model), as(v)) })
		}
		return slices.ContainsFunc(where, func(w query.Clause) bool {
			meets := has(w, queries.Fold, strings.EqualFold) || w.Op == query.OpPrefix && has(w, queries.Fold, strings.HasPrefix)
			return !meets && has(w, plain, strings.Contains)
		})
	}
	bare.Where, bare.Limit, bare.ExactTotal = []query.Clause{{Field: field, Op: query.OpStated}}, queries.MaxLimit, false
	a, err := c.Offers().Query(ctx, bare)
	if err != nil {
		return nil
	}
	for _, r := range a.Results {
		if r.Record.Capabilities == nil || r.Record.Capabilities.Compute == nil {
			continue
		}
		for _, g := range r.Record.Capabilities.Compute.GPUs {
			if len(models) < most && near(g.Model) && !slices.Contains(models, g.Model) {
				models = append(models, g.Model)
			}
		}
	}
	return models
}

// nearestOffer says how far the nearest offer is, whatever its other properties.
func nearestOffer(ctx context.Context, c *operator.Client, bare query.Query, near query.Near) string {
	near.RadiusKM = nil
	bare.Near, bare.Sort, bare.ExactTotal = &near, query.SortDistance, false
	a, err := c.Offers().Query(ctx, bare)
	if err != nil || len(a.Results) == 0 {
		return ""
	}
	return " (the nearest is " + distanceOf(a.Results[0].DistanceKM) + " away)"
}

// otherTypes says which of the usual types have offers.
func otherTypes(ctx context.Context, c *operator.Client, bare query.Query) string {
	var found []string
	for _, t := range []string{"storage", "compute", "cdn", "bandwidth"} {
		bare.Type, bare.Types = t, nil
		if a, err := c.Offers().Query(ctx, bare); err == nil && a.Total > 0 {
			found = append(found, fmt.Sprintf("%s (%d)", t, a.Total))
		}
	}
	if len(found) == 0 {
		return ""
	}
	return "; there are offers of " + strings.Join(found, ", ")
}
