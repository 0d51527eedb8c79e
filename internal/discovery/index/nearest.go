package index

import (
	"math"

	"github.com/blackhole/blackhole/pkg/geo"
)

// quarterTurn is the largest radius that nearest tries before it reads everything, in
// metres: chords tell distances well up to there.
const quarterTurn = math.Pi / 2 * geo.EarthRadiusMeters

// nearest ranks by distance without a radius: it ranks the matches of discs around the
// place that grow until one holds enough. Before that it counts all matches by their
// columns, unless that is not asked for.
func (s *search) nearest() {
	if !s.atLeast {
		s.count()
	}
	in := area{inner: -1, surely: math.Inf(1)}
	center, _ := s.plan.Center()
	for radius := s.firstRadius(center); radius < quarterTurn && s.worthDiscs(); radius *= s.growth() {
		if s.ring(&in, geo.Disc{Center: center, Radius: radius}) {
			return
		}
		if s.counting && radius > countRadius {
			s.count()
		}
	}
	s.beyond(in.inner)
}

// nearestIn is nearest within the plan's disc, for who does not ask for a count, and where
// the rows around its centre are so dense that far smaller discs may hold enough. It
// reports whether one did; if not, in.inner tells what need not be read again.
func (s *search) nearestIn(in *area, d geo.Disc) bool {
	const far = 8 // MAGIC
	radius := s.firstRadius(d.Center)
	if radius > d.Radius/far {
		return false
	}
	for ; radius < min(d.Radius/2, quarterTurn); radius *= s.growth() {
		if s.ring(in, geo.Disc{Center: d.Center, Radius: radius}) {
			return true
		}
	}
	return false
}

// ring ranks the matches of a disc but for those of the disc before it, and reports
// whether it holds all that are asked for.
func (s *search) ring(in *area, d geo.Disc) bool {
	in.round, in.outer = true, square(geo.MetersToChord(d.Radius))
	s.readDisc(*in, geo.Disc{Center: d.Center, Radius: d.Radius + discSlack})
	s.ranker.settle()
	if s.ranker.full() && s.ranker.worst <= in.outer {
		s.partial = s.counting
		return true
	}
	in.inner = in.outer
	return false
}

// worthDiscs reports whether there may be more matches than are asked for: else all must
// be read.
func (s *search) worthDiscs() bool {
	return s.counting && s.snapshot.live > s.ranker.keep || s.total > s.ranker.keep
}

// growth is how much larger the next disc is: enough if matches are as dense around the
// last one as in it, and a little more.
func (s *search) growth() float64 {
	const least, most = 1.5, 4 // MAGIC
	return max(least, min(1.25*math.Sqrt(float64(s.ranker.keep)/float64(len(s.ranker.best))), most))
}

// discSlack is more metres than a vec within a chord of quarterTurn or less may be from
// its place.
const discSlack = 2

// firstRadius is the radius of a disc that would hold the hits asked for a few times over
// if rows were as dense around the place as in its neighbourhood, in metres.
func (s *search) firstRadius(center geo.Point) float64 {
	const vicinity, least, most = 20_000, 500, 80_000 // MAGIC: about a city
	const rarity = 6                                  // MAGIC: rows for each match
	rows := s.rowsIn(aroundDisc(geo.Disc{Center: center, Radius: vicinity}))
	share := rarity * float64(s.ranker.keep) / float64(max(1, rows))
	return max(least, min(vicinity*math.Sqrt(share), most))
}

// rowsIn is about how many rows there are in a region, the dead included.
func (s *search) rowsIn(r region) int {
	n := 0
	for _, p := range s.snapshot.blocks {
		for from, to := range p.runs(&r) {
			n += to - from
		}
	}
	return n
}

// countRadius is the radius of a disc beyond which it is better to know how many matches
// there are, before more is read than to count them takes; in metres.
const countRadius = 1_000_000 // MAGIC

// count makes all matches the total, for good.
func (s *search) count() {
	s.ranking, s.total = false, 0
	defer func() { s.ranking, s.counting = true, false }()
	s.read(area{region: everything(), inner: -1, surely: math.Inf(1)})
}

// beyond ranks all rows whose squared chord is above inner, and those without a place.
func (s *search) beyond(inner float64) {
	s.read(area{region: everything(), inner: inner, surely: math.Inf(1)})
}
