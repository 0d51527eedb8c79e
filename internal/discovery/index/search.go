package index

import (
	"math"
	"slices"
	"time"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// SearchOptions say which records a search may give.
type SearchOptions struct {
	Now   time.Time  // records that have lapsed by now do not count
	Cells []geo.Cell // only records in one of these; nil is no restriction, and Global holds all

	// AtLeast allows a Total that is a lower bound, where to count on would take longer
	// than to search: Found.Exact tells. Nothing else of what is found depends on it.
	AtLeast bool
}

// Found is what a search gives.
type Found struct {
	Hits  []query.Hit // best first, at most the plan's limit; the caller owns them
	Total int         // matches before the cut, or at least so many where it is not Exact
	Exact bool        // whether Total is all matches; it is, unless SearchOptions.AtLeast
	Next  float64     // rank value of the best match withheld; +Inf when none is
}

// Search gives what matches a plan, as a scan of all live records with the plan's Match
// and Value, a sort and a cut would. It sees every Put that has returned, and each whole.
func (x *Index) Search(p *query.Plan, o SearchOptions) Found {
	s := x.pool.Get().(*search)
	defer x.pool.Put(s)
	s.begin(p, o)
	if id := p.Filter().Provider; id != "" {
		s.list(x.OfProvider(id))
	} else if held := x.shards.of(p.Type()); held != nil {
		s.over(held.snapshot.Load())
	}
	return s.end()
}

// search is the state of one search; it is reused.
//
// Rows go three ways: a kernel without branches picks those whose words may
// do; consider looks at them one by one and counts; candidates are ranked in batches, in
// the order of a lower bound of their value, so that few values are computed.
type search struct {
	plan    *query.Plan
	subtype string // asked for, or ""
	now     int64  // Unix nanoseconds
	second  uint32 // now
	cells   []region

	snapshot *snapshot
	terms    terms
	ranker   ranker
	place    geo.Vec // asked about
	counting bool    // whether matches add to total
	ranking  bool    // whether matches are offered to ranker

	area    area // that is being read
	picked  [512]uint32
	pending int // of picked
	total   int
	atLeast bool // whether total may be a lower bound
	partial bool // whether it is
}

// terms are a question in the terms of a codec, that of the part being read.
type terms struct {
	codec       *codec
	limits      thresholds
	compared    []comparison // limits for groups
	exact       bool         // whether every match must pass Plan.Match, whatever columns say
	kindValues  []kind
	placeValues []statedPlace
	kinds       matchResults // on kindValues
	places      matchResults // on placeValues

	wordsTellAll bool // whether words decide alone in the area, on rows that count
}

// area is where a search reads: a region, and in it the rows whose squared chord to place
// is above inner and at most outer.
type area struct {
	region
	round  bool    // whether outer counts
	inner  float64 // rows up to here have been read; negative for none
	outer  float64
	surely float64 // rows up to here are in the plan's disc; +Inf when there is none
}

func (s *search) begin(p *query.Plan, o SearchOptions) {
	s.plan, s.subtype, s.now = p, p.Subtype(), nanos(o.Now)
	s.second = seconds(s.now)
	s.atLeast, s.partial = o.AtLeast, false
	s.cells = cellRegions(s.cells[:0], o.Cells)
	s.total, s.pending, s.counting, s.ranking = 0, 0, true, true
	if at, ok := p.Center(); ok {
		s.place = at.Vec()
	}
	s.ranker.begin(p, p.Sort())
}

// end gives what was found and lets go of it.
func (s *search) end() Found {
	f := Found{Total: s.total, Exact: !s.partial, Next: math.Inf(1)}
	best := s.ranker.finish()
	if limit := s.plan.Limit(); len(best) > limit {
		f.Next = best[limit].Value
		best = best[:limit]
	}
	f.Hits = slices.Clone(best)
	s.ranker.release()
	s.plan, s.snapshot, s.terms.codec, s.terms.kindValues, s.terms.placeValues = nil, nil, nil, nil, nil
	return f
}

// list searches records one by one.
func (s *search) list(all []*records.Record) {
	for _, r := range all {
		if nanos(r.Expires()) > s.now && s.inCells(r) && s.plan.Match(r) {
			s.total++
			s.ranker.offer(math.Inf(-1), r)
		}
	}
}

func (s *search) inCells(r *records.Record) bool {
	return slices.ContainsFunc(s.cells, func(c region) bool { return c.contains(r) })
}

// over searches a snapshot.
func (s *search) over(snap *snapshot) {
	s.snapshot = snap
	disc, bounded := s.plan.Disc()
	switch {
	case bounded:
		s.overDisc(disc)
	case s.ranker.order == byChord && len(s.cells) > 0 && s.cells[0].whole:
		s.nearest()
	default:
		for _, c := range s.cells {
			s.read(area{region: c, inner: -1, surely: math.Inf(1)})
		}
	}
}

// translate puts the question in terms of a codec.
func (s *search) translate(c *codec) {
	f := s.plan.Filter()
	s.terms.codec = c
	s.terms.kindValues, s.terms.placeValues = c.kinds.values(), c.places.values()
	s.terms.limits = c.scale.thresholds(f)
	s.terms.exact = s.terms.limits.blind || len(f.Attributes) > 0 || len(f.Exclude) > 0
	s.terms.compared = s.terms.limits.comparisons(s.terms.compared[:0])
	s.terms.kinds.begin(len(s.terms.kindValues), s.subtype != "" || f.Need&records.KnownPrice != 0)
	s.terms.places.begin(len(s.terms.placeValues), len(f.Countries) > 0 || len(f.Regions) > 0)
	s.decideFew()
}

// overDisc searches the plan's disc.
func (s *search) overDisc(d geo.Disc) {
	in := area{inner: -1, surely: -1}
	chord := geo.MetersToChord(d.Radius)
	if chord > chordSlack {
		in.surely = square(chord - chordSlack)
	}
	if s.atLeast && s.ranker.order == byChord && s.nearestIn(&in, d) {
		return
	}
	in.round, in.outer = true, square(chord+chordSlack)
	s.readDisc(in, d)
}

// readDisc reads the rows of an area that are around a disc, which holds all of it.
func (s *search) readDisc(in area, d geo.Disc) {
	around := aroundDisc(d)
	for _, c := range s.cells {
		in.region = around
		if !c.whole {
			var some bool
			if in.region, some = c.clip(around); !some {
				continue
			}
		}
		s.read(in)
	}
}

func square(x float64) float64 { return x * x }

// read considers the rows of an area in every part.
func (s *search) read(a area) {
	s.area = a
	for _, b := range s.snapshot.blocks {
		s.use(b)
		s.readBlock(b)
		s.drain(b)
	}
	d := s.snapshot.delta
	s.use(d)
	s.pick(d, 0, s.snapshot.filled)
	s.drain(d)
}

// use makes ready to read a part.
func (s *search) use(p *part) {
	if s.terms.codec != p.codec {
		s.translate(p.codec)
	}
	s.terms.wordsTellAll = s.area.whole && s.area.inner < 0 && !s.terms.exact && !s.terms.kinds.asked && !s.terms.places.asked
}

// narrow is how many rows of a band are read whole rather than searched for the first.
const narrow = 32

func (s *search) readBlock(p *part) {
	switch {
	case s.area.whole && p.groups != nil:
		s.readGroups(p)
		return
	case s.area.whole:
		s.pick(p, 0, len(p.records))
		return
	}
	for band := s.area.south; band <= s.area.north; band++ {
		from, to := p.band(band)
		if to-from <= narrow {
			s.pick(p, from, to)
			continue
		}
		for _, m := range s.area.spans[:s.area.spanned] {
			west := p.seek(from, to, m.west)
			s.pick(p, west, p.past(west, to, m.east))
		}
	}
}

// pick collects the rows from..to whose words may do. The rows picked are considered when
// there are many, or by drain.
func (s *search) pick(p *part, from, to int) {
	for from < to {
		if s.pending == len(s.picked) {
			s.drain(p)
		}
		end := min(to, from+len(s.picked)-s.pending)
		s.pickWords(p, from, end)
		from = end
	}
}

// pickWords writes every row and keeps it by moving on, without a branch that could be
// mispredicted. There must be room for all rows.
func (s *search) pickWords(p *part, from, to int) {
	n, out, maybe := 0, s.picked[s.pending:], s.terms.limits.maybe
	for i, word := range p.words[from:to] {
		out[n] = uint32(from + i)
		n += reaches(word, maybe)
	}
	s.pending += n
}

// number is 1 for true.
func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// drain considers what was picked from a part.
func (s *search) drain(p *part) {
	for _, row := range s.picked[:s.pending] {
		s.consider(p, int(row))
	}
	s.pending = 0
}

// consider decides on a row that was picked.
func (s *search) consider(p *part, row int) {
	chordSq := p.vecs[row].chordSq(s.place)
	if s.area.round && !(chordSq <= s.area.outer) || chordSq <= s.area.inner {
		return
	}
	if p.lapsed(row, s.now, s.second) || !p.aliveAt(row, s.snapshot.version) || !s.area.holds(p, row) {
		return
	}
	exact := s.terms.exact
	if s.terms.kinds.asked {
		kind := p.kinds[row]
		if !s.passKind(kind) {
			return
		}
		exact = exact || kind == others
	}
	if s.terms.places.asked {
		land := p.places[row]
		if !s.passPlace(land) {
			return
		}
		exact = exact || land == others
	}
	if s.terms.limits.surelyNot(p.lower[row]) {
		return
	}
	sure := !exact && !(chordSq > s.area.surely) && s.terms.limits.surely(p.words[row], p.lower[row])
	if sure || s.plan.Match(p.records[row]) {
		s.match(p, row, chordSq)
	}
}

// match takes a row that matches, at a squared chord from the place asked about.
func (s *search) match(p *part, row int, chordSq float64) {
	if s.counting {
		s.total++
	}
	if s.ranking {
		s.ranker.offer(s.ranker.lowerBound(p, row, chordSq), p.records[row])
	}
}

// passKind and passPlace are the parts of Plan.Match that look at a kind or a land alone;
// they let others pass.
func (s *search) passKind(id uint16) bool {
	if id == others {
		return true
	}
	if s.terms.kinds.byID[id] == undecided {
		k, f := &s.terms.kindValues[id], s.plan.Filter()
		s.terms.kinds.set(id, (s.subtype == "" || s.subtype == k.subtype) &&
			(f.Need&records.KnownPrice == 0 || f.Currency == k.currency && f.PriceUnit == k.unit))
	}
	return s.terms.kinds.byID[id] == passes
}

func (s *search) passPlace(id uint16) bool {
	if id == others {
		return true
	}
	if s.terms.places.byID[id] == undecided {
		l, f := &s.terms.placeValues[id], s.plan.Filter()
		s.terms.places.set(id, among(f.Countries, l.country) && among(f.Regions, l.region))
	}
	return s.terms.places.byID[id] == passes
}

// decideFew asks about kinds no more if all of them pass, as in most networks they do;
// unless there are so many that finding out is not worth it.
func (s *search) decideFew() {
	const few = 16
	if !s.terms.kinds.asked || len(s.terms.kinds.byID) > few {
		return
	}
	for id := range s.terms.kinds.byID {
		if !s.passKind(uint16(id)) {
			return
		}
	}
	s.terms.kinds.asked = false
}

// among reports whether a folded string is in a sorted list, or the list is empty.
func among(list []string, s string) bool {
	if len(list) == 0 {
		return true
	}
	_, found := slices.BinarySearch(list, s)
	return found
}

// matchResults remember for each number of a dictionary whether it passes, so that each is
// judged at most once in a search.
type matchResults struct {
	asked bool
	byID  []matchResult
}

type matchResult uint8

const (
	undecided matchResult = iota
	passes
	fails
)

func (v *matchResults) begin(size int, asked bool) {
	if v.asked = asked; asked {
		v.byID = slices.Grow(v.byID[:0], size)[:size]
		clear(v.byID)
	}
}

func (v *matchResults) set(id uint16, pass bool) {
	v.byID[id] = fails
	if pass {
		v.byID[id] = passes
	}
}
