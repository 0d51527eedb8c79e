package index

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/blackhole/blackhole/pkg/records"
)

// shard is the rows of one type. Writers change it under Index.mu; searches read only
// what snapshot points to.
//
// It is a log-structured merge of sorted runs (P. O'Neil et al., "The Log-Structured
// Merge-Tree", 1996): the delta takes the puts; when full it is sorted into a block, and
// merged with the blocks that are not much larger than it, so that a row is copied a few
// times in its life and a search visits few blocks. Small merges are made at once. A large
// one is a job that every change advances by a few rows, while searches go on reading what
// it will replace.
//
// When the rows are several times as many as before, or most of a dictionary is dead, a
// new codec is begun; all blocks are brought to it by the next job.
type shard struct {
	snapshot atomic.Pointer[snapshot]

	codec      *codec  // of the delta
	blocks     []*part // largest first, mostly; replaced, never changed
	delta      *part
	job        *job   // large merge under way, or nil
	filled     int    // rows of delta in use
	dead       int    // rows that count no more, in blocks and delta
	live       int    // rows that count
	trained    int    // live rows when the codec was made
	version    uint32 // of snapshot
	inlineRows int    // rows of the largest merge that is made at once: maxInlineRows, but in tests
}

// snapshot is a shard at one moment. It is immutable, but for the died columns, which say
// themselves from which version on they hold.
type snapshot struct {
	version uint32
	filled  int // rows of delta that exist
	live    int // rows that count
	blocks  []*part
	delta   *part
}

// each gives the records of all rows that count, and reports whether to go on.
func (s *snapshot) each(yield func(*records.Record) bool) bool {
	for _, b := range s.blocks {
		if !s.eachOf(b, len(b.records), yield) {
			return false
		}
	}
	return s.eachOf(s.delta, s.filled, yield)
}

func (s *snapshot) eachOf(p *part, rows int, yield func(*records.Record) bool) bool {
	for row := range rows {
		if p.aliveAt(row, s.version) && !yield(p.records[row]) {
			return false
		}
	}
	return true
}

const (
	deltaBits     = 8
	minDelta      = 4              // rows of the smallest delta
	maxDelta      = 1 << deltaBits // rows of the largest: every search reads all of them
	fanout        = 4              // a merge takes in the next larger block while that is at most this many times larger
	maxInlineRows = 1 << 13        // rows of the largest merge that is made at once
	maxDead       = 256            // dead rows that are always tolerated
	retrain       = 4              // growth of the live rows that asks for a new codec
)

func newShard(swift int) *shard {
	c := &codec{scale: new(scale)}
	s := &shard{codec: c, delta: newPart(c, minDelta), inlineRows: swift}
	s.publish()
	return s
}

// publish makes the shard's state what searches see.
func (s *shard) publish() {
	s.snapshot.Store(&snapshot{
		version: s.version, filled: s.filled, live: s.live, blocks: s.blocks, delta: s.delta,
	})
}

// put adds a row for r, and ends that of old if there is one; searches see both or neither.
func (s *shard) put(r, old *records.Record) {
	s.prepare()
	s.version++
	if old != nil {
		s.kill(old)
	}
	s.delta.set(s.filled, r)
	s.filled++
	s.live++
	s.publish()
}

// remove ends a record's row.
func (s *shard) remove(r *records.Record) {
	s.prepare()
	s.version++
	s.kill(r)
	s.publish()
}

// kill ends a record's row, wherever it is, and its copy where a job has made one.
func (s *shard) kill(r *records.Record) {
	s.dead++
	s.live--
	k := keyOf(r)
	for _, b := range s.blocks {
		from, to := b.band(k.band)
		if row, ok := b.find(from, to, k, r); ok {
			b.kill(row, s.version)
			s.job.kill(b, row, k, s.version)
			return
		}
	}
	for row := s.filled - 1; row >= 0; row-- {
		if s.delta.records[row] == r && !s.delta.dead(row) {
			s.delta.kill(row, s.version)
			return
		}
	}
	panic("index: a live record has no row") // impossible: put made it
}

// prepare merges where that is due, so that the delta has room for a row. What is
// published afterwards is the same set of rows.
func (s *shard) prepare() {
	if s.version == math.MaxUint32 {
		s.restart()
	}
	if s.job != nil && s.job.advance() {
		s.finish()
	}
	if s.filled == len(s.delta.records) {
		s.seal()
		s.merge()
	}
	if s.job == nil && s.dead > maxDead+s.live/2 {
		s.seal()
		s.replace(0, len(s.blocks))
	}
}

// seal makes a block of the delta, and begins a new delta.
func (s *shard) seal() {
	b := sorted(s.delta, s.filled)
	s.dead -= s.filled - len(b.records)
	if len(b.records) > 0 {
		s.blocks = append(slices.Clone(s.blocks), b)
	}
	if s.live >= retrain*s.trained || s.codec.size() > 2*s.live+maxDead {
		s.codec = newCodec(s.blocks)
		s.trained = s.live
	}
	s.delta = newPart(s.codec, max(minDelta, min(s.live, 32), min(s.live/16, maxDelta)))
	s.filled = 0
}

// merge makes one block of the smallest, as is due. Those that a job reads stay.
func (s *shard) merge() {
	least := 0
	if s.job != nil {
		least = s.job.to
	}
	from, rows := len(s.blocks), 0
	for from > least && (rows == 0 || s.stale(from-1) || len(s.blocks[from-1].records) <= fanout*rows) {
		if s.job != nil && rows+len(s.blocks[from-1].records) > s.inlineRows {
			break
		}
		from--
		rows += len(s.blocks[from].records)
	}
	s.replace(from, len(s.blocks))
}

// stale reports whether a block, or a larger one, has not been brought to the codec.
func (s *shard) stale(i int) bool {
	return s.blocks[i].codec != s.codec || i > 0 && s.blocks[0].codec != s.codec
}

// replace makes one block of those from..to: at once, or by a job when they are large.
func (s *shard) replace(from, to int) {
	if to-from < 2 && (to == from || s.blocks[from].codec == s.codec && s.dead <= maxDead+s.live/2) {
		return
	}
	j := newJob(s, from, to)
	if j.rows <= s.inlineRows {
		j.complete()
		s.install(j)
		return
	}
	s.job = j
}

// finish installs the job that is done, and goes on with what waited for it.
func (s *shard) finish() {
	s.install(s.job)
	s.job = nil
	s.merge()
}

// install puts what a job made in the place of what it read.
func (s *shard) install(j *job) {
	blocks := slices.Clone(s.blocks[:j.from])
	if len(j.out.records) > 0 {
		blocks = append(blocks, j.out)
	}
	s.blocks = append(blocks, s.blocks[j.to:]...)
	s.dead -= j.rows - len(j.out.records)
}

// restart goes back to the first version, without the rows that count no more: no row may
// have died in a version that is to come. It takes as long as all merges that are due.
func (s *shard) restart() {
	if s.job != nil {
		s.job.complete()
		s.finish()
	}
	s.seal()
	s.job = newJob(s, 0, len(s.blocks))
	s.job.complete()
	s.install(s.job)
	s.job = nil
	s.version = 0
}

// shards are the shards by type. Writers change the map under Index.mu.
type shards struct {
	byType     sync.Map // type -> *shard
	inlineRows int      // of new shards
}

// of gives the shard of a type, or nil.
func (x *shards) of(kind string) *shard {
	if found, ok := x.byType.Load(kind); ok {
		return found.(*shard)
	}
	return nil
}

// count is the number of types with live records.
func (x *shards) count() int {
	n := 0
	x.byType.Range(func(any, any) bool { n++; return true })
	return n
}

// snapshots gives those of all types, by type. They are of one moment if the caller holds
// Index.mu.
func (x *shards) snapshots() []*snapshot {
	var kinds []string
	x.byType.Range(func(kind, _ any) bool {
		kinds = append(kinds, kind.(string))
		return true
	})
	slices.Sort(kinds)
	snaps := make([]*snapshot, 0, len(kinds))
	for _, kind := range kinds {
		if s := x.of(kind); s != nil {
			snaps = append(snaps, s.snapshot.Load())
		}
	}
	return snaps
}

// admit gives r a row. It replaces the row of old unless old is nil.
func (x *shards) admit(r, old *records.Record) {
	kind := r.Type()
	if old != nil && old.Type() != kind {
		x.expel(old)
		old = nil
	}
	s := x.of(kind)
	if s == nil {
		s = newShard(x.inlineRows)
		x.byType.Store(kind, s)
	}
	s.put(r, old)
}

// expel ends the row of a live record, and removes the shard with its last row.
func (x *shards) expel(r *records.Record) {
	s := x.of(r.Type())
	if s == nil {
		panic("index: a live record has no shard") // impossible: admit made it
	}
	s.remove(r)
	if s.live == 0 {
		x.byType.Delete(r.Type())
	}
}
