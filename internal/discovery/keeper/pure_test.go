package keeper

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	kb "github.com/libp2p/go-libp2p-kbucket"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

func peersOf(n int) []peer.ID {
	ids := make([]peer.ID, n)
	for i := range ids {
		ids[i] = peer.ID(fmt.Sprintf("peer-%d", i))
	}
	return ids
}

// nearest agrees with kad-dht's metric and with arithmetic.
func TestNearestAgainstReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := peersOf(rapid.IntRange(0, 40).Draw(t, "peers"))
		key := rapid.String().Draw(t, "key")
		n := rapid.IntRange(0, 45).Draw(t, "n")
		twice := append(slices.Clone(ids), ids...)
		want := kb.SortClosestPeers(ids, kb.ConvertKey(key))
		require.Equal(t, want[:min(n, len(want))], nearest(key, twice, n))
		away := func(id peer.ID) *big.Int {
			a, b := sha256.Sum256([]byte(key)), sha256.Sum256([]byte(id))
			return new(big.Int).Xor(new(big.Int).SetBytes(a[:]), new(big.Int).SetBytes(b[:]))
		}
		require.True(t, slices.IsSortedFunc(want, func(a, b peer.ID) int { return away(a).Cmp(away(b)) }))
	})
}

// A peer is responsible exactly if it is among the n closest of itself and all known peers.
func TestResponsibleAgainstReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		others := peersOf(rapid.IntRange(0, 40).Draw(t, "peers"))
		n := rapid.IntRange(1, 25).Draw(t, "n")
		key, self := rapid.String().Draw(t, "key"), peer.ID("self")
		want := slices.Contains(nearest(key, append(slices.Clone(others), self), n), self)
		require.Equal(t, want, newPeerTable(self, others, false).closer(key, n) < n)
	})
}

func TestSettle(t *testing.T) {
	for _, tc := range []struct {
		name      string
		others    int
		table     int
		err       error
		keepers   int
		whole     bool
		uncertain bool
	}{
		{name: "alone", keepers: 1, whole: true},
		{name: "a few", others: 4, table: 4, keepers: 5, whole: true},
		{name: "the largest small network", others: 19, table: 19, keepers: 20, whole: true},
		{name: "one more", others: 20, table: 20, keepers: Replicas},
		{name: "a small table in a large network", others: 20, table: 3, keepers: Replicas},
		{name: "a poor lookup in a large network", others: 12, table: 50, keepers: Replicas},
		{name: "a timeout with enough peers", others: 15, table: 15, err: context.DeadlineExceeded, keepers: Replicas},
		{name: "a failure with enough peers", others: 15, table: 15, err: errLookup, keepers: Replicas, uncertain: true},
		{name: "a failure with few peers", others: 3, table: 3, err: errLookup, keepers: 4, whole: true, uncertain: true},
		{name: "a failure with few peers of a large network", others: 3, table: 30, err: errLookup, keepers: 4, uncertain: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			others := peersOf(tc.others)
			set, whole := settle("key", "self", others, tc.table, tc.err)
			require.Equal(t, tc.whole, whole)
			require.Len(t, set.peers, tc.keepers)
			require.Equal(t, tc.uncertain, set.uncertain != nil)
			require.True(t, slices.IsSorted(set.peers))
			if tc.whole {
				require.True(t, set.has("self"), "every peer of a small network is a keeper")
			}
			inserted := nearest("key", append(others, "self"), tc.keepers)
			for _, id := range inserted {
				require.True(t, set.has(id))
			}
		})
	}
}

// Messages stay within bounds and hold every item once, in order.
func TestPack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var items []storeItem
		for i := range rapid.IntRange(0, 3000).Draw(t, "items") {
			size := (i * 7919) % (maxEnvelope + 1)
			items = append(items, storeItem{of: new(send), wire: &pb.StoreItem{Envelope: make([]byte, size), Cells: []string{"c"}}})
		}
		var again []storeItem
		for _, message := range pack(items) {
			require.NotEmpty(t, message)
			req := &pb.StoreRequest{}
			for _, p := range message {
				req.Items = append(req.Items, p.wire)
			}
			var b bytes.Buffer
			require.NoError(t, requestCodec(&b).WriteMessage(&pb.Request{TimeoutMs: math.MaxUint32, Op: &pb.Request_Store{Store: req}}))
			require.LessOrEqual(t, b.Len(), MaxRequest)
			require.NoError(t, requestCodec(&b).ReadMessage(new(pb.Request)))
			again = append(again, message...)
		}
		require.Equal(t, items, again)
	})
}

func targetsOf(recs []*records.Record) (targets []target) {
	for _, r := range recs {
		targets = append(targets, target{&send{record: r}, r.Cells()})
	}
	return targets
}

// Every keeper of every cell of a record gets the record once, with exactly its cells.
func TestRoute(t *testing.T) {
	p := newProvider(t)
	recs := batch(t, p, 3, time.Now())
	sets := map[records.CellKey]*keeperSet{}
	for _, c := range recs[0].Cells() {
		sets[c] = newKeeperSet(nearest(routingKey(c), peersOf(40), Replicas), nil)
	}
	targets := targetsOf(recs)
	all := func(peer.ID, records.CellKey, *records.Record) bool { return true }
	got := map[string]bool{}
	for _, s := range route(targets, sets, all) {
		for _, item := range s.items {
			for _, c := range item.wire.Cells {
				what := fmt.Sprint(s.to, item.of.record.Name(), c)
				require.False(t, got[what])
				got[what] = true
			}
		}
	}
	require.Len(t, got, len(recs)*len(sets)*Replicas)
	one := sets[recs[0].Cells()[0]].peers[0]
	only := func(id peer.ID, _ records.CellKey, r *records.Record) bool { return id == one && r == recs[1] }
	some := route(targets, sets, only)
	require.Len(t, some, 1)
	require.Len(t, some[0].items, 1, "unwanted records are not sent")
}

func TestTally(t *testing.T) {
	sends := []*send{{}, {}, {}, {}}
	stale := func(record int, sequence uint64) storeItem {
		return storeItem{of: sends[record], err: fault.New("", fault.Exists, "stale"), sequence: sequence}
	}
	full := storeItem{of: sends[2], err: fault.New("", fault.LimitReached, "full")}
	out := tally(sends, []storeBatch{
		{to: "a", items: []storeItem{{of: sends[0]}, stale(1, 7), full}},
		{to: "b", items: []storeItem{stale(0, 9), stale(1, 8), full}},
	}, nil)
	require.Equal(t, records.Outcome{Stored: records.Stored{On: 1, Of: 2}}, out[0])
	require.Equal(t, records.Stored{On: 0, Of: 2}, out[1].Stored)
	require.ErrorIs(t, out[1].Err, fault.Exists)
	require.Equal(t, uint64(8), fault.ValueOf(out[1].Err))
	require.ErrorIs(t, out[2].Err, fault.LimitReached)
	require.Equal(t, records.Outcome{}, out[3])
}

// The merge of many partial, redundant answers equals the answer of one index with all records,
// and reports complete only if it does.
func TestMergeAgainstReference(t *testing.T) {
	p := newProvider(t)
	now := time.Now()
	all := make([]*records.Record, 40)
	for i := range all {
		all[i] = p.sign(t, offer(fmt.Sprintf("s%d", i), priced(float64(i/3))), uint64(1+i%2), now)
	}
	old := p.sign(t, offer("s1", priced(100)), 1, now)
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 12).Draw(t, "limit")
		plan, err := query.Compile(query.Query{Type: "compute", Sort: query.SortPrice, Limit: limit}, query.Defaults{})
		require.NoError(t, err)
		n := rapid.IntRange(1, len(all)).Draw(t, "records")
		set := newKeeperSet(peersOf(3), nil)
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
		search := &treeSearch{results: make(map[records.Name]*records.Record)}
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
func referenceKeeper(plan *query.Plan, recs []*records.Record, cut int) answer {
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

func ranked(plan *query.Plan, recs []*records.Record) []query.Hit {
	var hits []query.Hit
	for _, r := range recs {
		hits = append(hits, query.Hit{Record: r, Value: plan.Value(r)})
	}
	slices.SortFunc(hits, query.Hit.Compare)
	return hits
}

func TestIncomplete(t *testing.T) {
	plan := compile(t, query.Query{Sort: query.SortPrice, Limit: 2})
	recs := batch(t, newProvider(t), 3, time.Now())
	cells := []records.CellKey{{Type: "compute", Subtype: "_", Cell: geo.Global}}
	set := newKeeperSet(peersOf(3), nil)
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
		{"one of one keeper", group{set: newKeeperSet(peersOf(1), nil), answers: []answer{whole}}, 2, ""},
		{"one of three", group{set: set, answers: []answer{whole}, failure: errLookup}, 2, "1 of 2 keepers"},
		{"not a keeper of all", group{set: set, answers: []answer{whole, {records: recs}}}, 2, "1 of 2 keepers"},
		{"none", group{set: set}, 0, "0 of 2 keepers"},
		{"unsure who keeps", group{set: newKeeperSet(peersOf(2), errLookup), answers: []answer{whole, whole}}, 2, "is incomplete"},
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
	a, b := newKeeperSet(peersOf(3), nil), newKeeperSet(peersOf(4), nil)
	again := newKeeperSet(peersOf(3), nil)
	cells := []records.CellKey{{Cell: "u3"}, {Cell: "u6"}, {Cell: "u4"}}
	groups := groupCells(cells, []*keeperSet{a, b, again})
	require.Len(t, groups, 2)
	require.Equal(t, []records.CellKey{cells[0], cells[2]}, groups[0].cells)
	require.Equal(t, []records.CellKey{cells[1]}, groups[1].cells)
}

func TestHedgeDelay(t *testing.T) {
	s := newStatsCache()
	require.Equal(t, hedgeMin, s.hedgeDelay(nil))
	require.Equal(t, hedgeAfter, s.hedgeDelay([]peer.ID{"new"}))
	for range 50 {
		s.observe("fast", time.Millisecond)
		s.observe("slow", 400*time.Millisecond)
	}
	require.Equal(t, hedgeMin, s.hedgeDelay([]peer.ID{"fast"}))
	require.InDelta(t, 400*time.Millisecond, s.hedgeDelay([]peer.ID{"fast", "slow"}), float64(50*time.Millisecond))
	s.observe("slow", time.Minute)
	require.Equal(t, hedgeMax, s.hedgeDelay([]peer.ID{"slow"}))
}

func TestQuotasRefill(t *testing.T) {
	q := newQuotas(Limits{StoreRate: 2, StoreBurst: 3})
	now := time.Now()
	from := source{prefix: netip.MustParsePrefix("198.51.100.0/24")}
	for range 3 {
		require.NoError(t, q.take(from, now))
	}
	require.ErrorIs(t, q.take(from, now), fault.LimitReached)
	require.NoError(t, q.take(source{prefix: netip.MustParsePrefix("203.0.113.0/24")}, now), "another prefix has its own quota")
	require.NoError(t, q.take(from, now.Add(time.Second)))
	require.NoError(t, q.take(source{exempt: true, prefix: from.prefix}, now))
	for i := range 2 * maxPrefixes {
		_ = q.take(source{prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)}, now)
	}
	require.Equal(t, maxPrefixes, q.prefixes.Len())
}

// Empty and different answers need confirmation.
func TestWanted(t *testing.T) {
	ten := newKeeperSet(peersOf(10), nil)
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
		set     *keeperSet
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
		{newKeeperSet(peersOf(2), nil), full(0, 0), 2},
		{newKeeperSet(peersOf(3), nil), full(0, 1), 3},
		{newKeeperSet(peersOf(1), nil), full(0), 1},
	} {
		g := group{set: c.set, answers: c.answers}
		require.Equal(t, c.want, g.wanted(), "%v of %d", c.answers, len(c.set.peers))
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

// A refusal by a peer that does not keep a cell ends the cached lookup: the next announcement finds the keepers.
func TestMistakenLookupIsForgotten(t *testing.T) {
	p := newClosestCache(&Env{})
	wrong, right := records.CellKey{Type: "compute"}, records.CellKey{Type: "storage"}
	now := time.Unix(1, 0)
	for _, c := range []records.CellKey{wrong, right} {
		p.cells.Add(routingKey(c), newCachedSet(newKeeperSet([]peer.ID{"b"}, nil), true, now, time.Hour))
	}
	p.whole = newCachedSet(newKeeperSet([]peer.ID{"b"}, nil), true, now, time.Hour)
	p.regions.known = []region{{peers: []hashedPeer{{id: "b"}}}, {peers: []hashedPeer{{id: "c"}}}}
	p.mistaken("b", []records.CellKey{wrong})
	require.False(t, p.cells.Contains(routingKey(wrong)))
	require.True(t, p.cells.Contains(routingKey(right)))
	require.Zero(t, p.whole)
	require.Len(t, p.regions.known, 1)
}

// Weighed calls stay within the weight, one at a time may exceed it, and every call runs or is late.
func TestWeighed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		random := rand.New(rand.NewPCG(3, 4))
		weights := make([]int, 200)
		for i := range weights {
			weights[i] = 1 + random.IntN(60)
		}
		weights[7] = 1000
		var mu sync.Mutex
		var under, calls, most, done int
		late := weighed(ctx, 20, 100, weights, func(i int) {
			w := min(weights[i], 100)
			mu.Lock()
			under, calls = under+w, calls+1
			most = max(most, under)
			require.LessOrEqual(t, under, 100)
			require.LessOrEqual(t, calls, 20)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			under, calls, done = under-w, calls-1, done+1
			mu.Unlock()
		})
		require.Greater(t, most, 80)
		require.NotEmpty(t, late)
		require.Equal(t, len(weights), done+len(late))
	})
}
