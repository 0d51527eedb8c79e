package index

import (
	"encoding/binary"
	"iter"
	"math"
	"sort"
	"sync/atomic"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// part stores rows of one type in columns, one column per attribute. Publication completes a
// part of sorted rows (a block). Searches read the beginning of a part of rows in arrival order
// (the delta) while a writer fills the end: a snapshot records the length.
//
// Rows are immutable except for died. Only a merge into another part removes rows. No pointers
// to rows exist: a writer finds a row by its record, see find.
type part struct {
	codec     *codec // encoding of words, kinds and places
	records   []*records.Record
	words     []uint64 // see guards
	vecs      []vec
	lons      []uint32 // see meridian; for a row without a place, digits of the record's digest
	codes     []uint32 // the first codeBits of geo.Code; all ones without a place
	lapses    []uint32 // expiry in whole seconds; see seconds
	lower     []lowerBounds
	kinds     []uint16 // ids in codec.kinds
	places    []uint16 // ids in codec.places
	texts     []queries.Words
	died      []uint32 // first snapshot version without the row, 0 for a live row; atomic
	ended     int      // number of dead rows; for writers only
	bitSlices          // of a large block
	bands     []uint32 // of a block: [b] is the first row of band b or later, [bandCount] the first row without a place; nil for the delta
}

func newPart(c *codec, rows int) *part {
	p := &part{codec: c}
	for n := 0; p.grow(n, rows); n++ {
	}
	return p
}

// grow makes the n-th column. It returns false after the last column.
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
		p.texts = make([]queries.Words, rows)
	case 10:
		p.makeGroups(rows)
	default:
		return false
	}
	return true
}

// truncate keeps the first rows of a part.
func (p *part) truncate(rows int) {
	p.records, p.words, p.vecs = p.records[:rows], p.words[:rows], p.vecs[:rows]
	p.lons, p.codes, p.lapses, p.lower = p.lons[:rows], p.codes[:rows], p.lapses[:rows], p.lower[:rows]
	p.kinds, p.places, p.texts, p.died = p.kinds[:rows], p.places[:rows], p.texts[:rows], p.died[:rows]
}

// aliveAt reports whether the snapshot of a version contains a row.
func (p *part) aliveAt(row int, version uint32) bool {
	died := atomic.LoadUint32(&p.died[row])
	return died == 0 || died > version
}

// dead reports whether later snapshots lack a row. Only writers call it.
func (p *part) dead(row int) bool { return atomic.LoadUint32(&p.died[row]) != 0 }

// kill removes a row from the snapshots of a version and later.
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
	p.texts[row] = queries.Words{}
	p.texts[row].Add(r)
	p.encode(row)
}

// encode fills the columns that depend on the codec.
func (p *part) encode(row int) {
	r := p.records[row]
	p.words[row] = p.codec.scale.word(r.Facts())
	p.kinds[row] = p.codec.kinds.id(kindOf(r))
	p.places[row] = p.codec.places.id(statedPlaceOf(r))
}

// gather copies rows of other parts to the rows from at on. It copies column by column: reads of
// one column then overlap instead of waiting for reads of another.
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
	gather(p.texts[at:], from, picks, func(p *part) []queries.Words { return p.texts })
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

// lapsed reports whether a row's record has expired at now, in nanoseconds. second is now in
// whole seconds.
func (p *part) lapsed(row int, now int64, second uint32) bool {
	if at := p.lapses[row]; at != second {
		return at < second
	}
	return nanos(p.records[row].Expires()) <= now
}

// seconds rounds a time down to whole seconds since 1970, limited to the range of the result.
// The function is monotonic.
func seconds(nanos int64) uint32 {
	return uint32(max(0, min(nanos/1e9, math.MaxUint32)))
}

// vec is a place as a unit vector in single precision; see chordSlack. NaN stands for no place
// and fails every comparison.
type vec struct{ x, y, z float32 }

// chordSlack bounds the distance between a vec and its exact place in units of the Earth's
// radius: half a unit in the last place of 1 in each coordinate, plus a margin of almost two. It
// equals 0.64 m.
const chordSlack = 1e-7

func vecOf(p geo.Point) vec {
	v := p.Vec()
	return vec{float32(v[0]), float32(v[1]), float32(v[2])}
}

func nowhere() vec {
	nan := float32(math.NaN())
	return vec{nan, nan, nan}
}

// chordSq returns the squared chord between a row's place and c, or NaN for nowhere.
func (v vec) chordSq(c geo.Vec) float64 {
	x, y, z := float64(v.x)-c[0], float64(v.y)-c[1], float64(v.z)-c[2]
	return x*x + y*y + z*z
}

// bandCount is the number of latitude bands in the sort order of blocks. A band is 39 km high: a
// disc of 100 km then touches few rows outside it, and a disc of 1000 km touches few bands.
const bandCount = 512

// codeBits is the number of bits of a geo.Code in a column. They separate cells of up to six
// characters, and most records of smaller cells.
const (
	codeBits  = 32
	codeShift = 60 - codeBits
	noCode    = math.MaxUint32
)

// bandOf returns the band of a latitude, limited to the poles. The function is monotonic.
func bandOf(lat float64) int {
	return max(0, min(int((lat+90)*(bandCount/180.0)), bandCount-1))
}

// meridian maps longitudes from -180 to 180 to the range of uint32. The function is monotonic.
func meridian(lon float64) uint32 {
	return uint32(max(0, min((lon+180)*((1<<32)/360.0), math.MaxUint32)))
}

// rowKey is the sort key of blocks: the band first, then the longitude from west to east. Rows
// without a place follow the last band. The digest orders rows of one place, for a fast search
// among them.
type rowKey struct {
	band   int // bandCount without a place
	lon    uint32
	digest uint64 // the first eight bytes of the record's digest
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

// band returns the rows of a band, or for bandCount the rows without a place.
func (p *part) band(b int) (from, to int) {
	if b == bandCount {
		return int(p.bands[b]), len(p.records)
	}
	return int(p.bands[b]), int(p.bands[b+1])
}

// seek returns the first of the rows from..to at or east of a meridian, or to without such a
// row. The rows belong to one band.
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

// past returns the first of the rows from..to east of a meridian, or to without such a row.
func (p *part) past(from, to int, lon uint32) int {
	if lon == math.MaxUint32 {
		return to
	}
	return p.seek(from, to, lon+1)
}

// runs yields the row range in each band and span of a region. The region must not be whole.
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

// find returns the live row of a record among the sorted rows from..to of its band.
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
