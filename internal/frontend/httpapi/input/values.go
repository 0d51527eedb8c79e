package input

import (
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Query reads the parameters of a URL. Unlike URL.Query it refuses malformed text.
func Query(u *url.URL) (url.Values, error) {
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, fault.Invalidf("url", nil, "cannot be read: %w", err)
	}
	return values, nil
}

// isList reports whether a parameter is a list of texts with commas. Clients made from the OpenAPI document repeat it.
func isList(name string) bool {
	return slices.Contains([]string{"health", "tags", "topics", "types"}, name)
}

// Known is Query for the given parameters, each at most once. It refuses all others. It joins the values of a
// repeated list.
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
			return nil, fault.Invalidf(Quote(name), nil, "is an unknown parameter: remove it")
		}
		if isList(name) {
			values.Set(name, strings.Join(values[name], ","))
		}
		if _, err := Single(values, name); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// Single returns the value of a parameter that may occur once.
func Single(values url.Values, name string) (string, error) {
	if n := len(values[name]); n > 1 {
		return "", fault.Invalidf(name, n, "occurs more than once: give one value")
	}
	return values.Get(name), nil
}

// Number reads a numeric parameter, by default zero.
func Number(values url.Values, name string) (int64, error) {
	given := values.Get(name)
	if given == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(given, 10, 64)
	if err != nil || n < 0 {
		return 0, fault.Invalidf(name, Quote(given), "needs a whole number, at least 0")
	}
	return n, nil
}

// ParseBool reads a boolean parameter, by default false.
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
