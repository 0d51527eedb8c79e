package discovery

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/truth"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// confirmMost bounds the lookups that one answer can cause.
const confirmMost = 4

// assemble ranks the keepers' matches together with newer local ones.
func (p *Parts) assemble(plan *queries.Plan, found queries.Found) *ranked {
	now := p.Now()
	hits := make([]queries.Hit, 0, len(found.Records))
	for _, r := range found.Records {
		if !r.Expired(now) {
			hits = append(hits, plan.Hit(r))
		}
	}
	if !found.Local {
		local, unlisted := p.localMatches(plan, found, now)
		hits = append(hits, local...)
		if found.Complete && len(unlisted) > 0 {
			found.Complete = false
			found.Reason = fmt.Sprintf("the keepers do not list %s, announced %s ago: it is on its way to them, or withdrawn",
				unlisted[0].Name(), now.Sub(unlisted[0].Issued()).Round(time.Second))
		}
	}
	plan.Arrange(hits)
	a := p.answer(plan, hits[:min(len(hits), plan.Limit())], found.Total)
	a.AtLeast, a.Complete, a.Reason, a.Beyond = found.AtLeast, found.Complete, found.Reason, found.Beyond
	if withheld := found.AtLeast || found.Total > len(found.Records); a.Complete && withheld && a.ExcludedTotal > 0 && len(a.Results) < plan.Shown() {
		a.Complete, a.Reason = false, "offers that do not answer took places of others: ask again"
	}
	if a.Complete && slices.ContainsFunc(a.Excluded, func(e query.Excluded) bool { return e.Reason == truth.NotYet }) {
		a.Complete, a.Reason = false, "the domains of some offers are not checked yet: ask again"
	}
	if found.Local {
		a.Source = query.SourceLocal
	}
	if plan.Explain() {
		a.Notes = slices.Concat(plan.Describe(), found.Notes, p.explainRejected(plan))
	}
	return a
}

// localMatches returns matches of the index without a keeper's match: own services, and records too young to
// have reached their keepers. Other local matches are obsolete: their keepers have dropped them. The index drops
// them too, if a complete answer lacks them. unlisted are young records of other providers that the keepers should
// list and do not.
func (p *Parts) localMatches(plan *queries.Plan, found queries.Found, now time.Time) (hits []queries.Hit, unlisted []*records.Record) {
	brought := make(map[records.Name]bool, len(found.Records))
	first := make([]queries.Hit, len(found.Records))
	for i, r := range found.Records {
		brought[r.Name()] = true
		first[i] = plan.Hit(r)
	}
	plan.Arrange(first)
	var results []*records.Record // those that no keeper would withhold
	for _, h := range first[:min(len(first), plan.Limit())] {
		results = append(results, h.Record)
	}
	hidden := p.hidden(plan.AnyHealth())
	whole := !found.AtLeast && len(found.Records) >= found.Total // no match was cut off
	for _, h := range p.Index.Search(plan, index.SearchOptions{Now: now, AtLeast: true}).Hits {
		if brought[h.Record.Name()] {
			continue
		}
		listed := whole || plan.Before(h.Record, results) // at keepers that hold it
		switch {
		case hidden.gone(h.Record):
		case h.Record.Name().Provider == p.Registry.Self():
			hits = append(hits, h)
		case now.Sub(h.Record.Issued()) < propagation:
			hits = append(hits, h)
			if listed {
				unlisted = append(unlisted, h.Record)
			}
		case found.Complete && listed:
			p.Index.Forget(h.Record)
		}
	}
	return hits, unlisted
}

// confirm looks up the young records that a complete answer should list and does not. The index learns which of
// them are withdrawn. Beyond confirmMost the answer stays incomplete.
func (p *Parts) confirm(ctx context.Context, plan *queries.Plan, found queries.Found) {
	if !found.Complete || found.Local {
		return
	}
	_, unlisted := p.localMatches(plan, found, p.Now())
	if len(unlisted) > confirmMost {
		return
	}
	var lookups sync.WaitGroup
	for _, r := range unlisted {
		lookups.Go(func() { _, _ = p.Keepers.Resolve(ctx, r.Key()) }) // after an error the record stays unlisted
	}
	lookups.Wait()
}

// answer converts ranked hits to an answer. It ranks those of a judged plan again, by all that this peer knows.
func (p *Parts) answer(plan *queries.Plan, hits []queries.Hit, total int) *ranked {
	hits, dead, told := p.living(plan, hits)
	a := &ranked{Answer: query.Answer{
		Results: make([]query.Result, len(hits)), Total: max(total-dead, len(hits)), Source: query.SourceNetwork,
		Excluded: told[:min(len(told), queries.MaxExcluded)], ExcludedTotal: len(told),
	}, places: make([]queries.Hit, len(hits))}
	matches := make([]*records.Record, len(hits))
	for i, h := range hits {
		matches[i] = h.Record
	}
	evidence := plan.Doubts(matches)
	for i, h := range hits {
		a.Results[i], a.places[i] = p.result(plan, h.Record, &evidence[i])
	}
	a.Results = arranged(plan, a.Results, a.places)
	p.truth.Want(firstOf(&a.Answer, likely+reserve))
	shown := min(len(a.Results), plan.Shown())
	a.Results, a.places = a.Results[:shown], a.places[:shown]
	if plan.Explain() {
		for i := range a.Results {
			r := &a.Results[i]
			at := slices.Index(matches, r.Record)
			r.Explain = plan.ExplainScore(r.Record, &evidence[at])
		}
	}
	a.Next = plan.Next(a.Results)
	return a
}

// result fills in what this peer knows of a match, and completes the evidence. The place is by all evidence: its value is Plan.Rank.
func (p *Parts) result(plan *queries.Plan, r *records.Record, e *queries.Evidence) (query.Result, queries.Hit) {
	res := query.Result{Record: r}
	if m, ok := plan.Distance(r); ok {
		km := m / 1000
		res.DistanceKM = &km
	}
	row := p.truth.Of(r, e)
	res.Measured, res.Endpoint, res.Domain = row.Peer, row.Endpoint, row.Domain
	res.Doubts = e.Doubts
	res.Score = plan.Judge(r, e)
	place := plan.Hit(r)
	place.Value = plan.Rank(r, e)
	if plan.Spreads() {
		place.Network = r.EndpointNetwork()
		switch {
		case e.Failed:
			place.Class = queries.Nameless
		case plan.Judged() && res.Endpoint != nil && res.Endpoint.State == records.Answers:
			place.Class = queries.Serves
		}
	}
	return res, place
}

// explainRejected names, for an explained query, the filter that rejected each known record of its type. It
// shows the first few and counts the rest.
func (p *Parts) explainRejected(plan *queries.Plan) []string {
	const shown, scanned = 20, 10_000
	var notes []string
	passed, failed, seen := 0, 0, 0
	for r := range p.Index.All() {
		if r.Type() != plan.Type() {
			continue
		}
		if seen++; seen > scanned {
			notes = append(notes, fmt.Sprintf("only the first %d known records were checked", scanned))
			break
		}
		why := plan.Reject(r)
		if why == "" {
			passed++
			continue
		}
		if failed++; failed <= shown {
			notes = append(notes, fmt.Sprintf("left out %s: %s", r.Name(), why))
		}
	}
	slices.Sort(notes)
	return append(notes, fmt.Sprintf("known records: %d match, %d left out", passed, failed))
}
