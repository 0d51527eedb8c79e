package ask

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/query/menu"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// Count counts the matches of a plan that counts exactly, in each of some places that do not overlap: one Found for each, with the best
// match, and the first of them with what all leave out. Below a split cell it adds up the children. It asks about at most maxSearchedCells cells. Unplaced reports that the plan's
// matches have no place and the only place is geo.Global: its keepers hold all of them, even if they split it.
func (a *Asker) Count(ctx context.Context, p *query.Plan, places []geo.Cell, unplaced bool) (found []query.Found, err error) {
	ctx, end, err := a.Begin(ctx, "query", a.Limits.Query)
	if err != nil {
		return nil, err
	}
	defer func() { end(err) }()
	found = slices.Repeat([]query.Found{{Complete: true}}, len(places))
	c := counting{Asker: a, plan: p, unplaced: unplaced, found: found}
	for i, place := range places {
		c.due, c.of = append(c.due, wire.CellAt(p.Cells(1)[0], place)), append(c.of, i)
	}
	var all []group
	for asked := 0; len(c.due) > 0; {
		if most := max(maxSearchedCells-asked, 0); len(c.due) > most {
			for _, i := range c.of[most:] {
				c.doubt(i, fmt.Sprintf("the count reached its limit of %d cells", maxSearchedCells))
			}
			c.due, c.of = c.due[:most], c.of[:most]
		}
		asked += len(c.due)
		groups, err := c.round(ctx)
		if err != nil {
			return nil, fault.Wrap("keeper.Count", err)
		}
		all = append(all, groups...)
	}
	if why := a.timeDoubt(all); why != "" {
		for i := range found {
			c.doubt(i, why)
		}
	}
	found[0].Beyond = a.beyond(all)
	return found, unanswered(ctx, all)
}

// counting is the state of one Count.
type counting struct {
	*Asker
	plan     *query.Plan
	unplaced bool
	found    []query.Found
	due      []records.CellKey
	of       []int // of each due cell: the place that it is a part of
}

// doubt notes why the count of a place is a lower bound.
func (c *counting) doubt(place int, why string) {
	f := &c.found[place]
	f.Complete, f.AtLeast, f.Reason = false, true, cmp.Or(f.Reason, why)
}

// round asks about the due cells, each by itself, and replaces them by the children of those that are split.
func (c *counting) round(ctx context.Context) ([]group, error) {
	cells, of := c.due, c.of
	c.due, c.of = nil, nil
	sets, err := c.closest.KeepersOf(ctx, cells)
	if err != nil {
		return nil, err
	}
	groups := make([]group, len(cells))
	q := cellQuery{plan: c.plan, worst: math.Inf(1), menu: true}
	wire.Bounded(searchWidth, len(cells), func(i int) {
		groups[i] = group{cells: cells[i : i+1], set: sets[i]}
		c.askGroup(ctx, q, &groups[i], &queryTrace{})
	})
	for i := range groups {
		g, f := &groups[i], &c.found[of[i]]
		newest := make(map[records.Name]*records.Record)
		addNewest(newest, g.answers)
		for _, r := range newest {
			if len(f.Records) == 0 || c.plan.Value(r) < c.plan.Value(f.Records[0]) {
				f.Records = []*records.Record{r}
			}
		}
		if why := g.incomplete(); why != "" {
			c.doubt(of[i], why)
		}
		if !c.unplaced && g.divided(cells[i]) {
			for _, place := range slices.Sorted(maps.Keys(g.children(cells[i], c.plan))) {
				c.due, c.of = append(c.due, wire.CellAt(cells[i], place)), append(c.of, of[i])
			}
			continue
		}
		n := g.median(c.unplaced)
		f.Total += n
		f.Menu.Join(g.menu(n))
	}
	return groups, nil
}

// menuOf describes the matches of cells in this peer's index, and counts them: a total of another moment would contradict the menu.
func (a *Asker) menuOf(p *query.Plan, cells []records.CellKey) (m menu.Menu, total int) {
	for _, c := range cells {
		for r := range a.Index.In(c, a.Now()) {
			if p.Match(r) {
				m.Join(p.Menu(r))
				total++
			}
		}
	}
	return m, total
}

// readMenu reads what a keeper says about its matches. It refuses a menu whose countries add up to more than its total.
func (a *answer) readMenu(m *pb.Menu) error {
	placed := 0
	for code, n := range m.GetCountries() {
		if len(code) != 2 || code[0] < 'A' || code[0] > 'Z' || code[1] < 'A' || code[1] > 'Z' {
			return wire.Breach("the country %.10q", code)
		}
		placed += int(n)
	}
	if len(m.GetTypes()) > 0 {
		return wire.Breach("a menu of one type counts types")
	}
	if placed > a.total+len(a.left)+len(a.beyond) {
		return wire.Breach("%d matches have a country, of %d", placed, a.total)
	}
	a.menu = menu.FromProto(m)
	return nil
}

// menu returns the menu of the keeper whose total is the group's.
func (g *group) menu(total int) menu.Menu {
	for i := range g.answers {
		if a := &g.answers[i]; a.total == total && g.counts(a) {
			return a.menu
		}
	}
	return menu.Menu{}
}
