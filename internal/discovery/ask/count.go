package ask

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// Count counts the matches of a plan that counts exactly, in each of some places that do not overlap: one Found for each, with the best
// match, and the first of them with what all leave out. It adds up the children of full cells. Unplaced reports that the plan's
// matches have no place and the only place is geo.Global: its keepers hold all of them, even if it is full.
func (a *Asker) Count(ctx context.Context, p *queries.Plan, places []geo.Cell, unplaced bool) (found []queries.Found, err error) {
	ctx, end, err := a.Begin(ctx, "query", a.QueryTime)
	if err != nil {
		return nil, err
	}
	defer func() { end(err) }()
	w := newWalk(a, cellQuery{plan: p, menu: true})
	w.each, w.upper = true, unplaced
	cells, of := make([]records.CellKey, len(places)), make(map[geo.Cell]int, len(places))
	for i, place := range places {
		cells[i], of[place] = protocol.CellAt(p.Cells(1)[0], place), i
	}
	if err := w.run(ctx, cells); err != nil {
		return nil, fault.Wrap("keeper.Count", err)
	}
	found = slices.Repeat([]queries.Found{{Complete: true}}, len(places))
	around := func(c geo.Cell) *queries.Found { // the place that a cell is a part of
		for i, ok := of[c]; ; i, ok = of[c] {
			if ok {
				return &found[i]
			}
			c, _ = c.Parent()
		}
	}
	doubt := func(f *queries.Found, why string) {
		f.Complete, f.AtLeast, f.Reason = false, true, cmp.Or(f.Reason, why)
	}
	for i := range w.groups {
		g := &w.groups[i]
		f := around(g.cells[0].Cell)
		newest := make(map[records.Name]*records.Record)
		addNewest(newest, g.answers)
		for _, r := range newest {
			if len(f.Records) == 0 || p.Value(r) < p.Value(f.Records[0]) {
				f.Records = []*records.Record{r}
			}
		}
		if why := g.incomplete(); why != "" {
			doubt(f, why)
		}
		n, atLeast := g.total()
		f.Total, f.AtLeast = f.Total+n, f.AtLeast || atLeast
		f.Menu.Join(g.menu(n))
	}
	for _, c := range w.due {
		doubt(around(c.cell.Cell), fmt.Sprintf("the count reached its limit of %d cells, or of its time", maxSearchedCells))
	}
	if why := a.timeDoubt(w.groups); why != "" {
		for i := range found {
			doubt(&found[i], why)
		}
	}
	found[0].Beyond = a.beyond(w.groups)
	return found, nil
}

// menuOf describes the matches of cells in this peer's index, and counts them: a total of another moment would contradict the menu.
func (a *Asker) menuOf(p *queries.Plan, cells []records.CellKey) (m query.Menu, total int) {
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
			return protocol.Breach("the country %.10q", code)
		}
		placed += int(n)
	}
	if len(m.GetTypes()) > 0 {
		return protocol.Breach("a menu of one type counts types")
	}
	if placed > a.total+len(a.left)+len(a.beyond) {
		return protocol.Breach("%d matches have a country, of %d", placed, a.total)
	}
	a.menu = queries.MenuFromProto(m)
	return nil
}

// menu returns the menu of the keeper whose total is the group's.
func (g *group) menu(total int) query.Menu {
	for i := range g.answers {
		if a := &g.answers[i]; a.total == total && g.counts(a) {
			return a.menu
		}
	}
	return query.Menu{}
}
