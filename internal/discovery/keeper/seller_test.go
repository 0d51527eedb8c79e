package keeper

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/offers"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// seller is a provider at a node, whose prices change often.
type seller struct {
	*lightCluster
	node     *lightNode
	config   offers.Config
	registry *offers.Registry
	lossy    bool // keepers leave, so announcements may miss some
}

// newSeller returns a provider with one offer in a network that has settled.
func newSeller(t *testing.T, peers int) *seller {
	w := newLimitedCluster(t, peers, protocol.Limits{})
	for _, n := range w.nodes {
		n.sync.Table()
		n.sync.Know.SetInformed(true, time.Now())
	}
	s := &seller{lightCluster: w, node: w.nodes[0], config: offers.Config{
		Network: "test", Dir: "/r", FS: vfs.NewMem(), Key: keepertest.NewProvider(t).Key,
	}}
	s.open()
	recs, errs := s.registry.Register([]records.Offer{s.offer(1)}, time.Now())
	require.NoError(t, errs[0])
	s.announce(recs)
	time.Sleep(25 * time.Minute)
	return s
}

func (s *seller) open() {
	var err error
	s.registry, err = offers.Open(s.config, time.Now())
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

func (s *seller) offer(price float64) records.Offer {
	return keepertest.Offer("o", keepertest.Priced(price))
}

// announce stores versions as the service does.
func (s *seller) announce(recs []*records.Record) {
	if len(recs) == 0 {
		return
	}
	for i, o := range s.node.Store(s.t.Context(), recs) {
		require.NoError(s.t, o.Err)
		require.True(s.t, s.lossy || o.Stored.Of == o.Stored.On)
		s.registry.Announced(recs[i].Name(), recs[i].Sequence(), o.Stored, time.Now())
	}
}

func (s *seller) price(price float64) *records.Record {
	r, err := s.registry.Update(s.offer(price), time.Now())
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

// A price that changes each second reaches the keepers of all cells at once, so that every question gets the last
// one. No answer about it is incomplete, and nobody takes an honest keeper for one that lacks something.
func TestEachChangeReachesEverybody(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		s := newSeller(t, 60)
		defer s.close()
		random := rand.New(rand.NewPCG(1, 1))
		const middle = 50.5
		wide := keepertest.Compile(t, query.Query{Limit: 10, Sort: query.SortPrice, Explain: true})
		cheap := keepertest.Compile(t, query.Query{Limit: 10, Sort: query.SortPrice, Price: query.Price{MaxPrice: ptr(middle), Currency: "USDC", PriceUnit: "per-hour"}, Explain: true})
		city := keepertest.Compile(t, keepertest.Around(10))
		own := keepertest.Compile(t, query.Query{ProviderID: s.registry.Self().String()})
		for step := range 60 {
			price := float64(100 - random.IntN(100))
			last := s.price(price)
			require.Zero(t, s.behind(last), "step %d", step)
			for _, p := range []*queries.Plan{wide, cheap, city, own} {
				found, err := s.nodes[1+random.IntN(len(s.nodes)-1)].Query(t.Context(), p)
				require.NoError(t, err)
				require.True(t, found.Complete, "step %d: %s, %v", step, found.Reason, found.Notes)
				if p == cheap && price > middle {
					require.Empty(t, found.Records, "step %d", step)
					continue
				}
				require.Len(t, found.Records, 1)
				require.Equal(t, last.Sequence(), found.Records[0].Sequence(), "step %d: %v", step, found.Notes)
			}
			if step == 30 {
				s.restart()
			}
			s.wait(time.Second)
		}
		s.requireTrust()
	})
}

func ptr[T any](v T) *T { return &v }
