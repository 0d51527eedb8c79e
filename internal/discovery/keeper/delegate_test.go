package keeper

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/pkg/records/delegation"
)

// delegatedOffers is a large network with the offers of a provider and of its delegates.
type delegatedOffers struct {
	listedOffers
	delegates []keepertest.Provider
	manifests []*records.Record // of the provider, and of each delegate
}

// newDelegatedOffers makes some offers of the provider and of each delegate. The provider names its delegates.
func newDelegatedOffers(t *testing.T, numbers ...int) *delegatedOffers {
	w := &delegatedOffers{listedOffers: listedOffers{lightCluster: newLightCluster(t, 120), owner: keepertest.NewProvider(t)}}
	var named []peer.ID
	for range numbers[1:] {
		d := keepertest.NewProvider(t)
		w.delegates, named = append(w.delegates, d), append(named, d.Id)
	}
	for i, n := range numbers {
		if i == 0 {
			w.announce(w.owner, n, nil, named...)
			continue
		}
		d, err := delegation.Sign("test", w.owner.Key, w.delegates[i-1].Id, time.Now(), time.Hour)
		require.NoError(t, err)
		w.announce(w.delegates[i-1], n, d)
	}
	w.plan = keepertest.Compile(t, query.Query{ProviderID: w.owner.Id.String(), Limit: query.MaxLimit, Explain: true})
	return w
}

// announce stores n offers and their manifest.
func (w *delegatedOffers) announce(by keepertest.Provider, n int, d *delegation.Signed, named ...peer.ID) {
	st := records.Stamp{Sequence: 1, Issued: time.Now(), Expires: time.Now().Add(time.Hour), OfferedFor: d}
	var offers []*records.Record
	for i := range n {
		r, err := records.Sign("test", by.Key, keepertest.Offer(fmt.Sprint("o", i), keepertest.Nowhere, keepertest.Priced(float64(i))), st)
		require.NoError(w.t, err)
		offers = append(offers, r)
	}
	st.Sequence++
	m, err := records.SignManifest("test", by.Key, offers, named, st)
	require.NoError(w.t, err)
	w.offers, w.manifests = append(w.offers, offers...), append(w.manifests, m)
	w.store(append(offers, m)...)
}

// strangers keep nothing of the provider or its delegates.
func (w *delegatedOffers) strangers() (list []*lightNode) {
	for _, n := range w.nodes {
		if len(n.Index.Offering(w.owner.Id)) == 1 && len(n.Index.OfProvider(w.owner.Id)) == 0 {
			list = append(list, n)
		}
	}
	require.NotEmpty(w.t, list)
	return list
}

// A question for a provider finds its offers and those of its delegates, in any order and with filters, and proves that none is missing.
func TestDelegatesBelongToTheirProvider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDelegatedOffers(t, 100, 100, 50)
		defer w.close()
		for i, n := range w.strangers()[:6] {
			found := w.query(n, w.plan)
			require.True(t, found.Complete, found.Reason)
			require.Len(t, found.Records, 250)
			require.Equal(t, 250, found.Total)
			require.Equal(t, w.manifests[0].Issued(), found.Proved)

			most, q := 1.5, w.plan.Query()
			q.MaxPrice, q.Currency, q.PriceUnit = &most, "USDC", "per-hour"
			require.Len(t, w.query(n, keepertest.Compile(t, q)).Records, 6)
			q = w.plan.Query()
			q.Limit, q.Sort = 3, query.SortPrice
			cheapest := w.query(w.strangers()[i], keepertest.Compile(t, q))
			require.True(t, cheapest.Complete, cheapest.Reason)
			for _, r := range cheapest.Records[:3] {
				require.Equal(t, "o0", r.Name().ID)
			}
		}
		q := w.plan.Query()
		q.ProviderID = w.delegates[1].Id.String()
		found := w.query(w.strangers()[0], keepertest.Compile(t, q))
		require.Len(t, found.Records, 50, "the name of an offer has the delegate")
		require.False(t, found.Proved.IsZero())
		for _, r := range found.Records {
			require.Equal(t, w.owner.Id, r.OfferedFor())
		}
		w.requireTrust()
	})
}

// Each keeper of the provider's cell that tells of a delegate is enough, and so is the provider. Whoever hides the list of a delegate, or
// its offers, makes the answer incomplete.
func TestHiddenDelegates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDelegatedOffers(t, 5, 5, 5)
		defer w.close()
		n := w.strangers()
		cell := records.ProviderCell(w.owner.Id)
		only := func(of keepertest.Provider) (list []*lightNode) {
			beside := w.keepersOf(records.ProviderCell(of.Id))
			for _, k := range w.keepersOf(cell) {
				if !slices.Contains(beside, k) {
					list = append(list, k)
				}
			}
			return list
		}
		ask := func(i int) query.Found { return w.query(n[i], w.plan) }

		w.hide(only(w.delegates[0]), w.manifests[1])
		require.Len(t, ask(0).Records, 15, "the provider names it")
		require.False(t, ask(0).Proved.IsZero())

		w.hide(w.keepersOf(cell), w.manifests[0])
		found := ask(1)
		require.True(t, found.Complete, found.Reason)
		require.True(t, found.Proved.IsZero(), "nobody tells that there are no more")
		w.store(w.manifests...)

		w.hide(w.keepersOf(records.ProviderCell(w.delegates[1].Id)), w.offers[10:]...)
		found = ask(2)
		require.False(t, found.Complete)
		require.Contains(t, found.Reason, "5 of 5 offers that its delegate "+w.delegates[1].Id.String()+" lists are missing")

		w.hide(w.nodes, w.offers[10:]...)
		w.hide(w.nodes, w.manifests[2])
		found = ask(3)
		require.False(t, found.Complete)
		require.Len(t, found.Records, 10)
		require.Contains(t, found.Reason, "the provider names the delegate "+w.delegates[1].Id.String())
		require.True(t, found.Proved.IsZero())
		found = w.query(w.keepersOf(cell)[0], w.plan)
		require.False(t, found.Complete)
		w.requireTrust()
	})
}

// A stranger that claims to offer for the provider is no delegate, and a delegate that ends is none any more.
func TestDelegateEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDelegatedOffers(t, 2, 3)
		defer w.close()
		stranger := keepertest.NewProvider(t)
		d, err := delegation.Sign("test", w.owner.Key, w.delegates[0].Id, time.Now(), time.Hour)
		require.NoError(t, err)
		_, err = records.Sign("test", stranger.Key, keepertest.Offer("x"), records.Stamp{Sequence: 1, Issued: time.Now(), Expires: time.Now().Add(time.Hour), OfferedFor: d})
		require.ErrorContains(t, err, "is for the delegate")

		n := w.strangers()
		require.Len(t, w.query(n[0], w.plan).Records, 5)
		time.Sleep(time.Minute)
		var own []*records.Record
		st := records.Stamp{Sequence: 7, Issued: time.Now(), Expires: time.Now().Add(time.Hour)}
		for i := range 3 {
			r, err := records.Sign("test", w.delegates[0].Key, keepertest.Offer(fmt.Sprint("o", i), keepertest.Nowhere), st)
			require.NoError(t, err)
			own = append(own, r)
		}
		st.Sequence++
		m, err := records.SignManifest("test", w.delegates[0].Key, own, nil, st)
		require.NoError(t, err)
		w.store(append(own, m)...)
		for _, asker := range n[:4] {
			found := w.query(asker, w.plan)
			require.Len(t, found.Records, 2)
			require.True(t, found.Complete, found.Reason)
		}
		w.requireTrust()
	})
}
