package index

import (
	"cmp"
	"slices"
)

// job merges neighbouring blocks into one, some rows per step. Searches read the old blocks
// until the job ends. A row that dies during the job dies in its block and in the copy, if one
// exists.
type job struct {
	from, to int     // range of blocks in the shard
	sources  []*part // the blocks of that range
	at       []int   // next row of each source
	rows     int     // sum over all sources
	pace     int     // rows per change

	out     *part
	room    int // capacity of out
	columns int // columns of out made so far
	made    int // rows of out
	band    int // current band; above bandCount after the last
	lane    int // next lane of out for fillGroups

	heads  []head // scratch of planBand
	picks  [256]pick
	picked int // length of the list in picks
}

func newJob(s *shard, from, to int) *job {
	j := &job{from: from, to: to, sources: slices.Clone(s.blocks[from:to]), at: make([]int, to-from)}
	alive := 0
	for _, p := range j.sources {
		j.rows += len(p.records)
		alive += len(p.records) - p.ended
	}
	j.pace = max(leastPace, j.rows/max(1, s.inlineRows/4)) // changes during the job stay below one inline merge
	j.out = &part{codec: s.codec, bands: make([]uint32, bandCount+1)}
	j.room = alive
	return j
}

// leastPace is the smallest number of rows per change: enough rows for the switch from column to
// column.
const leastPace = 64

// advance does one change's part of the work and reports whether the job is complete. One large
// column counts as one part.
func (j *job) advance() bool {
	if j.out.grow(j.columns, j.room) {
		j.columns++
		return false
	}
	return j.step(j.pace)
}

// complete runs the job to its end.
func (j *job) complete() {
	j.pace = len(j.picks)
	for !j.advance() {
	}
}

// step reads some rows and reports whether the job is complete.
func (j *job) step(rows int) bool {
	for rows > 0 && j.band <= bandCount {
		read := j.plan(min(rows, len(j.picks)))
		j.out.gather(j.made, j.sources, j.picks[:j.picked])
		j.made += j.picked
		rows -= read
	}
	done := j.band > bandCount
	if done {
		j.out.truncate(j.made)
	}
	j.lane = j.out.fillGroups(j.lane, j.made, done)
	return done
}

// pick is a row of one of several parts.
type pick struct {
	part uint32
	row  uint32
}

// plan picks the next live rows in order and returns the number of rows read.
func (j *job) plan(rows int) (read int) {
	j.picked = 0
	for read < rows && j.band <= bandCount {
		n := j.planBand(rows - read)
		if read += n; read < rows {
			if j.band++; j.band <= bandCount {
				j.out.bands[j.band] = uint32(j.made + j.picked)
			}
		}
	}
	return read
}

// head is the next row of a source in the current band.
type head struct {
	pick
	lon uint32
	end uint32 // row after the last of the band
}

// planBand is plan limited to the current band. It returns fewer rows at the band's end.
func (j *job) planBand(rows int) (read int) {
	heads := j.heads[:0]
	for i, p := range j.sources {
		if _, end := p.band(j.band); j.at[i] < end {
			heads = append(heads, head{pick{uint32(i), uint32(j.at[i])}, p.lons[j.at[i]], uint32(end)})
		}
	}
	j.heads = heads
	for ; read < rows && len(heads) > 0; read++ {
		best := 0
		for i := 1; i < len(heads); i++ {
			if heads[i].lon <= heads[best].lon && j.before(&heads[i], &heads[best]) {
				best = i
			}
		}
		h := &heads[best]
		p := j.sources[h.part]
		if !p.dead(int(h.row)) {
			j.picks[j.picked] = h.pick
			j.picked++
		}
		h.row++
		j.at[h.part]++
		if h.row == h.end {
			heads = slices.Delete(heads, best, best+1)
		} else {
			h.lon = p.lons[h.row]
		}
	}
	return read
}

// before reports whether row a precedes row b of the same band.
func (j *job) before(a, b *head) bool {
	return a.lon < b.lon || a.lon == b.lon &&
		digestOf(j.sources[a.part].records[a.row]) < digestOf(j.sources[b.part].records[b.row])
}

// kill removes the copy of a dead row, if a job has made one.
func (j *job) kill(p *part, row int, k rowKey, version uint32) {
	if j == nil {
		return
	}
	i := slices.Index(j.sources, p)
	if i < 0 || row >= j.at[i] {
		return
	}
	from, to := int(j.out.bands[k.band]), j.made
	if k.band < j.band {
		to = int(j.out.bands[k.band+1])
	}
	if copied, ok := j.out.find(from, to, k, p.records[row]); ok {
		j.out.kill(copied, version)
	}
}

// sorted makes a block of the live rows among the first rows of a delta.
func sorted(delta *part, rows int) *part {
	keys := make([]uint64, 0, maxDelta) // band, longitude and row
	for row := range rows {
		if !delta.dead(row) {
			k := keyOf(delta.records[row])
			keys = append(keys, (uint64(k.band)<<32|uint64(k.lon))<<deltaBits|uint64(row))
		}
	}
	slices.Sort(keys)
	delta.sortAlike(keys)
	p := newPart(delta.codec, len(keys))
	p.bands = make([]uint32, bandCount+1)
	picks := make([]pick, len(keys), maxDelta)
	band := 0
	for i, k := range keys {
		picks[i].row = uint32(k % maxDelta)
		for ; band < int(k>>(32+deltaBits)); band++ {
			p.bands[band+1] = uint32(i)
		}
	}
	for ; band < bandCount; band++ {
		p.bands[band+1] = uint32(len(keys))
	}
	p.gather(0, []*part{delta}, picks)
	return p
}

// sortAlike sorts rows of one band and longitude by digest. The keys must already be in order
// otherwise.
func (p *part) sortAlike(keys []uint64) {
	for from, to := 0, 0; from < len(keys); from = to {
		for to = from + 1; to < len(keys) && keys[to]>>deltaBits == keys[from]>>deltaBits; to++ {
		}
		if to-from > 1 {
			slices.SortFunc(keys[from:to], func(a, b uint64) int { // digests differ
				return cmp.Compare(digestOf(p.records[a%maxDelta]), digestOf(p.records[b%maxDelta]))
			})
		}
	}
}
