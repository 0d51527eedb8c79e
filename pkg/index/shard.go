package index

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"

	"github.com/blackhole/blackhole/pkg/records"
)

// shard is the rows of one type. Writers change it under Index.mu; searches read only
// what snapshot points to.
//
// It is a log-structured merge of sorted runs (P. O'Neil et al., "The Log-Structured
// Merge-Tree", 1996): the delta takes the puts; when full it is merged with the blocks
// that are not much larger than it, so that a row is copied a few times in its life and a
// search visits few blocks. Scale and dictionaries are made anew when the rows are
// several times as many or when many of them are dead.
type shard struct {
	snapshot atomic.Pointer[snapshot]

	scale   *scale
	kinds   dictionary[kind]
	lands   dictionary[land]
	blocks  []*part // largest first; replaced, never changed
	delta   *part
	filled  int    // rows of delta in use
	dead    int    // rows that count no more, in blocks and delta
	live    int    // rows that count
	trained int    // live rows when scale and dictionaries were made
	version uint32 // of snapshot
}

// snapshot is a shard at one moment. It is immutable, but for the died columns, which say
// themselves from which version on they hold.
type snapshot struct {
	version uint32
	filled  int // rows of delta that exist
	blocks  []*part
	delta   *part
	scale   *scale
	kinds   []kind
	lands   []land
}

const (
	minDelta = 4   // rows of the smallest delta
	maxDelta = 256 // rows of the largest: every search reads all of them
	fanout   = 8   // a merge takes in the next larger block while that is at most this many times larger
	maxDead  = 256 // dead rows that are always tolerated
	retrain  = 4   // growth of the live rows that asks for a new scale
)

func newShard() *shard {
	s := &shard{scale: new(scale), delta: newPart(minDelta)}
	s.publish()
	return s
}

// publish makes the shard's state what searches see.
func (s *shard) publish() {
	s.snapshot.Store(&snapshot{
		version: s.version, filled: s.filled, blocks: s.blocks, delta: s.delta,
		scale: s.scale, kinds: s.kinds.list, lands: s.lands.list,
	})
}

// put adds a row for e, and ends the row it has here if replace is set; searches see both
// or neither.
func (s *shard) put(e *entry, replace bool) {
	s.prepare()
	s.version++
	if replace {
		s.kill(e)
	}
	row := s.filled
	p := s.delta
	p.set(row, e)
	p.words[row] = s.scale.word(e.record.Facts())
	p.kinds[row] = s.kinds.id(kindOf(e.record))
	p.lands[row] = s.lands.id(landOf(e.record))
	e.part, e.row = p, int32(row)
	s.filled++
	s.live++
	s.publish()
}

// remove ends e's row.
func (s *shard) remove(e *entry) {
	s.prepare()
	s.version++
	s.kill(e)
	s.publish()
}

func (s *shard) kill(e *entry) {
	e.part.kill(int(e.row), s.version)
	e.part = nil
	s.dead++
	s.live--
}

// prepare merges where that is due, so that the delta has room for a row. What it
// publishes afterwards is the same set of rows.
func (s *shard) prepare() {
	switch {
	case s.version == math.MaxUint32, s.dead > maxDead+s.live/2:
		s.rebuild()
	case s.filled < len(s.delta.records):
	case s.live >= retrain*s.trained, len(s.kinds.list)+len(s.lands.list) > 2*s.live+maxDead:
		s.rebuild()
	default:
		s.merge()
	}
}

// merge makes one block of the delta and the smallest blocks.
func (s *shard) merge() {
	rows, from := s.filled, len(s.blocks)
	for from > 0 && len(s.blocks[from-1].records) <= fanout*rows {
		from--
		rows += len(s.blocks[from].records)
	}
	merged := s.mergeFrom(from)
	merged.turn()
	s.blocks = append(slices.Clone(s.blocks[:from]), merged)
	s.renewDelta()
}

// rebuild makes one block of everything, and scale and dictionaries from what is live.
func (s *shard) rebuild() {
	all := s.mergeFrom(0)
	s.scale = train(all.records)
	s.kinds, s.lands = dictionary[kind]{}, dictionary[land]{}
	for row, r := range all.records {
		all.words[row] = s.scale.word(r.Facts())
		all.kinds[row] = s.kinds.id(kindOf(r))
		all.lands[row] = s.lands.id(landOf(r))
	}
	all.turn()
	s.blocks = []*part{all}
	s.trained = s.live
	s.version = 0
	s.renewDelta()
}

// renewDelta begins an empty delta of a size that suits the shard's.
func (s *shard) renewDelta() {
	s.delta = newPart(max(minDelta, min(s.live, 32), min(s.live/16, maxDelta)))
	s.filled = 0
}

// ref is a row on its way into a block.
type ref struct {
	key  uint64
	part *part
	row  int32
}

// mergeFrom makes a sorted block of the live rows of the delta and of the blocks from an
// index on, and lets their entries point to it.
func (s *shard) mergeFrom(from int) *part {
	refs := s.liveRefs(s.delta, s.filled)
	slices.SortStableFunc(refs, func(a, b ref) int { return cmp.Compare(a.key, b.key) })
	rows := s.filled
	for i := len(s.blocks) - 1; i >= from; i-- {
		n := len(s.blocks[i].records)
		refs = mergeRefs(s.liveRefs(s.blocks[i], n), refs)
		rows += n
	}
	s.dead -= rows - len(refs)
	return gather(refs)
}

// liveRefs lists the rows of a part that count.
func (s *shard) liveRefs(p *part, rows int) []ref {
	refs := make([]ref, 0, rows)
	for row := range rows {
		if p.aliveAt(row, s.version) {
			refs = append(refs, ref{key: p.keys[row], part: p, row: int32(row)})
		}
	}
	return refs
}

// mergeRefs merges two sorted runs.
func mergeRefs(a, b []ref) []ref {
	out := make([]ref, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if b[0].key < a[0].key {
			out, b = append(out, b[0]), b[1:]
		} else {
			out, a = append(out, a[0]), a[1:]
		}
	}
	return append(append(out, a...), b...)
}

// gather copies rows into a new block.
func gather(refs []ref) *part {
	p := newPart(len(refs))
	for i, r := range refs {
		src, row := r.part, r.row
		p.records[i] = src.records[row]
		p.words[i] = src.words[row]
		p.vecs[i] = src.vecs[row]
		p.keys[i] = r.key
		p.codes[i] = src.codes[row]
		p.expires[i] = src.expires[row]
		p.floors[i] = src.floors[row]
		p.kinds[i] = src.kinds[row]
		p.lands[i] = src.lands[row]
		e := src.entries[row]
		p.entries[i] = e
		e.part, e.row = p, int32(i)
	}
	p.index()
	return p
}

// admit gives e a row for its record, in the place of old's row if old is not nil.
func (x *Index) admit(e *entry, old *records.Record) {
	kind := e.record.Type()
	if old != nil && old.Type() != kind {
		x.retire(e, old.Type())
		old = nil
	}
	s, ok := x.shards.Load(kind)
	if !ok {
		s = newShard()
		x.shards.Store(kind, s)
	}
	s.(*shard).put(e, old != nil)
}

// expel ends the row of e's record.
func (x *Index) expel(e *entry) { x.retire(e, e.record.Type()) }

// retire ends e's row in the shard of a type, and the shard with its last row.
func (x *Index) retire(e *entry, kind string) {
	found, ok := x.shards.Load(kind)
	if !ok {
		panic("index: a live entry has no shard") // impossible: admit made it
	}
	s := found.(*shard)
	s.remove(e)
	if s.live == 0 {
		x.shards.Delete(kind)
	}
}
