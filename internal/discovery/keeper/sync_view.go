package keeper

import (
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/keeper/digest"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// view is this peer's records by kept cells, as in the index at one moment: live records and
// tombstones. Costly parts are computed at their first use. It is safe for concurrent use.
type view struct {
	table *peerTable
	seq   uint64    // of the index: the view includes changes up to here
	made  time.Time // by the keeper's clock
	until time.Time // the first of its records expires
	all   []version
	byID  func() map[digest.ID]*records.Record

	types func() holdings // all records by type: compared in a small network
	cells func() holdings // by the cells that this peer keeps

	mu     sync.Mutex // guards shared
	shared map[peer.ID]*sharedCells
}

// maxSharedCells bounds the cached sharedCells of a view.
const maxSharedCells = 128

// version is one record of a view.
type version struct {
	entry  digest.Entry
	record *records.Record
}

type holdings map[records.CellKey]*holding

// holding is one cell of a view.
type holding struct {
	cell   records.CellKey
	key    string
	whole  bool   // every peer keeps the cell
	radius radius // responsibility radius; unused for whole
	set    func() *digest.Set

	// sample is the common part of a split cell at all its keepers; nil for a whole cell.
	sample map[digest.ID]struct{}
}

// sharedCells are the cells that two peers both keep.
type sharedCells struct {
	set   *digest.Set // one entry for each cell: id of its key, root of its set
	cells map[digest.ID]*holding
}

// entryOf returns the digest entry of a record. Provider is the text form of its provider.
func entryOf(r *records.Record, provider string) digest.Entry {
	return digest.Entry{
		ID:      digest.IDOf(provider + "/" + r.Name().ID),
		Version: digest.VersionOf(r.Sequence(), r.Digest()),
	}
}

// newView copies the index once. Info names the split cells.
func newView(x *index.Index, table *peerTable, now time.Time, d splitInfo) *view {
	v := &view{table: table, seq: x.Seq(), made: now, shared: make(map[peer.ID]*sharedCells)}
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
		v.all = append(v.all, version{entryOf(r, name), r})
	}
	v.byID = sync.OnceValue(v.indexed)
	v.types = sync.OnceValue(func() holdings {
		return v.grouped(func(r *records.Record) []records.CellKey {
			return []records.CellKey{{Type: r.Type(), Subtype: records.AnySubtype, Cell: geo.Global}}
		}, func(c records.CellKey) *holding { return &holding{cell: c, key: c.String(), whole: true} })
	})
	v.cells = sync.OnceValue(func() holdings {
		return v.grouped(d.cellsOf, func(c records.CellKey) *holding {
			if r, ok := table.radiusOf(routingKey(c)); ok {
				return &holding{cell: c, key: c.String(), radius: r, sample: d.sampleOf(c)}
			}
			return nil
		})
	})
	return v
}

// valid reports whether a view still serves. Seq is that of the index now. Split: this peer has split cells, which change
// without the index. In a quiet network the view serves until a record expires: to compute it again is most
// of the work of an idle keeper.
func (v *view) valid(seq uint64, now time.Time, split bool) bool {
	switch age := now.Sub(v.made); {
	case age.Abs() < v.lifetime():
		return true
	case v.seq != seq:
		return false
	default:
		return age.Abs() < viewMaxTTL || !split && age > 0 && now.Before(v.until)
	}
}

func (v *view) indexed() map[digest.ID]*records.Record {
	m := make(map[digest.ID]*records.Record, len(v.all))
	for _, x := range v.all {
		m[x.entry.ID] = x.record
	}
	return m
}

// grouped groups the records by their kept cells. Keep returns nil for a cell that this peer does
// not keep.
func (v *view) grouped(cellsOf func(*records.Record) []records.CellKey, keep func(records.CellKey) *holding) holdings {
	entries := make(map[*holding][]digest.Entry)
	judged := make(holdings)
	for _, x := range v.all {
		for _, c := range cellsOf(x.record) {
			h, ok := judged[c]
			if !ok {
				h = keep(c)
				judged[c] = h
			}
			if h != nil {
				entries[h] = append(entries[h], x.entry)
			}
		}
	}
	all := make(holdings, len(entries))
	for h, e := range entries {
		h.set = sync.OnceValue(func() *digest.Set { return h.sum(e) })
		all[h.cell] = h
	}
	return all
}

// sum returns the set to compare: all entries, or the sample of a split cell.
func (h *holding) sum(entries []digest.Entry) *digest.Set {
	if h.sample != nil {
		entries = slices.DeleteFunc(entries, func(e digest.Entry) bool {
			_, in := h.sample[e.ID]
			return !in
		})
	}
	return digest.New(entries)
}

// splitInfo names the split cells; *splits implements it.
type splitInfo interface {
	// cellsOf returns the cells of a record, including cells below geo.MaxLen in use.
	cellsOf(r *records.Record) []records.CellKey
	// sampleOf returns the sample of a split cell; nil for a whole cell.
	sampleOf(c records.CellKey) map[digest.ID]struct{}
}

func (s *splits) cellsOf(r *records.Record) []records.CellKey {
	cells := r.Cells()
	if s.deep.Len() == 0 {
		return cells
	}
	for _, c := range cellsBelow(r) {
		if s.deep.Contains(c) {
			cells = append(cells, c)
		}
	}
	return cells
}

func (s *splits) sampleOf(c records.CellKey) (ids map[digest.ID]struct{}) {
	s.with(c, func(x *cell.Cell) {
		if phase, _ := x.Phase(); phase.Complete() {
			return
		}
		names := x.Sampled()
		ids = make(map[digest.ID]struct{}, len(names))
		for _, n := range names {
			ids[digest.IDOf(n.String())] = struct{}{}
		}
	})
	return ids
}

// sharedWith returns the cells that a peer keeps too.
func (v *view) sharedWith(id peer.ID, whole bool) *sharedCells {
	if whole {
		id = "" // the same cells for all peers
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if o, ok := v.shared[id]; ok {
		return o
	}
	var o *sharedCells
	if whole {
		o = newSharedCells(v.types())
	} else {
		o = newSharedCells(keptBy(v.cells(), id))
	}
	if len(v.shared) < maxSharedCells {
		v.shared[id] = o
	}
	return o
}

// keptBy returns the holdings that a peer keeps too.
func keptBy(all holdings, id peer.ID) holdings {
	hash := sha256.Sum256([]byte(id))
	kept := make(holdings)
	for c, h := range all {
		if h.radius.covers(hash) {
			kept[c] = h
		}
	}
	return kept
}

// newSharedCells leaves out the cells inside other cells: they are equal if the outer cells are.
func newSharedCells(kept holdings) *sharedCells {
	o := &sharedCells{cells: make(map[digest.ID]*holding)}
	entries := make([]digest.Entry, 0, len(kept))
	for c, h := range kept {
		if kept.containsOuter(c) {
			continue
		}
		id := digest.IDOf(h.key)
		o.cells[id] = h
		entries = append(entries, digest.Entry{ID: id, Version: digest.Version(h.set().Root())})
	}
	o.set = digest.New(entries)
	return o
}

// containsOuter reports whether a whole cell contains c.
func (all holdings) containsOuter(c records.CellKey) bool {
	for _, subtype := range slices.Compact([]string{c.Subtype, records.AnySubtype}) {
		for place, ok := c.Cell, true; ok; place, ok = place.Parent() {
			outer := records.CellKey{Type: c.Type, Subtype: subtype, Cell: place}
			if h, kept := all[outer]; kept && outer != c && h.sample == nil {
				return true
			}
		}
	}
	return false
}

// held returns one cell of the view; nil without a record of it.
func (v *view) held(c records.CellKey, whole bool) *holding {
	if whole {
		return v.types()[c]
	}
	return v.cells()[c]
}
