package market_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/cities"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/testnet/market"
)

func offers(t *testing.T, n int) []records.Offer {
	t.Helper()
	all, err := cities.All()
	require.NoError(t, err)
	made, err := market.Offers(all, n, 1)
	require.NoError(t, err)
	return made
}

func TestOffersAreValid(t *testing.T) {
	made := offers(t, 2500)
	require.Len(t, made, 2500)
	require.Equal(t, made, offers(t, 2500), "the same for the same seed")
	ids := map[string]bool{}
	for _, o := range made {
		require.NoError(t, o.Validate(), o.ID)
		require.False(t, ids[o.ID], "%s twice", o.ID)
		ids[o.ID] = true
	}
}

// TestFewOffersSuffice: with the least number every search of the tour has something to find.
func TestFewOffersSuffice(t *testing.T) {
	m := listed(offers(t, market.MinOffers), 3)
	require.NotEmpty(t, m.Where(market.Listing.GPU))
	require.NotEmpty(t, m.Where(func(l market.Listing) bool { return l.Type() == "storage" && l.Usable() }))
	require.NotEmpty(t, m.Where(func(l market.Listing) bool { return !l.Usable() }))
	around := market.DistanceKM(geo.Point{Lat: -16.8, Lon: 179.99})
	east := m.Where(func(l market.Listing) bool { return around(l) < 300 && l.Point().Lon > 0 })
	west := m.Where(func(l market.Listing) bool { return around(l) < 300 && l.Point().Lon < 0 })
	require.NotEmpty(t, east)
	require.NotEmpty(t, west)

	_, err := market.Offers(nil, market.MinOffers-1, 1)
	require.ErrorIs(t, err, fault.Invalid)
	require.Equal(t, "records", fault.FieldOf(err))
}

// provider makes a peer id without a peer.
func provider(i int) peer.ID {
	return peer.ID(append([]byte("\x00\x24\x08\x01\x12\x20"), fmt.Sprintf("%032d", i)...))
}

func listed(offers []records.Offer, providers int) *market.Market {
	m := new(market.Market)
	for i, o := range offers {
		m.Add(market.Listing{Offer: o, Provider: provider(i % providers)})
	}
	return m
}

// TestNearest: no offer outside the answer is nearer than one inside.
func TestNearest(t *testing.T) {
	m := listed(offers(t, 300), 5)
	seed := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		from := geo.Point{Lat: -80 + 160*seed.Float64(), Lon: -180 + 360*seed.Float64()}
		near := m.Where(market.Listing.GPU).By(market.DistanceKM(from)).First(3)
		for i := 1; i < len(near); i++ {
			require.LessOrEqual(t, market.DistanceKM(from)(near[i-1]), market.DistanceKM(from)(near[i]))
		}
		for _, other := range m.Where(market.Listing.GPU) {
			if market.DistanceKM(from)(other) < market.DistanceKM(from)(near[0]) {
				t.Fatalf("%s is nearer to %v than %s", other.Name(), from, near[0].Name())
			}
		}
	}
}

func TestMarketChanges(t *testing.T) {
	m := listed(offers(t, 30), 3)
	all := func(market.Listing) bool { return true }
	one := m.Where(all)[0]

	cheaper, price := one.Offer, 0.0
	pricing := *one.Offer.Pricing
	pricing.BasePrice, cheaper.Pricing = &price, &pricing
	m.Update(one.Provider, cheaper)
	require.Equal(t, one.Name(), m.Where(all).By(market.Price)[0].Name())

	m.Down(one.Provider)
	require.Len(t, m.Where(func(l market.Listing) bool { return l.Down }), 10)
	require.NotContains(t, names(m.Where(market.Listing.Usable)), one.Name())

	m.Withdraw(one.Name())
	require.Len(t, m.Where(all), 29)
	require.NotContains(t, names(m.Where(all)), one.Name())
}

func names(s market.Selection) (out []records.Name) {
	for _, l := range s {
		out = append(out, l.Name())
	}
	return out
}

func TestCompare(t *testing.T) {
	want := listed(offers(t, 30), 3).Where(func(l market.Listing) bool { return l.Type() == "cdn" }).First(3)
	answer := func(s ...market.Listing) (a query.AnswerView) {
		for _, l := range s {
			a.Results = append(a.Results, query.ResultView{Record: records.View{Offer: l.Offer, ProviderID: l.Provider.String()}})
		}
		a.Reason = "a keeper did not answer"
		return a
	}
	require.NoError(t, want.Compare(answer(want...)))
	require.ErrorContains(t, want.Compare(answer(want[0], want[2], want[1])), "result 2 is "+want[2].Name().String())
	require.ErrorContains(t, want.Compare(answer(want[0], want[1])), "a keeper did not answer")
	require.ErrorContains(t, want[:2].Compare(answer(want...)), "expected 2 results")
	require.Error(t, want.Compare(query.AnswerView{Results: []query.ResultView{{}}}))
	require.Equal(t, []string{"cdn"}, want.Kinds())
}
