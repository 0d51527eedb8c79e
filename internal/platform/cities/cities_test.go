package cities_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/cities"
	"github.com/blackhole/blackhole/pkg/geo"
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

// TestFindLikePeople: names as people type them.
func TestFindLikePeople(t *testing.T) {
	all, err := cities.All()
	require.NoError(t, err)
	for typed, name := range map[string]string{
		"berlin": "Berlin", "sao paulo": "São Paulo", "SÃO PAULO": "São Paulo", "zurich": "Zürich", "frankfurt": "Frankfurt am Main",
		"Cologne": "Köln", "nuremberg, de": "Nürnberg", "hanover": "Hannover", "seville": "Sevilla", "gothenburg": "Göteborg", "antwerp": "Antwerpen", "kiev": "Kyiv",
		"bombay": "Mumbai", "calcutta": "Kolkata", "bangalore": "Bengaluru", "madras": "Chennai", "peking": "Beijing", "saigon": "Ho Chi Minh City", "rangoon": "Yangon",
		"New York": "New York City", "Hyderabad, pk": "Hyderabad", "san jose,us": "San Jose", " tallinn ": "Tallinn",
	} {
		c, err := cities.Find(all, typed)
		require.NoError(t, err, typed)
		require.Equal(t, name, c.Name, typed)
	}
	for _, typed := range []string{"", ",DE", "Berlin, FR", "Ber", " "} {
		_, err := cities.Find(all, typed)
		require.Error(t, err, typed)
	}
	for _, c := range all {
		for _, r := range cities.Plain(c.Name) {
			require.Less(t, r, rune(128), c.Name)
		}
	}
}
