package keeper

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/compare"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// copied is a large network with more records than one cell holds, and one peer with a copy of them.
type copied struct {
	*lightCluster
	recs      []*records.Record
	owner     keepertest.Provider // the volunteer's key
	volunteer *lightNode
	asker     *lightNode
}

const roundTrip = 50 * time.Millisecond

func newCopied(t *testing.T, n int, places spread) *copied {
	w := &copied{lightCluster: newLightCluster(t, 40), recs: world(t, n, places)}
	for range 5 {
		w.recs = append(w.recs, keepertest.NewProvider(t).Sign(t, keepertest.Offer("nowhere", keepertest.Nowhere), 1, time.Now()))
	}
	w.store(w.recs)
	time.Sleep(10 * time.Minute)
	w.keep = []string{"compute"}
	w.owner = keepertest.NewProvider(t)
	w.volunteer = w.join(w.owner.Id, wire.Limits{Sync: -1})
	w.asker = w.nodes[7]
	w.hosts.lose(func(_, _ peer.ID) bool { time.Sleep(roundTrip / 2); return false })
	time.Sleep(25 * time.Minute) // all know the volunteer
	return w
}

func (w *copied) store(recs []*records.Record) {
	for batch := range slices.Chunk(recs, 1000) {
		for _, o := range w.nodes[0].Store(w.t.Context(), batch) {
			require.NoError(w.t, o.Err)
		}
	}
}

func (w *copied) ask(n *lightNode, p *query.Plan) (found query.Found, requests int, took time.Duration) {
	n.counts.Forget()
	began := time.Now()
	found, err := n.Query(w.t.Context(), p)
	require.NoError(w.t, err)
	return found, n.counts.Operations("ask"), time.Since(began)
}

func (w *copied) exact(p *query.Plan, found query.Found) bool {
	return slices.Equal(best(p, w.recs), keepertest.NamesOf(found.Records)[:min(p.Limit(), len(found.Records))])
}

// One peer with a copy answers each question about the whole world in one round trip.
func TestCopyAnswersInOneRoundTrip(t *testing.T) {
	for name, places := range map[string]spread{"uniform": uniform, "cities": atCities()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newCopied(t, scaled(t, 3000), places)
				defer w.close()
				plans := worldQueries(t)
				names := slices.Sorted(maps.Keys(plans))
				type figure struct {
					requests int
					took     time.Duration
				}
				without := make(map[string]figure)
				for _, name := range names {
					found, requests, took := w.ask(w.asker, plans[name])
					require.False(t, found.Copy)
					require.True(t, w.exact(plans[name], found), name)
					without[name] = figure{requests, took}
				}
				w.announce()
				for _, name := range names {
					found, requests, took := w.ask(w.asker, plans[name])
					t.Logf("%d records, %-24s without a copy %3d requests, %5s; with a copy %2d, %5s; used %t, complete %t %s", len(w.recs), name,
						without[name].requests, without[name].took, requests, took, found.Copy, found.Complete, found.Reason)
					require.True(t, w.exact(plans[name], found), name)
					require.True(t, found.Complete, "%s: %s", name, found.Reason)
					require.True(t, found.Copy, "%s: %s", name, found.Notes)
					require.LessOrEqual(t, took, roundTrip*3/2)
				}
				w.requireTrust()
			})
		})
	}
}

// announce completes the copy, stores the offer of it, and waits until the asker has found it.
func (w *copied) announce() {
	t := w.t
	w.volunteer.copies.Round(t.Context(), "compute")
	require.Empty(t, w.volunteer.copies.Copy("compute").Lacks)
	offer := w.owner.Sign(t, compare.Offered("compute"), 1, time.Now())
	for _, o := range w.nodes[0].Store(t.Context(), []*records.Record{offer}) {
		require.NoError(t, o.Err)
	}
	time.Sleep(6 * time.Minute)
	w.ask(w.asker, keepertest.Compile(t, query.Query{Limit: 1}))
	time.Sleep(5 * time.Second)
	w.volunteer.counts.Forget()
	began := time.Now()
	w.volunteer.copies.Round(t.Context(), "compute")
	t.Logf("a round without news: %d questions, %s", w.volunteer.counts.Operations("ask")+w.volunteer.counts.Operations("copy"), time.Since(began))
}
