package ask

import (
	"slices"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// widen returns the plan to send to a keeper that does not know some fields of a query: without those that only
// filter, as far as the plan uses them. The caller filters the matches. Dropped is empty for the plan itself.
func widen(p *queries.Plan, unknown []string) (wider *queries.Plan, dropped []string) {
	for _, field := range unknown {
		if _, ok := p.Without([]string{field}); ok {
			dropped = append(dropped, field)
		}
	}
	if len(dropped) == 0 {
		return p, nil
	}
	wider, ok := p.Without(dropped)
	if !ok {
		return p, nil
	}
	return wider, dropped
}

// narrow turns an answer to a wider query into an answer to q. The keeper's bound covers more matches than
// those of q, so it may be too good, never too bad. If it withheld records that could be results of q, the answer
// is not full: another keeper has to answer.
func (a *answer) narrow(q cellQuery) {
	a.records = slices.DeleteFunc(a.records, func(r *records.Record) bool { return !q.matches(r) })
	a.beyond = slices.DeleteFunc(a.beyond, func(r *records.Record) bool { return !q.beyond(r) })
	a.total, a.atLeast = len(a.records), a.withheld
	if a.withheld && a.bound <= q.worst && a.bound < q.plan.Worst(a.records) {
		a.full, a.withheld, a.bound = false, false, 0
	}
}
