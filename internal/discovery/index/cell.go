package index

import (
	"iter"
	"time"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// In iterates over the live records of a cell at the start of the iteration, records expired at
// now left out. The history of the index alone determines the order. The cost grows with the
// rows in the cell. Readers and writers never wait for each other.
func (x *Index) In(c records.CellKey, now time.Time) iter.Seq[*records.Record] {
	return func(yield func(*records.Record) bool) {
		if c.OfProvider() {
			for _, r := range x.OfProvider(c.Provider) {
				if !r.Expired(now) && !yield(r) {
					return
				}
			}
		} else if x.shards.of(c.Type).walk(c, now, yield) {
			x.shards.of(beyond+c.Type).walk(c, now, yield)
		}
	}
}

// walk yields the records of a cell; none of a nil shard. It returns false after yield does.
func (s *shard) walk(c records.CellKey, now time.Time, yield func(*records.Record) bool) bool {
	if s == nil {
		return true
	}
	w := s.walker(c, now, yield)
	for _, b := range w.blocks {
		if !w.block(b) {
			return false
		}
	}
	return w.rows(w.delta, 0, w.filled)
}

func (s *shard) walker(c records.CellKey, now time.Time, yield func(*records.Record) bool) walk {
	w := walk{snapshot: s.snapshot.Load(), cell: c, now: nanos(now), second: seconds(nanos(now)), yield: yield}
	w.region = cellRegions(nil, []geo.Cell{c.Cell})[0]
	return w
}

// CountIn counts the records of In, up to most.
func (x *Index) CountIn(c records.CellKey, now time.Time, most int) int {
	n := 0
	for range x.In(c, now) {
		if n++; n >= most {
			break
		}
	}
	return n
}

// walk yields the rows of one cell.
type walk struct {
	*snapshot
	region
	cell   records.CellKey
	now    int64
	second uint32 // now in whole seconds
	yield  func(*records.Record) bool
}

// block walks a sorted part. It returns false after yield does.
func (w *walk) block(p *part) bool {
	if w.whole {
		return w.rows(p, 0, len(p.records))
	}
	for from, to := range p.runs(&w.region) {
		if !w.rows(p, from, to) {
			return false
		}
	}
	return true
}

func (w *walk) rows(p *part, from, to int) bool {
	kinds := p.codec.kinds.values()
	for row := from; row < to; row++ {
		if !w.holds(p, row) || p.lapsed(row, w.now, w.second) || !p.aliveAt(row, w.version) {
			continue
		}
		if kind := int(p.kinds[row]); w.cell.Subtype != records.AnySubtype && kind < len(kinds) && kinds[kind].subtype != w.cell.Subtype {
			continue // without a look at the record
		}
		r := p.records[row]
		if w.cell.Subtype != records.AnySubtype && w.cell.Subtype != r.Subtype() {
			continue
		}
		if !w.yield(r) {
			return false
		}
	}
	return true
}
