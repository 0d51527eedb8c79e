package index

import (
	"encoding/binary"
	"iter"
	"math"
	"sort"
	"sync/atomic"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// part is a run of rows of one type, an attribute in each column. A part of sorted rows
// (a block) is complete when it is published. A part of rows in order of arrival (the
// delta) is filled while searches read its beginning: a snapshot says how far.
//
// Rows never change but for died, and leave only when a merge makes another part. Nothing
// points to a row: a writer finds one by its record, see find.
type part struct {
	codec     *codec // that words, kinds and lands are in terms of
	records   []*records.Record
	words     []uint64 // see guards
	vecs      []vec
	lons      []uint32 // see meridian; of a row without a place, digits of its digest
	codes     []uint32 // the first codeBits of geo.Code; all ones without a place
	lapses    []uint32 // when the record lapses, in whole seconds; see seconds
	lower     []lowerBounds
	kinds     []uint16 // in codec.kinds
	places    []uint16 // in codec.lands
	died      []uint32 // snapshot version from which the row is gone, 0 for never; atomic
	ended     int      // rows that have died; writers' only
	bitSlices          // of a large block
	bands     []uint32 // of a block: [b] is the first row of band b or later, and [bandCount] of those without a place; nil for the delta
}

func newPart(c *codec, rows int) *part {
	p := &part{codec: c}
	for n := 0; p.grow(n, rows); n++ {
	}
	return p
}

// grow makes the n-th column, and reports whether there was one to make.
func (p *part) grow(n, rows int) bool {
	switch n {
	case 0:
		p.records = make([]*records.Record, rows)
	case 1:
		p.words = make([]uint64, rows)
	case 2:
		p.vecs = make([]vec, rows)
	case 3:
		p.lons = make([]uint32, rows)
	case 4:
		p.codes = make([]uint32, rows)
	case 5:
		p.lapses = make([]uint32, rows)
	case 6:
		p.lower = make([]lowerBounds, rows)
	case 7:
		p.kinds, p.places = make([]uint16, rows), make([]uint16, rows)
	case 8:
		p.died = make([]uint32, rows)
	case 9:
		p.makeGroups(rows)
	default:
		return false
	}
	return true
}

// truncate leaves the first rows of a part.
func (p *part) truncate(rows int) {
	p.records, p.words, p.vecs = p.records[:rows], p.words[:rows], p.vecs[:rows]
	p.lons, p.codes, p.lapses, p.lower = p.lons[:rows], p.codes[:rows], p.lapses[:rows], p.lower[:rows]
	p.kinds, p.places, p.died = p.kinds[:rows], p.places[:rows], p.died[:rows]
}

// aliveAt reports whether a row counts in the snapshot of a version.
func (p *part) aliveAt(row int, version uint32) bool {
	died := atomic.LoadUint32(&p.died[row])
	return died == 0 || died > version
}

// dead reports whether a row counts no more in any later snapshot. It is for writers.
func (p *part) dead(row int) bool { return atomic.LoadUint32(&p.died[row]) != 0 }

// kill ends a row from a version on.
func (p *part) kill(row int, version uint32) {
	atomic.StoreUint32(&p.died[row], version)
	p.markDead(row)
	p.ended++
}

// set fills a row.
func (p *part) set(row int, r *records.Record) {
	f := r.Facts()
	p.records[row] = r
	p.lapses[row] = seconds(nanos(r.Expires()))
	p.lower[row] = lowerBoundsOf(f)
	p.codes[row], p.vecs[row] = noCode, nowhere()
	if at, ok := f.Place(); ok {
		p.codes[row], p.vecs[row] = uint32(geo.Code(at)>>codeShift), vecOf(at)
	}
	p.lons[row] = keyOf(r).lon
	p.encode(row)
}

// encode fills what depends on the codec.
func (p *part) encode(row int) {
	r := p.records[row]
	p.words[row] = p.codec.scale.word(r.Facts())
	p.kinds[row] = p.codec.kinds.id(kindOf(r))
	p.places[row] = p.codec.places.id(statedPlaceOf(r))
}

// gather fills the rows from one on with rows of other parts, column by column: so the
// reads of one column do not wait for those of another.
func (p *part) gather(at int, from []*part, picks []pick) {
	if len(picks) == 0 {
		return
	}
	gather(p.records[at:], from, picks, func(p *part) []*records.Record { return p.records })
	gather(p.vecs[at:], from, picks, func(p *part) []vec { return p.vecs })
	gather(p.lons[at:], from, picks, func(p *part) []uint32 { return p.lons })
	gather(p.codes[at:], from, picks, func(p *part) []uint32 { return p.codes })
	gather(p.lapses[at:], from, picks, func(p *part) []uint32 { return p.lapses })
	gather(p.lower[at:], from, picks, func(p *part) []lowerBounds { return p.lower })
	gather(p.words[at:], from, picks, func(p *part) []uint64 { return p.words })
	gather(p.kinds[at:], from, picks, func(p *part) []uint16 { return p.kinds })
	gather(p.places[at:], from, picks, func(p *part) []uint16 { return p.places })
	for i, k := range picks {
		if from[k.part].codec != p.codec {
			p.encode(at + i)
		}
	}
}

func gather[T any](dst []T, from []*part, picks []pick, column func(*part) []T) {
	columns := make([][]T, 0, 2*fanout)
	for _, p := range from {
		columns = append(columns, column(p))
	}
	dst = dst[:len(picks)]
	for i, k := range picks {
		dst[i] = columns[k.part][k.row]
	}
}

// lapsed reports whether a row's record has lapsed at a time in nanoseconds, which is
// within the second given.
func (p *part) lapsed(row int, now int64, second uint32) bool {
	if at := p.lapses[row]; at != second {
		return at < second
	}
	return nanos(p.records[row].Expires()) <= now
}

// seconds is a time in whole seconds since 1970, rounded down, and the nearest such for
// times that have none. It never falls as the time rises.
func seconds(nanos int64) uint32 {
	return uint32(max(0, min(nanos/1e9, math.MaxUint32)))
}

// vec is a place as a unit vector in single precision; see chordSlack. It is NaN without
// a place, so that no comparison holds.
type vec struct{ x, y, z float32 }

// chordSlack bounds how far a vec may be from the place it stands for, in units of the
// Earth's radius: half a unit in the last place of 1 in each coordinate, and a margin of
// almost two. It is 0.64 m.
const chordSlack = 1e-7

func vecOf(p geo.Point) vec {
	v := p.Vec()
	return vec{float32(v[0]), float32(v[1]), float32(v[2])}
}

func nowhere() vec {
	nan := float32(math.NaN())
	return vec{nan, nan, nan}
}

// chordSq is the squared chord between a row's place and a place given; NaN for nowhere.
func (v vec) chordSq(c geo.Vec) float64 {
	x, y, z := float64(v.x)-c[0], float64(v.y)-c[1], float64(v.z)-c[2]
	return x*x + y*y + z*z
}

// bandCount is the number of bands of latitude that blocks are sorted by. A band is 39 km
// high: low enough to read little around a disc of 100 km, high enough for one of 1000 km
// to touch few.
const bandCount = 512

// codeBits is how much of a geo.Code columns keep: it tells cells of up to six characters
// apart, and most records of smaller ones.
const (
	codeBits  = 32
	codeShift = 60 - codeBits
	noCode    = math.MaxUint32
)

// bandOf gives the band of a latitude, and the nearest for latitudes beyond the poles. It
// never falls as lat rises.
func bandOf(lat float64) int {
	return max(0, min(int((lat+90)*(bandCount/180.0)), bandCount-1))
}

// meridian gives a longitude as a number, -180 as 0 and 180 as the largest. It never
// falls as lon rises.
func meridian(lon float64) uint32 {
	return uint32(max(0, min((lon+180)*((1<<32)/360.0), math.MaxUint32)))
}

// rowKey is what blocks are sorted by: band, and within a band from west to east. Rows
// without a place come after all bands. Rows alike are sorted by digest, so that a row is
// found fast among many in one place.
type rowKey struct {
	band   int // bandCount without a place
	lon    uint32
	digest uint64 // its first digits
}

func keyOf(r *records.Record) rowKey {
	d := digestOf(r)
	if at, ok := r.Facts().Place(); ok {
		return rowKey{band: bandOf(at.Lat), lon: meridian(at.Lon), digest: d}
	}
	return rowKey{band: bandCount, lon: uint32(d >> 32), digest: d}
}

func digestOf(r *records.Record) uint64 {
	d := r.Digest()
	return binary.BigEndian.Uint64(d[:])
}

// band gives the rows of a band; of those without a place for bandCount.
func (p *part) band(b int) (from, to int) {
	if b == bandCount {
		return int(p.bands[b]), len(p.records)
	}
	return int(p.bands[b]), int(p.bands[b+1])
}

// seek gives the first of the rows from..to, which are of one band, that is not west of a
// meridian, and to without one.
func (p *part) seek(from, to int, lon uint32) int {
	for from < to {
		if middle := int(uint(from+to) / 2); p.lons[middle] < lon {
			from = middle + 1
		} else {
			to = middle
		}
	}
	return from
}

// past gives the first of the rows from..to that is east of a meridian, and to without one.
func (p *part) past(from, to int, lon uint32) int {
	if lon == math.MaxUint32 {
		return to
	}
	return p.seek(from, to, lon+1)
}

// runs gives the rows from..to of a block in each band and span of a region that is not whole.
func (p *part) runs(r *region) iter.Seq2[int, int] {
	return func(yield func(from, to int) bool) {
		for band := r.south; band <= r.north; band++ {
			from, to := p.band(band)
			for _, m := range r.spans[:r.spanned] {
				west := p.seek(from, to, m.west)
				if !yield(west, p.past(west, to, m.east)) {
					return
				}
			}
		}
	}
}

// find gives the row, alive and among the sorted rows from..to of its band, of a record.
func (p *part) find(from, to int, k rowKey, r *records.Record) (row int, ok bool) {
	from = p.seek(from, to, k.lon)
	to = p.past(from, to, k.lon)
	row = from + sort.Search(to-from, func(i int) bool { return digestOf(p.records[from+i]) >= k.digest })
	for ; row < to; row++ {
		if p.records[row] == r && !p.dead(row) {
			return row, true
		}
	}
	return 0, false
}
