package index

import (
	"math"

	"github.com/blackhole/blackhole/pkg/geo"
)

// quarterTurn is the largest radius that nearest tries before it reads everything, in
// metres: chords tell distances well up to there.
const quarterTurn = math.Pi / 2 * geo.EarthRadiusMeters

// nearest ranks by distance without a radius: it counts all matches by their columns, and
// ranks those of discs around the place that grow until one holds enough. Each disc skips
// the one before it.
func (s *search) nearest() {
	s.count()
	s.counting = false
	in := area{round: true, inner: -1, surely: math.Inf(1)}
	center, _ := s.plan.Center()
	for radius := s.firstRadius(); radius < quarterTurn && s.total > s.ranker.keep; radius *= s.growth() {
		in.outer = square(geo.MetersToChord(radius))
		in.region = aroundDisc(geo.Disc{Center: center, Radius: radius + discSlack})
		s.read(in)
		s.ranker.settle()
		if s.ranker.full() && s.ranker.worst <= in.outer {
			return
		}
		in.inner = in.outer
	}
	s.beyond(in.inner)
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

// firstRadius is the radius of a disc that would hold the hits asked for many times over
// if matches were spread evenly over the Earth, made smaller because they are not, in
// metres.
func (s *search) firstRadius() float64 {
	const crowding = 2 // MAGIC: services are near people, and so are those who ask
	share := float64(s.ranker.keep) / float64(max(1, s.total))
	return 2 * geo.EarthRadiusMeters * math.Sqrt(share) / crowding
}

// count adds all matches to the total.
func (s *search) count() {
	s.ranking = false
	s.read(area{region: everything(), inner: -1, surely: math.Inf(1)})
	s.ranking = true
}

// beyond ranks all rows whose squared chord is above inner, and those without a place.
func (s *search) beyond(inner float64) {
	s.read(area{region: everything(), inner: inner, surely: math.Inf(1)})
}
