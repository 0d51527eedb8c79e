package keeper

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// city returns records of many providers in and around one city: half of them within walking
// distance of the centre, the others up to 30 km away. Every hundredth lives for a day, the others
// for lives.
func city(t testing.TB, n int, lives time.Duration) []*records.Record {
	random := rand.New(rand.NewPCG(5, 6))
	const each = 20
	recs := make([]*records.Record, 0, n)
	now := time.Now()
	var p keepertest.Provider
	for i := range n {
		if i%each == 0 {
			p = keepertest.NewProvider(t)
		}
		spread := 0.3
		if i%2 == 0 {
			spread = 0.004
		}
		lat, lon := 52.52+spread*(random.Float64()-0.5), 13.405+1.6*spread*(random.Float64()-0.5)
		uptime, response, errs := 90+10*random.Float64(), uint64(1+random.IntN(2000)), uint32(random.IntN(1000))
		o := keepertest.Offer(fmt.Sprintf("s%d", i), keepertest.Priced(0.01+random.Float64()*10))
		o.Metadata.Subtype = ""
		o.Location.Latitude, o.Location.Longitude = &lat, &lon
		if i%50 == 0 {
			o.Capabilities.Compute.GPUs = []records.GPU{{Model: "H100", MemoryMB: 80_000}, {Model: "T4", MemoryMB: 16_000}}
		}
		if i%10 == 0 {
			o.Pricing.TierPricing = map[string]float64{"1000+": *o.Pricing.BasePrice / 4}
		}
		o.Health = &records.Health{Status: "HEALTHY", UptimePercent: &uptime, ResponseTimeMs: &response, ErrorRate: &errs}
		ttl := lives
		if i%100 == 0 {
			ttl = 24 * time.Hour
		}
		r, err := records.Sign("test", p.Key, o, records.Stamp{Sequence: 1, Issued: now, Expires: now.Add(ttl)})
		require.NoError(t, err)
		recs = append(recs, r)
	}
	return recs
}

// best computes the expected result of a query with a plain scan.
func best(plan *query.Plan, recs []*records.Record) []string {
	var hits []query.Hit
	for _, r := range recs {
		if !r.Expired(time.Now()) && plan.Match(r) {
			hits = append(hits, plan.Hit(r))
		}
	}
	plan.Arrange(hits)
	names := []string{}
	for _, h := range hits[:min(plan.Limit(), len(hits))] {
		names = append(names, h.Record.Name().ID)
	}
	return names
}

// searchedCells counts the cells that a query searched below its cover.
func searchedCells(found query.Found) int {
	n := 0
	for _, note := range found.Notes {
		if strings.HasPrefix(note, "searching child cell") {
			n++
		}
	}
	return n
}

// pages reads all records in the stable order, page by page.
type pages struct {
	q    query.Query
	read map[string]int // of each id, how often it was on a page
	all  bool
}

// next reads the next page from a node. An incomplete one does not count.
func (p *pages) next(t *testing.T, n *lightNode) {
	if p.all {
		return
	}
	plan := keepertest.Compile(t, p.q)
	found, err := n.Query(t.Context(), plan)
	require.NoError(t, err)
	if !found.Complete {
		return
	}
	hits := make([]query.Hit, len(found.Records))
	for i, r := range found.Records {
		hits[i] = plan.Hit(r)
	}
	plan.Arrange(hits)
	hits = hits[:min(len(hits), plan.Limit())]
	for _, h := range hits {
		p.read[h.Record.Name().ID]++
		p.q.After = query.After(h.Record)
	}
	p.all = len(hits) < plan.Limit()
}

// requireOnce requires that each of some records was on one page, and no other one on two.
func (p *pages) requireOnce(t *testing.T, recs []*records.Record) {
	require.True(t, p.all)
	for _, r := range recs {
		require.Equal(t, 1, p.read[r.Name().ID], r.Name().ID)
	}
	for id, n := range p.read {
		require.Equal(t, 1, n, id)
	}
}

func pagesOf(size int) *pages {
	return &pages{q: query.Query{Sort: query.SortStable, Limit: size}, read: make(map[string]int)}
}

// orders returns queries of every order, worldwide and in discs.
func orders(t testing.TB) map[string]*query.Plan {
	plans := make(map[string]*query.Plan)
	for _, sort := range []query.Sort{
		query.SortScore, query.SortDistance, query.SortPrice, query.SortUptime, query.SortResponseTime, query.SortRandom, query.SortStable,
	} {
		for _, radius := range []float64{0.3, 3, 40, 0} {
			q := query.Query{Sort: sort, Limit: 10, Explain: true, Seed: 7}
			if radius > 0 || sort == query.SortDistance {
				q.Near = &query.Near{Latitude: 52.53, Longitude: 13.41}
			}
			if radius > 0 {
				q.Near.RadiusKM = &radius
			}
			plans[fmt.Sprintf("%s within %g km", sort, radius)] = keepertest.Compile(t, q)
		}
	}
	return plans
}

// clausesOf returns queries with clauses and volumes, which summaries bound in part or not at all.
func clausesOf(t testing.TB) map[string]*query.Plan {
	volume := 5000.0
	plans := make(map[string]*query.Plan)
	for name, texts := range map[string][]string{
		"gpu": {"compute.gpus.model=H100", "compute.gpus.memory_mb>=40000"}, "no gpu": {"compute.gpus.model?!=H100"},
		"uptime": {"health.uptime_percent>=99.9"}, "low uptime": {"health.uptime_percent!>=90.1"}, "tiers": {"pricing.tier_pricing.1000+<=0.3"},
		"errors": {"health.error_rate<=3"}, "nothing": {"location.isp=Nobody"},
	} {
		q := query.Query{Limit: 5, Explain: true}
		for _, text := range texts {
			c, err := query.ParseClause(text)
			require.NoError(t, err)
			q.Where = append(q.Where, c)
		}
		for _, q.Sort = range []query.Sort{query.SortPrice, query.SortUptime, query.SortScore} {
			plans[name+" by "+string(q.Sort)] = keepertest.Compile(t, q)
		}
	}
	plans["volume"] = keepertest.Compile(t, query.Query{Limit: 5, Explain: true, Sort: query.SortPrice, Price: query.Price{Volume: &volume}})
	return plans
}

// requireClauses asks about clauses: a complete answer has the best records, and most are complete.
func requireClauses(t *testing.T, w *lightCluster, recs []*records.Record) {
	plans, complete := clausesOf(t), 0
	for name, plan := range plans {
		found, err := w.nodes[9].Query(t.Context(), plan)
		require.NoError(t, err)
		if found.Complete {
			complete++
			require.Equal(t, best(plan, recs), keepertest.NamesOf(found.Records)[:min(plan.Limit(), len(found.Records))], name)
		}
		t.Logf("%-32s %3d descents, complete %t %s", name, searchedCells(found), found.Complete, found.Reason)
	}
	require.Greater(t, complete, len(plans)/2)
}

// Very many records in one city: no keeper holds more than its share of a cell, and every
// query finds exactly the best records, reports them as complete, and asks no unnecessary cell.
// After the expiry of most records the cells are whole again. Pages have each record once, also while cells split and merge.
func TestHotCity(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		w := newLightCluster(t, 40)
		defer w.close()
		start := time.Now()
		size := 3200
		if os.Getenv("BLACKHOLE_LONG") != "" { // 30 s of processor time
			size = 20_000
		}
		recs := city(t, size, 30*time.Minute)
		during, early := pagesOf(size/8), recs[:0]
		for batch := range slices.Chunk(recs, 500) {
			for _, o := range w.nodes[0].Store(t.Context(), batch) {
				require.NoError(t, o.Err)
			}
			if len(early) < size/2 {
				early = recs[:len(early)+len(batch)]
			} else {
				during.next(t, w.nodes[8])
			}
		}
		require.NotEmpty(t, during.q.After)
		require.False(t, during.all, "some pages were read before the end, others come now")
		t.Logf("stored in %s of virtual time", time.Since(start))
		time.Sleep(5 * time.Minute)
		requireBounded(t, w)
		for range size {
			during.next(t, w.nodes[8])
		}
		during.requireOnce(t, early)

		plans := orders(t)
		for name, plan := range plans {
			found, err := w.nodes[7].Query(t.Context(), plan)
			require.NoError(t, err)
			require.Equal(t, best(plan, recs), keepertest.NamesOf(found.Records)[:min(plan.Limit(), len(found.Records))], name)
			require.True(t, found.Complete, "%s: %s", name, found.Reason)
			t.Logf("%-32s %3d descents", name, searchedCells(found))
		}
		requireClauses(t, w, recs)

		time.Sleep(30 * time.Minute)
		for _, n := range w.nodes {
			n.Index.Expire(time.Now())
		}
		split := func(n *lightNode) bool { return splitsAt(n.Keeper) > 0 }
		merging := pagesOf(1)
		for since := time.Now(); slices.ContainsFunc(w.nodes, split); time.Sleep(time.Minute) { // four levels merge one after the other
			require.Less(t, time.Since(since), 3*time.Hour, "all cells are whole again")
			merging.next(t, w.nodes[8])
		}
		var live []*records.Record
		for _, r := range recs {
			if !r.Expired(time.Now()) {
				live = append(live, r)
			}
		}
		for range live {
			merging.next(t, w.nodes[8])
		}
		merging.requireOnce(t, live)
		for name, plan := range plans {
			found, err := w.nodes[9].Query(t.Context(), plan)
			require.NoError(t, err)
			require.Equal(t, best(plan, recs), keepertest.NamesOf(found.Records)[:min(plan.Limit(), len(found.Records))], name)
			require.True(t, found.Complete, "%s: %s", name, found.Reason)
			require.Zero(t, searchedCells(found), name)
		}
	})
}

// splitsAt returns the number of split cells at a keeper.
func splitsAt(k *Keeper) int { return len(k.splits.Keys()) }

// splitState is the state of a split cell.
type splitState struct {
	phase   cell.Phase
	sampled int
}

// splitStatesOf copies the states: a failed requirement under the lock would block the close of the
// keeper.
func splitStatesOf(k *Keeper) map[records.CellKey]splitState {
	all := make(map[records.CellKey]splitState)
	for _, c := range k.splits.Keys() {
		k.splits.With(c, func(x *cell.Cell) {
			phase, _ := x.Phase()
			all[c] = splitState{phase, len(x.Sampled())}
		})
	}
	return all
}

// requireBounded checks the bounds of every cell at every keeper.
func requireBounded(t *testing.T, w *lightCluster) {
	t.Helper()
	divided, most, held := map[string]int{}, 0, 0
	for _, n := range w.nodes {
		held = max(held, n.Index.Len())
		for c, d := range splitStatesOf(n.Keeper) {
			require.Equal(t, cell.Split, d.phase, c)
			require.LessOrEqual(t, d.sampled, cell.SampleSize)
			divided[string(c.Cell)]++
		}
		seen := map[records.CellKey]bool{}
		for r := range n.Index.All() {
			for _, c := range r.Cells() {
				if seen[c] {
					continue
				}
				seen[c] = true
				if n.splits.Phase(c) == cell.Whole && slices.Contains(w.keepersOf(c), n) {
					count := n.Index.CountIn(c, time.Now(), 1<<30)
					require.LessOrEqual(t, count, cell.Capacity(c.Cell), c)
					most = max(most, count)
				}
			}
		}
	}
	require.NotEmpty(t, divided)
	names := make([]string, 0, len(divided))
	for name := range divided {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) })
	t.Logf("split: %v; most in a whole cell: %d; most in an index: %d", names, most, held)
}
