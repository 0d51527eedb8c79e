package index

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/blackhole/blackhole/pkg/records"
)

// shard stores the rows of one type. Writers change it under Index.mu. Searches read snapshot
// alone.
//
// The structure is a log-structured merge of sorted runs (P. O'Neil et al., "The Log-Structured
// Merge-Tree", 1996). The delta takes the puts. A full delta becomes a sorted block, merged with
// the blocks of similar size, so that a row is copied a few times in its life and a search
// visits few blocks. Small merges run inline. A large merge is a job: every change advances it
// by a few rows, while searches read its input.
//
// Strong growth of the live rows, or a mostly dead dictionary, starts a new codec. The next job
// converts all blocks.
type shard struct {
	snapshot atomic.Pointer[snapshot]

	codec      *codec  // of the delta
	blocks     []*part // mostly largest first; replaced as a whole, never changed
	delta      *part
	job        *job   // current large merge, or nil
	filled     int    // used rows of delta
	dead       int    // dead rows in blocks and delta
	live       int    // live rows
	trained    int    // live rows at the creation of the codec
	version    uint32 // of snapshot
	inlineRows int    // rows of the largest inline merge: maxInlineRows, except in tests
}

// snapshot is an immutable state of a shard. The died columns may change, but state the version
// from which they apply.
type snapshot struct {
	version uint32
	filled  int // rows of delta in this snapshot
	live    int // number of live rows
	blocks  []*part
	delta   *part
}

// each yields the records of all live rows. It returns false after yield does.
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
	maxDelta      = 1 << deltaBits // rows of the largest delta: every search reads all of them
	fanout        = 4              // a merge includes the next larger block up to this ratio of sizes
	maxInlineRows = 1 << 13        // rows of the largest inline merge
	maxDead       = 256            // dead rows tolerated in any shard
	retrain       = 4              // growth of the live rows that starts a new codec
)

func newShard(swift int) *shard {
	c := &codec{scale: new(scale)}
	s := &shard{codec: c, delta: newPart(c, minDelta), inlineRows: swift}
	s.publish()
	return s
}

// publish shows the shard's state to searches.
func (s *shard) publish() {
	s.snapshot.Store(&snapshot{
		version: s.version, filled: s.filled, live: s.live, blocks: s.blocks, delta: s.delta,
	})
}

// put adds a row for r and removes the row of old unless old is nil. Searches see both changes
// or neither.
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

// remove removes a record's row.
func (s *shard) remove(r *records.Record) {
	s.prepare()
	s.version++
	s.kill(r)
	s.publish()
}

// kill marks a record's row dead, and its copy in a job.
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

// prepare makes room for a row in the delta and merges if necessary. The set of live rows stays
// the same.
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

// seal turns the delta into a block and starts a new delta.
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

// merge combines the smallest blocks if due. It leaves the blocks of a job alone.
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

// stale reports whether block i, or a larger one, still has an old codec.
func (s *shard) stale(i int) bool {
	return s.blocks[i].codec != s.codec || i > 0 && s.blocks[0].codec != s.codec
}

// replace merges the blocks from..to: inline, or by a job for many rows.
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

// finish installs the result of the completed job and continues with waiting merges.
func (s *shard) finish() {
	s.install(s.job)
	s.job = nil
	s.merge()
}

// install replaces the input of a job by its result.
func (s *shard) install(j *job) {
	blocks := slices.Clone(s.blocks[:j.from])
	if len(j.out.records) > 0 {
		blocks = append(blocks, j.out)
	}
	s.blocks = append(blocks, s.blocks[j.to:]...)
	s.dead -= j.rows - len(j.out.records)
}

// restart returns to version 0 without the dead rows: a later version must not find an earlier
// mark. It takes as long as all due merges together.
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

// shards holds the shards by type. Records that need features of a later version have shards of
// their own, which searches do not read. Index.mu guards changes to the map.
type shards struct {
	hashes     hashes
	byType     sync.Map // shardOf -> *shard
	inlineRows int      // of new shards
}

// beyond begins the names of the shards of records that need features of a later version. No type
// contains it.
const beyond = "+"

// shardOf returns the name of a record's shard.
func shardOf(r *records.Record) string {
	if r.Needs() != "" {
		return beyond + r.Type()
	}
	return r.Type()
}

// of returns the shard with a name, or nil.
func (x *shards) of(kind string) *shard {
	if found, ok := x.byType.Load(kind); ok {
		return found.(*shard)
	}
	return nil
}

// snapshots returns the snapshots of all types, ordered by type. Index.mu makes them consistent.
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

// admit adds a row for r. It replaces the row of old unless old is nil.
func (x *shards) admit(r, old *records.Record) {
	kind := shardOf(r)
	if old != nil && shardOf(old) != kind {
		x.expel(old)
		old = nil
	}
	s := x.of(kind)
	if s == nil {
		s = newShard(x.inlineRows)
		x.byType.Store(kind, s)
	}
	x.hashes.replace(old, r)
	s.put(r, old)
}

// expel removes the row of a live record, and the shard after its last row.
func (x *shards) expel(r *records.Record) {
	s := x.of(shardOf(r))
	if s == nil {
		panic("index: a live record has no shard") // impossible: admit made it
	}
	x.hashes.remove(r)
	s.remove(r)
	if s.live == 0 {
		x.byType.Delete(shardOf(r))
	}
}
