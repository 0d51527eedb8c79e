package cities_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/testnet/cities"
)

func TestAll(t *testing.T) {
	all, err := cities.All()
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(all), 500)
	east, west := 0, 0
	for _, c := range all {
		require.NotEmpty(t, c.Name)
		require.Len(t, c.Country, 2, c.Name)
		require.Positive(t, c.Population, c.Name)
		if c.Country == "FJ" && c.Point.Lon > 0 {
			east++
		} else if c.Country == "FJ" {
			west++
		}
	}
	require.GreaterOrEqual(t, east, 4, "Fiji west of the antimeridian")
	require.GreaterOrEqual(t, west, 2, "Fiji beyond the antimeridian")
}

func TestFind(t *testing.T) {
	all, err := cities.All()
	require.NoError(t, err)
	suva, err := cities.Find(all, "Suva")
	require.NoError(t, err)
	apia, err := cities.Find(all, "Apia")
	require.NoError(t, err)
	require.InDelta(t, 1145, geo.Distance(suva.Point, apia.Point)/1000, 20) // not the long way round
	_, err = cities.Find(all, "Atlantis")
	require.ErrorContains(t, err, "Atlantis")
}
