package keep

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/digest"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// view is this peer's records by kept cells, as in the index at one moment: live records and
// tombstones. Costly parts are computed at their first use. It is safe for concurrent use.
type view struct {
	table *Table
	seq   uint64      // of the index: the view includes changes up to here
	marks uint64      // version of the marks of full cells
	made  time.Time   // by the keeper's clock
	until time.Time   // the first of its records expires
	spent atomic.Bool // the next comparison must see changes that the view lacks
	all   []version
	byID  func() map[digest.ID]*records.Record

	types func() holdings // all records by type: compared in a small network
	cells func() *grouping

	mu     sync.Mutex // guards shared
	shared map[sharer]*sharedCells

	latest atomic.Pointer[grouping] // of cells, or of an earlier view until cells is called
}

// sharer is a peer, and whether cells inside other ones are compared too.
type sharer struct {
	id   peer.ID
	flat bool
}

// maxSharedCells bounds the cached sharedCells of a view.
const maxSharedCells = 128

// version is one record of a view.
type version struct {
	entry  digest.Entry
	record *records.Record
}

type holdings map[records.CellKey]*holding

// holding is one cell of a view. It is immutable, and part of later views while nothing in the cell changes.
type holding struct {
	*keptCell
	set func() *digest.Set

	full bool // of a full cell, set has only what keepers answer with
}

// sharedCells are the cells that two peers both keep.
type sharedCells struct {
	set   *digest.Set // one entry for each cell: id of its key, root of its set
	cells []*holding  // by id
}

// find returns the cell with an id; nil without one.
func (o *sharedCells) find(id digest.ID) *holding {
	at, ok := slices.BinarySearchFunc(o.cells, id, func(h *holding, id digest.ID) int { return h.id.Compare(id) })
	if !ok {
		return nil
	}
	return o.cells[at]
}

// newView copies the index once. Info names the full cells. Before is the previous view, or nil.
func newView(x *index.Index, table *Table, now time.Time, d cellInfo, before *view) *view {
	v := &view{table: table, seq: x.Seq(), marks: d.Version(), made: now, shared: make(map[sharer]*sharedCells)}
	providers := make(map[peer.ID]string)
	for r := range x.Versions() {
		if r.Expired(now) {
			continue
		}
		if v.until.IsZero() || r.Expires().Before(v.until) {
			v.until = r.Expires()
		}
		id := r.Name().Provider
		name, ok := providers[id]
		if !ok {
			name = id.String()
			providers[id] = name
		}
		v.all = append(v.all, version{protocol.EntryOf(r, name), r})
	}
	if before != nil && before.table == table {
		v.latest.Store(before.latest.Load())
	}
	v.byID = sync.OnceValue(v.indexed)
	v.types = sync.OnceValue(v.byType)
	v.cells = sync.OnceValue(func() *grouping {
		g := newGrouping(v.all, table, d, v.latest.Load())
		v.latest.Store(g)
		return g
	})
	return v
}

// valid reports whether a view still serves. Seq is that of the index now, marks that of the full cells. In a quiet network
// the view serves until a record expires: to compute it again is most of the work of an idle keeper.
func (v *view) valid(seq, marks uint64, now time.Time) bool {
	switch age := now.Sub(v.made); {
	case v.spent.Load() || v.marks != marks:
		return false
	case age.Abs() < v.lifetime():
		return true
	case v.seq != seq:
		return false
	default:
		return age.Abs() < viewMaxTTL || age > 0 && now.Before(v.until)
	}
}

func (v *view) indexed() map[digest.ID]*records.Record {
	m := make(map[digest.ID]*records.Record, len(v.all))
	for _, x := range v.all {
		m[x.entry.ID] = x.record
	}
	return m
}

// byType groups the records by type, without place and subtype.
func (v *view) byType() holdings {
	entries := make(map[string][]digest.Entry)
	for _, x := range v.all {
		entries[x.record.Type()] = append(entries[x.record.Type()], x.entry)
	}
	all := make(holdings, len(entries))
	for kind, e := range entries {
		c := records.CellKey{Type: kind, Subtype: records.AnySubtype, Cell: geo.Global}
		all[c] = &holding{keptCell: newPlace(c, Radius{}), set: sync.OnceValue(func() *digest.Set { return digest.New(e) })}
	}
	return all
}

// cellInfo names the full cells; *Cells implements it.
type cellInfo interface {
	// CellsOf returns the cells of a record, including cells below geo.MaxLen in use.
	CellsOf(r *records.Record) []records.CellKey
	// AnyDeep reports whether cells below geo.MaxLen are in use. Then CellsOf changes without the record.
	AnyDeep() bool
	// Full reports whether a cell is full, AllFull returns all of them.
	Full(c records.CellKey) bool
	AllFull() []records.CellKey
	// Version changes with the full cells.
	Version() uint64
}

// sharedWith returns the cells that a peer keeps too.
func (v *view) sharedWith(id peer.ID, whole, flat bool) *sharedCells {
	if whole {
		id, flat = "", false // the same cells for all peers
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	key := sharer{id, flat}
	if o, ok := v.shared[key]; ok {
		return o
	}
	var o *sharedCells
	if whole {
		o = newSharedCells(ordered(v.types()))
	} else {
		o = v.cells().sharedWith(id, flat)
	}
	if len(v.shared) < maxSharedCells {
		v.shared[key] = o
	}
	return o
}

// newSharedCells takes the cells by id.
func newSharedCells(cells []*holding) *sharedCells {
	entries := make([]digest.Entry, len(cells))
	for i, h := range cells {
		entries[i] = digest.Entry{ID: h.id, Version: h.version()}
	}
	return &sharedCells{set: digest.New(entries), cells: cells}
}

// version is the root of a cell, with other first bits if the cell is full: two keepers that differ in it hear of it.
func (h *holding) version() digest.Version {
	v := digest.Version(h.set().Root())
	if h.full {
		v[0] = ^v[0]
	}
	return v
}

// ordered returns the cells by id.
func ordered(all holdings) []*holding {
	return slices.SortedFunc(maps.Values(all), func(a, b *holding) int { return a.id.Compare(b.id) })
}

// held returns one cell of the view; nil without a record of it.
func (v *view) held(c records.CellKey, whole bool) *holding {
	if whole {
		return v.types()[c]
	}
	return v.cells().cells[c]
}
