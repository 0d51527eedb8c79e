package discovery

import (
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/truth"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// unreachableMatching counts the matches of unreachable providers, as far as this peer knows them.
func (p *Parts) unreachableMatching(plan *queries.Plan) (n int) {
	const unseen = 50 // at most, providers of whom this peer has no record: each may have a match
	strangers := 0
	for _, id := range p.Prober.Unreachable() {
		list := p.Index.OfProvider(id)
		if len(list) == 0 && strangers < unseen {
			strangers++
		}
		for _, r := range list {
			if p.leftOut(plan, r, []peer.ID{id}) && plan.Match(r) {
				n++
			}
		}
	}
	return n + strangers
}

// leftOut reports whether the provider of a record is unreachable. gone is the prober's list.
func (p *Parts) leftOut(plan *queries.Plan, r *records.Record, gone []peer.ID) bool {
	_, is := slices.BinarySearch(gone, r.Name().Provider)
	return is && !plan.AnyHealth()
}

// living returns the matches whose provider and endpoint may serve, and whose domain is checked if the plan asks for that; the number of
// the others, which stay measured; and what the answer tells of these, by name: one entry for all offers of an unreachable provider.
func (p *Parts) living(plan *queries.Plan, hits []queries.Hit) (living []queries.Hit, dead int, told []query.Excluded) {
	var gone []*records.Record
	why := make(map[records.Name]query.Excluded)
	unreachable := p.Prober.Unreachable()
	living = make([]queries.Hit, 0, len(hits))
	for _, h := range hits {
		n := h.Record.Name()
		m, is := p.truth.Dead(h.Record)
		cause := p.truth.NotChecked(plan, h.Record)
		switch {
		case p.leftOut(plan, h.Record, unreachable):
			m, _ = p.Prober.Measured(n.Provider)
			n.ID, cause = "", reason(m)
		case is && !plan.AnyHealth():
			cause = truth.NotServing(m)
		}
		if cause == "" {
			living = append(living, h)
			continue
		}
		gone = append(gone, h.Record)
		why[n] = query.Excluded{Provider: n.Provider.String(), ID: n.ID, Reason: cause, Since: m.Since}
	}
	p.truth.Want(gone)
	names := make([]records.Name, 0, len(why))
	for n := range why {
		names = append(names, n)
	}
	slices.SortFunc(names, records.Name.Compare)
	for _, n := range names {
		told = append(told, why[n])
	}
	return living, len(gone), told
}

// tellPaused names the offers that their providers stopped or paused.
func (s *Service) tellPaused(plan *queries.Plan, a *query.Answer) {
	paused := s.feed.exits.matching(plan, s.Index, s.defaults)
	a.ExcludedTotal += len(paused)
	a.Excluded = append(a.Excluded, paused[:min(len(paused), queries.MaxExcluded-len(a.Excluded))]...)
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
