package ui

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/cities"
)

var update = flag.Bool("update", false, "write the generated files of the page")

// TestCities: the page knows the cities of the command line.
func TestCities(t *testing.T) {
	all, err := cities.All()
	require.NoError(t, err)
	var want bytes.Buffer
	want.WriteString("// Generated from internal/platform/cities by go test -run TestCities -update: do not edit.\n" +
		"// Cities by name, for places without a network: name, latitude, longitude; large ones first. GeoNames, CC-BY 4.0.\n" +
		"export const cities = [\n")
	for _, c := range all {
		fmt.Fprintf(&want, "  [%s, %.2f, %.2f],\n", strconv.Quote(c.Name), c.Point.Lat, c.Point.Lon)
	}
	want.WriteString("];\n")
	const path = "static/cities.js"
	if *update {
		require.NoError(t, os.WriteFile(path, want.Bytes(), 0o600))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want.String(), string(got))
}
