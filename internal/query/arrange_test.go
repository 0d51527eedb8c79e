package query

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// priced seals an offer of one of some providers; without an endpoint it has nothing to call.
func priced(t testing.TB, provider byte, id int, price float64, endpoints ...string) *records.Record {
	s := rich()
	s.Id, s.Pricing.BasePrice, s.Metadata.Endpoints = fmt.Sprintf("o%03d", id), ptr(price), endpoints
	return seal(t, provider, s)
}

func byPrice(t testing.TB, limit int) *Plan {
	return compile(t, query.Query{Type: "compute", Sort: query.SortPrice, Limit: limit, Claims: query.ClaimsCheck})
}

func hitsOf(p *Plan, recs []*records.Record) (hits []Hit) {
	for _, r := range recs {
		hits = append(hits, p.Hit(r))
	}
	p.Arrange(hits)
	return hits
}

// What can be called comes first, and a provider has two results before all others had one. With ClaimsTrust the price alone decides.
func TestArrange(t *testing.T) {
	const at = "https://a.net"
	recs := []*records.Record{
		priced(t, 1, 1, 0.1), priced(t, 1, 2, 0.2), // nothing to call
		priced(t, 2, 3, 1, at), priced(t, 2, 4, 2, at), priced(t, 2, 5, 3, at), priced(t, 2, 6, 4, at), priced(t, 2, 7, 5, at),
		priced(t, 3, 8, 9, at),
	}
	order := func(hits []Hit) (ids []string) {
		for _, h := range hits {
			ids = append(ids, h.Record.Name().ID)
		}
		return ids
	}
	p := byPrice(t, 4)
	require.Equal(t, []string{"o003", "o004", "o008", "o005", "o006", "o007", "o001", "o002"}, order(hitsOf(p, recs)))
	q := p.Query()
	q.Claims = query.ClaimsTrust
	require.Equal(t, []string{"o001", "o002", "o003", "o004", "o005", "o006", "o007", "o008"}, order(hitsOf(compile(t, q), recs)))

	hits := hitsOf(p, recs[2:])
	for i := range hits { // all in one network but the dearest of the second provider, so its turn comes sooner
		if hits[i].Record.Name().ID != "o007" {
			hits[i].Network = netip.MustParsePrefix("192.0.2.0/24")
		}
	}
	p.Arrange(hits)
	require.Equal(t, []string{"o003", "o004", "o005", "o008", "o006", "o007"}, order(hits))
}

// The first of a union are among the first of its parts, whatever the value, so keepers need not know of each other. A value beyond Worst is no result.
func TestArrangementMerges(t *testing.T) {
	var pool []*records.Record
	for i := range 60 {
		var endpoints []string
		if i%7 != 0 {
			endpoints = []string{"https://a.net"}
		}
		pool = append(pool, priced(t, byte(1+i%9*i%5), i, float64(i*37%11), endpoints...))
	}
	rapid.Check(t, func(rt *rapid.T) {
		p := byPrice(t, rapid.IntRange(1, 20).Draw(rt, "limit"))
		var all, sent []*records.Record
		parts := make([][]*records.Record, 3)
		for _, r := range pool {
			if n := rapid.IntRange(0, 4).Draw(rt, "part"); n < 3 {
				all, parts[n] = append(all, r), append(parts[n], r)
			}
		}
		for _, part := range parts {
			hits := hitsOf(p, part)
			for i, h := range hits {
				if i < p.Limit() {
					sent = append(sent, h.Record)
				} else {
					require.False(rt, p.Before(h.Record, part[:0]), "nothing is listed")
				}
			}
		}
		want, got := hitsOf(p, all), hitsOf(p, sent)
		n := min(p.Limit(), len(want))
		require.Equal(rt, want[:n], got[:n])
		worst := p.Worst(sent)
		require.LessOrEqual(rt, p.Worst(all), worst)
		for _, h := range want[:n] {
			require.LessOrEqual(rt, h.Value, worst)
		}
		if n > 0 && n < len(want) {
			listed := make([]*records.Record, n)
			for i := range listed {
				listed[i] = want[i].Record
			}
			require.False(rt, p.Before(want[n].Record, listed))
			first := slices.Delete(slices.Clone(listed), 0, 1)
			require.True(rt, n == 1 || p.Before(want[0].Record, first))
		}
	})
}
