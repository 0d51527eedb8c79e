package cell

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/discovery/recordstest"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

const city geo.Cell = "u3"

// requireSafe checks a summary of a cell against every record in it.
func requireSafe(t require.TestingT, s Summary, p *query.Plan, place geo.Cell, recs []*records.Record) {
	bound, some := s.Bound(p, place)
	require.False(t, math.IsNaN(bound))
	for _, r := range recs {
		if at, ok := r.Facts().Place(); !ok || !place.Contains(at) || !p.Match(r) {
			continue
		}
		require.True(t, some, "the summary excludes a match")
		require.LessOrEqual(t, bound, p.Value(r))
	}
}

func recordsGen(most int) *rapid.Generator[[]*records.Record] {
	return rapid.Custom(func(t *rapid.T) []*records.Record {
		recs := make([]*records.Record, rapid.IntRange(0, most).Draw(t, "records"))
		for i := range recs {
			recs[i] = sign(t, i%3, offerGen(fmt.Sprintf("s%d", i)).Draw(t, "offer"), 1)
		}
		return recs
	})
}

// For every way to compute a summary and for every order, no record of the cell has a better value
// than the bound.
func TestBoundsAgainstBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		recs := recordsGen(25).Draw(t, "records")
		place := rapid.SampledFrom([]geo.Cell{city, "u33", "u33d", "u33dc0"}).Draw(t, "place")
		var whole, merged, joined Summary
		parts := make([]Summary, 3)
		var inside []*records.Record
		for i, r := range recs {
			if at, ok := r.Facts().Place(); ok && place.Contains(at) {
				inside = append(inside, r)
				whole.Add(r)
				parts[i%3].Add(r)
			}
		}
		for _, part := range parts {
			merged.Merge(part)
			joined.Join(part)
		}
		require.Equal(t, len(inside), whole.Count)
		require.Equal(t, len(inside), joined.Count)
		_, wired, err := FromProto(whole.Proto(place))
		require.NoError(t, err)
		require.Equal(t, whole.Proto(place), wired.Proto(place))
		for range 5 {
			p := planGen().Draw(t, "plan")
			var told [2]Summary // what readers get
			for i, s := range []Summary{whole, parts[0]} {
				s.Lots = s.Lots.First(p)
				_, told[i], err = FromProto(s.Proto(place))
				require.NoError(t, err)
			}
			one, _ := told[0].Bound(p, place)
			all, _ := whole.Bound(p, place)
			require.Equal(t, all, one)
			told[1].Merge(told[0]) // of two keepers the safer one
			for _, s := range []Summary{whole, merged, joined, wired, told[0], told[1]} {
				requireSafe(t, s, p, place, inside)
			}
		}
		for _, r := range inside {
			require.False(t, whole.ImprovedBy(r), "a summary covers its own records")
		}
	})
}

// Summaries are useful: with all values known and no other record near, the bound equals the best
// value.
func TestBoundsAreTight(t *testing.T) {
	var recs []*records.Record
	var s Summary
	for i := range 10 {
		o := offer(fmt.Sprintf("s%d", i))
		o.Pricing = &records.Pricing{Currency: "USDC", PriceUnit: "per-hour", BasePrice: ptr(float64(i) + 1)}
		o.Health = &records.Health{Status: "HEALTHY", UptimePercent: ptr(90 + float64(i)), ResponseTimeMs: ptr(uint64(i) + 10)}
		recs = append(recs, sign(t, 1, o, 1))
		s.Add(recs[i])
	}
	for sort, best := range map[query.Sort]int{query.SortPrice: 0, query.SortUptime: 9, query.SortResponseTime: 0} {
		p, err := query.Compile(query.Query{Type: "compute", Sort: sort}, query.Defaults{})
		require.NoError(t, err)
		bound, some := s.Bound(p, "u33dc0")
		require.True(t, some)
		require.Equal(t, p.Value(recs[best]), bound)
	}
	for _, sort := range []query.Sort{query.SortRandom, query.SortStable} {
		p, err := query.Compile(query.Query{Type: "compute", Sort: sort, Seed: 3}, query.Defaults{})
		require.NoError(t, err)
		least := 1.0
		for _, r := range recs {
			least = min(least, p.Value(r))
		}
		at, _ := recs[0].Facts().Place()
		bound, some := s.Bound(p, geo.CellOf(at, geo.DeepLen))
		require.True(t, some)
		require.LessOrEqual(t, bound, least)
		require.InDelta(t, least, bound, 1e-6, sort)
	}
	page := query.Query{Type: "compute", Sort: query.SortStable}
	for after, want := range map[string]bool{"global": true, "u33dc0rq": true, "u33dc0zz": true, "u33dc100": false, "zzzzzzzz": false} {
		page.After = after + "/" + recs[0].Name().String()
		_, some := s.Bound(compiled(t, page), "u33dc0")
		require.Equal(t, want, some, after)
	}
	dear, err := query.Compile(query.Query{Type: "compute", Price: query.Price{MaxPrice: ptr(0.5)}}, query.Defaults{})
	require.NoError(t, err)
	_, some := s.Bound(dear, "u33dc0")
	require.False(t, some, "all records cost more")
	far, err := query.Compile(query.Query{Type: "compute", Near: &query.Near{Latitude: -30, Longitude: 20, RadiusKM: ptr(50.0)}}, query.Defaults{})
	require.NoError(t, err)
	_, some = s.Bound(far, "u33dc0")
	require.False(t, some, "the disc does not reach the cell")
}

// The keepers of a split cell receive only wanted records; the child's keepers receive all
// records, but late. Records appear, change and expire: no bound is ever too bad.
func TestSummariesStaySafe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const child geo.Cell = "u33"
		parent := New(city, Split, t0())
		live := map[string]*records.Record{} // all live records
		held := map[string]*records.Record{} // records at the child's keeper
		var late []*records.Record           // records on the way to the child's keeper
		arrive := func() {
			for _, r := range late {
				if live[r.Name().ID] == r {
					held[r.Name().ID] = r
				}
			}
			late = nil
		}
		said := map[geo.Cell]Summary{} // hints at the publishers, for 10 minutes
		now, heard, sequence := t0(), t0(), uint64(1)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 6).Draw(t, "step") {
			case 0, 1, 2:
				id := fmt.Sprintf("s%d", rapid.IntRange(0, 5).Draw(t, "id"))
				o := offerGen(id).Draw(t, "offer")
				o.Location = offer(id).Location
				sequence++
				r := sign(t, 1, o, sequence)
				live[id] = r
				late = append(late, r)
				if now.Sub(heard) > 10*time.Minute {
					said = map[geo.Cell]Summary{}
				}
				if Wants(city, 0, said, r) {
					parent.Offer(Member{Record: r})
				}
			case 3:
				id := fmt.Sprintf("s%d", rapid.IntRange(0, 5).Draw(t, "id"))
				delete(live, id)
				delete(held, id)
				parent.Forget(sign(t, 1, offer(id), 1).Name())
			case 4:
				parts := parent.Stale(10, now.Add(restMost+1), now)
				for _, place := range parts {
					var s Summary
					for _, id := range slices.Sorted(keysOf(held)) {
						s.Add(held[id])
					}
					parent.Refresh(place, s)
				}
			case 5: // a publisher gets a hint
				said, heard = map[geo.Cell]Summary{}, now
				for _, place := range parent.Populated() {
					if s := parent.Stable(place); s.Count > 0 {
						said[place] = s
					}
				}
			case 6: // the maximum delay of a record
				now = now.Add(rapid.SampledFrom([]time.Duration{time.Minute, 4 * time.Minute}).Draw(t, "time"))
				arrive()
			}
			now = now.Add(1)
			p := planGen().Draw(t, "plan")
			recs := make([]*records.Record, 0, len(live))
			for _, r := range live {
				recs = append(recs, r)
			}
			requireSafe(t, parent.Summary(child), p, child, recs)
		}
	})
}

func keysOf[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func TestManyCurrencies(t *testing.T) {
	var s Summary
	for i := range 2 * MaxPrices {
		o := offer(fmt.Sprintf("s%02d", i))
		o.Pricing = &records.Pricing{Currency: fmt.Sprintf("C%02d", i), PriceUnit: "per-hour", BasePrice: ptr(5.0)}
		s.Add(sign(t, 1, o, 1))
	}
	require.Len(t, s.Prices, MaxPrices)
	require.True(t, s.MorePrices)
	for currency, want := range map[string]float64{"C00": 5, "C15": 0, "USDC": 0} {
		p, err := query.Compile(query.Query{Type: "compute", Sort: query.SortPrice, Price: query.Price{Currency: currency}}, query.Defaults{})
		require.NoError(t, err)
		bound, some := s.Bound(p, city)
		require.True(t, some)
		require.Equal(t, want, bound, "an unknown pair may be free")
	}
}

func TestWireRefuses(t *testing.T) {
	good := func() *pb.Split {
		return &pb.Split{Children: []*pb.Summary{{Cell: "u33", Count: 1, Prices: []*pb.BestPrice{{Currency: "a", Price: 1}, {Currency: "b"}}}}}
	}
	s, err := SplitInfoFromProto(city, good())
	require.NoError(t, err)
	require.Equal(t, 1, s.Children["u33"].Count)
	for name, break_ := range map[string]func(*pb.Split){
		"not a cell":      func(m *pb.Split) { m.Children[0].Cell = "ai" },
		"elsewhere":       func(m *pb.Split) { m.Children[0].Cell = "u23" },
		"too deep":        func(m *pb.Split) { m.Children[0].Cell = "u333" },
		"global":          func(m *pb.Split) { m.Children[0].Cell = "global" },
		"twice":           func(m *pb.Split) { m.Children = append(m.Children, m.Children[0]) },
		"nothing":         func(m *pb.Split) { m.Children = append(m.Children, nil) },
		"out of order":    func(m *pb.Split) { slices.Reverse(m.Children[0].Prices) },
		"no number":       func(m *pb.Split) { m.Children[0].Prices[0].Price = math.NaN() },
		"no uptime":       func(m *pb.Split) { m.Children[0].MaxUptime = ptr(math.NaN()) },
		"too many prices": func(m *pb.Split) { m.Children[0].Prices = make([]*pb.BestPrice, MaxPrices+1) },
		"a long currency": func(m *pb.Split) { m.Children[0].Prices[1].Currency = string(make([]byte, 100)) },
		"too many":        func(m *pb.Split) { m.Children = make([]*pb.Summary, MaxChildren+1) },
	} {
		m := good()
		break_(m)
		_, err := SplitInfoFromProto(city, m)
		require.ErrorIs(t, err, fault.Unauthentic, name)
	}
	_, err = SplitInfoFromProto("u33dc0xy", &pb.Split{})
	require.ErrorIs(t, err, fault.Unauthentic, "a leaf has no children")
}

func FuzzSplit(f *testing.F) {
	raw, err := proto.Marshal(&pb.Split{SampleBelow: 7, Children: []*pb.Summary{{Cell: "u33", Count: 3, MaxUptime: ptr(99.0)}}})
	require.NoError(f, err)
	f.Add(raw)
	p, err := query.Compile(query.Query{Type: "compute", Sort: query.SortPrice}, query.Defaults{})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(pb.Split)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		s, err := SplitInfoFromProto(city, m)
		if err != nil {
			require.ErrorIs(t, err, fault.Unauthentic)
			return
		}
		for place, part := range s.Children {
			bound, _ := part.Bound(p, place)
			require.False(t, math.IsNaN(bound))
		}
	})
}

func priced(t *testing.T, id string, price float64) *records.Record {
	o := offer(id)
	o.Pricing = &records.Pricing{Currency: "USDC", PriceUnit: "per-hour", BasePrice: &price}
	return sign(t, 1, o, 1)
}

// askChild tells a parent what its child u33 holds, and returns the time a minute later.
func askChild(t *testing.T, parent *Cell, now time.Time, held ...*records.Record) time.Time {
	t.Helper()
	require.Len(t, parent.Stale(10, now.Add(restMost+1), now), 1)
	var s Summary
	for _, r := range held {
		s.Add(r)
	}
	parent.Refresh("u33", s)
	return now.Add(time.Minute)
}

// likeNamed returns another id of the same lot for records of the first provider.
func likeNamed(t require.TestingT, id string) string {
	n := sign(t, 1, offer(id), 1).Name()
	var lots query.Lots
	lots.Add(n)
	for i := 0; ; i++ {
		var other query.Lots
		n.ID = fmt.Sprintf("%s-%d", id, i)
		if other.Add(n); other == lots {
			return n.ID
		}
	}
}

// A publisher that remembers a better value than its own sends nothing, although the better record
// is gone and the child's keepers have reported so.
func TestSafeAgainstOldHints(t *testing.T) {
	p, err := query.Compile(query.Query{Type: "compute", Sort: query.SortPrice}, query.Defaults{})
	require.NoError(t, err)
	now := t0()
	parent := New(city, Split, now)
	ask := func(held ...*records.Record) { now = askChild(t, parent, now, held...) }
	cheap, dear, unheard := priced(t, "cheap", 1), priced(t, "dear", 5), priced(t, likeNamed(t, "cheap"), 3)
	parent.Adopt("u33", Summary{Count: 1})
	for range 40 { // all windows have passed: only the child's keepers know the value
		ask(cheap, dear)
	}
	said := map[geo.Cell]Summary{"u33": parent.Stable("u33")}
	require.Equal(t, []Price{{"usdc", "per-hour", 1}}, said["u33"].Prices)
	ask(dear)
	require.False(t, Wants(city, 0, said, unheard))
	for range 10 { // the maximum lifetime of a hint
		requireSafe(t, parent.Summary("u33"), p, "u33", []*records.Record{dear, unheard})
		ask(dear)
	}
	for range 40 {
		ask(dear)
	}
	require.Equal(t, []Price{{"usdc", "per-hour", 5}}, parent.Summary("u33").Prices, "correct in the end")
}

// Hints contain no values that are about to be dropped: publishers would remember them for longer.
func TestHintsAreStable(t *testing.T) {
	now := t0()
	parent := New(city, Split, now)
	ask := func(held *records.Record) {
		require.Len(t, parent.Stale(1, now.Add(restMost+1), now), 1)
		var s Summary
		s.Add(held)
		parent.Refresh("u33", s)
	}
	cheap, dear := priced(t, "cheap", 1), priced(t, "dear", 5)
	parent.Offer(Member{Record: cheap})
	parent.Forget(cheap.Name())
	now = now.Add(Grace)
	ask(dear) // cheap belongs to the previous window
	require.Equal(t, 1.0, parent.Summary("u33").Prices[0].Least)
	now = now.Add(Grace)
	said := map[geo.Cell]Summary{"u33": parent.Stable("u33")}
	ask(dear)
	require.Equal(t, 5.0, parent.Summary("u33").Prices[0].Least)
	require.True(t, Wants(city, 0, said, priced(t, "unheard", 3)), "the record improves the present summary")
}

// A summary claims nothing about records that need features of a later version.
func TestSummaryOfRecordsBeyond(t *testing.T) {
	plain := sign(t, 1, offer("plain"), 1)
	later := recordstest.Later(t, key(t, 1), sign(t, 1, offer("later"), 1), recordstest.Needs("auction.v2"))
	p, err := query.Compile(query.Query{Type: "compute", Sort: query.SortPrice}, query.Defaults{})
	require.NoError(t, err)
	var s Summary
	s.Add(plain)
	require.True(t, s.ImprovedBy(later))
	s.Add(later)
	require.False(t, s.ImprovedBy(later))
	_, wired, err := FromProto(s.Proto("u33dc0"))
	require.NoError(t, err)
	for _, s := range []Summary{s, wired} {
		require.Equal(t, 2, s.Count)
		bound, some := s.Bound(p, "u33dc0")
		require.True(t, some)
		require.Equal(t, math.Inf(-1), bound)
	}
	var merged Summary
	merged.Merge(s)
	require.True(t, merged.Beyond)
}

// located returns a service in a country.
func located(t require.TestingT, id, country string, sequence uint64) *records.Record {
	o := offer(id)
	o.Location.Country = country
	return sign(t, 1, o, sequence)
}

func compiled(t require.TestingT, q query.Query) *query.Plan {
	q.Type = "compute"
	p, err := query.Compile(q, query.Defaults{})
	require.NoError(t, err)
	return p
}

// Tokens are as safe as bounds: a record with a token that a hint lacks is wanted, and a token stays while publishers may remember it.
func TestTokensStaySafe(t *testing.T) {
	fiji := compiled(t, query.Query{Countries: []string{"FJ"}})
	now := t0()
	parent := New(city, Split, now)
	ask := func(held ...*records.Record) { now = askChild(t, parent, now, held...) }
	here, first, unheard := located(t, "here", "DE", 1), located(t, "first", "FJ", 1), located(t, likeNamed(t, "first"), "FJ", 1)
	parent.Offer(Member{Record: here})
	ask(here)
	said := map[geo.Cell]Summary{"u33": parent.Stable("u33")}
	require.False(t, Wants(city, 0, said, here))
	require.True(t, Wants(city, 0, said, first), "the hint knows no record of the country")
	s := parent.Summary("u33")
	_, some := s.Bound(fiji, "u33")
	require.False(t, some)
	parent.Offer(Member{Record: first})
	requireSafe(t, parent.Summary("u33"), fiji, "u33", []*records.Record{here, first})
	said["u33"] = parent.Stable("u33")
	require.False(t, Wants(city, 0, said, unheard))
	for range 15 { // first is gone, its country stays for the lifetime of a hint
		requireSafe(t, parent.Summary("u33"), fiji, "u33", []*records.Record{here, unheard})
		ask(here)
	}
	for range 40 {
		ask(here)
	}
	s = parent.Summary("u33")
	_, some = s.Bound(fiji, "u33")
	require.False(t, some, "correct in the end")
}

// Each filter on a text or a capacity excludes a child without it, and the wire form keeps what a keeper needs.
func TestSummariesExclude(t *testing.T) {
	o := offer("one")
	o.Location.Country, o.Location.Region, o.Metadata.Attributes = "DE", "Berlin", map[string]string{"tier": "gold"}
	o.Capabilities.Compute.GPUs = []records.GPU{{Model: "H100 SXM", MemoryMB: 80_000}}
	r := sign(t, 1, o, 1)
	var s Summary
	s.Add(r)
	reader := s.Proto("u33")
	reader.Tokens = nil
	_, untold, err := FromProto(reader)
	require.NoError(t, err)
	h100, err := query.ParseClause("compute.gpus.model^=h100")
	require.NoError(t, err)
	a100, err := query.ParseClause("compute.gpus.model=A100")
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		q               query.Query
		match, capacity bool
	}{
		"country":         {query.Query{Countries: []string{"de"}}, true, false},
		"another country": {query.Query{Countries: []string{"FJ"}}, false, false},
		"region":          {query.Query{Regions: []string{"Hamburg"}}, false, false},
		"attribute":       {query.Query{Attributes: map[string]string{"tier": "silver"}}, false, false},
		"gpu":             {query.Query{Where: []query.Clause{h100}}, true, false},
		"another gpu":     {query.Query{Where: []query.Clause{a100}}, false, false},
		"cores":           {query.Query{Capacity: query.Capacity{MinCPUCores: 8, MinMemoryMB: 16000, RequireGPU: true}}, true, false},
		"more cores":      {query.Query{Capacity: query.Capacity{MinCPUCores: 9}}, false, true},
		"more memory":     {query.Query{Capacity: query.Capacity{MinMemoryMB: 16001}}, false, true},
		"storage":         {query.Query{Capacity: query.Capacity{MinStorageGB: 1}}, false, true},
		"bandwidth":       {query.Query{Capacity: query.Capacity{MinBandwidthMbps: 1}}, false, true},
	} {
		p := compiled(t, tt.q)
		require.Equal(t, tt.match, p.Match(r), name)
		_, some := s.Bound(p, "u33")
		require.Equal(t, tt.match, some, name)
		_, some = untold.Bound(p, "u33")
		require.Equal(t, tt.match || !tt.capacity, some, "%s: without tokens, a reader excludes by capacities alone", name)
	}
	_, told, err := FromProto(s.Proto("u33"))
	require.NoError(t, err)
	require.True(t, s.equal(&told))
	require.Equal(t, allTokens(), untold.Tokens)
}

// The tokens of a usual cell exclude nine of ten texts that no record has.
func TestTokensExcludeMost(t *testing.T) {
	var tokens Tokens
	const held, asked = 1000, 10_000
	for i := range uint64(held) {
		tokens.add(i * 0x9e3779b97f4a7c15)
	}
	wrong := 0
	for i := range uint64(held + asked) {
		has := tokens.Has(i * 0x9e3779b97f4a7c15)
		require.True(t, has || i >= held)
		if has && i >= held {
			wrong++
		}
	}
	require.Less(t, wrong, asked/10)
}

// The wire form keeps every set of lots, and excludes nothing if it is of another form.
func TestLotsOnTheWire(t *testing.T) {
	const lots = 8 * len(query.Lots{})
	for _, n := range []int{1, 2, 511, 512, lots} {
		var l query.Lots
		for i := range n {
			require.True(t, l.Set(uint16(i*(lots/n))))
		}
		b := lotsToProto(&l)
		require.Len(t, b, min(2*n, len(l)))
		require.Equal(t, l, lotsFromProto(b))
	}
	for _, b := range [][]byte{nil, {1}, {0, 1, 2}, {0x20, 0}, make([]byte, lots/8+2)} {
		require.Equal(t, allLots(), lotsFromProto(b))
	}
	var last query.Lots
	require.True(t, last.Set(uint16(lots-1)))
	require.Equal(t, []byte{0x1f, 0xff}, lotsToProto(&last))
}

// A question in the random order costs a keeper little, for a child with every lot and for one with a few hundred.
func BenchmarkFirstLot(b *testing.B) {
	p := compiled(b, query.Query{Sort: query.SortRandom, Seed: 1})
	few := query.Lots{}
	for i := range uint16(300) {
		few.Set(i * 27)
	}
	for name, lots := range map[string]query.Lots{"all": allLots(), "few": few} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				lots.First(p)
			}
		})
	}
}
