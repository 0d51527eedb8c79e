package index

import "slices"

// job merges neighbouring blocks into one, some rows at a time. The blocks stay as they
// are and are searched until it is done. A row that dies meanwhile dies in its block and,
// when it has been copied, in the copy.
type job struct {
	from, to int     // blocks of the shard that are read
	sources  []*part // those blocks
	at       []int   // next row of each
	out      *part
	rows     int // of all sources
	read     int // rows read, dead ones included; none of them is in the way of an earlier one
	pace     int // rows that one change advances by
	made     int // rows of out
	band     int // that is being merged; beyond bandCount when all are
	lane     int // next of out to turn
}

func newJob(s *shard, from, to int) *job {
	j := &job{from: from, to: to, sources: slices.Clone(s.blocks[from:to]), at: make([]int, to-from)}
	for _, p := range j.sources {
		j.rows += len(p.records)
	}
	j.pace = max(leastPace, j.rows/max(1, s.swift/4)) // what piles up meanwhile is merged at once
	alive := 0
	for _, p := range j.sources {
		alive += p.living()
	}
	j.out = newPart(s.codec, alive)
	j.out.bands = make([]uint32, bandCount+1)
	j.out.makeGroups()
	return j
}

// leastPace is how many rows a change advances a job by at least.
const leastPace = 16

// living counts the rows that are not dead.
func (p *part) living() int {
	n := 0
	for row := range p.died {
		if !p.dead(row) {
			n++
		}
	}
	return n
}

// advance does the share of one change, and reports whether the job is done.
func (j *job) advance() bool { return j.step(j.pace) }

// step reads some rows, and reports whether the job is done.
func (j *job) step(rows int) bool {
	for ; rows > 0 && j.band <= bandCount; rows-- {
		if !j.next() {
			if j.band++; j.band <= bandCount {
				j.out.bands[j.band] = uint32(j.made)
			}
			rows++
		}
	}
	done := j.band > bandCount
	if done {
		j.out.cut(j.made)
	}
	j.lane = j.out.turn(j.lane, j.made, done)
	return done
}

// next reads the next row of the band, and reports whether there was one.
func (j *job) next() bool {
	best := -1
	for i, p := range j.sources {
		if _, to := p.band(j.band); j.at[i] < to && (best < 0 || j.before(i, best)) {
			best = i
		}
	}
	if best < 0 {
		return false
	}
	src, row := j.sources[best], j.at[best]
	j.at[best]++
	j.read++
	if !src.dead(row) {
		j.out.copy(j.made, src, row)
		j.made++
	}
	return true
}

// before reports whether the next row of a source comes before that of another, both of
// one band.
func (j *job) before(a, b int) bool {
	p, q := j.sources[a], j.sources[b]
	x, y := p.lons[j.at[a]], q.lons[j.at[b]]
	return x < y || x == y && digestOf(p.records[j.at[a]]) < digestOf(q.records[j.at[b]])
}

// kill ends the copy of a row that has died, if there is a job that has copied it.
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

// sorted makes a block of the living among the first rows of a delta.
func sorted(delta *part, rows int) *part {
	type ref struct {
		rowKey
		row int
	}
	refs := make([]ref, 0, rows)
	for row := range rows {
		if !delta.dead(row) {
			refs = append(refs, ref{keyOf(delta.records[row]), row})
		}
	}
	slices.SortFunc(refs, func(a, b ref) int { return a.compare(b.rowKey) }) // no two are alike
	p := newPart(delta.codec, len(refs))
	p.bands = make([]uint32, bandCount+1)
	band := 0
	for i, r := range refs {
		p.copy(i, delta, r.row)
		for ; band < r.band; band++ {
			p.bands[band+1] = uint32(i)
		}
	}
	for ; band < bandCount; band++ {
		p.bands[band+1] = uint32(len(refs))
	}
	return p
}
