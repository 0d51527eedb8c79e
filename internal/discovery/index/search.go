package index

import (
	"math"
	"slices"
	"time"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// SearchOptions restrict the records of a search.
type SearchOptions struct {
	Now   time.Time  // records expired at Now do not match
	Cells []geo.Cell // only records in one of these cells; nil means no restriction, and Global contains all

	// AtLeast permits a lower bound in Total if an exact count costs more than the search.
	// Found.Exact reports the outcome. Other results do not depend on AtLeast.
	AtLeast bool
}

// Found is the result of a search.
type Found struct {
	Hits  []queries.Hit // best first, at most the plan's limit; the caller owns the slice
	Total int           // matches before the cut; a lower bound unless Exact
	Exact bool          // whether Total is exact; always true without SearchOptions.AtLeast
	Next  float64       // queries.Hit.Bound of the first match beyond the limit; +Inf without one
}

// Search returns the matches of a plan. The result equals a scan of all live records with
// Plan.Match, in the order of Plan.Arrange and cut to the limit. A search sees every completed Put, and
// each completely or not at all.
func (x *Index) Search(p *queries.Plan, o SearchOptions) Found {
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

// search is the reusable state of one search.
//
// Rows pass three stages. A kernel without branches picks the rows by their words. consider
// checks the picked rows one by one, and counts. The ranker values candidates in batches in the
// order of their lower bounds, so that few values need computing.
type search struct {
	plan    *queries.Plan
	subtype string // "" for any subtype
	now     int64  // Unix nanoseconds
	second  uint32 // now in whole seconds
	cells   []region

	snapshot *snapshot
	terms    terms
	ranker   ranker
	place    geo.Vec // the place asked about
	counting bool    // add matches to total
	ranking  bool    // offer matches to ranker

	area    area // current area
	picked  [512]uint32
	pending int // length of the list in picked
	total   int
	atLeast bool // total may be a lower bound
	partial bool // total is a lower bound
}

// terms are a query in the encoding of a codec.
type terms struct {
	codec       *codec
	limits      thresholds
	compared    []comparison // limits for groups
	exact       bool         // every match needs Plan.Match, regardless of columns
	kindValues  []kind
	placeValues []statedPlace
	kinds       matchResults // for kindValues
	places      matchResults // for placeValues

	wordsTellAll bool // words alone decide live rows in the area
}

// area is the part of a snapshot to read: the rows of a region with a squared chord above inner,
// and at most outer.
type area struct {
	region
	round  bool    // outer is valid
	inner  float64 // closer rows have been read; negative for none
	outer  float64
	surely float64 // closer rows certainly lie in the plan's disc; +Inf without a disc
}

func (s *search) begin(p *queries.Plan, o SearchOptions) {
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

// end returns the result and releases all references.
func (s *search) end() Found {
	f := Found{Total: s.total, Exact: !s.partial, Next: math.Inf(1)}
	best := s.ranker.finish()
	if limit := s.plan.Limit(); len(best) > limit {
		f.Next = best[limit].Bound()
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

// translate expresses the query in terms of a codec.
func (s *search) translate(c *codec) {
	f := s.plan.Filter()
	s.terms.codec = c
	s.terms.kindValues, s.terms.placeValues = c.kinds.values(), c.places.values()
	s.terms.limits = c.scale.thresholds(f)
	s.terms.exact = s.terms.limits.blind || f.Partial || len(f.Attributes) > 0
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

// readDisc reads the rows of an area around a disc. The disc must contain the area.
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

// use prepares the search for a part.
func (s *search) use(p *part) {
	if s.terms.codec != p.codec {
		s.translate(p.codec)
	}
	s.terms.wordsTellAll = s.area.whole && s.area.inner < 0 && !s.terms.exact && !s.terms.kinds.asked && !s.terms.places.asked
}

// narrow is the largest number of rows in a band for which a scan is faster than a binary
// search.
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

// pick collects the rows from..to that pass by their words. A full list goes through drain.
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

// pickWords writes every row and advances only past passing ones, which saves unpredictable
// branches. picked must have room for all rows.
func (s *search) pickWords(p *part, from, to int) {
	n, out, maybe := 0, s.picked[s.pending:], s.terms.limits.maybe
	for i, word := range p.words[from:to] {
		out[n] = uint32(from + i)
		n += reaches(word, maybe)
	}
	s.pending += n
}

// number converts true to 1 and false to 0.
func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// drain considers the picked rows of a part.
func (s *search) drain(p *part) {
	for _, row := range s.picked[:s.pending] {
		s.consider(p, int(row))
	}
	s.pending = 0
}

// consider decides a picked row.
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
	if sure || s.plan.MayHave(&p.texts[row]) && s.plan.Match(p.records[row]) {
		s.match(p, row, chordSq)
	}
}

// match counts and offers a matching row. chordSq is its squared chord from the place asked
// about.
func (s *search) match(p *part, row int, chordSq float64) {
	if s.counting {
		s.total++
	}
	if s.ranking {
		s.ranker.offer(s.ranker.lowerBound(p, row, chordSq), p.records[row])
	}
}

// passKind and passPlace are the parts of Plan.Match that depend on a kind or a stated place
// alone. They accept others.
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

// decideFew skips the check of kinds if all of them pass, as in most networks. It does not try
// many kinds.
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

// among reports whether a sorted list contains a folded string. Every string passes an empty
// list.
func among(list []string, s string) bool {
	if len(list) == 0 {
		return true
	}
	_, found := slices.BinarySearch(list, s)
	return found
}

// matchResults caches, per number of a dictionary, whether the value passes. Each value is
// decided at most once per search.
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
