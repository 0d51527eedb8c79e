package market_test

import (
	"fmt"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/cities"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
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
	around := func(l market.Listing) float64 {
		return geo.Distance(geo.Point{Lat: -16.8, Lon: 179.99}, l.Point()) / 1000
	}
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
