package offer

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/query"
)

// TestEveryFieldHasAFlag expects an existing flag for every field of a query, so that errors
// name existing flags.
func TestEveryFieldHasAFlag(t *testing.T) {
	cmd := offerFind(new(term.Console))
	var fields []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[query.Query]()) {
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag != "" && tag != "-" {
			fields = append(fields, tag)
		}
	}
	require.Contains(t, fields, "min_uptime") // from an embedded struct
	for _, field := range append(fields, "near.latitude", "near.longitude", "near.radius_km", "countries[3]", "attributes.tier") {
		flag, ok := strings.CutPrefix(queryFields().Of(field), "--")
		require.True(t, ok, "%s has no flag", field)
		require.NotNil(t, cmd.Flags().Lookup(flag), "%s: no flag --%s", field, flag)
	}
	require.Equal(t, "near.altitude", queryFields().Of("near.altitude"))
}

func FuzzPlaceAndDistance(f *testing.F) {
	for _, s := range []string{"52.52,13.405", "1e3,-0", ",", "nan,inf", "10mi", "5 km", "m", "1_0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var p, again Place
		if p.Set(s) == nil {
			require.NoError(t, again.Set(p.String()), "what is shown can be given")
		}
		var d distance
		if d.Set(s) == nil {
			require.NotNil(t, d.km)
		}
	})
}

// TestCommonClauses expects a valid field and a use of every flag for common fields.
func TestCommonClauses(t *testing.T) {
	for _, c := range commonClauses() {
		var list []query.Clause
		f := clauses{to: &list, begin: c.begin}
		require.NoError(t, f.Set("8"), c.flag)
		require.Len(t, list, 1)
		require.Error(t, f.Set(""), c.flag)
	}
}
