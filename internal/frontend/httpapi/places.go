package httpapi

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/internal/platform/cities"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
)

// questionIn reads a question in JSON. Its place may be a city: "Berlin", or {"city": "Berlin", "radius_km": 50}.
func questionIn(body []byte) (query.Query, error) {
	q, err := queries.ParseJSON(body)
	if field, _, _ := strings.Cut(fault.FieldOf(err), "."); field == "near" {
		var placed []byte
		if placed, err = withPlace(body, err); err == nil {
			q, err = queries.ParseJSON(placed)
		}
	}
	if err == nil {
		err = withCodes(&q)
	}
	return q, within("body", err)
}

// questionOf reads a question in parameters, where near may be a city.
func questionOf(values url.Values) (query.Query, error) {
	for i, text := range values["near"] {
		first, _, _ := strings.Cut(text, ",")
		if _, err := strconv.ParseFloat(strings.TrimSpace(first), 64); err == nil || strings.TrimSpace(first) == "" {
			continue
		}
		c, err := cities.Named(text)
		if err != nil {
			return query.Query{}, fault.In("near", err)
		}
		values["near"][i] = fmt.Sprintf("%v,%v", c.Point.Lat, c.Point.Lon)
	}
	q, err := queries.ParseValues(values)
	if err == nil {
		err = withCodes(&q)
	}
	return q, within("url", err)
}

// withCodes puts codes for the names of countries.
func withCodes(q *query.Query) (err error) {
	q.Countries = slices.Clone(q.Countries)
	for i, name := range q.Countries {
		if q.Countries[i], err = cities.Country(name); err != nil {
			return fault.In(fmt.Sprintf("countries[%d]", i), err)
		}
	}
	return nil
}

// withPlace puts degrees for the city of a question in JSON. A question without a city gets the error wrong.
func withPlace(body []byte, wrong error) ([]byte, error) {
	var q, near map[string]json.RawMessage
	var city string
	if json.Unmarshal(body, &q) != nil {
		return nil, wrong
	}
	switch {
	case json.Unmarshal(q["near"], &city) == nil:
		near = map[string]json.RawMessage{}
	case json.Unmarshal(q["near"], &near) != nil || json.Unmarshal(near["city"], &city) != nil:
		return nil, wrong
	case near["latitude"] != nil || near["longitude"] != nil:
		return nil, fault.Invalidf("near.city", nil, "stands in place of latitude and longitude: leave them out")
	}
	c, err := cities.Named(city)
	if err != nil {
		return nil, fault.In("near.city", err)
	}
	delete(near, "city")
	near["latitude"], near["longitude"] = degrees(c.Point)
	if q["near"], err = json.Marshal(near); err != nil {
		return nil, wrong
	}
	return json.Marshal(q)
}

func degrees(p geo.Point) (lat, lon json.RawMessage) {
	return strconv.AppendFloat(nil, p.Lat, 'g', -1, 64), strconv.AppendFloat(nil, p.Lon, 'g', -1, 64)
}
