package ask

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/discovery/recordstest"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Every answer of a keeper is either a subset of the matches, or refused with Unauthentic.
func FuzzAnswer(f *testing.F) {
	p := keepertest.NewProvider(f)
	good := p.Sign(f, keepertest.Offer("one"), 1, time.Now())
	b, err := proto.Marshal(&pb.QueryResponse{Envelopes: [][]byte{good.Envelope()}, Total: 1})
	require.NoError(f, err)
	f.Add(b)
	plan := keepertest.Compile(f, query.Query{Limit: 3})
	q := cellQuery{plan: plan, cells: plan.Cells(coverCells)}
	verifier := keepertest.NewVerifier(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		resp := new(pb.QueryResponse)
		if proto.Unmarshal(b, resp) != nil {
			return
		}
		a, err := verifyAnswer(q, resp, verifier, time.Now())
		if err != nil {
			require.ErrorIs(t, err, fault.Unauthentic)
			return
		}
		require.LessOrEqual(t, len(a.records), plan.Limit())
		for _, r := range a.records {
			require.True(t, q.matches(r))
		}
	})
}

// Versions that this peer cannot read, in any answer of a keeper, are left out without blame.
func TestUnreadableRecords(t *testing.T) {
	now := time.Now()
	p := keepertest.NewProvider(t)
	good := p.Sign(t, keepertest.Offer("good"), 1, now)
	major := recordstest.Seal(t, p.Key, recordstest.Record("test", 2, []byte("?")))
	unruly := good.Service()
	unruly.Signature, unruly.Sequence = nil, 0
	invalid := recordstest.Sign(t, "test", p.Key, unruly)
	critical := p.Later(t, "critical", 1, recordstest.Needs(keepertest.Feature))
	forged := slices.Clone(good.Envelope())
	forged[len(forged)-1] ^= 1
	plan := keepertest.Compile(t, query.Query{})
	q := cellQuery{plan: plan, cells: plan.Cells(1)}

	a, err := verifyAnswer(q, &pb.QueryResponse{Envelopes: [][]byte{good.Envelope(), major, invalid, critical.Envelope()}, Total: 4}, keepertest.NewVerifier(t), now)
	require.NoError(t, err)
	require.Equal(t, []*records.Record{good}, a.records)
	require.Equal(t, 1, a.total)
	require.Equal(t, 2, a.unread())
	require.Len(t, a.beyond, 1, "the keeper has the feature")

	a, err = verifyAnswer(q, &pb.QueryResponse{Beyond: [][]byte{good.Envelope(), major, critical.Envelope()}, MoreBeyond: true}, keepertest.NewVerifier(t), now)
	require.NoError(t, err)
	require.Equal(t, []*records.Record{good}, a.records, "this peer has the feature")
	require.Equal(t, 1, a.total)
	require.Equal(t, 1, a.unread())
	require.Len(t, a.beyond, 1)

	for _, resp := range []*pb.QueryResponse{{Envelopes: [][]byte{forged}}, {Beyond: [][]byte{forged}}, {Beyond: make([][]byte, protocol.MaxBeyond+1)}} {
		_, err = verifyAnswer(q, resp, keepertest.NewVerifier(t), now)
		require.ErrorIs(t, err, fault.Unauthentic)
	}
}

// The merge of many partial, redundant answers equals the answer of one index with all records,
// and reports complete only if it does.
func TestMergeAgainstReference(t *testing.T) {
	p := keepertest.NewProvider(t)
	now := time.Now()
	all := make([]*records.Record, 40)
	for i := range all {
		all[i] = p.Sign(t, keepertest.Offer(fmt.Sprintf("s%d", i), keepertest.Priced(float64(i/3))), uint64(1+i%2), now)
	}
	old := p.Sign(t, keepertest.Offer("s1", keepertest.Priced(100)), 1, now)
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 12).Draw(t, "limit")
		plan, err := queries.Compile(query.Query{Type: "compute", Sort: query.SortPrice, Limit: limit}, queries.Defaults{})
		require.NoError(t, err)
		n := rapid.IntRange(1, len(all)).Draw(t, "records")
		set := keep.NewSet(keepertest.PeersOf(3), nil)
		groups := make([]group, rapid.IntRange(1, 3).Draw(t, "groups"))
		for g := range groups {
			groups[g] = group{set: set, cells: []records.CellKey{{Type: "compute", Subtype: "_", Cell: geo.Global}}}
			var held []*records.Record // of the records of this group
			for i := g; i < n; i += len(groups) {
				held = append(held, all[i])
			}
			for range 2 {
				cut := rapid.IntRange(0, limit).Draw(t, "cut") // bytes may cut an answer
				groups[g].answers = append(groups[g].answers, referenceKeeper(plan, held, cut))
			}
		}
		if rapid.Bool().Draw(t, "an old version") {
			groups[0].answers[0].records = append(groups[0].answers[0].records, old)
		}
		search := &walk{results: make(map[records.Name]*records.Record)}
		for _, g := range groups {
			addNewest(search.results, g.answers)
		}
		recs := search.found()
		require.True(t, slices.IsSortedFunc(recs, func(a, b *records.Record) int { return a.Name().Compare(b.Name()) }))
		want := ranked(plan, all[:n])
		if incomplete(plan, recs, groups) == "" {
			got := ranked(plan, recs)
			for i := range min(limit, n) { // ties may end differently, values may not
				require.Equal(t, want[i].Value, got[i].Value)
			}
			require.GreaterOrEqual(t, len(got), min(limit, n))
		}
		matches, _ := total(groups, len(recs))
		require.GreaterOrEqual(t, matches, n)
	})
}

// referenceKeeper answers like a keeper that holds recs and has room for cut of them.
func referenceKeeper(plan *queries.Plan, recs []*records.Record, cut int) answer {
	hits := ranked(plan, recs)
	a := answer{total: len(hits), full: true}
	for i, h := range hits {
		if i == cut {
			a.withheld, a.bound = true, h.Value
			break
		}
		a.records = append(a.records, h.Record)
	}
	return a
}

func ranked(plan *queries.Plan, recs []*records.Record) []queries.Hit {
	var hits []queries.Hit
	for _, r := range recs {
		hits = append(hits, plan.Hit(r))
	}
	slices.SortFunc(hits, queries.Hit.Compare)
	return hits
}

func TestIncomplete(t *testing.T) {
	plan := keepertest.Compile(t, query.Query{Sort: query.SortPrice, Limit: 2})
	recs := keepertest.Batch(t, keepertest.NewProvider(t), 3, time.Now())
	cells := []records.CellKey{{Type: "compute", Subtype: "_", Cell: geo.Global}}
	set := keep.NewSet(keepertest.PeersOf(3), nil)
	whole := answer{records: recs[:2], total: 2, full: true}
	bounded := func(bound float64) answer {
		return answer{records: recs[:2], total: 3, withheld: true, bound: bound, full: true}
	}
	for _, tc := range []struct {
		name string
		g    group
		recs int
		want string
	}{
		{"two whole answers", group{set: set, answers: []answer{whole, whole}}, 2, ""},
		{"one of one keeper", group{set: keep.NewSet(keepertest.PeersOf(1), nil), answers: []answer{whole}}, 2, ""},
		{"one of three", group{set: set, answers: []answer{whole}, failure: errors.New("failed")}, 2, "1 of 2 keepers"},
		{"not a keeper of all", group{set: set, answers: []answer{whole, {records: recs}}}, 2, "1 of 2 keepers"},
		{"none", group{set: set}, 0, "0 of 2 keepers"},
		{"unsure who keeps", group{set: keep.NewSet(keepertest.PeersOf(2), errors.New("failed")), answers: []answer{whole, whole}}, 2, "is incomplete"},
		{"bound behind", group{set: set, answers: []answer{bounded(2), bounded(2)}}, 2, ""},
		{"bound before", group{set: set, answers: []answer{bounded(0.5), whole}}, 2, "withheld"},
		{"withheld with room left", group{set: set, answers: []answer{bounded(math.Inf(1)), whole}}, 1, "withheld"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.g.cells = cells
			why := incomplete(plan, recs[:tc.recs], []group{tc.g})
			if tc.want == "" {
				require.Empty(t, why)
				return
			}
			require.Contains(t, why, tc.want)
		})
	}
}

func TestGroupCells(t *testing.T) {
	a, b := keep.NewSet(keepertest.PeersOf(3), nil), keep.NewSet(keepertest.PeersOf(4), nil)
	again := keep.NewSet(keepertest.PeersOf(3), nil)
	cells := []records.CellKey{{Cell: "u3"}, {Cell: "u6"}, {Cell: "u4"}}
	groups := groupCells(cells, []*keep.Set{a, b, again})
	require.Len(t, groups, 2)
	require.Equal(t, []records.CellKey{cells[0], cells[2]}, groups[0].cells)
	require.Equal(t, []records.CellKey{cells[1]}, groups[1].cells)
}

// Empty and different answers need confirmation.
func TestWanted(t *testing.T) {
	ten := keep.NewSet(keepertest.PeersOf(10), nil)
	full := func(totals ...int) (out []answer) {
		for _, n := range totals {
			out = append(out, answer{full: true, total: n})
		}
		return out
	}
	atLeast := func(n int, next float64) answer {
		return answer{full: true, total: n, atLeast: true, withheld: true, bound: next}
	}
	for _, c := range []struct {
		set     *keep.Set
		answers []answer
		want    int
	}{
		{ten, nil, 2},
		{ten, full(0), 2},
		{ten, full(5, 5), 2},
		{ten, full(0, 0), 3},
		{ten, full(0, 0, 0), 3},
		{ten, full(0, 1), 4},
		{ten, full(5, 4, 5, 5), 4},
		{ten, append(full(5, 5), answer{total: 9}), 2},
		{ten, []answer{atLeast(7, 1.5), atLeast(9, 1.5)}, 2},
		{ten, []answer{atLeast(7, 1.5), {full: true, total: 9, withheld: true, bound: 1.5}}, 2},
		{ten, []answer{atLeast(7, 1.5), atLeast(7, 2.5)}, 4},
		{ten, []answer{atLeast(7, 1.5), full(0)[0]}, 4},
		{keep.NewSet(keepertest.PeersOf(2), nil), full(0, 0), 2},
		{keep.NewSet(keepertest.PeersOf(3), nil), full(0, 1), 3},
		{keep.NewSet(keepertest.PeersOf(1), nil), full(0), 1},
	} {
		g := group{set: c.set, answers: c.answers}
		require.Equal(t, c.want, g.wanted(), "%v of %d", c.answers, len(c.set.Peers))
	}
	here, there := netip.MustParsePrefix("40.1.7.0/24"), netip.MustParsePrefix("41.1.7.0/24")
	for _, c := range []struct {
		parties []netip.Prefix
		several bool
		want    int
	}{
		{[]netip.Prefix{here, here}, true, 3},
		{[]netip.Prefix{here, here}, false, 2},
		{[]netip.Prefix{here, there}, true, 2},
		{[]netip.Prefix{here, {}}, true, 2},
		{[]netip.Prefix{{}, {}}, true, 2},
		{[]netip.Prefix{here}, true, 2},
	} {
		g := group{set: ten, diverse: c.several, answers: full(slices.Repeat([]int{5}, len(c.parties))...)}
		for i, party := range c.parties {
			g.answers[i].network = party
		}
		require.Equal(t, c.want, g.wanted(), "%v", c.parties)
	}
}

func TestReadVersion(t *testing.T) {
	now := time.Now()
	p := keepertest.NewProvider(t)
	r := p.Sign(t, keepertest.Offer("one"), 1, now)
	lapsed, err := records.Sign("test", p.Key, keepertest.Offer("one"), records.Stamp{Sequence: 2, Issued: now.Add(-2 * time.Hour), Expires: now.Add(-time.Hour)})
	require.NoError(t, err)
	forged := slices.Clone(r.Envelope())
	forged[len(forged)/2] ^= 1
	life, clockFault := protocol.NewLife(protocol.Config{Now: func() time.Time { return now }}), ""
	a := &Asker{Life: life, AskerConfig: AskerConfig{Verifier: keepertest.NewVerifier(t)}}
	a.authority = keep.NewAuthority(keep.NewClosest(life, keep.ClosestConfig{}), keep.AuthorityConfig{ClockFault: func() string { return clockFault }})
	for _, tc := range []struct {
		name  string
		resp  *pb.ResolveResponse
		found bool
		full  bool
		kind  fault.Kind // of a breach
	}{
		{name: "no answer", kind: fault.Unauthentic},
		{name: "nothing", resp: &pb.ResolveResponse{}, full: true},
		{name: "a record", resp: &pb.ResolveResponse{Envelope: r.Envelope()}, found: true, full: true},
		{name: "of no keeper", resp: &pb.ResolveResponse{Envelope: r.Envelope(), NotKept: true}, found: true},
		{name: "an expired record", resp: &pb.ResolveResponse{Envelope: lapsed.Envelope()}, full: true},
		{name: "from the future", resp: &pb.ResolveResponse{Envelope: p.Sign(t, keepertest.Offer("one"), 3, now.Add(time.Hour)).Envelope()}},
		{name: "another record", resp: &pb.ResolveResponse{Envelope: p.Sign(t, keepertest.Offer("two"), 1, now).Envelope()}, kind: fault.Unauthentic},
		{name: "forged", resp: &pb.ResolveResponse{Envelope: forged}, kind: fault.Unauthentic},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := a.readVersion(tc.resp, r.Key())
			if tc.kind != 0 {
				require.ErrorIs(t, err, tc.kind)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.found, got.newest != nil)
			require.Equal(t, tc.full, got.full)
			require.Equal(t, tc.full, got.err == nil)
		})
	}
	clockFault = "this peer's clock is 10m0s ahead of its keepers' clocks"
	got, err := a.readVersion(&pb.ResolveResponse{Envelope: lapsed.Envelope()}, r.Key())
	require.NoError(t, err)
	require.False(t, got.full, "a wrong clock proves no absence")
	require.EqualError(t, got.err, clockFault)
}

// An answer never exceeds its maximum size, and its bound shows the cut.
func TestAnswerIsBoundedInBytes(t *testing.T) {
	p, now := keepertest.NewProvider(t), time.Now()
	text := make([]byte, 2000)
	for i := range text {
		text[i] = 'x'
	}
	r := p.Sign(t, keepertest.Offer("large", func(o *records.Offer) { o.Metadata.Description = string(text[:1000]) }), 1, now)
	hits := make([]queries.Hit, 1+protocol.MaxAnswer/len(r.Envelope()))
	for i := range hits {
		hits[i] = queries.Hit{Record: r, Value: float64(i)}
	}
	resp := responseOf(index.Found{Hits: hits, Total: len(hits)}, math.Inf(1))
	require.Len(t, resp.Envelopes, len(hits)-1)
	require.True(t, resp.Withheld)
	require.Equal(t, math.Nextafter(float64(len(hits)-1), 0), resp.Bound, "a withheld match may tie with another keeper's")
	require.Less(t, proto.Size(&pb.Response{Op: &pb.Response_Query{Query: resp}}), protocol.ResponseFormat().MaxSize)
}

// A keeper whose clock differs is not a liar, however much: its untimely records are left out and counted.
func TestUntimelyRecordsInAnswers(t *testing.T) {
	p, now := keepertest.NewProvider(t), time.Now()
	plan := keepertest.Compile(t, query.Query{})
	q := cellQuery{plan: plan, cells: plan.Cells(1), worst: math.Inf(1)}
	for _, issued := range []time.Duration{-2*time.Hour - time.Second, -100 * time.Hour, 3 * time.Minute, 25 * time.Hour} {
		stamp := records.Stamp{Sequence: 1, Issued: now.Add(issued), Expires: now.Add(issued + 2*time.Hour)}
		untimely, err := records.Sign("test", p.Key, keepertest.Offer("one"), stamp)
		require.NoError(t, err)
		valid := p.Sign(t, keepertest.Offer("two"), 1, now)
		resp := &pb.QueryResponse{Total: 2, Envelopes: [][]byte{untimely.Envelope(), valid.Envelope()}}
		a, err := verifyAnswer(q, resp, keepertest.NewVerifier(t), now)
		require.NoError(t, err)
		require.Equal(t, []*records.Record{valid}, a.records)
		require.Len(t, a.left, 1)
		require.Zero(t, a.unread())
		require.Equal(t, 1, a.total, "the total does not count a record that the answer leaves out")
	}
}

// A keeper withholds matches only after as many as asked for, as fit, or as the asker has use for, and the best first. What says otherwise
// is a violation of the protocol.
func TestWithheldMatches(t *testing.T) {
	p, now := keepertest.NewProvider(t), time.Now()
	plan := keepertest.Compile(t, query.Query{Sort: query.SortPrice, Limit: 3})
	verifier := keepertest.NewVerifier(t)
	var some [][]byte
	for _, r := range keepertest.Batch(t, p, 3, now) { // prices 0, 1, 2
		some = append(some, r.Envelope())
	}
	for name, tt := range map[string]struct {
		sent    int
		bound   float64
		worst   float64
		refused bool
	}{
		"as many as asked for":      {3, 2, math.Inf(1), false},
		"a tie":                     {3, math.Nextafter(2, 0), math.Inf(1), false},
		"better than its own last":  {3, 1, math.Inf(1), true},
		"all":                       {0, math.Inf(-1), math.Inf(1), true},
		"after two":                 {2, 5, math.Inf(1), true},
		"of no use":                 {2, 5, 4, false},
		"of use":                    {2, 5, 5, true},
		"of no use, but the better": {2, 0.5, 0.25, true},
	} {
		q := cellQuery{plan: plan, cells: plan.Cells(1), worst: tt.worst}
		_, err := verifyAnswer(q, &pb.QueryResponse{Total: 9, Envelopes: some[:tt.sent], Withheld: true, Bound: tt.bound}, verifier, now)
		require.Equal(t, tt.refused, fault.KindOf(err) == fault.Unauthentic, "%s: %v", name, err)
	}
}

// One keeper alone decides neither the total nor whether a cell is full, and is found out.
func TestContradictions(t *testing.T) {
	c := keepertest.CellOfBerlin(4)
	whole := func(from peer.ID, total int) answer { return answer{from: from, full: true, total: total} }
	full := func(from peer.ID) answer { return answer{from: from, full: true, crowded: []records.CellKey{c}} }
	partial := group{cells: []records.CellKey{c}, answers: []answer{{total: 2}, {total: 3, behind: true}}}
	n, lowerBound := partial.total()
	require.Equal(t, []any{3, true}, []any{n, lowerBound}, "without a full answer")
	for name, tt := range map[string]struct {
		answers []answer
		total   int
		crowded bool
		odd     peer.ID
	}{
		"agreed":                    {[]answer{whole("a", 5), whole("b", 5)}, 5, false, ""},
		"two":                       {[]answer{whole("a", 5), whole("b", 9)}, 9, false, ""},
		"more":                      {[]answer{whole("a", 5), whole("b", 99), whole("c", 5), whole("d", 5)}, 5, false, "b"},
		"fewer":                     {[]answer{whole("a", 1), whole("b", 5), whole("c", 5)}, 5, false, "a"},
		"all differ":                {[]answer{whole("a", 1), whole("b", 5), whole("c", 6)}, 5, false, ""},
		"full at one":               {[]answer{whole("a", 5), full("b"), whole("c", 5), whole("d", 5)}, 5, false, "b"},
		"full at half":              {[]answer{whole("a", 5), full("b")}, 0, true, ""},
		"full":                      {[]answer{full("a"), full("b"), whole("c", 5)}, 0, true, "c"},
		"partial ones do not count": {[]answer{whole("a", 5), whole("b", 5), {from: "c", total: 2}, {from: "d", total: 2}, {from: "e", total: 3}}, 5, false, ""},
		"behind does not count":     {[]answer{whole("a", 5), whole("b", 5), {from: "c", behind: true, total: 2}}, 5, false, ""},
	} {
		g := group{cells: []records.CellKey{c}, answers: tt.answers}
		total, _ := g.total()
		require.Equal(t, tt.total, total, name)
		require.Equal(t, tt.crowded, g.crowded(c), name)
		id, some := g.odd()
		require.Equal(t, tt.odd, id, name)
		require.Equal(t, tt.odd != "", some, name)
	}
	g := group{cells: []records.CellKey{c}, set: keep.NewSet(keepertest.PeersOf(10), nil), answers: []answer{whole("a", 5), full("b")}}
	require.Equal(t, 3, g.wanted(), "a third one decides")

	here, there := netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.0/24")
	for name, tt := range map[string]struct {
		answers []answer
		want    []peer.ID
	}{
		"one hides":              {[]answer{{from: "a", full: true, network: here}, {from: "b", full: true, network: there}, {from: "c", outdated: true}}, []peer.ID{"c"}},
		"a change on its way":    {[]answer{{from: "a", full: true, network: here}, {from: "b", full: true, network: there}, {from: "c", behind: true}}, nil},
		"this peer":              {[]answer{{from: "a", full: true, network: here}, {from: "b", full: true, network: there}, {from: "c", outdated: true, own: true}}, nil},
		"one says so":            {[]answer{{from: "a", full: true, network: here}, {from: "c", outdated: true}}, nil},
		"one network says so":    {[]answer{{from: "a", full: true, network: here}, {from: "b", full: true, network: here}, {from: "c", outdated: true}}, nil},
		"most hide, and two not": {[]answer{{from: "a", outdated: true}, {from: "b", full: true, network: there}, {from: "c", outdated: true}, {from: "d", full: true, network: here}}, []peer.ID{"a", "c"}},
	} {
		g := group{diverse: true, answers: tt.answers}
		require.Equal(t, tt.want, g.outdated(), name)
	}
}

// Full cells outside of the question are violations of the protocol.
func TestFullCellsOfAnAnswer(t *testing.T) {
	plan := keepertest.Compile(t, query.Query{})
	q := cellQuery{plan: plan, cells: plan.Cells(1), worst: math.Inf(1)}
	global := q.cells[0].String()
	for name, full := range map[string][]string{
		"another cell": {keepertest.CellOfBerlin(4).String()}, "no cell": {"x"}, "twice": {global, global},
	} {
		_, err := verifyAnswer(q, &pb.QueryResponse{Full: full}, keepertest.NewVerifier(t), time.Now())
		require.ErrorIs(t, err, fault.Unauthentic, name)
	}
	a, err := verifyAnswer(q, &pb.QueryResponse{Full: []string{global}}, keepertest.NewVerifier(t), time.Now())
	require.NoError(t, err)
	require.Equal(t, q.cells, a.crowded)
}

// The answer to a wider query is full if nothing that the keeper withheld can be a result.
func TestNarrow(t *testing.T) {
	p, now := keepertest.NewProvider(t), time.Now()
	rate := uint32(5)
	plan := keepertest.Compile(t, query.Query{Sort: query.SortPrice, Limit: 2, Quality: query.Quality{MaxErrorRate: &rate}})
	claimed := func(rate uint32) func(*records.Offer) {
		return func(o *records.Offer) { o.Health = &records.Health{Status: "HEALTHY", ErrorRate: &rate} }
	}
	good := func(id string, price float64) *records.Record {
		return p.Sign(t, keepertest.Offer(id, keepertest.Priced(price), claimed(1)), 1, now)
	}
	bad := p.Sign(t, keepertest.Offer("bad", keepertest.Priced(1), claimed(9)), 1, now)
	wider, dropped := widen(plan, []string{"sort", "max_error_rate", "min_uptime"})
	require.Equal(t, []string{"max_error_rate"}, dropped)
	require.Equal(t, queries.MaxLimit, wider.Limit())
	require.True(t, wider.Match(bad))
	q := cellQuery{plan: plan, cells: plan.Cells(coverCells), worst: math.Inf(1)}
	for name, tc := range map[string]struct {
		in    answer
		worst float64
		full  bool
	}{
		"all matches":                 {answer{records: []*records.Record{bad, good("a", 2)}, total: 2}, math.Inf(1), true},
		"withheld, below the limit":   {answer{records: []*records.Record{bad, good("a", 2)}, total: 9, withheld: true, bound: 3}, math.Inf(1), false},
		"withheld behind the results": {answer{records: []*records.Record{good("a", 2), good("b", 3)}, total: 9, withheld: true, bound: 3}, math.Inf(1), true},
		"withheld before the last":    {answer{records: []*records.Record{good("a", 2), good("b", 3)}, total: 9, withheld: true, bound: 2.5}, math.Inf(1), false},
		"withheld as useless":         {answer{records: []*records.Record{good("a", 2)}, total: 9, withheld: true, bound: 3}, 2.5, true},
	} {
		t.Run(name, func(t *testing.T) {
			q.worst = tc.worst
			a := tc.in
			a.full = true
			a.narrow(q)
			require.Equal(t, tc.full, a.full)
			require.Equal(t, tc.in.withheld, a.atLeast)
			require.Equal(t, len(a.records), a.total)
			for _, r := range a.records {
				require.True(t, plan.Match(r))
			}
			if !a.full {
				require.False(t, a.withheld, "other keepers vouch for the rest")
			}
		})
	}
}

// The second keeper of a question is any of another large network than the first, if there is one, and never one that just failed.
func TestSecondKeeperIsDrawn(t *testing.T) {
	addresses := map[peer.ID]string{}
	order := keepertest.PeersOf(7)
	for i, ip := range []string{"203.0.113.1", "203.0.9.1", "198.51.100.1", "203.0.7.1", "192.0.2.1", "192.0.3.1", "198.18.0.1"} {
		addresses[order[i]] = "/ip4/" + ip + "/udp/1/quic-v1"
	}
	a, _ := bareAt(t, keepertest.Addressed{Of: addresses})
	a.client.Avoid(order[6])
	draw := func(ids []peer.ID) map[peer.ID]bool {
		drawn := make(map[peer.ID]bool)
		for n := range 10 {
			a.Draw = func(of int) int { return n % of }
			mixed := slices.Clone(ids)
			a.drawSecond(mixed)
			require.Equal(t, ids[0], mixed[0])
			require.ElementsMatch(t, ids, mixed)
			drawn[mixed[1]] = true
		}
		return drawn
	}
	require.Equal(t, map[peer.ID]bool{order[2]: true, order[4]: true, order[5]: true}, draw(order))
	same := []peer.ID{order[0], order[1], order[3], order[6]}
	require.Equal(t, map[peer.ID]bool{order[1]: true, order[3]: true}, draw(same))
	a.drawSecond(order[:1])
}

// Of keepers whose ids somebody chose only one is asked before drawn ones around them, whose answers count though they claim nothing. The
// whole stays incomplete.
func TestChosenKeepersAreAskedAround(t *testing.T) {
	a, _ := bare(t)
	a.Draw = func(n int) int { return n - 1 }
	ids := keepertest.PeersOf(keep.Replicas + 8)
	set := keep.NewSet(ids[:keep.Replicas], nil)
	set.Chosen, set.Outer, set.Inner = true, ids[keep.Replicas:], 5
	order := a.askingOrder(set)
	require.ElementsMatch(t, ids, order)
	require.True(t, set.Has(order[0]))
	require.ElementsMatch(t, set.Outer[:5], order[1:6])
	require.NotEqual(t, set.Outer[:5], order[1:6], "drawn")
	require.ElementsMatch(t, set.Outer[5:], order[6:9])

	g := group{set: set, cells: []records.CellKey{keepertest.CellOfBerlin(4)}}
	require.Equal(t, 1+askedAround, g.needed())
	require.True(t, g.add(reply{from: order[0], answer: answer{full: true, total: 1}}))
	for _, id := range order[1:g.needed()] {
		require.True(t, g.add(reply{from: id, answer: answer{total: 1}}))
	}
	require.False(t, g.add(reply{from: order[9], answer: answer{total: 1}}), "of the chosen ones")
	require.Equal(t, g.needed(), g.wanted())
	g.answers[1].total = 2
	require.Equal(t, g.needed()+2, g.wanted())
	require.Contains(t, g.incomplete(), "closer than chance explains")
	listed := keepertest.Many(t, 1, 1)[0]
	newest := map[records.Name]*records.Record{listed.Name(): listed}
	plan := keepertest.Compile(t, query.Query{})
	require.Empty(t, g.answers[1].unlisted(plan, newest, time.Now()), "it need not have all")
	require.Len(t, g.answers[0].unlisted(plan, newest, time.Now()), 1)
	g.set = &keep.Set{Peers: set.Peers, Outer: ids[len(ids)-1:]}
	require.Equal(t, 2, g.needed())
}
