package discovery

import (
	"cmp"
	"slices"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/platform/bounded"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// maxExits bounds the remembered names of paused records. Answers leave out the others too, and do not name them.
const maxExits = 4096

// exits remembers which records of the index their providers paused, so that answers can say why they are left out. It is safe for
// concurrent use.
type exits struct {
	mu    sync.Mutex // guards names
	names *simplelru.LRU[records.Name, struct{}]
}

func newExits(x *index.Index) *exits {
	names := bounded.Map[records.Name, struct{}](maxExits, nil)
	e := &exits{names: names}
	e.learn(x)
	return e
}

// learn reads the whole index.
func (e *exits) learn(x *index.Index) {
	for r := range x.All() {
		e.change(index.Change{New: r})
	}
}

// change follows the index.
func (e *exits) change(ch index.Change) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case ch.New != nil && ch.New.Paused() != nil:
		e.names.Add(ch.New.Name(), struct{}{})
	case ch.New != nil:
		e.names.Remove(ch.New.Name())
	case ch.Old != nil:
		e.names.Remove(ch.Old.Name())
	}
}

// matching returns the paused records that a plan would find if they were served: one entry for all offers of a provider that stopped,
// and one for each other paused offer.
func (e *exits) matching(p *queries.Plan, x *index.Index, defaults queries.Defaults) []query.Excluded {
	e.mu.Lock()
	names := e.names.Keys()
	e.mu.Unlock()
	if len(names) == 0 || p.AnyHealth() {
		return nil
	}
	q := p.Query()
	q.Health = query.HealthAny
	all, err := queries.Compile(q, defaults)
	if err != nil {
		return nil
	}
	var out []query.Excluded
	for _, n := range names {
		r, ok := x.Latest(n)
		if !ok || r.Paused() == nil || !all.Match(r) {
			continue
		}
		one := query.Excluded{Provider: n.Provider.String(), Reason: r.Paused().Reason(), Since: r.Paused().Since}
		if !r.Paused().Stopped {
			one.ID = n.ID
		}
		out = append(out, one)
	}
	order := func(a, b query.Excluded) int {
		return cmp.Or(cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.ID, b.ID))
	}
	slices.SortFunc(out, order)
	return slices.CompactFunc(out, func(a, b query.Excluded) bool { return order(a, b) == 0 })
}
