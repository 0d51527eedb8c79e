package index

import (
	"encoding/binary"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// maxLooked bounds the records of a cell that a search for sellers reads.
const maxLooked = 1 << 13

// hashes finds the cells of live records by the multihash of their keys, which cannot be inverted. It has no cell without a record,
// so the memory of the records bounds it (see overhead). Index.mu guards it.
type hashes struct {
	cells map[uint64]hashed // by the first bytes of the digest
	kinds map[cellKind]*cellKind
}

// hashed is a cell in the memory of 24 bytes. Who makes two keys with equal first bytes hides the second of two cells of own types.
type hashed struct {
	kind    *cellKind
	place   [geo.MaxLen]byte // filled up with zeros; none: global
	records uint32
}

// cellKind is shared by the cells of one type and subtype.
type cellKind struct {
	kind, subtype string
	cells         int
}

func newHashes() hashes {
	return hashes{cells: make(map[uint64]hashed), kinds: make(map[cellKind]*cellKind)}
}

func (h hashed) key() records.CellKey {
	c := records.CellKey{Type: h.kind.kind, Subtype: h.kind.subtype, Cell: geo.Global}
	if place := strings.TrimRight(string(h.place[:]), "\x00"); place != "" {
		c.Cell = geo.Cell(place)
	}
	return c
}

// prefixOf returns the first bytes of the digest in a multihash of SHA-256.
func prefixOf(multihash []byte) uint64 { return binary.BigEndian.Uint64(multihash[2:]) }

// sellable reports whether sellers are looked for in a record's cells: searches do not read records beyond this version.
func sellable(r *records.Record) bool { return r.Needs() == "" }

// replace adds a record in place of an older version in the same shard, or of none.
func (h *hashes) replace(old, r *records.Record) {
	if old != nil {
		was, had := old.Facts().Place()
		is, has := r.Facts().Place()
		if had == has && was == is && old.Subtype() == r.Subtype() {
			return // most versions renew another one
		}
		defer h.remove(old) // after the new one, so that cells of both stay
	}
	h.add(r)
}

func (h *hashes) add(r *records.Record) {
	if !sellable(r) {
		return
	}
	for _, c := range r.Cells() {
		if c.OfProvider() {
			continue
		}
		prefix := prefixOf(c.Multihash())
		cell, known := h.cells[prefix]
		if !known {
			name := cellKind{kind: c.Type, subtype: c.Subtype}
			if cell.kind = h.kinds[name]; cell.kind == nil {
				cell.kind = &cellKind{kind: strings.Clone(c.Type), subtype: strings.Clone(c.Subtype)}
				h.kinds[*cell.kind] = cell.kind
			}
			cell.kind.cells++
			if c.Cell != geo.Global {
				copy(cell.place[:], c.Cell)
			}
		}
		cell.records++
		h.cells[prefix] = cell
	}
}

func (h *hashes) remove(r *records.Record) {
	if !sellable(r) {
		return
	}
	for _, c := range r.Cells() {
		if c.OfProvider() {
			continue
		}
		prefix := prefixOf(c.Multihash())
		cell := h.cells[prefix]
		if cell.records--; cell.records > 0 {
			h.cells[prefix] = cell
			continue
		}
		delete(h.cells, prefix)
		if cell.kind.cells--; cell.kind.cells == 0 {
			delete(h.kinds, cellKind{kind: cell.kind.kind, subtype: cell.kind.subtype})
		}
	}
}

// Sellers returns up to most providers with a live, healthy offer in the cell whose CID has a multihash; none if the index has
// no record in such a cell. Draw chooses where the search begins, so that all sellers of a cell with more get a turn.
func (x *Index) Sellers(multihash []byte, most int, now time.Time, draw func(n int) int) []peer.ID {
	const length = 34 // of a multihash of SHA-256
	if len(multihash) != length {
		return nil
	}
	x.mu.RLock()
	cell, known := x.shards.hashes.cells[prefixOf(multihash)]
	x.mu.RUnlock()
	if !known || string(cell.key().Multihash()) != string(multihash) {
		return nil
	}
	var sellers []peer.ID
	seen, looked := make(map[peer.ID]bool), uint32(0)
	x.shards.of(cell.kind.kind).from(cell.key(), now, draw, func(r *records.Record) bool {
		if id := r.Name().Provider; r.Facts().Status != pb.HealthStatus_UNHEALTHY && !seen[id] {
			seen[id], sellers = true, append(sellers, id)
		}
		looked++
		return len(sellers) < most && looked < min(maxLooked, cell.records)
	})
	return sellers
}

// run is a range of rows of a part.
type run struct {
	*part
	from, to int
}

// from yields the records of a cell as walk does, but begins at a drawn row and goes on from the first one.
func (s *shard) from(c records.CellKey, now time.Time, draw func(n int) int, yield func(*records.Record) bool) {
	if s == nil {
		return
	}
	w := s.walker(c, now, yield)
	var runs []run
	rows := 0
	for _, b := range w.blocks {
		if w.whole {
			runs, rows = append(runs, run{b, 0, len(b.records)}), rows+len(b.records)
			continue
		}
		for from, to := range b.runs(&w.region) {
			if from < to {
				runs, rows = append(runs, run{b, from, to}), rows+to-from
			}
		}
	}
	runs, rows = append(runs, run{w.delta, 0, w.filled}), rows+w.filled
	first := draw(max(rows, 1))
	for i, r := range runs {
		if n := r.to - r.from; first >= n {
			first -= n
			continue
		}
		begun := run{r.part, r.from, r.from + first}
		r.from += first
		order := append(append([]run{r}, runs[i+1:]...), append(runs[:i:i], begun)...)
		for _, r := range order {
			if !w.rows(r.part, r.from, r.to) {
				return
			}
		}
		return
	}
}
