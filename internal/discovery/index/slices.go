package index

import (
	"math"
	"math/bits"
	"slices"
	"sync/atomic"
)

// A group is 1024 words turned on their side: [b][i] has bit b of 64 of them. A
// comparison of a field with a threshold then takes a few operations for each bit of the
// field, and decides 64 rows at once (P. O'Neil, D. Quass, "Improved Query Performance
// with Variant Indexes", SIGMOD 1997: bit-sliced index). Many rows together share the work
// of walking the threshold.
type group [64]lanes

// lanes are one bit of each of the rows of a group, 64 to a lane.
type lanes [16]uint64

const (
	laneRows  = 64
	groupRows = len(lanes{}) * laneRows
)

// bitSlices are the groups of a block, and what they must not be asked about.
type bitSlices struct {
	groups []group
	gone   []uint64 // a bit for each row that has died in some version; atomic
	first  []uint32 // when the first of 64 rows lapses, in whole seconds
}

// makeGroups makes the empty groups of a block that has enough rows to be worth it.
func (p *part) makeGroups(rows int) {
	if rows < groupRows {
		return
	}
	n := (rows + groupRows - 1) / groupRows
	p.bitSlices = bitSlices{groups: make([]group, n), gone: make([]uint64, len(lanes{})*n), first: make([]uint32, len(lanes{})*n)}
}

// fillGroups fills the groups from a lane on, as far as the first rows fill lanes, and the last
// lane too if there are no more rows to come. It gives the next lane.
func (p *part) fillGroups(lane, rows int, last bool) int {
	if p.groups == nil {
		return lane
	}
	for ; (lane+1)*laneRows <= rows || last && lane*laneRows < rows; lane++ {
		from, to := lane*laneRows, min((lane+1)*laneRows, rows)
		var square [64]uint64
		copy(square[:], p.words[from:to])
		transpose(&square)
		for b, row := range square {
			p.groups[lane/len(lanes{})][b][lane%len(lanes{})] = row
		}
		p.first[lane] = slices.Min(p.lapses[from:to])
	}
	return lane
}

// markDead marks a row that has died.
func (t *bitSlices) markDead(row int) {
	if t.groups != nil {
		atomic.OrUint64(&t.gone[row/laneRows], 1<<(row%laneRows))
	}
}

// transpose mirrors a square of bits at its diagonal (H. S. Warren, "Hacker's Delight",
// 2nd edition, 7-3).
func transpose(a *[64]uint64) {
	mask := uint64(math.MaxUint32)
	for width := 32; width > 0; width >>= 1 {
		for k := 0; k < 64; k = (k + width + 1) &^ width {
			swap := (a[k]>>width ^ a[k+width]) & mask
			a[k] ^= swap << width
			a[k+width] ^= swap
		}
		mask ^= mask << (width >> 1)
	}
}

// comparison is one field of thresholds for groups.
type comparison struct {
	high, low int    // bits of words, both included
	step      uint64 // in its place
	exact     uint64 // all ones when rows at step itself are sure to pass, else 0
}

// comparisons lists the fields of thresholds that tell rows apart. It appends to dst.
func (t thresholds) comparisons(dst []comparison) []comparison {
	add := func(shift, bits uint) {
		field := (uint64(1)<<bits - 1) << shift
		if t.sure&field == 0 {
			return
		}
		c := comparison{high: int(shift + bits - 1), low: int(shift), step: t.maybe & field}
		if t.maybe&field == t.sure&field {
			c.exact = math.MaxUint64
		}
		dst = append(dst, c)
	}
	add(0, statusBits)
	for _, f := range layout() {
		add(f.shift, f.bits)
	}
	return dst
}

// compare finds the rows of a group that may pass and those that surely do. It goes
// through each field from the topmost bit down, with the rows found above the step so far
// and those still equal to it.
func (g *group) compare(list []comparison, maybe, sure *lanes) {
	all := lanes{}
	for i := range all {
		all[i] = math.MaxUint64
	}
	*maybe, *sure = all, all
	for _, c := range list {
		above, equal := lanes{}, all
		for b := c.high; b >= c.low; b-- {
			if row := &g[b&63]; c.step>>(b&63)&1 == 0 {
				for i := range row {
					above[i] |= equal[i] & row[i]
					equal[i] &^= row[i]
				}
			} else {
				for i := range row {
					equal[i] &= row[i]
				}
			}
		}
		for i := range maybe {
			maybe[i] &= above[i] | equal[i]
			sure[i] &= above[i] | equal[i]&c.exact
		}
	}
}

// readGroups considers all rows of a block by its groups. Rows of which the groups tell
// all are counted together.
func (s *search) readGroups(p *part) {
	var maybe, sure lanes
	for g := range p.groups {
		p.groups[g].compare(s.terms.compared, &maybe, &sure)
		for i := range maybe {
			s.take(p, len(maybe)*g+i, maybe[i], sure[i])
		}
	}
}

// take considers 64 rows, given those that may pass and those that do as far as words tell.
func (s *search) take(p *part, lane int, maybe, sure uint64) {
	first := lane * laneRows
	if rest := len(p.words) - first; rest < laneRows {
		maybe &= 1<<max(0, rest) - 1
	}
	if s.terms.wordsTellAll && p.first[lane] > s.second {
		sure &= maybe &^ atomic.LoadUint64(&p.gone[lane])
	} else {
		sure = 0
	}
	for unsure := maybe &^ sure; unsure != 0; unsure &= unsure - 1 {
		s.consider(p, first+bits.TrailingZeros64(unsure))
	}
	if !s.ranking {
		s.total += bits.OnesCount64(sure)
		return
	}
	for ; sure != 0; sure &= sure - 1 {
		row := first + bits.TrailingZeros64(sure)
		s.match(p, row, p.vecs[row].chordSq(s.place))
	}
}
