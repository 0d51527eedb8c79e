package index

import (
	"math"
	"sync/atomic"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// part is a run of rows of one type, an attribute in each column. A part of sorted rows
// (a block) is complete when it is published. A part of rows in order of arrival (the
// delta) is filled while searches read its beginning: a snapshot says how far.
//
// Rows never change but for died, and leave only when a merge makes another part.
type part struct {
	records []*records.Record
	words   []uint64 // see guards
	vecs    []vec
	keys    []uint64 // band and longitude: what blocks are sorted by
	codes   []uint64 // geo.Code; noCode without a place
	expires []int64  // Unix nanoseconds
	floors  []floors
	kinds   []uint32 // in shard.kinds
	lands   []uint32 // in shard.lands
	died    []uint32 // snapshot version from which the row is gone, 0 for never; atomic
	entries []*entry // writers' only
	turned           // of a large block
	bands   []uint32 // of a block: [b] is the first row of band b or later, and [bandCount] of those without a place; nil for the delta
}

func newPart(rows int) *part {
	return &part{
		records: make([]*records.Record, rows),
		words:   make([]uint64, rows),
		vecs:    make([]vec, rows),
		keys:    make([]uint64, rows),
		codes:   make([]uint64, rows),
		expires: make([]int64, rows),
		floors:  make([]floors, rows),
		kinds:   make([]uint32, rows),
		lands:   make([]uint32, rows),
		died:    make([]uint32, rows),
		entries: make([]*entry, rows),
	}
}

// aliveAt reports whether a row counts in the snapshot of a version.
func (p *part) aliveAt(row int, version uint32) bool {
	died := atomic.LoadUint32(&p.died[row])
	return died == 0 || died > version
}

// kill ends a row from a version on.
func (p *part) kill(row int, version uint32) {
	atomic.StoreUint32(&p.died[row], version)
	p.bury(row)
}

// set fills a row with what depends on the record alone.
func (p *part) set(row int, e *entry) {
	r := e.record
	p.records[row], p.entries[row] = r, e
	p.expires[row] = e.due
	p.floors[row] = floorsOf(r.Facts())
	p.keys[row], p.codes[row], p.vecs[row] = noPlace, noCode, nowhere()
	if at, ok := r.Facts().Place(); ok {
		p.keys[row], p.codes[row], p.vecs[row] = keyOf(at), geo.Code(at), vecOf(at)
	}
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

// Rows without a place come after all bands, and are in no cell.
const (
	noPlace = bandCount << 32
	noCode  = math.MaxUint64
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

// keyOf orders places by band, and within a band from west to east.
func keyOf(p geo.Point) uint64 {
	return uint64(bandOf(p.Lat))<<32 | uint64(meridian(p.Lon))
}

// index fills bands from the sorted keys.
func (p *part) index() {
	p.bands = make([]uint32, bandCount+1)
	row := 0
	for band := range p.bands {
		for row < len(p.keys) && p.keys[row]>>32 < uint64(band) {
			row++
		}
		p.bands[band] = uint32(row)
	}
}

// seek gives the first of the rows from..to whose key is at least key, and to without one.
func (p *part) seek(from, to int, key uint64) int {
	for from < to {
		if middle := int(uint(from+to) / 2); p.keys[middle] < key {
			from = middle + 1
		} else {
			to = middle
		}
	}
	return from
}
