// Package cities is a small gazetteer: the thousand largest cities of the world, and places
// around the antimeridian for searches across 180 degrees.
package cities

import (
	_ "embed"
	"encoding/csv"
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/internal/platform/spelling"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
)

// GeoNames (geonames.org), CC-BY 4.0; see README.md beside this file.
//
//go:embed cities.csv
var table string

// City is one place.
type City struct {
	Name       string
	Country    string // ISO 3166-1 alpha-2
	Point      geo.Point
	Population int
}

// All returns every city, largest first, small Pacific places last.
func All() ([]City, error) {
	rows, err := csv.NewReader(strings.NewReader(table)).ReadAll()
	if err != nil {
		return nil, fault.As("cities.All", fault.Internal, err)
	}
	all := make([]City, 0, len(rows))
	for _, row := range rows[1:] { // the first row names the columns
		city, err := parse(row)
		if err != nil {
			return nil, fault.Wrap("cities.All", err)
		}
		all = append(all, city)
	}
	return all, nil
}

func parse(row []string) (City, error) {
	c := City{Name: row[0], Country: row[1]}
	lat, err := strconv.ParseFloat(row[2], 64)
	if err != nil {
		return City{}, fault.Invalidf("latitude", row[2], "%s: %w", c.Name, err)
	}
	lon, err := strconv.ParseFloat(row[3], 64)
	if err != nil {
		return City{}, fault.Invalidf("longitude", row[3], "%s: %w", c.Name, err)
	}
	if c.Point, err = geo.NewPoint(lat, lon); err != nil {
		return City{}, fault.Wrap(c.Name, err)
	}
	if c.Population, err = strconv.Atoi(row[4]); err != nil {
		return City{}, fault.Invalidf("population", row[4], "%s: %w", c.Name, err)
	}
	return c, nil
}

// Named is Find in the whole table. Errors: Invalid, with cities that are spelt alike.
func Named(name string) (City, error) {
	all, err := All()
	if err != nil {
		return City{}, err
	}
	c, err := Find(all, name)
	if err == nil {
		return c, nil
	}
	typed, country, _ := strings.Cut(name, ",")
	var names []string
	for _, c := range all {
		if country = strings.ToUpper(strings.TrimSpace(country)); country == "" || c.Country == country {
			names = append(names, c.Name)
		}
	}
	large := ""
	if country != "" && len(names) > 0 {
		large = " (" + strings.Join(names[:min(len(names), 3)], ", ") + ")" // the largest
	}
	name = clean.Text(name, maxName)
	return City{}, fault.Invalidf("", name,
		"%q is no known city: name a large one nearby%s, or LATITUDE,LONGITUDE in degrees (52.52,13.40)%s", name, large, spelling.Meant(spelling.Nearest(typed, names)))
}

// maxName bounds a name in an error, in bytes.
const maxName = 64

// Find returns the largest city with a name: Berlin, or with its country "Berlin, DE". Case and accents do not count,
// the first words of a name are enough: "frankfurt", and some English and former names are known. Errors: NotFound.
func Find(all []City, name string) (City, error) {
	accents := withoutAccents()
	wanted, country, _ := strings.Cut(plain(accents, name), ",")
	wanted, country = strings.TrimSpace(wanted), strings.ToUpper(strings.TrimSpace(country))
	if local := otherwise()[wanted]; local != "" {
		wanted = local
	}
	begun := -1
	for i, c := range all {
		if country != "" && c.Country != country || wanted == "" {
			continue
		}
		switch candidate := plain(accents, c.Name); {
		case candidate == wanted:
			return c, nil
		case begun < 0 && strings.HasPrefix(candidate, wanted+" "):
			begun = i
		}
	}
	if begun >= 0 {
		return all[begun], nil
	}
	return City{}, fault.New("cities.Find", fault.NotFound, "no city %q", name)
}

// otherwise lists the names of the table, plain, by English and former names of the same cities.
func otherwise() map[string]string {
	return map[string]string{
		"cologne": "koln", "nuremberg": "nurnberg", "hanover": "hannover", "seville": "sevilla", "gothenburg": "goteborg", "antwerp": "antwerpen", "kiev": "kyiv",
		"bombay": "mumbai", "calcutta": "kolkata", "bangalore": "bengaluru", "madras": "chennai", "peking": "beijing", "saigon": "ho chi minh city", "rangoon": "yangon",
	}
}

// Plain returns a name in lower case without accents.
func Plain(name string) string { return plain(withoutAccents(), name) }

func plain(accents *strings.Replacer, name string) string {
	return accents.Replace(strings.ToLower(name))
}

// withoutAccents replaces the letters of the table.
func withoutAccents() *strings.Replacer {
	return strings.NewReplacer(
		"á", "a", "â", "a", "ã", "a", "ç", "c", "è", "e", "é", "e", "í", "i", "ñ", "n", "ó", "o", "ö", "o",
		"ú", "u", "ü", "u", "ā", "a", "ğ", "g", "ī", "i", "ı", "i", "ł", "l", "ń", "n", "ō", "o", "ŏ", "o",
		"ş", "s", "ţ", "t", "ū", "u", "ŭ", "u", "ź", "z", "̇", "", "ḩ", "h", "‘", "'", "’", "'",
	)
}
