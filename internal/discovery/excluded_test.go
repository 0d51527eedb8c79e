package discovery_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/query"
)

// providers keeps one record of each of n providers, the cheapest first, and returns the providers in that order.
func (f *fixture) providers(n int) (ids []peer.ID) {
	for i := range n {
		f.other = newKey(f.t)
		r := f.foreign(fmt.Sprintf("s%04d", i), 1+float64(i), 1, 24*time.Hour)
		f.keep(r)
		ids = append(ids, r.Name().Provider)
	}
	return ids
}

// cheapest asks for the n cheapest offers.
func cheapest(n int) query.Query {
	return query.Query{Type: "storage", Sort: query.SortPrice, Limit: n, Price: query.Price{Currency: "USDC", PriceUnit: "per-gb-month"}}
}

func TestAllUnreachableProvidersAreLeftOut(t *testing.T) {
	for _, dead := range []int{1, 257, 980} {
		t.Run(fmt.Sprint(dead), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				defer f.close()
				ids := f.providers(dead + 20)
				f.ask(cheapest(queries.MaxLimit)) // all are in the index
				f.net.limited.Store(true)
				since := f.lose(ids[:dead]...)
				a := f.ask(cheapest(10))
				require.True(t, a.Complete, a.Reason)
				require.Len(t, a.Results, 10)
				for i, r := range a.Results {
					require.Equal(t, ids[dead+i], r.Record.Name().Provider)
				}
				require.Len(t, a.Excluded, min(dead, queries.MaxExcluded))
				require.Equal(t, "no answer at any of its addresses", a.Excluded[0].Reason)
				require.WithinRange(t, a.Excluded[0].Since, since, since.Add(time.Minute))
				require.Equal(t, dead, a.ExcludedTotal)
				require.True(t, slices.IsSortedFunc(a.Excluded, func(a, b query.Excluded) int {
					x, _ := peer.Decode(a.Provider)
					y, _ := peer.Decode(b.Provider)
					return cmp.Compare(x, y)
				}))
			})
		})
	}
}

// TestTooManyUnreachableProviders: where those left out took places of others, the answer says that it lacks results, and the next one knows
// them. Beyond the largest window it stays so.
func TestTooManyUnreachableProviders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.net.limited.Store(true)
		ids := f.providers(queries.MaxLimit + 20)
		f.ask(cheapest(queries.MaxLimit))
		f.lose(ids[:queries.MaxLimit]...)
		a := f.ask(cheapest(10))
		require.Empty(t, a.Results)
		require.False(t, a.Complete)
		require.Equal(t, "offers that do not answer took places of others: ask again", a.Reason)
	})
}

// TestExcludedProvidersAreTold, and only those with a match.
func TestExcludedProvidersAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		ids := f.providers(3)
		f.ask(storage())
		since := f.lose(ids[1])
		f.peers.set("a stranger", false)
		for _, local := range []bool{false, true} {
			f.net.local.Store(local)
			a := f.ask(storage())
			require.Len(t, a.Results, 2)
			require.True(t, a.Complete, "the provider left out is named")
			require.Equal(t, []query.Excluded{{Provider: ids[1].String(), Reason: "no answer at any of its addresses", Since: since}}, a.Excluded)
			require.Equal(t, 1, a.ExcludedTotal)
			cached := f.ask(storage())
			require.Equal(t, query.SourceCache, cached.Source)
			require.Equal(t, a.Excluded, cached.Excluded)
		}
		f.net.down.Store(true)
		f.net.local.Store(false)
		q := cheapest(5)
		a := f.ask(q)
		require.False(t, a.Complete)
		require.Len(t, a.Excluded, 1, "from the index")

		f.net.down.Store(false)
		q.Health = query.HealthAny
		a = f.ask(q)
		require.Len(t, a.Results, 3)
		require.Empty(t, a.Excluded)
	})
}

// TestOnlyLikelyProvidersAreMeasured: the first 15 of an answer, and the provider of a resolved key.
func TestOnlyLikelyProvidersAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		ids := f.providers(30)
		f.ask(cheapest(30))
		synctest.Wait()
		for i, id := range ids {
			require.Equal(t, i < 15, f.peers.has(id), i)
		}
		r := f.foreign("last", 99, 1, time.Hour)
		f.keep(r)
		_, err := f.Resolve(t.Context(), r.Key().String())
		require.NoError(t, err)
		synctest.Wait()
		require.True(t, f.peers.has(r.Name().Provider))
	})
}

// TestRemovalHasAReason: a watch says why a living record is gone.
func TestRemovalHasAReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		r := f.foreign("a", 1, 1, 24*time.Hour)
		f.arrive(r)
		limit := 5.0
		q := storage()
		q.MaxPrice, q.Currency, q.PriceUnit = &limit, "USDC", "per-gb-month"
		watch, _ := f.follow(q, "")
		defer watch.Close()
		since := f.lose(r.Name().Provider)
		ev := f.next(watch)
		for ev.Kind == query.Progress {
			ev = f.next(watch)
		}
		require.Equal(t, query.Removed, ev.Kind)
		require.Equal(t, "no answer at any of its addresses since "+since.UTC().Format(time.RFC3339), ev.Reason)
		f.peers.set(r.Name().Provider, true)
		for ev = f.next(watch); ev.Kind != query.Added; ev = f.next(watch) {
			require.Empty(t, ev.Reason)
		}
		f.arrive(f.foreign("a", 9, 2, 24*time.Hour))
		for ev = f.next(watch); ev.Kind != query.Removed; ev = f.next(watch) {
		}
		require.Contains(t, ev.Reason, "max_price")
	})
}
