package httpapi

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/internal/platform/cities"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
)

// places puts degrees for a city, and codes for countries, into a question by parameters. Errors name the field.
func places(values url.Values) error {
	for i, text := range values["near"] {
		p, named, err := placeOf(text)
		if err != nil {
			return fault.In("near", err)
		}
		if named {
			values["near"][i] = fmt.Sprintf("%v,%v", p.Lat, p.Lon)
		}
	}
	for i, list := range values["countries"] {
		all := strings.Split(list, ",")
		for n, name := range all {
			code, err := cities.Country(strings.TrimSpace(name))
			if err != nil && strings.TrimSpace(name) != "" {
				return fault.In("countries", err)
			}
			all[n] = code
		}
		values["countries"][i] = strings.Join(all, ",")
	}
	return nil
}

// placeOf finds a city, the text of a place that does not begin with a number.
func placeOf(text string) (p geo.Point, named bool, err error) {
	first, _, _ := strings.Cut(text, ",")
	if _, err := strconv.ParseFloat(strings.TrimSpace(first), 64); err == nil || strings.TrimSpace(first) == "" {
		return p, false, nil
	}
	c, err := cities.Named(text)
	return c.Point, true, err
}

// placesIn is places for a question in JSON, where near is {"city": "Berlin", "radius_km": 50}. What is no such question stays as it is: its
// parser says what is wrong.
func placesIn(body []byte) ([]byte, error) {
	var q, near map[string]json.RawMessage
	var city string
	var names []string
	if json.Unmarshal(body, &q) != nil {
		return body, nil
	}
	changed := false
	if json.Unmarshal(q["near"], &near) == nil && json.Unmarshal(near["city"], &city) == nil {
		if near["latitude"] != nil || near["longitude"] != nil {
			return nil, fault.Invalidf("near.city", nil, "stands in place of latitude and longitude: leave them out")
		}
		c, err := cities.Named(city)
		if err != nil {
			return nil, fault.In("near.city", err)
		}
		delete(near, "city")
		near["latitude"], near["longitude"] = json.RawMessage(fmt.Sprint(c.Point.Lat)), json.RawMessage(fmt.Sprint(c.Point.Lon))
		q["near"], changed = raw(near), true
	}
	if json.Unmarshal(q["countries"], &names) == nil {
		for i, name := range names {
			code, err := cities.Country(name)
			if err != nil {
				return nil, fault.In(fmt.Sprintf("countries[%d]", i), err)
			}
			changed, names[i] = changed || code != name, code
		}
		q["countries"] = raw(names)
	}
	if !changed {
		return body, nil
	}
	return raw(q), nil
}

// raw is the JSON of what was JSON before.
func raw(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		panic("httpapi: " + err.Error()) // unreachable: texts and raw JSON have a form
	}
	return text
}
