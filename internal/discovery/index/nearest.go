package index

import (
	"math"

	"github.com/blackhole/blackhole/pkg/geo"
)

// quarterTurn is the largest radius of a ring, in metres. Chords measure distances precisely up
// to this radius; beyond it nearest reads all rows.
const quarterTurn = math.Pi / 2 * geo.EarthRadiusMeters

// nearest ranks by distance without a radius. It ranks the matches of growing discs around the
// place until one disc holds enough. Before that it counts all matches by their columns, unless
// the caller accepts a lower bound.
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

// nearestIn is nearest within the plan's disc, for searches without an exact count around dense
// centres, where far smaller discs may suffice. It reports whether one did. Otherwise in.inner
// bounds the rows already read.
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

// ring ranks the matches between the previous disc and d. It reports whether d holds enough
// hits.
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

// worthDiscs reports whether more matches than hits may exist. Without more, the search must
// read all rows anyway.
func (s *search) worthDiscs() bool {
	return s.counting && s.snapshot.live > s.ranker.keep || s.total > s.ranker.keep
}

// growth is the ratio of the next radius to the last: enough for an even density of matches,
// plus a margin.
func (s *search) growth() float64 {
	const least, most = 1.5, 4 // MAGIC
	return max(least, min(1.25*math.Sqrt(float64(s.ranker.keep)/float64(len(s.ranker.best))), most))
}

// discSlack exceeds the error of a vec within a chord of quarterTurn, in metres.
const discSlack = 2

// firstRadius is the radius of a disc with a few times the hits asked for, in metres. It assumes
// the density of rows in the vicinity.
func (s *search) firstRadius(center geo.Point) float64 {
	const vicinity, least, most = 20_000, 500, 80_000 // MAGIC: about a city
	const rarity = 6                                  // MAGIC: rows for each match
	rows := s.rowsIn(aroundDisc(geo.Disc{Center: center, Radius: vicinity}))
	share := rarity * float64(s.ranker.keep) / float64(max(1, rows))
	return max(least, min(vicinity*math.Sqrt(share), most))
}

// rowsIn estimates the number of rows in a region, dead rows included.
func (s *search) rowsIn(r region) int {
	n := 0
	for _, p := range s.snapshot.blocks {
		for from, to := range p.runs(&r) {
			n += to - from
		}
	}
	return n
}

// countRadius is the radius, in metres, beyond which the search counts all matches first: the
// count then costs less than more discs.
const countRadius = 1_000_000 // MAGIC

// count sets the total to the number of all matches. Later reads do not change it.
func (s *search) count() {
	s.ranking, s.total = false, 0
	defer func() { s.ranking, s.counting = true, false }()
	s.read(area{region: everything(), inner: -1, surely: math.Inf(1)})
}

// beyond ranks all rows with a squared chord above inner, and the rows without a place.
func (s *search) beyond(inner float64) {
	s.read(area{region: everything(), inner: inner, surely: math.Inf(1)})
}
