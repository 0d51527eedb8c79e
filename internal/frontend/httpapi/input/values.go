package input

import (
	"net/url"
	"slices"
	"strconv"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Query reads the parameters of a URL. Unlike URL.Query it does not pass over what is
// malformed.
func Query(u *url.URL) (url.Values, error) {
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, fault.Invalidf("url", nil, "%w", err)
	}
	return values, nil
}

// Known is Query for the parameters named, each of which may be given once.
func Known(u *url.URL, known ...string) (url.Values, error) {
	if u.RawQuery == "" {
		return nil, nil
	}
	values, err := Query(u)
	if err != nil {
		return nil, err
	}
	for name := range values {
		if !slices.Contains(known, name) {
			return nil, fault.Invalidf(Quote(name), nil, "is no parameter of this request")
		}
		if _, err := Single(values, name); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// Single gives the value of a parameter that may be given once.
func Single(values url.Values, name string) (string, error) {
	if n := len(values[name]); n > 1 {
		return "", fault.Invalidf(name, n, "is given more than once")
	}
	return values.Get(name), nil
}

// Number reads a parameter that is a number, 0 when it is not there.
func Number(values url.Values, name string) (int64, error) {
	given := values.Get(name)
	if given == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(given, 10, 64)
	if err != nil || n < 0 {
		return 0, fault.Invalidf(name, Quote(given), "must be a number, 0 or above")
	}
	return n, nil
}

// ParseBool reads a parameter that is true or false, or not there.
func ParseBool(values url.Values, name string) (bool, error) {
	switch given := values.Get(name); given {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	default:
		return false, fault.Invalidf(name, Quote(given), "must be true or false")
	}
}
