package keeper

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/place"
	"github.com/blackhole/blackhole/internal/discovery/registry"
	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// seller is a provider at a node, whose prices change often.
type seller struct {
	*lightCluster
	node     *lightNode
	config   registry.Config
	registry *registry.Registry
	lossy    bool // keepers leave, so announcements may miss some
}

func newSeller(t *testing.T, peers, offers int) *seller {
	limits, settled := wire.Limits{}, 25*time.Minute // a large network settles
	if peers > 100 {                                 // for figures: without comparisons
		limits.Sync, settled = -1, 2*records.NewsWithin
	}
	w := newLimitedCluster(t, peers, limits)
	for _, n := range w.nodes {
		n.sync.Table()
		n.sync.Know.SetInformed(true, time.Now())
	}
	s := &seller{lightCluster: w, node: w.nodes[0], config: registry.Config{
		Network: "test", Dir: "/r", FS: vfs.NewMem(), Key: keepertest.NewProvider(t).Key,
	}}
	s.open()
	for i := range offers {
		recs, errs := s.registry.Register([]records.Offer{s.offer(i, 1)}, time.Now())
		require.NoError(t, errs[0])
		s.announce(recs)
	}
	time.Sleep(settled)
	return s
}

func (s *seller) open() {
	var err error
	s.registry, err = registry.Open(s.config, time.Now())
	require.NoError(s.t, err)
}

func (s *seller) restart() {
	require.NoError(s.t, s.registry.Close())
	s.open()
}

func (s *seller) close() {
	require.NoError(s.t, s.registry.Close())
	s.lightCluster.close()
}

func (s *seller) offer(i int, price float64) records.Offer {
	return keepertest.Offer(fmt.Sprint("o", i), keepertest.Priced(price))
}

// announce stores versions as the service does.
func (s *seller) announce(recs []*records.Record) {
	if len(recs) == 0 {
		return
	}
	store := s.node.Store
	if len(recs) == 1 && s.registry.Early(recs[0]) {
		store = s.node.StoreEarly
	}
	for i, o := range store(s.t.Context(), recs) {
		require.NoError(s.t, o.Err)
		require.True(s.t, s.lossy || o.Stored.Of == o.Stored.On)
		s.registry.Announced(recs[i].Name(), recs[i].Sequence(), o.Stored, time.Now())
	}
}

func (s *seller) price(i int, price float64) *records.Record {
	r, err := s.registry.Update(s.offer(i, price), time.Now())
	require.NoError(s.t, err)
	s.announce([]*records.Record{r})
	return r
}

func (s *seller) wait(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(min(time.Second, time.Until(end))) {
		s.announce(s.registry.Due(time.Now(), 1000))
	}
}

// behind counts the keepers of a cell of a record that lack its version.
func (s *seller) behind(r *records.Record) (n int) {
	for _, c := range r.Cells() {
		for _, k := range s.keepersOf(c) {
			if latest, ok := k.Index.Latest(r.Name()); !ok || latest.Digest() != r.Digest() {
				n++
			}
		}
	}
	return n
}

// Prices that change each second reach questions about the city and the provider at once, and all others within a minute. No answer about
// them is incomplete, and nobody takes a keeper that awaits the news for one that lacks something.
func TestNewsReachesEverybodyInTime(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		s := newSeller(t, 60, 1)
		defer s.close()
		random := rand.New(rand.NewPCG(1, 1))
		wide := keepertest.Compile(t, query.Query{Limit: 10, Sort: query.SortPrice, Explain: true})
		cheap := keepertest.Compile(t, query.Query{Limit: 10, Sort: query.SortPrice, Price: query.Price{MaxPrice: ptr(50.5), Currency: "USDC", PriceUnit: "per-hour"}, Explain: true})
		city := keepertest.Compile(t, keepertest.Around(10))
		own := keepertest.Compile(t, query.Query{ProviderID: s.registry.Self().String()})
		var last *records.Record
		shown := map[uint64]time.Time{} // when each version was made
		some := func() *lightNode { return s.nodes[1+random.IntN(len(s.nodes)-1)] }
		for step := range 150 {
			last = s.price(0, float64(100-random.IntN(100)))
			shown[last.Sequence()] = time.Now()
			for _, p := range []*query.Plan{city, own} {
				found, err := some().Query(t.Context(), p)
				require.NoError(t, err)
				require.True(t, found.Complete, found.Reason)
				require.Equal(t, last.Sequence(), found.Records[0].Sequence(), "step %d: %v", step, found.Notes)
			}
			found, err := some().Query(t.Context(), wide)
			require.NoError(t, err)
			require.True(t, found.Complete, "step %d: %s, %v", step, found.Reason, found.Notes)
			if at, ok := shown[found.Records[0].Sequence()]; ok {
				require.Less(t, time.Since(at), records.NewsWithin+2*time.Second)
			}
			found, err = some().Query(t.Context(), cheap)
			require.NoError(t, err)
			require.True(t, found.Complete, "step %d: %s, %v", step, found.Reason, found.Notes)
			if step == 75 {
				s.restart()
			}
			s.wait(time.Second)
		}
		s.requireTrust()
		s.wait(records.NewsWithin)
		require.Zero(t, s.behind(last))
	})
}

func count(set map[*lightNode]bool) (n int) {
	for _, in := range set {
		if in {
			n++
		}
	}
	return n
}

func ptr[T any](v T) *T { return &v }

// A withdrawal goes to all keepers at once, and what they were owed does not bring the offer back.
func TestWithdrawalOvertakesNews(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		s := newSeller(t, 60, 1)
		defer s.close()
		for i := range 5 {
			s.price(0, float64(i+2))
		}
		r, err := s.registry.Withdraw("o0", time.Now())
		require.NoError(t, err)
		s.announce([]*records.Record{r})
		require.Zero(t, s.behind(r))
		s.wait(2 * records.NewsWithin)
		require.Zero(t, s.behind(r))
	})
}

// News costs the keepers of wide cells little. BLACKHOLE_KEEPER_PEERS and BLACKHOLE_KEEPER_RECORDS (offers of the provider, all of which
// change each second) choose another network.
func TestLoadOfNews(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		peers, offers := number(t, "BLACKHOLE_KEEPER_PEERS", 60), number(t, "BLACKHOLE_KEEPER_RECORDS", 1)
		s := newSeller(t, peers, offers)
		defer s.close()
		var before uint64
		for _, n := range s.nodes {
			before += n.Index.Seq()
			n.counts.Forget()
		}
		seconds := max(10, 120/offers)
		var last *records.Record
		for i := range seconds {
			for o := range offers {
				last = s.price(o, float64(2+i))
			}
			s.wait(time.Second)
		}
		end := time.Now()
		for s.behind(last) > 0 {
			s.wait(time.Second)
		}
		requests, pulls, taken := 0, 0, -before
		for _, n := range s.nodes {
			requests += n.counts.Operations("serve_store")
			pulls += n.counts.Operations("serve_pull")
			taken += n.Index.Seq()
		}
		all, early := map[*lightNode]bool{}, map[*lightNode]bool{}
		for _, c := range last.Cells() {
			for _, k := range s.keepersOf(c) {
				all[k] = true
				early[k] = early[k] || place.Early(c)
			}
		}
		delete(all, s.node)
		changes := float64(seconds * offers)
		t.Logf("%d peers, %d offers that change each second: %.1f STORE requests, %.2f PULL requests and %.1f records taken a change; %s until all keepers had the last; it has %d keepers, %d early",
			peers, offers, float64(requests)/changes, float64(pulls)/changes, float64(taken)/changes, time.Since(end), len(all), count(early))
		require.LessOrEqual(t, time.Since(end), records.NewsWithin+time.Second)
	})
}
