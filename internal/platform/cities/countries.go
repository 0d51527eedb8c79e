package cities

import (
	_ "embed"
	"encoding/csv"
	"strings"

	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/internal/platform/spelling"
	"github.com/blackhole/blackhole/pkg/fault"
)

// The names of the tz database (iso3166.tab, public domain), some of them in full, and other common ones at its end.
//
//go:embed countries.csv
var countries string

// Country returns the code (ISO 3166-1 alpha-2) of a country by its English name. What has two letters stays as it is.
// Errors: Invalid, with the codes of countries that are spelt alike.
func Country(name string) (code string, err error) {
	if len(name) == 2 {
		return name, nil
	}
	rows, err := csv.NewReader(strings.NewReader(countries)).ReadAll()
	if err != nil {
		return "", fault.As("cities.Country", fault.Internal, err)
	}
	accents := withoutAccents()
	codes, names := make(map[string]string, len(rows)), make([]string, len(rows))
	for i, row := range rows {
		names[i] = plain(accents, row[1])
		codes[names[i]] = row[0]
	}
	typed := plain(accents, strings.TrimSpace(name))
	if code := codes[typed]; code != "" {
		return code, nil
	}
	near := spelling.Nearest(typed, names)
	for i := range near {
		near[i] = codes[near[i]]
	}
	name = clean.Text(name, maxName)
	return "", fault.Invalidf("", name,
		"must be a country code of two letters (ISO 3166-1 alpha-2) or an English name, not %q%s", name, spelling.Meant(near))
}
