package cities_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/cities"
	"github.com/blackhole/blackhole/pkg/fault"
)

func TestCountry(t *testing.T) {
	for typed, want := range map[string]string{
		"Germany": "DE", "germany": "DE", "DE": "DE", "de": "de", "United Kingdom": "GB", "usa": "US", "UK": "UK", "Côte d'Ivoire": "CI", "Türkiye": "TR", " France ": "FR",
	} {
		code, err := cities.Country(typed)
		require.NoError(t, err, typed)
		require.Equal(t, want, code, typed)
	}
	_, err := cities.Country("Germny")
	require.ErrorContains(t, err, "did you mean DE?")
	_, err = cities.Country("Atlantis")
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	all, err := cities.All()
	require.NoError(t, err)
	for _, c := range all {
		code, err := cities.Country(c.Country)
		require.NoError(t, err)
		require.Len(t, code, 2)
	}
}

func TestNamed(t *testing.T) {
	c, err := cities.Named("berlin")
	require.NoError(t, err)
	require.Equal(t, "DE", c.Country)
	_, err = cities.Named("Berlim")
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	require.ErrorContains(t, err, "did you mean Berlin")
}
