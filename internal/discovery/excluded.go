package discovery

import (
	"slices"

	"github.com/blackhole/blackhole/internal/discovery/truth"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// hidden is what answers, counts and watches leave out although it matches. It is immutable.
type hidden struct {
	epoch uint64 // of the measurements, at or before them
	dead  map[records.Name]*records.Record
}

// hidden returns what is left out now; nothing for those who ask for any health.
func (p *Parts) hidden(anyHealth bool) hidden {
	h := hidden{epoch: p.truth.Epoch()}
	if !anyHealth {
		h.dead = p.truth.Buried()
	}
	return h
}

func (h *hidden) has(r *records.Record) bool {
	if h.gone(r) {
		return true
	}
	known, dead := h.dead[r.Name()]
	return dead && truth.SameTarget(known, r)
}

// gone reports whether the peer of a record's provider is.
func (h *hidden) gone(r *records.Record) bool {
	_, is := h.dead[truth.PeerOf(r.Name().Provider)]
	return is
}

// living returns the matches whose provider and endpoint may serve, and whose domain is checked if the plan asks for
// that; the number of the others, which stay measured; and what the answer tells of these, by name: one entry for all
// offers of a provider that is gone.
func (p *Parts) living(plan *queries.Plan, hits []queries.Hit) (living []queries.Hit, dead int, told []query.Excluded) {
	var left []*records.Record
	why := make(map[records.Name]query.Excluded)
	living = make([]queries.Hit, 0, len(hits))
	for _, h := range hits {
		d, is := p.truth.Dead(h.Record)
		cause := p.truth.NotChecked(plan, h.Record)
		if is && !plan.AnyHealth() {
			cause = d.Reason()
		} else {
			d.Name = h.Record.Name()
		}
		if cause == "" {
			living = append(living, h)
			continue
		}
		left = append(left, h.Record)
		why[d.Name] = query.Excluded{Provider: d.Provider.String(), ID: d.ID, Reason: cause, Since: d.Since}
	}
	p.truth.Want(left)
	names := make([]records.Name, 0, len(why))
	for n := range why {
		names = append(names, n)
	}
	slices.SortFunc(names, records.Name.Compare)
	for _, n := range names {
		told = append(told, why[n])
	}
	return living, len(left), told
}

// tellPaused names the offers that their providers stopped or paused.
func (s *Service) tellPaused(plan *queries.Plan, a *query.Answer) {
	paused := s.feed.exits.matching(plan, s.Index, s.defaults)
	a.ExcludedTotal += len(paused)
	a.Excluded = append(a.Excluded, paused[:min(len(paused), queries.MaxExcluded-len(a.Excluded))]...)
}
