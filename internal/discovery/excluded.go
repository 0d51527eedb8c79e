package discovery

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// askRounds bounds the questions of one search. Each further question leaves out the unreachable providers that
// the answers before contain.
const askRounds = 4

// exclude compiles a question again, without the given providers, at most query.MaxExclude of them.
func exclude(plan *query.Plan, gone []peer.ID, limit int, defaults query.Defaults) (*query.Plan, error) {
	q := plan.Query()
	q.Exclude, q.Limit = gone[:min(len(gone), query.MaxExclude)], min(limit, query.MaxLimit)
	return query.Compile(q, defaults)
}

// unreachableMatches returns the unreachable providers with a match in the index. All others cannot be missing
// from an answer as far as this peer knows; askWithout learns about them from the answer.
func (p *Parts) unreachableMatches(plan *query.Plan) []peer.ID {
	gone := p.Prober.Unreachable()
	if len(gone) == 0 || plan.Query().Health == query.HealthAny {
		return nil
	}
	var ids []peer.ID
	for _, id := range gone {
		if slices.ContainsFunc(p.Index.OfProvider(id), plan.Match) {
			ids = append(ids, id)
		}
	}
	return ids
}

// askWithout asks the keepers. While unreachable providers without a known match take places of others, it asks
// again without them, for as many more results. It returns all providers left out.
func (p *Parts) askWithout(ctx context.Context, plan *query.Plan, gone []peer.ID, defaults query.Defaults) (query.Found, []peer.ID, error) {
	asked := plan
	for round := 1; ; round++ {
		found, err := p.Keepers.Query(ctx, asked)
		if err != nil || round == askRounds {
			return found, gone, err
		}
		more := p.unreachableOf(plan, found.Records)
		if !displaced(plan, found, more) {
			return found, gone, nil
		}
		gone = slices.Concat(gone, more)
		if asked, err = exclude(plan, gone, plan.Limit()+len(p.Prober.Unreachable()), defaults); err != nil {
			return found, gone, err
		}
	}
}

// leftOut reports whether the provider of a record is unreachable. gone is the prober's list.
func (p *Parts) leftOut(plan *query.Plan, r *records.Record, gone []peer.ID) bool {
	_, is := slices.BinarySearch(gone, r.Name().Provider)
	return is && plan.Query().Health != query.HealthAny
}

// displaced reports whether unreachable providers take places of matches that the keepers withheld beyond the
// limit.
func displaced(plan *query.Plan, found query.Found, gone []peer.ID) bool {
	living := len(without(found.Records, gone))
	withheld := found.AtLeast || found.Total > len(found.Records)
	return living < len(found.Records) && living < plan.Limit() && withheld
}

// without returns the records of all providers but the given ones.
func without(list []*records.Record, gone []peer.ID) []*records.Record {
	return slices.DeleteFunc(slices.Clone(list), func(r *records.Record) bool {
		return slices.Contains(gone, r.Name().Provider)
	})
}

// unreachableOf returns the unreachable providers of records, each once, in order.
func (p *Parts) unreachableOf(plan *query.Plan, list []*records.Record) []peer.ID {
	gone := p.Prober.Unreachable()
	var ids []peer.ID
	for _, r := range list {
		if id := r.Name().Provider; p.leftOut(plan, r, gone) && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// dropUnreachable removes the records of unreachable providers that the keepers' answer still contains, and adds
// the providers to those left out. If they took places of withheld matches, the answer lacks results.
func (p *Parts) dropUnreachable(e *cached, found *query.Found) {
	more := p.unreachableOf(e.plan, found.Records)
	if len(more) == 0 {
		return
	}
	if displaced(e.plan, *found, more) {
		found.Complete = false
		found.Reason = fmt.Sprintf("more than %d unreachable providers match: narrow the query", query.MaxExclude)
	}
	living := without(found.Records, more)
	found.Total -= len(found.Records) - len(living)
	found.Records = living
	e.excluded = slices.Concat(e.excluded, more)
}

// tell names the providers left out of an answer, and the offers that their providers stopped or paused.
func (s *Service) tell(plan *query.Plan, a *query.Answer, excluded []peer.ID) {
	s.tellUnreachable(a, excluded)
	paused := s.feed.exits.matching(plan, s.Index, s.defaults)
	a.ExcludedTotal += len(paused)
	a.Excluded = append(a.Excluded, paused[:min(len(paused), query.MaxExcluded-len(a.Excluded))]...)
}

func (p *Parts) tellUnreachable(a *query.Answer, excluded []peer.ID) {
	if len(excluded) == 0 {
		return
	}
	ids := slices.Clone(excluded)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	a.ExcludedTotal += len(ids)
	for _, id := range ids[:min(len(ids), query.MaxExcluded-len(a.Excluded))] {
		m, _ := p.Prober.Measured(id)
		a.Excluded = append(a.Excluded, query.Excluded{Provider: id.String(), Reason: reason(m), Since: m.Since})
	}
}

// reason explains why a provider is unreachable.
func reason(m records.Measured) string {
	if m.Peers > 0 {
		return fault.Counted(m.Peers, "peer") + " got no answer at any of its addresses"
	}
	return "no answer at any of its addresses"
}

// removal explains the removal of an unreachable provider's record from a watch.
func removal(m records.Measured) string {
	if m.Since.IsZero() {
		return reason(m)
	}
	return reason(m) + " since " + m.Since.UTC().Format(time.RFC3339)
}
