package keep

import (
	"slices"
	"sync"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/platform/digest"
	"github.com/blackhole/blackhole/pkg/records"
)

// keptCell is a cell that this peer keeps by one routing table. All groupings with this table share it.
type keptCell struct {
	cell   records.CellKey
	key    string
	id     digest.ID   // of key
	radius Radius      // responsibility radius; unused if every peer keeps the cell
	outer  []*keptCell // kept cells around it
}

func newPlace(c records.CellKey, r Radius) *keptCell {
	key := c.String()
	return &keptCell{cell: c, key: key, id: digest.IDOf(key), radius: r}
}

// grouping is the records of a view by the cells that this peer keeps. A small part of the records changes from one view to the
// next, so a grouping takes the places of unchanged records, and all that was computed of unchanged cells, from the one before. It
// is immutable.
type grouping struct {
	cells holdings
	order []*holding // cells by id
	of    map[*records.Record][]*keptCell
	full  map[*keptCell]struct{} // full cells
	deep  bool                   // cells below geo.MaxLen were in use
}

// newGrouping groups the records. Before is the grouping of an earlier view with the same table, or nil.
func newGrouping(all []version, table *Table, d cellInfo, before *grouping) *grouping {
	g := &grouping{of: make(map[*records.Record][]*keptCell, len(all)), full: make(map[*keptCell]struct{}), deep: d.AnyDeep()}
	if before == nil || before.deep || g.deep {
		before = new(grouping)
	}
	changed := g.place(all, table, d, before)
	entries, unplaced := make(map[*keptCell][]digest.Entry), make(map[digest.ID]struct{})
	for _, x := range all {
		if _, placed := x.record.Facts().Place(); !placed {
			unplaced[x.entry.ID] = struct{}{}
		}
		for _, p := range g.of[x.record] {
			if _, ok := changed[p]; ok {
				entries[p] = append(entries[p], x.entry)
			}
		}
	}
	g.hold(all, d, before, entries, unplaced)
	for _, c := range d.AllFull() { // also those without a record
		if g.cells[c] == nil {
			if p := before.placeOf(c, table); p != nil {
				g.cells[c] = &holding{keptCell: p, full: true, set: sync.OnceValue(func() *digest.Set { return digest.New(nil) })}
			}
		}
	}
	for _, h := range g.cells {
		if h.full {
			g.full[h.keptCell] = struct{}{}
		}
	}
	g.order = ordered(g.cells)
	return g
}

// place finds the places of all records, and returns those with another content than before.
func (g *grouping) place(all []version, table *Table, d cellInfo, before *grouping) map[*keptCell]struct{} {
	changed := make(map[*keptCell]struct{})
	touch := func(places []*keptCell) {
		for _, p := range places {
			changed[p] = struct{}{}
		}
	}
	judged := make(map[records.CellKey]*keptCell)
	var fresh []*keptCell
	for _, x := range all {
		places, ok := before.of[x.record]
		if !ok {
			for _, c := range d.CellsOf(x.record) {
				p, known := judged[c]
				if !known {
					if p = before.placeOf(c, table); p != nil && before.cells[c] == nil {
						fresh = append(fresh, p)
					}
					judged[c] = p
				}
				if p != nil {
					places = append(places, p)
				}
			}
			touch(places)
		}
		g.of[x.record] = places
	}
	for r, places := range before.of {
		if _, stays := g.of[r]; !stays {
			touch(places)
		}
	}
	for _, h := range before.cells {
		if h.full || d.Full(h.cell) {
			changed[h.keptCell] = struct{}{}
		}
	}
	for _, p := range fresh {
		p.outer = outerOf(p.cell, judged)
	}
	return changed
}

// placeOf returns the place of a cell, or nil for a cell of other keepers.
func (g *grouping) placeOf(c records.CellKey, table *Table) *keptCell {
	if h := g.cells[c]; h != nil {
		return h.keptCell
	}
	if r, ok := table.RadiusOf(KeyOf(c)); ok {
		return newPlace(c, r)
	}
	return nil
}

// outerOf returns the places around a cell. All co-keepers hold the cell, so its records are compared for all of them.
func outerOf(c records.CellKey, judged map[records.CellKey]*keptCell) (outer []*keptCell) {
	for _, subtype := range slices.Compact([]string{c.Subtype, records.AnySubtype}) {
		for place, ok := c.Cell, true; ok; place, ok = place.Parent() {
			around := records.CellKey{Type: c.Type, Subtype: subtype, Cell: place}
			if p := judged[around]; p != nil && around != c {
				outer = append(outer, p)
			}
		}
	}
	return outer
}

// hold makes the cells: changed ones of their entries, others as before.
func (g *grouping) hold(all []version, d cellInfo, before *grouping, entries map[*keptCell][]digest.Entry, unplaced map[digest.ID]struct{}) {
	g.cells = make(holdings, max(len(before.cells), len(entries)))
	for _, x := range all {
		for _, p := range g.of[x.record] {
			if g.cells[p.cell] != nil {
				continue
			}
			h := before.cells[p.cell]
			if e, ok := entries[p]; ok {
				h = &holding{keptCell: p, full: d.Full(p.cell)}
				h.set = sync.OnceValue(func() *digest.Set { return h.sum(e, unplaced) })
			}
			g.cells[p.cell] = h
		}
	}
}

// sum returns the set to compare: all entries, or what a full cell answers with.
func (h *holding) sum(entries []digest.Entry, unplaced map[digest.ID]struct{}) *digest.Set {
	if h.full && !Sends(h.cell) {
		entries = slices.DeleteFunc(entries, func(e digest.Entry) bool {
			_, free := unplaced[e.ID]
			return !free
		})
	}
	return digest.New(entries)
}

// sharedWith returns the cells that a peer keeps too. It leaves out cells inside other ones: they are equal if the outer
// cells are. Flat has them all, since an outer cell is full here or there.
func (g *grouping) sharedWith(id peer.ID, flat bool) *sharedCells {
	hash := HashOf(string(id))
	covers := func(p *keptCell) bool { return p.radius.Covers(hash) }
	var cells []*holding
	for _, h := range g.order {
		if covers(h.keptCell) && (flat || !slices.ContainsFunc(h.outer, covers)) {
			cells = append(cells, h)
		}
	}
	return newSharedCells(cells)
}

// anyFull reports whether a full cell is kept by a peer too.
func (g *grouping) anyFull(id peer.ID) bool {
	hash := HashOf(string(id))
	for p := range g.full {
		if p.radius.Covers(hash) {
			return true
		}
	}
	return false
}
