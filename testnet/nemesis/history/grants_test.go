package history

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestGrants: what a ledger allows is no violation, and each thing that none allows is one.
func TestGrants(t *testing.T) {
	at := func(token uint64, request string, units uint32, call, ret, until int) Purchase {
		s := time.Second
		return Purchase{Offer: "o", Provider: "p", Token: token, Request: request, Units: units, Call: time.Duration(call) * s, Return: time.Duration(ret) * s, Until: time.Duration(until) * s}
	}
	honest := []Purchase{
		at(1, "a", 3, 0, 1, 10), at(2, "b", 2, 0, 2, 5), // full
		at(2, "b", 2, 0, 3, 5),   // repeated
		at(3, "c", 2, 1, 5, 8),   // when b ends
		at(6, "d", 5, 10, 12, 9), // over before its answer came
	}
	for name, c := range map[string]struct {
		more  []Purchase
		found int
	}{
		"honest":                       {nil, 0},
		"one unit too many":            {[]Purchase{at(5, "e", 1, 6, 7, 8)}, 1},
		"two grants of one request":    {[]Purchase{at(7, "b", 1, 20, 21, 22)}, 1},
		"a token that does not rise":   {[]Purchase{at(2, "e", 1, 20, 21, 22)}, 1},
		"a provider has its own count": {[]Purchase{{Offer: "q", Provider: "q", Token: 1, Request: "q", Units: 5, Call: 20 * time.Second, Return: 21 * time.Second, Until: time.Minute}}, 0},
	} {
		g := NewGrants(5)
		for _, b := range append(append([]Purchase{}, honest...), c.more...) {
			g.Note(b)
		}
		require.Len(t, g.Result().Violations, c.found, "%s: %v", name, g.Result().Violations)
		require.Equal(t, len(honest)+len(c.more), g.Result().Checked)
	}
}
