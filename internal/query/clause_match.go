package query

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// tests are the compiled clauses of a plan. They read the signed bytes of a record, so that a
// record costs no memory for fields that few queries ask about, and a match allocates nothing.
type tests struct {
	single []test
	gpu    []test // met by one and the same GPU
	counts []test // on the number of GPUs that meet gpu
}

// test is one compiled clause.
type test struct {
	clause  query.Clause // canonical
	field   Field
	depth   int    // length of field.path
	key     []byte // of a keyed field
	values  [][]byte
	numbers []float64
}

func testsOf(where []query.Clause) tests {
	var all tests
	for _, c := range where {
		t := test{clause: c}
		var key string
		t.field, key, _ = fieldNamed(c.Field)
		t.key = []byte(key)
		t.depth = slices.Index(t.field.path[:], 0)
		for _, v := range c.Values {
			t.values = append(t.values, []byte(v))
			if t.field.numeric(c.Op) {
				x, _ := decimal(v)
				t.numbers = append(t.numbers, x)
			}
		}
		positive := !c.Not && !c.OrUnstated && c.Op != query.OpStated && c.Op != query.OpAll
		switch {
		case t.field.special == gpuCount:
			all.counts = append(all.counts, t)
		case t.field.special == ofGPU && positive:
			all.gpu = append(all.gpu, t)
		default:
			all.single = append(all.single, t)
		}
	}
	return all
}

// empty reports whether every record passes.
func (all *tests) empty() bool { return len(all.single)+len(all.gpu)+len(all.counts) == 0 }

// pass reports whether a record passes all clauses.
func (all *tests) pass(r *records.Record) bool {
	if all.empty() {
		return true
	}
	payload := r.Payload()
	for i := range all.single {
		if !all.single[i].pass(r, payload) {
			return false
		}
	}
	return all.passGPUs(payload)
}

func (all *tests) passGPUs(payload []byte) bool {
	if len(all.gpu)+len(all.counts) == 0 {
		return true
	}
	g := gpuReading{tests: all.gpu}
	g.walk(payload, gpuPath())
	if len(all.gpu) > 0 && g.met == 0 {
		return false
	}
	for i := range all.counts {
		if !all.counts[i].decide(g.block, all.counts[i].holdsNumber(float64(g.met))) {
			return false
		}
	}
	return true
}

// reject explains in one sentence why a record fails; "" exactly if it passes.
func (all *tests) reject(r *records.Record) string {
	if all.empty() {
		return ""
	}
	payload := r.Payload()
	for i := range all.single {
		if t := &all.single[i]; !t.pass(r, payload) {
			return "where: " + t.stated(r, payload) + " stated, " + t.clause.String() + " asked for"
		}
	}
	if all.passGPUs(payload) {
		return ""
	}
	asked := make([]string, 0, len(all.gpu)+len(all.counts))
	for _, list := range [...][]test{all.gpu, all.counts} {
		for i := range list {
			asked = append(asked, list[i].clause.String())
		}
	}
	g := gpuReading{tests: all.gpu}
	g.walk(payload, gpuPath())
	return "where: " + number(float64(g.met)) + " of " + number(float64(g.all)) + " GPUs fit, asked for " + strings.Join(asked, " and ")
}

// stated describes the values of a test's field in a record, for people.
func (t *test) stated(r *records.Record, payload []byte) string {
	const shown = 5
	s := reading{test: t, show: true}
	s.read(r, payload)
	switch n := len(s.shown); {
	case n == 0:
		return "nothing"
	case n > shown:
		return strings.Join(s.shown[:shown], ", ") + ", ..."
	}
	return strings.Join(s.shown, ", ")
}

// pass reports whether a record passes a test.
func (t *test) pass(r *records.Record, payload []byte) bool {
	s := reading{test: t}
	s.read(r, payload)
	return t.decide(s.stated, s.holds)
}

// decide applies negation to the result of a test, and the rule for fields that are not stated.
func (t *test) decide(stated, holds bool) bool {
	switch {
	case t.clause.Op == query.OpStated:
		return stated != t.clause.Not
	case !stated:
		return t.clause.OrUnstated
	default:
		return holds != t.clause.Not
	}
}

// holdsNumber applies a test to one number.
func (t *test) holdsNumber(v float64) bool {
	if t.clause.Op == query.OpRange {
		return (t.clause.Min == nil || v >= *t.clause.Min) && (t.clause.Max == nil || v <= *t.clause.Max)
	}
	return slices.Contains(t.numbers, v)
}

// holdsText applies a test to one text. all collects the values found, for OpAll.
func (t *test) holdsText(v []byte, all *uint64) bool {
	for i, want := range t.values {
		switch {
		case t.clause.Op == query.OpPrefix:
			if hasPrefix(v, want, t.field.exact) {
				return true
			}
		case t.field.special == words && hasWords(v, want), t.field.exact && bytes.Equal(v, want), !t.field.exact && bytes.EqualFold(v, want):
			if *all |= 1 << i; t.clause.Op == query.OpAny || *all == math.MaxUint64>>(64-len(t.values)) {
				return true
			}
		}
	}
	return false
}

// hasPrefix reports whether v begins with a prefix, folded unless exact.
func hasPrefix(v, prefix []byte, exact bool) bool {
	if exact {
		return bytes.HasPrefix(v, prefix)
	}
	for i, c := range prefix {
		if i == len(v) {
			return false
		}
		if c >= 0x80 || v[i] >= 0x80 {
			return strings.HasPrefix(Fold(string(v)), string(prefix))
		}
		if lower(v[i]) != c {
			return false
		}
	}
	return true
}

// reading is the state of one test on one record.
type reading struct {
	test   *test
	stated bool
	holds  bool
	all    uint64 // values found, for OpAll

	block bool   // the message of the field is present
	given bool   // a single value, of which the last on the wire counts
	bits  uint64 // its number
	text  []byte // its text
	show  bool   // collect the values in shown
	shown []string
}

// read reads the field of a record.
func (s *reading) read(r *records.Record, payload []byte) {
	f := &s.test.field
	if f.special == terms {
		if x := r.Facts(); x.Currency != "" && x.PriceUnit != "" {
			s.takeText([]byte(x.Currency + " " + x.PriceUnit))
		}
		return
	}
	if f.special == words {
		forWords(payload, s.takeText)
		return
	}
	s.walk(payload, f.path[:s.test.depth])
	s.finish()
}

// walk visits all occurrences of the field at a path. Protocol buffers
// merge several occurrences of one message.
func (s *reading) walk(b []byte, path []protowire.Number) {
	for len(b) > 0 {
		number, kind, value, rest := cutField(b)
		if b = rest; number != path[0] {
			continue
		}
		switch {
		case len(path) == 1:
			s.leaf(kind, value)
		case kind == protowire.BytesType && s.test.field.special == ofGPU && len(path) == 2:
			s.walk(value.bytes, path[1:])
			s.finish() // each GPU is a message of its own
		case kind == protowire.BytesType:
			s.block = s.block || len(path) == 2
			s.walk(value.bytes, path[1:])
		}
	}
}

// leaf takes one occurrence of the field. Decoders ignore another wire type, and so does leaf.
func (s *reading) leaf(kind protowire.Type, v wireValue) {
	f := &s.test.field
	switch {
	case f.keyed && kind == protowire.BytesType:
		s.entry(v.bytes)
	case f.keyed, kind != f.coding.wireType():
	case f.many:
		s.takeText(v.bytes)
	default:
		s.given, s.bits, s.text = true, v.bits, v.bytes
	}
}

// wireType returns the wire type of a coding.
func (c coding) wireType() protowire.Type {
	switch c {
	case codeBytes:
		return protowire.BytesType
	case codeDouble:
		return protowire.Fixed64Type
	default:
		return protowire.VarintType
	}
}

// entry takes an entry of a map, if it has the key. The last entry of a key counts.
func (s *reading) entry(b []byte) {
	if key, v := readEntry(b); bytes.Equal(key, s.test.key) {
		s.given, s.bits, s.text = true, v.bits, v.bytes
	}
}

// finish takes the single value.
func (s *reading) finish() {
	f := &s.test.field
	given := s.given
	s.given = false
	switch {
	case f.Kind == KindFlag:
		if s.block {
			s.takeFlag(s.bits != 0)
		}
	case !given:
	case f.Kind == KindLabel:
		s.takeLabel()
	case f.coding == codeStatus:
		if s.bits != 0 {
			s.takeText([]byte(pb.HealthStatus_Status(int32(s.bits)).String()))
		}
	case f.coding == codeBytes:
		if len(s.text) > 0 {
			s.takeText(s.text)
		}
	default:
		if v := f.coding.number(s.bits); f.optional || v != 0 {
			s.takeNumber(v)
		}
	}
	s.bits, s.text = 0, nil
}

// number converts the bits of a number.
func (c coding) number(bits uint64) float64 {
	switch c {
	case codeDouble:
		return math.Float64frombits(bits)
	case codeInt:
		return float64(int64(bits))
	case codeUint32:
		return float64(uint32(bits))
	default:
		return float64(bits)
	}
}

func (s *reading) takeFlag(v bool) {
	text := strconv.FormatBool(v)
	s.stated, s.holds = true, slices.Contains(s.test.clause.Values, text)
	if s.show {
		s.shown = append(s.shown, text)
	}
}

// takeLabel takes the value of an attribute. For a range, a text that is no number is not stated.
func (s *reading) takeLabel() {
	if s.test.clause.Op != query.OpRange {
		s.takeText(s.text)
	} else if v, ok := decimal(s.text); ok {
		s.takeNumber(v)
	}
}

func (s *reading) takeText(v []byte) {
	s.stated = true
	s.holds = s.test.holdsText(v, &s.all) || s.holds
	if s.show {
		s.shown = append(s.shown, string(v))
	}
}

func (s *reading) takeNumber(v float64) {
	s.stated = true
	s.holds = s.holds || s.test.holdsNumber(v)
	if s.show {
		s.shown = append(s.shown, number(v))
	}
}

// gpuReading counts the GPUs of a record that pass tests.
type gpuReading struct {
	tests    []test
	block    bool // the record states its compute capabilities
	all, met int
}

// gpuPath returns the path of the list of GPUs.
func gpuPath() []protowire.Number { return []protowire.Number{4, 2, 3} }

func (g *gpuReading) walk(b []byte, path []protowire.Number) {
	for len(b) > 0 {
		number, kind, value, rest := cutField(b)
		if b = rest; number != path[0] || kind != protowire.BytesType {
			continue
		}
		if g.block = g.block || len(path) == 2; len(path) > 1 {
			g.walk(value.bytes, path[1:])
			continue
		}
		g.all++
		if g.passes(value.bytes) {
			g.met++
		}
	}
}

// passes reports whether one GPU passes all tests.
func (g *gpuReading) passes(gpu []byte) bool {
	for i := range g.tests {
		t := &g.tests[i]
		s := reading{test: t}
		s.walk(gpu, t.field.path[t.depth-1:t.depth])
		if s.finish(); !t.decide(s.stated, s.holds) {
			return false
		}
	}
	return true
}

// wireValue is the value of a field: bits of a number, or bytes.
type wireValue struct {
	bits  uint64
	bytes []byte
}

// readEntry returns the key and the value of an entry of a map.
func readEntry(b []byte) (key []byte, v wireValue) {
	for len(b) > 0 {
		number, _, value, rest := cutField(b)
		switch b = rest; number {
		case 1:
			key = value.bytes
		case 2:
			v = value
		}
	}
	return key, v
}

// cutField removes the first field from verified bytes of a message. Anything else ends the
// message.
func cutField(b []byte) (n protowire.Number, kind protowire.Type, v wireValue, rest []byte) {
	n, kind, size := protowire.ConsumeTag(b)
	if size < 0 {
		return 0, 0, v, nil
	}
	b = b[size:]
	switch kind {
	case protowire.VarintType:
		v.bits, size = protowire.ConsumeVarint(b)
	case protowire.Fixed64Type:
		if size = 8; len(b) >= size {
			v.bits = binary.LittleEndian.Uint64(b)
		}
	case protowire.BytesType:
		v.bytes, size = protowire.ConsumeBytes(b)
	default:
		size = protowire.ConsumeFieldValue(n, kind, b)
	}
	if size < 0 || size > len(b) {
		return 0, 0, wireValue{}, nil
	}
	return n, kind, v, b[size:]
}
