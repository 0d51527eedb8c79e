package discovery

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// ranked is an answer with the places of its results, by which the results of several plans merge.
type ranked struct {
	query.Answer
	places []queries.Hit // of each result, in the order of the results; none for cells and groups
}

// several answers queries that single queries resolve: of several types, or of several groups of
// prices.
type several struct {
	ask      func(context.Context, query.Query) (*ranked, error)
	defaults queries.Defaults
	now      func() time.Time
}

// ofTypes answers a query of several types. Each type has cells, keepers and a cached answer of its
// own; merging their best results is exact, because each has the limit of the query.
func (s *several) ofTypes(ctx context.Context, q query.Query) (*ranked, error) {
	const op = "discovery.Query"
	start := s.now()
	list, err := queries.Split(q)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	if len(list) == 1 {
		return s.ask(ctx, list[0])
	}
	plans := make([]*queries.Plan, len(list))
	for i := range list {
		if plans[i], err = queries.Compile(list[i], s.defaults); err != nil {
			return nil, fault.Wrap(op, err)
		}
	}
	parts, err := s.askAll(ctx, list)
	if err != nil {
		return nil, err
	}
	a := join(parts)
	a.Results, a.places = best(plans[0], parts)
	a.Next = plans[0].Next(a.Results)
	a.Took = s.now().Sub(start)
	return a, nil
}

// best merges the first results of answers in the order of a plan.
func best(plan *queries.Plan, parts []*part) ([]query.Result, []queries.Hit) {
	var all []query.Result
	var places []queries.Hit
	for _, p := range parts {
		all, places = append(all, p.answered().Results...), append(places, p.answered().places...)
	}
	n := min(len(all), plan.Limit())
	return arranged(plan, all, places)[:n], places[:n]
}

// arranged returns results in the order of a plan, and sorts their places.
func arranged(plan *queries.Plan, all []query.Result, places []queries.Hit) []query.Result {
	at := make(map[*records.Record]int, len(all))
	for i := range all {
		at[all[i].Record] = i
	}
	plan.Arrange(places)
	out := make([]query.Result, len(all))
	for i, h := range places {
		out[i] = all[at[h.Record]]
	}
	return out
}

// part is the answer to one of several queries, or the reason for its absence.
type part struct {
	about  string // for reasons and notes
	answer *ranked
	err    error
}

// answered returns the answer, an empty one in place of an absent one.
func (p *part) answered() *ranked {
	if p.answer == nil {
		return &ranked{}
	}
	return p.answer
}

// askAll answers single queries at once, at most queries.MaxTypes of them. It fails if a query is
// invalid, or without any answer.
func (s *several) askAll(ctx context.Context, list []query.Query) ([]*part, error) {
	parts := make([]*part, len(list))
	var wg sync.WaitGroup
	for i, q := range list {
		about := q.Type
		if q.Currency != "" {
			about = strings.TrimSpace(q.Type + " in " + q.Currency + " " + q.PriceUnit)
		}
		parts[i] = &part{about: about}
		wg.Go(func() { parts[i].answer, parts[i].err = s.ask(ctx, q) })
	}
	wg.Wait()
	var failure error
	some := false
	for _, p := range parts {
		some = some || p.err == nil
		if p.err != nil && (failure == nil || fault.KindOf(p.err) == fault.Invalid) {
			failure = p.err
		}
	}
	if failure != nil && (!some || fault.KindOf(failure) == fault.Invalid || ctx.Err() != nil) {
		return nil, failure
	}
	return parts, nil
}

// join combines all of some answers but the results.
func join(parts []*part) *ranked {
	a := &ranked{Answer: query.Answer{Complete: true, Source: query.SourceCache, Results: []query.Result{}}}
	var reasons []string
	for _, p := range parts {
		if p.err != nil {
			a.Complete, a.AtLeast = false, true
			reasons = append(reasons, p.about+": "+p.err.Error())
			continue
		}
		b := p.answer
		a.Total += b.Total
		a.AtLeast = a.AtLeast || b.AtLeast
		a.Age = max(a.Age, b.Age)
		a.Source = wider(a.Source, b.Source)
		if !b.Complete {
			a.Complete = false
			reasons = append(reasons, p.about+": "+b.Reason)
		}
		for _, note := range b.Notes {
			a.Notes = append(a.Notes, p.about+": "+note)
		}
		a.Beyond = a.Beyond.Join(b.Beyond)
		a.Excluded = append(a.Excluded, b.Excluded...)
		a.ExcludedTotal += b.ExcludedTotal
	}
	a.Reason = strings.Join(reasons, "; ")
	joinExcluded(&a.Answer)
	return a
}

// joinExcluded keeps one entry for each provider and paused offer, at most queries.MaxExcluded. The total counts a
// provider once for each answer with a longer list than that.
func joinExcluded(a *query.Answer) {
	slices.SortFunc(a.Excluded, func(x, y query.Excluded) int {
		return cmp.Or(cmp.Compare(x.Provider, y.Provider), cmp.Compare(x.ID, y.ID))
	})
	listed := len(a.Excluded)
	a.Excluded = slices.CompactFunc(a.Excluded, func(x, y query.Excluded) bool { return x.Provider == y.Provider && x.ID == y.ID })
	a.ExcludedTotal -= listed - len(a.Excluded)
	a.Excluded = a.Excluded[:min(len(a.Excluded), queries.MaxExcluded)]
}

// wider returns the source that is farther away.
func wider(x, y query.Source) query.Source {
	order := []query.Source{query.SourceCache, query.SourceLocal, query.SourceNetwork}
	if slices.Index(order, y) > slices.Index(order, x) {
		return y
	}
	return x
}

// grouped answers a query with GroupPrices. It finds the terms one by one, each by a query for a
// match with other terms than those known, and then asks for the cheapest matches of each. So
// prices compare within one group only, at this peer, at keepers and in the bounds of summaries.
func (s *several) grouped(ctx context.Context, q query.Query) (*ranked, error) {
	const op = "discovery.Query"
	start := s.now()
	if err := queries.Check(q, s.defaults); err != nil {
		return nil, fault.Wrap(op, err)
	}
	q = s.defaults.Fill(q)
	var known []query.Terms
	var probes []*part
	for len(known) <= queries.MaxGroups {
		probe, err := s.ask(ctx, queries.OtherThan(q, known))
		if err != nil {
			return nil, err
		}
		probes = append(probes, &part{about: "search of currencies and units", answer: probe})
		if len(probe.Results) == 0 {
			break
		}
		t, ok := queries.TermsOf(probe.Results[0].Record)
		if !ok || slices.Contains(known, t) {
			break // impossible: the query asks for other terms
		}
		known = append(known, t)
	}
	more := len(known) > queries.MaxGroups
	known = known[:min(len(known), queries.MaxGroups)]
	slices.SortFunc(known, query.Terms.Compare)
	list := make([]query.Query, len(known))
	for i, t := range known {
		list[i] = queries.ForTerms(q, t)
		list[i].Limit = max(1, min(q.Limit, queries.MaxLimit/len(known)))
	}
	parts, err := s.askAll(ctx, list)
	if err != nil {
		return nil, err
	}
	a := joinGroups(known, parts)
	why := join(probes)
	a.Source, a.Age = wider(a.Source, why.Source), max(a.Age, why.Age)
	a.Beyond = probes[0].answer.Beyond // their terms are unknown, so every part counts the same ones
	if !why.Complete {
		a.Complete, a.Reason = false, strings.Join(slices.DeleteFunc([]string{a.Reason, why.Reason}, func(s string) bool { return s == "" }), "; ")
	}
	if more {
		a.Complete = false
		a.Reason = cmp.Or(a.Reason, fmt.Sprintf("more than %d currencies and units: narrow the query", queries.MaxGroups))
	}
	a.Took = s.now().Sub(start)
	return a, nil
}

// joinGroups concatenates the answers of groups.
func joinGroups(known []query.Terms, parts []*part) *ranked {
	a := join(parts)
	for i, p := range parts {
		b := p.answered()
		if len(b.Results) == 0 {
			continue
		}
		a.Groups = append(a.Groups, query.PriceGroup{
			Terms: known[i], First: len(a.Results), Results: len(b.Results), Total: b.Total, AtLeast: b.AtLeast,
		})
		a.Results = append(a.Results, b.Results...)
	}
	return a
}
